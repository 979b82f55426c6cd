"""The masks that take the place of a read's own rule."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from operator import mul
from typing import TypeVar

import pytest

from pagedkv_protocols.conformance.clauses import Clause, check
from pagedkv_protocols.conformance.kit import CacheKit
from pagedkv_protocols.conformance.reference import HIDDEN, Mask, draw_mask
from pagedkv_protocols.conformance.rows import flat
from pagedkv_protocols.conformance.seen import Question, Seen

ArrayT = TypeVar("ArrayT")

SHAPES = ["[S]", "[L, S]", "[1, S]", "[1, 1, L, S]", "[B, 1, L, S]", "[B, Hq, L, S]", "[Hq, 1, S]"]
"""Shapes that are broadcastable to ``[B, Hq, L, S]``."""


class MaskTests(CacheKit[ArrayT]):
    """``attend(mask=...)`` with ``None``, a bool array and an additive one."""

    def test_no_mask_lets_every_query_see_every_position(
        self, dtype: str, window: int | None
    ) -> None:
        """R10: no causality is left, and no sliding window."""
        for seen in self.reads_of_each_kind(dtype, window):
            question = seen.question(mask=None)
            seen.check(Clause.MASK, question)
            if seen.num_queries > 1:
                same = seen.bits(Clause.MASK, question) == seen.bits(Clause.MASK)
                check(not same, Clause.MASK, seen.case, "the answer of the read's own rule")

    @pytest.mark.parametrize("shape", SHAPES)
    def test_a_bool_mask_takes_the_place_of_the_rule(
        self, dtype: str, window: int | None, shape: str
    ) -> None:
        """True where a query may look, into the future of the window too."""
        for seen in self.reads_of_each_kind(dtype, window):
            seen.check(Clause.MASK, seen.question(mask=self._mask(seen, shape, "bool")))

    @pytest.mark.parametrize("shape", SHAPES)
    def test_an_additive_mask_takes_the_place_of_the_rule(self, dtype: str, shape: str) -> None:
        """It is added to the scaled scores, in any float dtype (R04)."""
        for seen in self.reads_of_each_kind(dtype):
            for added in self.dtypes:
                seen.check(Clause.MASK, seen.question(mask=self._mask(seen, shape, added)))

    def test_each_query_head_is_masked_by_its_own_plane(self, dtype: str) -> None:
        """R03: a head left with one position gives that position's values."""
        for seen in self.reads_of_each_kind(dtype):
            heads, length = self.dims.num_query_heads, seen.rows.length
            chosen = [(5 * head + 1) % length for head in range(heads)]
            visible = tuple(
                float(head == 0 or j == chosen[head])
                for head in range(heads)
                for _ in range(seen.num_queries)
                for j in range(length)
            )
            mask = Mask((1, heads, seen.num_queries, length), visible, "bool")
            seen.check(Clause.MASK_HEAD, seen.question(mask=mask))

    def test_masked_positions_weigh_nothing_however_low_the_others_score(self, dtype: str) -> None:
        """R04: every score left is below 0, so no fill value may be near 0."""
        for seen in self.reads_of_each_kind(dtype):
            question = seen.question(spread=2.5)
            low = self._lowest(seen, question)
            seen.check(Clause.MASK, question._replace(mask=low))

    def test_a_row_with_nothing_left_is_finite_under_a_bool_mask(self, dtype: str) -> None:
        """R04: and the other rows are as if it were not there."""
        for seen in self.reads_of_each_kind(dtype):
            self._check_empty_row(seen, "bool", 0.0, math.isfinite)

    def test_a_row_with_nothing_left_is_nan_under_an_additive_mask(self, dtype: str) -> None:
        """R04: in that row alone."""
        for seen in self.reads_of_each_kind(dtype):
            self._check_empty_row(seen, dtype, HIDDEN, math.isnan)

    def _check_empty_row(
        self, seen: Seen[ArrayT], dtype: str, nothing: float, fits: Callable[[float], bool]
    ) -> None:
        """Hide everything from the last query, and nothing from the others."""
        length, everything = seen.rows.length, 1.0 - nothing if dtype == "bool" else 0.0
        values = [everything] * length * (seen.num_queries - 1) + [nothing] * length
        question = seen.question(mask=Mask((seen.num_queries, length), tuple(values), dtype))
        answer = seen.setting.arrays.values(seen.ask(question))
        most = seen.setting.tolerance(seen.setting.dtype)
        width = self.dims.value_dim
        for at, right in enumerate(flat(seen.right(question))):
            in_last = at // width % seen.num_queries == seen.num_queries - 1
            holds = fits(answer[at]) if in_last else abs(answer[at] - right) <= most
            check(holds, Clause.MASK_ROW, f"{seen.case}; {question}", f"{answer[at]} at {at}")

    def _lowest(self, seen: Seen[ArrayT], question: Question) -> Mask:
        """A mask that leaves each query of each head the lower half of its scores below 0."""
        gqa_factor = self.dims.num_query_heads // self.dims.num_kv_heads
        visible: list[float] = []
        for head, queries in enumerate(question.queries):
            for query in queries:
                keys = seen.rows.keys[head // gqa_factor]
                scores = [sum(map(mul, query, key)) for key in keys]
                middle = sorted(scores)[len(scores) // 2]
                visible += [float(s <= min(middle, max(min(scores), -0.01))) for s in scores]
        shape = (1, len(question.queries), seen.num_queries, seen.rows.length)
        return Mask(shape, tuple(visible), "bool")

    def _mask(self, seen: Seen[ArrayT], shape: str, dtype: str) -> Mask:
        sizes = {
            "B": 1,
            "1": 1,
            "Hq": self.dims.num_query_heads,
            "L": seen.num_queries,
            "S": seen.rows.length,
        }
        source = random.Random(shape)  # noqa: S311 - the same in every run
        return draw_mask(source, tuple(sizes[axis] for axis in shape[1:-1].split(", ")), dtype)
