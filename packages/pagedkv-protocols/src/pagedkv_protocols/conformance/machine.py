"""CacheMachine: whatever is done in whatever order, caches and reads are as their rows say."""

from __future__ import annotations

from typing import Any, ClassVar, TypeVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from pagedkv_protocols.capabilities import BLOCK_READ, COMMITTED, FORK, supports
from pagedkv_protocols.conformance.clauses import Clause, broken
from pagedkv_protocols.conformance.kit import CacheKit
from pagedkv_protocols.conformance.seen import Seen
from pagedkv_protocols.conformance.subject import Subject

ArrayT = TypeVar("ArrayT")
INDEX = st.integers(0, 99)
LENGTH = st.integers(1, 9)
MOST = 60


class CacheMachine(RuleBasedStateMachine):
    """A family of caches of one parent, and reads that are kept for later.

    True between any two rules:

    - each cache has the offset and the rows that were appended and not trimmed;
    - each kept read gives the answer that it gave at first.
    """

    kit: ClassVar[CacheKit[Any]]

    def __init__(self) -> None:
        super().__init__()
        self.family: list[Subject[Any]] = []
        self.kept: list[tuple[Seen[Any], bytes]] = []

    @initialize(index=INDEX)
    def begin(self, index: int) -> None:
        """One cache, with one of the windows on offer."""
        windows = self.kit.windows()
        self.family = [self.kit.subject(window=windows[index % len(windows)])]

    @rule(index=INDEX, length=LENGTH, keep=st.booleans())
    def window(self, index: int, length: int, keep: bool) -> None:
        """Positions, attended at once."""
        subject = self._of(index)
        if subject.length + length <= MOST:
            self._attend(subject.window(length), Clause.WINDOW, keep)

    @rule(index=INDEX, keep=st.booleans())
    def decode(self, index: int, keep: bool) -> None:
        """One position, attended at once."""
        subject = self._of(index)
        if subject.length < MOST:
            self._attend(subject.decode(), Clause.DECODE, keep)

    @rule(index=INDEX, length=LENGTH)
    def append_unread(self, index: int, length: int) -> None:
        """Positions that nobody attends."""
        subject = self._of(index)
        if subject.length + length <= MOST:
            subject.window(length).read.dispose()

    @precondition(lambda self: supports(self.family[0].cache, COMMITTED))
    @rule(index=INDEX, length=LENGTH, keep=st.booleans())
    def committed(self, index: int, length: int, keep: bool) -> None:
        """Decided positions, attended at once."""
        subject = self._of(index)
        if subject.length + length <= MOST:
            self._attend(subject.append("append_committed", length), Clause.COMMITTED, keep)

    @precondition(lambda self: supports(self.family[0].cache, BLOCK_READ))
    @rule(index=INDEX, length=LENGTH, keep=st.booleans())
    def block(self, index: int, length: int, keep: bool) -> None:
        """A block beside what is stored."""
        self._attend(self._of(index).block(length), Clause.BLOCK_READ, keep)

    @rule(index=INDEX, n=st.integers(0, 12))
    def trim(self, index: int, n: int) -> None:
        """Back by some positions."""
        subject = self._of(index)
        if subject.cache.is_trimmable(n):
            subject.trim(n)

    @precondition(lambda self: len(self.family) < 4 and supports(self.family[0].cache, FORK))
    @rule(index=INDEX)
    def fork(self, index: int) -> None:
        """One more way to go on."""
        self.family.append(self._of(index).fork())

    @precondition(lambda self: len(self.family) > 1)
    @rule(index=INDEX)
    def dispose(self, index: int) -> None:
        """One way ends."""
        self.family.pop(index % len(self.family)).cache.dispose()

    @precondition(lambda self: self.kept)
    @rule(index=INDEX)
    def dispose_read(self, index: int) -> None:
        """A read is done."""
        self.kept.pop(index % len(self.kept))[0].read.dispose()

    @rule(index=INDEX)
    def evaluate(self, index: int) -> None:
        """What is pending is computed."""
        self._of(index).evaluate()

    @invariant()
    def each_cache_holds_its_rows(self) -> None:
        """No more, no fewer, in order."""
        for subject in self.family:
            subject.check_holds()

    @invariant()
    def each_kept_read_answers_as_it_did(self) -> None:
        """Whatever happened to the cache that it was made by."""
        for seen, before in self.kept:
            if seen.bits(Clause.AS_OF_APPEND) != before:
                now = "; ".join(subject.case for subject in self.family)
                broken(Clause.AS_OF_APPEND, f"{seen.case}; by now {now}", "other bits")

    def _of(self, index: int) -> Subject[Any]:
        return self.family[index % len(self.family)]

    def _attend(self, seen: Seen[Any], clause: Clause, keep: bool) -> None:
        seen.check(clause)
        if keep and len(self.kept) < 4:
            self.kept.append((seen, seen.bits(clause)))


class MachineTests(CacheKit[ArrayT]):
    """``CacheMachine``, run against the author's caches; ``machine_settings`` says how long."""

    machine_settings: settings | None = None

    def test_caches_and_reads_are_as_their_rows_say_whatever_is_done(self) -> None:
        """Hypothesis looks for a schedule that breaks them, and prints the shortest."""
        chosen = self.machine_settings or settings(deadline=None, stateful_step_count=16)

        class AuthorsMachine(CacheMachine):
            kit = self

        run_state_machine_as_test(AuthorsMachine, settings=chosen)
