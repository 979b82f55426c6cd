"""DonorConformance: rows handed out to other layers or machines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from pagedkv_protocols.capabilities import DONOR, Capability
from pagedkv_protocols.conformance.clauses import Clause, check
from pagedkv_protocols.conformance.kit import CacheKit
from pagedkv_protocols.conformance.subject import Subject
from pagedkv_protocols.read import DonorRows

ArrayT = TypeVar("ArrayT")


class DonorConformance(CacheKit[ArrayT]):
    """``capture_donor_rows``: the stored positions in order, owned."""

    claims: Sequence[Capability[Any]] = (DONOR,)

    def test_donor_rows_are_the_stored_positions(self, dtype: str, window: int | None) -> None:
        """With where they begin and end, in the stored dtype, never a trimmed one."""
        subject = self.subject(dtype, window=window, having=DONOR)
        for length, trimmed in ((self.block_size + 1, 2), (1, 0), (9, 3), (2, 1)):
            subject.window(length)
            self._check_donor(subject, self._capture(subject))
            subject.trim(trimmed)
            self._check_donor(subject, self._capture(subject))

    def test_donor_rows_are_the_callers_own(self, dtype: str) -> None:
        """Overwritten, they change no cache and no read; nor does the cache change them."""
        subject = self.subject(dtype, having=DONOR)
        seen = subject.window(self.block_size + 2)
        rows = self._capture(subject)
        before = self.arrays.bits(rows.keys), self.arrays.bits(rows.values)
        subject.decode()
        subject.trim(3)
        subject.window(self.block_size + 4)
        subject.evaluate()
        after = self.arrays.bits(rows.keys), self.arrays.bits(rows.values)
        check(before == after, Clause.HANDED_OUT, f"{subject.case}, donor rows", "other bits")
        self.arrays.spoil(rows.keys)
        self.arrays.spoil(rows.values)
        subject.check_holds(Clause.OWNED)
        seen.check(Clause.OWNED)

    def test_donor_rows_outlive_the_cache(self, dtype: str) -> None:
        """They are nobody else's."""
        subject = self.subject(dtype, having=DONOR)
        subject.window(5)
        rows = self._capture(subject)
        subject.cache.dispose()
        found = subject.setting.rows(rows.keys, rows.values)
        check(found == subject.stored, Clause.OWNED, f"{subject.case}, disposed", str(found))

    def test_donor_rows_can_be_appended_elsewhere(self, dtype: str) -> None:
        """Another cache that takes them reads the same (R40)."""
        subject, other = self.subject(dtype, having=DONOR), self.subject(dtype)
        subject.window(self.block_size + 1)
        rows = self._capture(subject)
        other.cache.append_window(rows.keys, rows.values).dispose()
        found = other.cache.export()
        assert found is not None
        stored = other.setting.rows(*self.as_stored(rows.keys, rows.values))
        same = other.setting.rows(*found) == stored
        check(same, Clause.DONOR, f"{subject.case}, appended elsewhere", "other rows")

    def _capture(self, subject: Subject[ArrayT]) -> DonorRows[ArrayT]:
        return self.having(subject.cache, DONOR).capture_donor_rows()

    def _check_donor(self, subject: Subject[ArrayT], rows: DonorRows[ArrayT]) -> None:
        start = subject.cache.start
        marks = rows.offset, rows.start, rows.end
        wanted = subject.length, start, subject.length
        check(marks == wanted, Clause.DONOR, subject.case, f"offset, start, end {marks}")
        same = subject.setting.rows(rows.keys, rows.values) == subject.stored.span(start)
        check(same, Clause.DONOR, subject.case, "other rows")
        kinds = [self.arrays.dtype(array) for array in (rows.keys, rows.values)]
        check(kinds == [subject.setting.dtype] * 2, Clause.DONOR, subject.case, str(kinds))
