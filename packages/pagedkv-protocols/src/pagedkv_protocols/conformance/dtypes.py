"""The stored dtype: the first keys fix it, and later rows are rounded to it."""

from __future__ import annotations

from functools import partial
from itertools import permutations
from typing import TypeVar

from pagedkv_protocols.conformance.clauses import Clause, check, refused
from pagedkv_protocols.conformance.kit import CacheKit
from pagedkv_protocols.conformance.rows import rounded
from pagedkv_protocols.errors import DtypeMismatch

ArrayT = TypeVar("ArrayT")

NUMBERS = [0.1621, 188.0, 436.0, -1 / 3, 1e-3, 0.0, -3.14159, 65.03]
"""R24: numbers that misread bytes would show, and that every dtype but float64 rounds."""


class DtypeTests(CacheKit[ArrayT]):
    """Rows of several dtypes in one sequence (R24)."""

    def test_an_array_is_the_numbers_it_was_made_from(self, dtype: str) -> None:
        """The adapter rounds to nearest, and the kit can rely on it."""
        array = self.arrays.make(NUMBERS, (2, 2, 2), dtype)
        found = self.arrays.shape(array), self.arrays.dtype(array), self.arrays.values(array)
        wanted = (2, 2, 2), dtype, [rounded(number, dtype) for number in NUMBERS]
        check(found == wanted, Clause.ADAPTER, f"make({NUMBERS}, (2, 2, 2), {dtype})", str(found))

    def test_later_rows_are_rounded_to_the_dtype_of_the_first(self) -> None:
        """Before and after every block boundary the pages keep their dtype."""
        for first, later in permutations(self.dtypes, 2):
            subject = self.subject(first)
            subject.window(self.block_size - 1)
            for length in (1, self.block_size + 1):
                subject.cache.append_window(*self._numbers(length, later)).dispose()
                wanted = self.as_stored(*self._numbers(length, later, first))
                subject.stored = subject.stored.then(subject.setting.rows(*wanted))
                subject.history.append(f"append_window of {length} rows of {later}")
                subject.check_holds(Clause.DTYPE)
                found = [self.arrays.dtype(array) for array in subject.cache.export() or ()]
                check(found == [first] * 2, Clause.DTYPE, subject.case, str(found))

    def test_keys_and_values_of_two_dtypes_are_refused_at_the_first_append(self) -> None:
        """There is one stored dtype."""
        for mine, theirs in permutations(self.dtypes, 2):
            subject = self.subject(mine)
            rows = self._numbers(2, mine)[0], self._numbers(2, theirs)[1]
            case = f"{subject.case}, keys {mine}, values {theirs}"
            refused(DtypeMismatch, partial(subject.cache.append_window, *rows), case)
            check(subject.cache.offset == 0, Clause.UNCHANGED, case, str(subject.cache.offset))
            subject.window(3).check(Clause.UNCHANGED)

    def _numbers(self, length: int, dtype: str, then: str | None = None) -> tuple[ArrayT, ArrayT]:
        """Keys and values, NUMBERS again and again, rounded to ``dtype``, then to another."""
        numbers = [rounded(number, dtype) for number in NUMBERS]
        _, heads, *dims = self.dims
        keys, values = (
            self.arrays.make(
                (numbers * heads * length * dim)[: heads * length * dim],
                (1, heads, length, dim),
                then or dtype,
            )
            for dim in dims
        )
        return keys, values
