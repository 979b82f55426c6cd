"""BlockReadConformance: the stored positions, read beside a block that is not stored."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, TypeVar

import pytest

from pagedkv_protocols.capabilities import BLOCK_READ, Capability
from pagedkv_protocols.conformance.clauses import Clause, check
from pagedkv_protocols.conformance.kit import CacheKit
from pagedkv_protocols.conformance.late import CHANGES, check_late
from pagedkv_protocols.conformance.reference import draw_mask
from pagedkv_protocols.conformance.refusals import (
    bad_later,
    bad_rows,
    check_rows_refused,
    fingerprint,
)
from pagedkv_protocols.conformance.seen import Seen
from pagedkv_protocols.conformance.subject import Subject

ArrayT = TypeVar("ArrayT")


class BlockReadConformance(CacheKit[ArrayT]):
    """``read_block``: all that is stored, then all of the block, with no mask."""

    claims: Sequence[Capability[Any]] = (BLOCK_READ,)

    @pytest.mark.parametrize("length", [1, 2, 4, 8, 9, 17])
    def test_each_query_sees_all_stored_and_all_of_the_block(
        self, dtype: str, window: int | None, length: int
    ) -> None:
        """Whatever the window: there is no mask."""
        subject = self.subject(dtype, window=window, having=BLOCK_READ)
        for before in (1, self.block_size, self.block_size + 2):
            subject.window(before)
            subject.block(length).check(Clause.BLOCK_READ)

    def test_nothing_is_appended(self, dtype: str, window: int | None) -> None:
        """Offset, rows and state are as before, whether the read is attended or not."""
        subject = self.subject(dtype, window=window, having=BLOCK_READ)
        subject.window(self.block_size + 1)
        before = fingerprint(self, subject.cache)
        subject.block(3).check(Clause.BLOCK_READ)
        subject.block(5).read.dispose()
        same = fingerprint(self, subject.cache) == before
        check(same, Clause.NOT_STORED, subject.case, "another offset, state or export")
        subject.decode().check(Clause.NOT_STORED)

    def test_a_mask_reaches_the_stored_positions_and_the_block(self, dtype: str) -> None:
        """Its last axis is both, in order."""
        subject = self.subject(dtype, having=BLOCK_READ)
        subject.window(self.block_size + 1)
        seen = subject.block(4)
        shape = (1, self.dims.num_query_heads, 4, seen.rows.length)
        for kind in ("bool", dtype):
            mask = draw_mask(random.Random(kind), shape, kind)  # noqa: S311
            seen.check(Clause.MASK, seen.question(mask=mask))

    def test_a_block_is_rounded_to_the_stored_dtype(self) -> None:
        """Its rows pass through no format, and the queries keep their dtype."""
        for later in self.dtypes[1:]:
            subject = self.subject(having=BLOCK_READ)
            subject.window(5)
            keys, values = subject.setting.pair(subject.draw(3), later)
            mine = subject.setting.rows(keys, values)
            read = self.having(subject.cache, BLOCK_READ).read_block(keys, values)
            other = subject.block(3)
            rows = subject.stored.then(mine)
            case = f"{subject.case}, read_block of 3 rows of {later}"
            Seen(other.setting, read, None, rows, other.rule, 3, case).check(Clause.DTYPE)

    @pytest.mark.parametrize("before", [0, 5])
    def test_block_rows_that_do_not_fit_are_refused(self, before: int) -> None:
        """As a window's are."""
        subject = self.subject(having=BLOCK_READ)
        if before:
            subject.window(before)
        call = self.having(subject.cache, BLOCK_READ).read_block
        bad = bad_later(self.dims) if before else bad_rows(self.dims)
        check_rows_refused(self, subject, call, bad)
        subject.block(3).check(Clause.UNCHANGED)

    @pytest.mark.parametrize("change", CHANGES)
    def test_a_block_read_is_of_the_moment_it_was_made(self, dtype: str, change: str) -> None:
        """Whenever it is asked for or evaluated."""

        def begin() -> tuple[Subject[ArrayT], Seen[ArrayT]]:
            subject = self.subject(dtype, having=BLOCK_READ)
            subject.window(self.block_size + 2)
            return subject, subject.block(3)

        check_late(self, begin, change, Clause.BLOCK_READ)
