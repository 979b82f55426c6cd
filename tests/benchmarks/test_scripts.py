"""Every script of benchmarks/ that has a quick mode runs and prints its tables."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "benchmarks"

TABLES = {
    "cpu_decode": ("Whole step", "Building one layer's append and read", "the size of the pool"),
    "memory": ("Peak memory of a prefill",),
    "quality": ("Quality of page formats",),
}
"""What each prints above a table."""


def said_by(name: str, option: str) -> str:
    words = [sys.executable, str(SCRIPTS / f"{name}.py"), option]
    done = subprocess.run(words, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", TABLES)
def test_a_script_runs_quickly_and_prints_its_tables(name: str) -> None:
    said = said_by(name, "--quick")
    for heading in TABLES[name]:
        assert heading in said
    assert said.count("\n|--") >= len(TABLES[name])
    for fact in ("device", "versions", "commit", "command"):
        assert re.search(rf"^- {fact}: \S", said, re.MULTILINE)
    assert not re.search(r"\b(nan|inf)\b", said)


@pytest.mark.parametrize("name", TABLES)
def test_a_script_says_what_it_takes(name: str) -> None:
    said = said_by(name, "--help")
    assert "--quick" in said
    assert "--save" in said
