"""The kit itself: it imports no array library, drops no test, and states nothing for show."""

import inspect
import pathlib
import subprocess
import sys
from typing import Any

import pytest

from pagedkv_protocols import COMMITTED, conformance
from pagedkv_protocols.conformance import CacheConformance, Clause
from pagedkv_protocols.conformance.kit import CacheKit
from pagedkv_protocols.conformance.rows import rounded

SOURCES = sorted(pathlib.Path(conformance.__file__).parent.glob("*.py"))


def loaded_by(module):
    code = f"import sys, {module}; print(*sys.modules)"
    shown = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return set(shown.stdout.split())


def test_the_protocols_do_not_load_the_kit_or_what_it_needs():
    loaded = loaded_by("pagedkv_protocols")
    assert not loaded & {"pagedkv_protocols.conformance", "pytest", "hypothesis"}


def test_the_kit_loads_no_array_library():
    assert not loaded_by("pagedkv_protocols.conformance") & {"jax", "mlx", "numpy", "torch"}


def test_no_part_of_the_cache_kit_hides_a_test_or_helper_of_another():
    owners: dict[str, list[str]] = {}
    for part in CacheConformance.__mro__:
        if issubclass(part, CacheKit) and part not in (CacheKit, CacheConformance):
            for name, _ in inspect.getmembers(part, inspect.isfunction):
                if name in vars(part):
                    owners.setdefault(name, []).append(part.__name__)
    assert {name: parts for name, parts in owners.items() if len(parts) > 1} == {}


def test_every_clause_is_one_that_some_test_can_break():
    text = "".join(source.read_text(encoding="utf-8") for source in SOURCES)
    assert [clause.name for clause in Clause if f"Clause.{clause.name}" not in text] == []


def test_every_test_of_the_kit_says_what_it_is_about():
    for name, test in inspect.getmembers(CacheConformance, inspect.isfunction):
        assert inspect.getdoc(test) or name.startswith("_"), name


@pytest.mark.parametrize(
    ("number", "dtype", "nearest"),
    [
        (1 + 2**-8, "bfloat16", 1.0),  # a tie goes to the even one
        (1 + 3 * 2**-8, "bfloat16", 1 + 2**-6),
        (188.0, "bfloat16", 188.0),
        (1 + 2**-11, "float16", 1.0),
        (1 + 2**-24, "float32", 1.0),
    ],
)
def test_numbers_are_rounded_to_the_nearest_ties_to_even(number, dtype, nearest):
    assert rounded(number, dtype) == nearest


NOTHING: Any = object()
"""A cache that can do nothing besides."""


class Humble(CacheKit[object]):
    def new_cache(self, *, window=None):
        return NOTHING


class Claiming(Humble):
    claims = (COMMITTED,)


def test_a_capability_that_is_claimed_must_be_there():
    with pytest.raises(AssertionError, match="what a backend claims, it has"):
        Claiming().having(NOTHING, COMMITTED)


def test_a_capability_that_is_not_claimed_may_be_missing():
    with pytest.raises(pytest.skip.Exception, match="no committed"):
        Humble().having(NOTHING, COMMITTED)
