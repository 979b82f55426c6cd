"""Seen: a read, the rows and the rule it should have, and the questions put to it."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from pagedkv_protocols.conformance.clauses import Clause, broken, check
from pagedkv_protocols.conformance.reference import (
    Mask,
    Rule,
    all_positions,
    attention,
)
from pagedkv_protocols.conformance.rows import Heads, Rows, draw, flat
from pagedkv_protocols.conformance.setting import Setting
from pagedkv_protocols.errors import Unsupported
from pagedkv_protocols.read import PHASE, Phase, Read

ArrayT = TypeVar("ArrayT")


class Question(NamedTuple):
    """The arguments of one ``attend``, as plain numbers."""

    queries: Heads
    dtype: str
    scale: float
    mask: Mask | Phase | None
    sinks: Sequence[float] | None
    softcap: float | None

    def __str__(self) -> str:
        mask = self.mask
        shown = f"{mask.dtype} {list(mask.shape)}" if isinstance(mask, Mask) else mask
        return (
            f"{len(self.queries)} heads of {len(self.queries[0])} {self.dtype} queries, "
            f"mask {shown}, sinks {self.sinks}, softcap {self.softcap}"
        )


@dataclass(frozen=True)
class Seen(Generic[ArrayT]):
    """A read of ``num_queries`` positions that should see ``rows`` under ``rule``.

    ``exact`` is the reference's read of the same append; ``case`` says what led here.
    """

    setting: Setting[ArrayT]
    read: Read[ArrayT]
    exact: Read[ArrayT] | None
    rows: Rows
    rule: Rule
    num_queries: int
    case: str

    def question(
        self,
        *,
        mask: Mask | Phase | None = PHASE,
        sinks: Sequence[float] | None = None,
        softcap: float | None = None,
        spread: float = 0.5,
        num_heads: int | None = None,
        dtype: str | None = None,
    ) -> Question:
        """Queries drawn for this read, asked in this way.

        ``spread`` is the standard deviation of the scores, about.
        """
        dims = self.setting.dims
        scale = 3 * spread / math.sqrt(dims.key_dim)
        source = random.Random(self.case)  # noqa: S311 - the same in every run
        queries = draw(source, num_heads or dims.num_query_heads, self.num_queries, dims.key_dim)
        return Question(queries, dtype or self.setting.dtype, scale, mask, sinks, softcap)

    def ask(self, question: Question | None = None, read: Read[ArrayT] | None = None) -> ArrayT:
        """What the read answers, not evaluated."""
        question = question or self.question()
        setting = self.setting
        queries, dtype, scale, mask, sinks, softcap = question
        return (read or self.read).attend(
            setting.array(queries, setting.dims.key_dim, dtype),
            scale,
            mask=setting.mask(mask) if isinstance(mask, Mask) else mask,
            sinks=None if sinks is None else setting.arrays.make(sinks, (len(sinks),), dtype),
            softcap=softcap,
        )

    def answer(self, clause: Clause, question: Question | None = None) -> ArrayT:
        """What the read answers; fail if it does not, unless it is ``Unsupported``."""
        __tracebackhide__ = True
        question = question or self.question()
        try:
            return self.ask(question)
        except Unsupported:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, it is no answer
            broken(clause, self._case(question), f"it raised {error!r}")

    def bits(self, clause: Clause, question: Question | None = None) -> bytes:
        """What the read answers, to the bit."""
        __tracebackhide__ = True
        return self.setting.arrays.bits(self.answer(clause, question))

    def right(self, question: Question) -> Heads:
        """The right answer, in float64."""
        queries, _, scale, mask, sinks, softcap = question
        return attention(queries, self.rows, scale, self._rule(mask), sinks, softcap)

    def check(self, clause: Clause, question: Question | None = None) -> None:
        """Ask, and fail unless the answer is right, and the reference's to the bit."""
        __tracebackhide__ = True
        question = question or self.question()
        self.compare(clause, self.answer(clause, question), question)

    def compare(self, clause: Clause, answer: ArrayT, question: Question) -> None:
        """Fail unless ``answer`` is right, and the reference's to the bit."""
        __tracebackhide__ = True
        self._check_kind(answer, question)
        self._check_numbers(clause, answer, question)
        if self.exact is not None:
            exact = self.setting.arrays.bits(self.ask(question, self.exact))
            same = self.setting.arrays.bits(answer) == exact
            check(same, Clause.EXACT, self._case(question), "other bits")

    def _rule(self, mask: Mask | Phase | None) -> Rule:
        if isinstance(mask, Mask):
            return mask.rule
        return all_positions if mask is None else self.rule

    def _case(self, question: Question) -> str:
        return f"{self.case}; attended by {question}"

    def _check_kind(self, answer: ArrayT, question: Question) -> None:
        __tracebackhide__ = True
        arrays, queries = self.setting.arrays, question.queries
        wanted = (1, len(queries), len(queries[0]), self.setting.dims.value_dim)
        found = arrays.shape(answer), arrays.dtype(answer)
        check(found == (wanted, question.dtype), Clause.RESULT, self._case(question), str(found))

    def _check_numbers(self, clause: Clause, answer: ArrayT, question: Question) -> None:
        __tracebackhide__ = True
        right = flat(self.right(question))
        found = self.setting.arrays.values(answer)
        unit = max(1.0, *map(abs, flat(self.rows.values)), 0.0)
        most = unit * self.setting.tolerance(self.setting.dtype, question.dtype)
        wrong = [at for at in range(len(right)) if not abs(found[at] - right[at]) <= most]
        if wrong:
            head, i, column = self._place(wrong[0])
            broken(
                clause,
                self._case(question),
                f"{found[wrong[0]]:.7g} at head {head}, query {i}, column {column}, where "
                f"{right[wrong[0]]:.7g} is right, by {most:g} at most; {len(wrong)} of "
                f"{len(right)} numbers are wrong",
            )

    def _place(self, index: int) -> tuple[int, int, int]:
        row, column = divmod(index, self.setting.dims.value_dim)
        return (*divmod(row, self.num_queries), column)
