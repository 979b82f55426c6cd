"""Sinks and softcap: taken into account, or refused."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeVar

from pagedkv_protocols.conformance.clauses import Clause
from pagedkv_protocols.conformance.kit import CacheKit
from pagedkv_protocols.conformance.reference import draw_mask
from pagedkv_protocols.conformance.seen import Question, Seen
from pagedkv_protocols.errors import Unsupported

ArrayT = TypeVar("ArrayT")


class OptionTests(CacheKit[ArrayT]):
    """``attend(sinks=..., softcap=...)`` on every path that a length may choose (R11)."""

    def test_sinks_join_each_softmax(self, dtype: str, window: int | None) -> None:
        """One score a query head, which takes weight and gives no value."""
        for seen in self.reads_of_each_kind(dtype, window):
            self._honoured(seen, Clause.SINKS, seen.question(sinks=self._sinks()))

    def test_sinks_join_under_a_mask(self, dtype: str) -> None:
        """The mask does not hide them."""
        for seen in self.reads_of_each_kind(dtype):
            question = seen.question(sinks=self._sinks(), mask=None)
            self._honoured(seen, Clause.SINKS, question)
            shape = (seen.num_queries, seen.rows.length)
            mask = draw_mask(random.Random(2), shape, "bool")  # noqa: S311
            self._honoured(seen, Clause.SINKS, question._replace(mask=mask))

    def test_softcap_is_the_formula_or_refused(self, dtype: str, window: int | None) -> None:
        """R11: scores of about 200, capped at 50; a dropped option would show."""
        for seen in self.reads_of_each_kind(dtype, window):
            self._honoured(seen, Clause.SOFTCAP, seen.question(softcap=50.0, spread=70.0))
            self._honoured(seen, Clause.SOFTCAP, seen.question(softcap=0.5))

    def test_softcap_comes_before_the_mask(self, dtype: str) -> None:
        """What the mask adds is not capped."""
        for seen in self.reads_of_each_kind(dtype):
            shape = (seen.num_queries, seen.rows.length)
            mask = draw_mask(random.Random(3), shape, dtype)  # noqa: S311
            self._honoured(seen, Clause.SOFTCAP, seen.question(softcap=0.5, mask=mask))

    def _honoured(self, seen: Seen[ArrayT], clause: Clause, question: Question) -> None:
        """Right or refused; and a read that refused an option still reads without it."""
        __tracebackhide__ = True
        try:
            seen.check(clause, question)
        except Unsupported:
            seen.check(clause, seen.question())

    def _sinks(self) -> Sequence[float]:
        return [(head % 5 - 1) / 2 for head in range(self.dims.num_query_heads)]
