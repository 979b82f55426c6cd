"""A cache that holds nothing: fresh, or trimmed to nothing (R23)."""

from __future__ import annotations

from typing import TypeVar

import pytest

from pagedkv_protocols.capabilities import BLOCK_READ, DONOR, FORK
from pagedkv_protocols.conformance.clauses import Clause, check, refused
from pagedkv_protocols.conformance.kit import CacheKit
from pagedkv_protocols.conformance.subject import Subject
from pagedkv_protocols.errors import Unsupported

ArrayT = TypeVar("ArrayT")


class EmptyTests(CacheKit[ArrayT]):
    """Every call on a cache that holds nothing answers, or refuses by a typed error."""

    def test_a_fresh_cache_has_no_rows_and_no_state(self) -> None:
        """Nothing is allocated before the first append."""
        subject = self.subject()
        cache = subject.cache
        found = cache.offset, cache.start, cache.export(), cache.state(), cache.trim(3)
        check(found == (0, 0, None, (), 0), Clause.EMPTY, subject.case, str(found))
        check(bool(cache.is_trimmable()), Clause.EMPTY, subject.case, "not trimmable")
        check(bool(cache.signature()), Clause.EMPTY, subject.case, "no signature")

    def test_a_cache_trimmed_to_nothing_exports_no_rows(self, dtype: str) -> None:
        """Its dims are known, so there are arrays: ``[1, Hkv, 0, D]``."""
        subject = self._trimmed(dtype)
        exported = subject.cache.export()
        check(exported is not None, Clause.EMPTY, subject.case, "None")
        subject.check_holds(Clause.EMPTY)
        check(subject.cache.trim(3) == 0, Clause.EMPTY, subject.case, "a trim of something")
        subject.evaluate()

    @pytest.mark.parametrize("begin", ["fresh", "trimmed"])
    def test_a_cache_that_holds_nothing_takes_rows(self, dtype: str, begin: str) -> None:
        """And reads them, and no others."""
        subject = self._empty(begin, dtype)
        subject.window(3).check(Clause.EMPTY)
        subject.decode().check(Clause.EMPTY)
        subject.check_holds(Clause.EMPTY)

    @pytest.mark.parametrize("begin", ["fresh", "trimmed"])
    def test_a_cache_that_holds_nothing_takes_a_decode(self, dtype: str, begin: str) -> None:
        """Its query sees itself."""
        self._empty(begin, dtype).decode().check(Clause.EMPTY)

    @pytest.mark.parametrize("begin", ["fresh", "trimmed"])
    def test_a_cache_that_holds_nothing_forks(self, dtype: str, begin: str) -> None:
        """And both go on."""
        subject = self._empty(begin, dtype)
        self.having(subject.cache, FORK)
        fork = subject.fork()
        for each in (fork, subject):
            each.window(3).check(Clause.EMPTY)
            each.check_holds(Clause.EMPTY)

    @pytest.mark.parametrize("begin", ["fresh", "trimmed"])
    def test_a_block_is_read_beside_nothing(self, dtype: str, begin: str) -> None:
        """It sees itself, and fixes nothing."""
        subject = self._empty(begin, dtype)
        self.having(subject.cache, BLOCK_READ)
        subject.block(4).check(Clause.EMPTY)
        check(subject.cache.offset == 0, Clause.NOT_STORED, subject.case, "another offset")
        subject.window(2).check(Clause.EMPTY)

    def test_a_fresh_cache_has_no_donor_rows(self) -> None:
        """No dims are known."""
        subject = self.subject()
        donor = self.having(subject.cache, DONOR)
        refused(Unsupported, donor.capture_donor_rows, subject.case, Clause.EMPTY)

    def test_donor_rows_of_a_cache_trimmed_to_nothing_are_none(self, dtype: str) -> None:
        """Their dims are known."""
        subject = self._trimmed(dtype)
        rows = self.having(subject.cache, DONOR).capture_donor_rows()
        found = *self.arrays.shape(rows.keys)[:3], rows.offset, rows.start, rows.end
        wanted = 1, self.dims.num_kv_heads, 0, 0, 0, 0
        check(found == wanted, Clause.EMPTY, subject.case, str(found))

    def _empty(self, begin: str, dtype: str) -> Subject[ArrayT]:
        return self.subject(dtype) if begin == "fresh" else self._trimmed(dtype)

    def _trimmed(self, dtype: str) -> Subject[ArrayT]:
        subject = self.subject(dtype)
        subject.window(self.block_size + 1)
        subject.trim(self.block_size + 1)
        return subject
