"""Running a conformance class that is expected to fail, to see where and why."""

from __future__ import annotations

import sys
from typing import Any

import pytest


def reports(pytester: pytest.Pytester, kit: type[Any]) -> dict[str, list[pytest.TestReport]]:
    """What came of each test of ``kit``, a class that pytest collects from its module's file."""
    where = f"{sys.modules[kit.__module__].__file__}::{kit.__name__}"
    run = pytester.inline_run(where, "-q", "--tb=short", "-p", "no:cacheprovider")
    found: dict[str, list[pytest.TestReport]] = {}
    for report in run.getreports("pytest_runtest_logreport"):
        assert isinstance(report, pytest.TestReport)
        if report.when == "call" or report.skipped:
            name = report.nodeid.rpartition("::")[2].partition("[")[0]
            found.setdefault(name, []).append(report)
    return found


def failures(reported: dict[str, list[pytest.TestReport]], test: str) -> list[str]:
    """What ``test`` said where it failed."""
    return [report.longreprtext for report in reported[test] if report.failed]
