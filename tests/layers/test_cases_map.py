"""tests/cases.toml is true: every record has its clauses, every clause a test or what it awaits."""

import ast
import functools
import importlib
import pathlib
import re
import sys
from typing import Any

import pytest

ROOT = pathlib.Path(__file__).parents[2]
RECORDS = [
    *("R01", "R02", "R03", "R04", "R06", "R07", "R08", "R10", "R11", "R13", "R14", "R16", "R18"),
    *("R20", "R23", "R24", "R25", "R27", "R29", "R30", "R31", "R33", "R34", "R35", "R36", "R37"),
    *("R38", "R39", "R40"),
]
AWAITED = {"direct reads", "PagedKVRows", "PrefixIndex", "save and load", "threads"}


def read_cases() -> dict[str, dict[str, Any]]:
    toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    cases: dict[str, dict[str, Any]] = toml.loads((ROOT / "tests" / "cases.toml").read_text())
    return cases


CASES = read_cases()
NAMED = {test: clause for clause, about in CASES.items() for test in about.get("tests", [])}


@functools.cache
def names_in(path: str) -> frozenset[str]:
    """The test functions of a file, methods too."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
    return frozenset(node.name for node in functions if node.name.startswith("test_"))


def all_tests() -> set[str]:
    files = [str(path.relative_to(ROOT)) for path in sorted((ROOT / "tests").rglob("test_*.py"))]
    return {f"{path}::{name}" for path in files for name in names_in(path)}


def test_every_record_has_clauses_and_every_clause_a_record():
    assert sorted({clause.partition(".")[0] for clause in CASES}) == RECORDS
    assert all(re.fullmatch(r"R\d\d\.[a-z0-9_]+", clause) for clause in CASES)


@pytest.mark.parametrize("clause", CASES)
def test_a_clause_says_what_it_is_and_has_tests_or_waits(clause):
    about = CASES[clause]
    assert about["case"]
    assert about.keys() in ({"case", "tests"}, {"case", "waits"})
    assert about.get("tests", ["waits"])
    assert about.get("waits", next(iter(AWAITED))) in AWAITED


@pytest.mark.parametrize("test", NAMED)
def test_a_named_test_is_there_and_carries_the_id_of_its_record(test):
    path, _, name = test.partition("::")
    assert name in names_in(path)
    assert name.startswith(f"test_{NAMED[test][:3].lower()}_")


def test_every_test_that_carries_an_id_is_named_by_a_clause():
    carrying = {test for test in all_tests() if re.search(r"::test_r\d\d_", test)}
    assert carrying - NAMED.keys() == set()
