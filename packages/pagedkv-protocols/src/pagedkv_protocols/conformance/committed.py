"""CommittedConformance: positions that were decided elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import pytest

from pagedkv_protocols.capabilities import COMMITTED, Capability
from pagedkv_protocols.conformance.clauses import Clause, check
from pagedkv_protocols.conformance.kit import CacheKit
from pagedkv_protocols.conformance.late import CHANGES, check_late
from pagedkv_protocols.conformance.refusals import bad_later, bad_rows, check_rows_refused
from pagedkv_protocols.conformance.seen import Seen
from pagedkv_protocols.conformance.subject import Subject

ArrayT = TypeVar("ArrayT")


class CommittedConformance(CacheKit[ArrayT]):
    """``append_committed`` is the window read over the same positions."""

    claims: Sequence[Capability[Any]] = (COMMITTED,)

    def test_committed_positions_are_read_as_a_window(self, dtype: str, window: int | None) -> None:
        """In turn with windows and decodes."""
        subject = self.subject(dtype, window=window, having=COMMITTED)
        for length in (3, 1, self.block_size, 9):
            subject.append("append_committed", length).check(Clause.COMMITTED)
            subject.window(2).check(Clause.WINDOW)
        subject.decode().check(Clause.DECODE)
        subject.check_holds()

    def test_committed_positions_give_the_bits_of_a_window(
        self, dtype: str, window: int | None
    ) -> None:
        """The two reads are one."""
        mine, other = (self.subject(dtype, window=window, having=COMMITTED) for _ in "ab")
        for length in (self.block_size + 1, 3, 12):
            committed, seen = mine.append("append_committed", length), other.window(length)
            question = seen.question()
            same = committed.bits(Clause.COMMITTED, question) == seen.bits(Clause.WINDOW, question)
            check(same, Clause.COMMITTED, committed.case, "other bits")

    @pytest.mark.parametrize("change", CHANGES)
    def test_a_committed_read_is_of_the_moment_of_its_append(self, dtype: str, change: str) -> None:
        """Whenever it is asked for or evaluated."""

        def begin() -> tuple[Subject[ArrayT], Seen[ArrayT]]:
            subject = self.subject(dtype, having=COMMITTED)
            subject.window(self.block_size + 1)
            return subject, subject.append("append_committed", 3)

        check_late(self, begin, change, Clause.COMMITTED)

    @pytest.mark.parametrize("before", [0, 5])
    def test_committed_rows_that_do_not_fit_are_refused(self, before: int) -> None:
        """As a window's are."""
        subject = self.subject(having=COMMITTED)
        if before:
            subject.window(before)
        call = self.having(subject.cache, COMMITTED).append_committed
        bad = bad_later(self.dims) if before else bad_rows(self.dims)
        check_rows_refused(self, subject, call, bad)
        subject.append("append_committed", 3).check(Clause.UNCHANGED)
