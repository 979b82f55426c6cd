"""Trims: what is dropped, what is refused, and what is there afterwards."""

from __future__ import annotations

from typing import Any, TypeVar

import pytest

from pagedkv_protocols.conformance.clauses import Clause, check, refused
from pagedkv_protocols.conformance.kit import CacheKit
from pagedkv_protocols.errors import InvalidArgument, InvalidType, NotTrimmable

ArrayT = TypeVar("ArrayT")


class Index:
    """An integer of another library."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __index__(self) -> int:
        return self.value


class TrimTests(CacheKit[ArrayT]):
    """``trim`` and ``is_trimmable`` (R13, R14)."""

    def test_trim_drops_the_last_positions_and_says_how_many(self, dtype: str) -> None:
        """R13: 0, some, and more than there are."""
        subject = self.subject(dtype)
        subject.window(10)
        for n in (0, 4, 1, 99, 99, 0):
            subject.trim(n)
            subject.check_holds(Clause.TRIM)

    def test_trim_takes_any_integer(self, dtype: str) -> None:
        """Whatever ``operator.index`` takes."""
        subject = self.subject(dtype)
        subject.window(6)
        answer = subject.cache.trim(Index(2))
        check(answer == 2, Clause.TRIM, f"{subject.case}, trim of an index object", str(answer))
        check(type(answer) is int, Clause.TRIM, subject.case, f"a {type(answer).__name__}")

    @pytest.mark.parametrize("n", [-1, -5])
    def test_a_negative_trim_is_refused(self, n: int) -> None:
        """R13: and the offset does not move forward."""
        self._refused_trim(n, InvalidArgument)

    @pytest.mark.parametrize("n", [True, False, 2.0, "2", None], ids=repr)
    def test_a_trim_by_anything_but_an_integer_is_refused(self, n: object) -> None:
        """R13: a bool is no number of positions."""
        self._refused_trim(n, InvalidType)

    @pytest.mark.parametrize("n", range(10))
    def test_trim_then_append_is_as_if_the_trimmed_had_never_been(self, n: int) -> None:
        """R14: append n, trim t, append m for every t up to n and m up to 9."""
        for t in range(n + 1):
            for m in range(10):
                subject = self.subject()
                if n:
                    subject.window(n)
                subject.trim(t)
                if m:
                    subject.window(m).check(Clause.TRIM)
                subject.check_holds(Clause.TRIM)

    def test_a_sequence_trimmed_to_nothing_begins_again(
        self, dtype: str, window: int | None
    ) -> None:
        """R14: 10, trim 4, 1; all of it; then 9."""
        subject = self.subject(dtype, window=window)
        for appended, trimmed in ((10, 4), (1, 0), (2, 99), (9, 3)):
            subject.window(appended).check(Clause.WINDOW)
            if subject.cache.is_trimmable(trimmed):
                subject.trim(trimmed)
        subject.decode().check(Clause.TRIM)

    def test_drafts_are_trimmed_round_by_round(self, dtype: str, window: int | None) -> None:
        """R33: a window of 5 is verified, what was not accepted is dropped, fifteen times."""
        subject = self.subject(dtype, window=window)
        subject.window(7)
        for accepted in (0, 4, 1, 4, 4, 2, 0, 0, 3, 4, 1, 0, 2, 4, 3):
            subject.window(5).check(Clause.WINDOW)
            subject.trim(4 - accepted)
            subject.decode().check(Clause.TRIM)
            subject.trim(1)

    def test_a_cache_is_trimmable_exactly_where_trim_is_carried_out(
        self, dtype: str, window: int | None
    ) -> None:
        """Where nothing was given back that is everywhere."""
        length = 2 * self.block_size + 3
        for n in (0, 1, self.block_size, length - 1, length, length + 5):
            subject = self.subject(dtype, window=window)
            subject.window(length)
            self._check_trimmable(subject.cache, n, f"{subject.case}, {n} of {length}")

    def _check_trimmable(self, cache: Any, n: int, case: str) -> None:
        before = cache.offset
        says = cache.is_trimmable(n)
        check(says or cache.start > 0, Clause.TRIMMABLE, case, str(says))
        if says:
            check(cache.trim(n) == min(n, before), Clause.TRIMMABLE, case, "a shorter trim")
        else:
            refused(NotTrimmable, lambda: cache.trim(n), case, Clause.TRIMMABLE)
            check(cache.offset == before, Clause.UNCHANGED, case, f"offset {cache.offset}")

    def _refused_trim(self, n: Any, error: type[InvalidArgument | InvalidType]) -> None:
        subject = self.subject()
        subject.window(10)
        case = f"{subject.case}, trim({n!r})"
        refused(error, lambda: subject.cache.trim(n), case, Clause.TRIM_ARGUMENT)
        refused(error, lambda: subject.cache.is_trimmable(n), case, Clause.TRIM_ARGUMENT)
        subject.check_holds(Clause.UNCHANGED)
        subject.decode().check(Clause.UNCHANGED)
