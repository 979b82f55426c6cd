"""What a cache hands out: it never changes under the caller, and what is exported is his."""

from __future__ import annotations

from typing import TypeVar

from pagedkv_protocols.conformance.clauses import Clause, check
from pagedkv_protocols.conformance.kit import CacheKit
from pagedkv_protocols.conformance.subject import Subject

ArrayT = TypeVar("ArrayT")


class OwnershipTests(CacheKit[ArrayT]):
    """``offset``, ``state``, ``export`` and ``signature``."""

    def test_the_offset_counts_what_was_appended_and_not_trimmed(self, dtype: str) -> None:
        """From 0, by every call."""
        subject = self.subject(dtype)
        subject.check_holds()
        for length in (3, 1, self.block_size, 9):
            subject.window(length)
            subject.check_holds()
        subject.trim(5)
        subject.check_holds()

    def test_an_offset_in_hand_does_not_move(self) -> None:
        """R31: it is a number, no view of one."""
        subject = self.subject()
        subject.window(5)
        held = subject.cache.offset
        subject.window(3)
        check(held == 5 and type(held) is int, Clause.HANDED_OUT, subject.case, repr(held))

    def test_exported_rows_are_the_live_ones(self, dtype: str, window: int | None) -> None:
        """In order, in the stored dtype, never a trimmed one."""
        subject = self.subject(dtype, window=window)
        for length, trimmed in ((self.block_size + 1, 2), (1, 0), (9, 3), (2, 1)):
            subject.window(length)
            subject.check_holds()
            subject.trim(trimmed)
            subject.check_holds()
        for array in subject.cache.export() or ():
            found = self.arrays.dtype(array)
            check(found == dtype, Clause.EXPORT, subject.case, found)

    def test_exported_rows_are_the_callers_own(self, dtype: str) -> None:
        """Overwritten, they change no cache and no read; nor does the cache change them."""
        subject = self.subject(dtype)
        seen = subject.window(self.block_size + 2)
        exported = subject.cache.export()
        assert exported is not None
        before = [self.arrays.bits(array) for array in exported]
        self._overwrite_the_tail(subject)
        after = [self.arrays.bits(array) for array in exported]
        check(before == after, Clause.HANDED_OUT, f"{subject.case}, export", "other bits")
        for array in exported:
            self.arrays.spoil(array)
        subject.check_holds(Clause.OWNED)
        seen.check(Clause.OWNED)

    def test_the_state_in_hand_does_not_change(self, dtype: str) -> None:
        """R31: a write gives the cache new arrays, or lands beyond what was handed out."""
        subject = self.subject(dtype)
        subject.window(self.block_size + 2)
        state = subject.cache.state()
        before = [self.arrays.bits(array) for array in state]
        self._overwrite_the_tail(subject)
        after = [self.arrays.bits(array) for array in state]
        check(type(state) is tuple, Clause.HANDED_OUT, subject.case, type(state).__name__)
        check(before == after, Clause.HANDED_OUT, f"{subject.case}, state", "other bits")

    def test_the_signature_is_of_the_storage_and_not_of_the_rows(self, dtype: str) -> None:
        """Two caches that were made alike have one, whatever they hold."""
        subject, other = self.subject(dtype), self.subject(dtype)
        for each, length in ((subject, 3), (other, 9)):
            each.window(length)
        mine, theirs = subject.cache.signature(), other.cache.signature()
        check(mine == theirs and bool(mine), Clause.SIGNATURE, subject.case, f"{mine}, {theirs}")

    def test_the_window_is_the_one_asked_for(self, window: int | None) -> None:
        """And nothing is given back before the first append."""
        cache = self.new_cache(window=window)
        check(cache.window == window, Clause.WINDOW, "new cache", f"window {cache.window}")
        check(cache.start == 0, Clause.OFFSET, "new cache", f"start {cache.start}")

    def _overwrite_the_tail(self, subject: Subject[ArrayT]) -> None:
        subject.decode()
        subject.evaluate()
        subject.trim(3)
        subject.window(self.block_size + 4)
        subject.evaluate()
