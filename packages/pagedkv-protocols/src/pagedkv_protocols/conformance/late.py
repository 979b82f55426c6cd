"""Reads attended late: whatever happened to the cache since, the answer is the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import pytest

from pagedkv_protocols.capabilities import FORK
from pagedkv_protocols.conformance.clauses import Clause, check
from pagedkv_protocols.conformance.kit import CacheKit
from pagedkv_protocols.conformance.seen import Seen
from pagedkv_protocols.conformance.subject import Subject

ArrayT = TypeVar("ArrayT")


def later_decodes(subject: Subject[Any]) -> None:
    """Rows behind those seen, to the end of the block and beyond."""
    for _ in range(6):
        subject.decode()
        subject.evaluate()


def growth(subject: Subject[Any]) -> None:
    """More than was there before."""
    subject.window(33)
    subject.evaluate()


def a_trim(subject: Subject[Any]) -> None:
    """What was seen is dropped, in part."""
    subject.trim(2)


def a_trim_and_other_rows(subject: Subject[Any]) -> None:
    """Other rows take the place of some that were seen."""
    subject.trim(2)
    subject.window(7)
    subject.evaluate()


def a_new_beginning(subject: Subject[Any]) -> None:
    """Other rows take the place of all that were seen."""
    subject.trim(subject.length if subject.cache.is_trimmable(subject.length) else 1)
    subject.window(12)
    subject.evaluate()


def the_end_of_the_cache(subject: Subject[Any]) -> None:
    """Everything is given back."""
    subject.cache.dispose()


def a_fork_that_writes(subject: Subject[Any]) -> None:
    """Two sequences go on from what was seen, and one goes back first."""
    fork = subject.fork()
    subject.window(3)
    fork.trim(2)
    fork.window(5)
    for each in (subject, fork):
        each.evaluate()


def the_end_of_a_fork(subject: Subject[Any]) -> None:
    """A fork takes the place of what was seen, and ends."""
    fork = subject.fork()
    subject.trim(1)
    fork.window(3)
    fork.cache.dispose()
    subject.window(4)


Change = Callable[[Subject[Any]], None]

CHANGES: dict[str, Change] = {
    change.__name__: change
    for change in (
        later_decodes,
        growth,
        a_trim,
        a_trim_and_other_rows,
        a_new_beginning,
        the_end_of_the_cache,
        a_fork_that_writes,
        the_end_of_a_fork,
    )
}
"""What may happen between an append and the moment its read is attended, or evaluated."""


def check_late(
    kit: CacheKit[ArrayT],
    begin: Callable[[], tuple[Subject[ArrayT], Seen[ArrayT]]],
    change: str,
    clause: Clause,
) -> None:
    """Fail unless the reads that ``begin`` gives answer the same after ``change`` as before.

    Asked only afterwards, asked before and again, asked before and evaluated afterwards.
    ``clause`` is the one that is broken if the read was wrong to begin with.
    """
    __tracebackhide__ = True
    if "fork" in change:
        kit.having(begin()[0].cache, FORK)
    (first, asked), (second, unasked) = begin(), begin()
    question = asked.question()
    asked.check(clause, question)
    before = asked.bits(clause, question)
    pending = asked.ask(question)
    for subject in (first, second):
        CHANGES[change](subject)
    case = f"{asked.case}; then {change.replace('_', ' ')}"
    answers = {
        "asked again": asked.answer(Clause.AS_OF_APPEND, question),
        "asked late": unasked.answer(Clause.AS_OF_APPEND, question),
        "evaluated late": pending,
    }
    for when, answer in answers.items():
        asked.compare(Clause.AS_OF_APPEND, answer, question)
        same = kit.arrays.bits(answer) == before
        check(same, Clause.AS_OF_APPEND, f"{case}, {when}", "other bits")


class LateTests(CacheKit[ArrayT]):
    """A read is of the positions as of its append."""

    @pytest.mark.parametrize("change", CHANGES)
    def test_a_window_read_is_of_the_moment_of_its_append(
        self, dtype: str, window: int | None, change: str
    ) -> None:
        """Whenever it is asked for or evaluated."""

        def begin() -> tuple[Subject[ArrayT], Seen[ArrayT]]:
            subject = self.subject(dtype, window=window)
            subject.window(self.block_size + 1)
            return subject, subject.window(3)

        check_late(self, begin, change, Clause.WINDOW)

    @pytest.mark.parametrize("change", CHANGES)
    def test_a_decode_read_is_of_the_moment_of_its_append(
        self, dtype: str, window: int | None, change: str
    ) -> None:
        """Whenever it is asked for or evaluated."""

        def begin() -> tuple[Subject[ArrayT], Seen[ArrayT]]:
            subject = self.subject(dtype, window=window)
            subject.window(2 * self.block_size + 1)
            return subject, subject.decode()

        check_late(self, begin, change, Clause.DECODE)

    def test_many_reads_live_at_once(self, dtype: str, window: int | None) -> None:
        """Each keeps its own moment through a rewind."""
        subject = self.subject(dtype, window=window)
        reads = [subject.window(length) for length in (5, 1, 3)]
        for n, length in ((2, 1), (1, 4), (3, 2), (1, 6)):
            subject.trim(n)
            reads.append(subject.window(length))
        for seen in reads:
            seen.check(Clause.AS_OF_APPEND)

    def test_a_read_answers_the_same_again(self, dtype: str, window: int | None) -> None:
        """And other questions in between change nothing."""
        subject = self.subject(dtype, window=window)
        subject.window(self.block_size + 1)
        for seen in (subject.window(3), subject.decode()):
            before = seen.bits(Clause.AGAIN)
            seen.check(Clause.MASK, seen.question(mask=None))
            check(seen.bits(Clause.AGAIN) == before, Clause.AGAIN, seen.case, "other bits")
