"""The read of a window and of a decode: what each query sees, from cold and from warm."""

from __future__ import annotations

from typing import TypeVar

import pytest

from pagedkv_protocols.conformance.clauses import Clause, check
from pagedkv_protocols.conformance.kit import CacheKit
from pagedkv_protocols.conformance.rows import Dims
from pagedkv_protocols.errors import IllegalFormat

ArrayT = TypeVar("ArrayT")


class ReadTests(CacheKit[ArrayT]):
    """``append_decode`` and ``append_window``, attended under their own rule."""

    def test_a_decode_sees_every_stored_position_in_the_window(
        self, dtype: str, window: int | None
    ) -> None:
        """From the first position on, over two block boundaries."""
        subject = self.subject(dtype, window=window)
        for _ in range(2 * self.block_size + 1):
            subject.decode().check(Clause.DECODE)

    @pytest.mark.parametrize("length", [1, 2, 3, 4, 7, 8, 9, 16, 17, 33])
    def test_the_first_window_is_causal(self, dtype: str, window: int | None, length: int) -> None:
        """Query i sees the positions up to i."""
        self.subject(dtype, window=window).window(length).check(Clause.WINDOW)

    def test_a_window_on_a_warm_cache_is_aligned_bottom_right(
        self, dtype: str, window: int | None
    ) -> None:
        """Lengths around a block, on a history around two."""
        size = self.block_size
        for before in (1, size - 1, size, 2 * size + 1):
            for length in (2, 3, size, size + 1, 9):
                subject = self.subject(dtype, window=window)
                subject.window(before)
                subject.window(length).check(Clause.WINDOW)

    @pytest.mark.parametrize("length", range(1, 34))
    def test_a_window_of_any_length_to_33_sees_its_history(self, length: int) -> None:
        """R10: lengths on both sides of whatever a backend switches at."""
        subject = self.subject()
        subject.window(2 * self.block_size + 1)
        subject.window(length).check(Clause.WINDOW)

    def test_a_window_answers_as_its_positions_one_by_one(self, dtype: str) -> None:
        """R10: one call with L queries is L calls with one."""
        at_once, one_by_one = self.subject(dtype), self.subject(dtype)
        for subject in (at_once, one_by_one):
            subject.window(self.block_size + 1)
        seen = at_once.window(9)
        question = seen.question()
        seen.check(Clause.WINDOW, question)
        for i in range(9):
            one = question._replace(queries=[head[i : i + 1] for head in question.queries])
            one_by_one.decode().check(Clause.DECODE, one)
        check(at_once.stored == one_by_one.stored, Clause.WINDOW, at_once.case, "other rows")

    def test_windows_and_decodes_in_turn_see_all_that_came_before(
        self, dtype: str, window: int | None
    ) -> None:
        """A prompt in chunks, then tokens, then a window again."""
        subject = self.subject(dtype, window=window)
        for length in (5, 1, 1, 2, self.block_size, 1, 8, 1):
            seen = subject.decode() if length == 1 else subject.window(length)
            seen.check(Clause.DECODE if length == 1 else Clause.WINDOW)
        subject.check_holds()

    def test_an_append_may_be_left_unread(self, dtype: str) -> None:
        """The read of a prefill chunk is disposed unused."""
        subject = self.subject(dtype)
        for length in (3, self.block_size, 1):
            subject.window(length).read.dispose()
        subject.decode().check(Clause.DECODE)

    @pytest.mark.parametrize("gqa_factor", [1, 2, 3, 7])
    def test_any_multiple_of_the_kv_heads_may_attend(self, dtype: str, gqa_factor: int) -> None:
        """R40: a layer that borrows a read brings its own number of query heads."""
        subject = self.subject(dtype)
        subject.window(self.block_size + 1).check(Clause.WINDOW)
        seen = subject.window(3)
        seen.check(Clause.WINDOW, seen.question(num_heads=gqa_factor * self.dims.num_kv_heads))

    def test_the_scale_is_the_one_given(self, dtype: str) -> None:
        """Twice the scale is another answer."""
        seen = self.subject(dtype).window(5)
        for spread in (0.0, 0.2, 2.0):
            seen.check(Clause.WINDOW, seen.question(spread=spread))

    def test_queries_of_zero_give_the_mean_of_the_values_seen(
        self, dtype: str, window: int | None
    ) -> None:
        """R06: positions that are not there would show in the denominator."""
        subject = self.subject(dtype, window=window)
        for length in (self.block_size + 1, 1, 2):
            seen = subject.append("append_window", length)
            question = seen.question()
            zeros = [[[0.0] * self.dims.key_dim] * length] * len(question.queries)
            seen.check(Clause.WINDOW, question._replace(queries=zeros))

    def test_the_result_has_the_dtype_of_the_queries(self, dtype: str) -> None:
        """Whatever is stored."""
        subject = self.subject(dtype)
        subject.window(3)
        for asked in self.dtypes:
            seen = subject.window(2)
            seen.check(Clause.RESULT, seen.question(dtype=asked))

    @pytest.mark.parametrize("num_kv_heads", [1, 3])
    def test_any_number_of_kv_heads_is_stored(self, dtype: str, num_kv_heads: int) -> None:
        """One head, and one that is no power of two."""
        dims = self.dims._replace(num_query_heads=2 * num_kv_heads, num_kv_heads=num_kv_heads)
        self._walk(dtype, dims)

    def test_values_may_have_no_width(self, dtype: str) -> None:
        """As where a model keeps all it needs in the keys; a format may refuse it."""
        self._walk(dtype, self.dims._replace(value_dim=0))

    def _walk(self, dtype: str, dims: Dims) -> None:
        subject = self.subject(dtype, dims=dims)
        try:
            subject.window(self.block_size + 1).check(Clause.WINDOW)
        except IllegalFormat as error:
            pytest.skip(f"the format refuses: {error}")
        subject.decode().check(Clause.DECODE)
        subject.check_holds()
