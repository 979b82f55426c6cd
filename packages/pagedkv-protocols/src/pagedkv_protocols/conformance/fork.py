"""ForkConformance: one sequence that goes on in several ways (R16)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations
from typing import Any, TypeVar

import pytest

from pagedkv_protocols.capabilities import FORK, Capability
from pagedkv_protocols.conformance.clauses import Clause
from pagedkv_protocols.conformance.kit import CacheKit
from pagedkv_protocols.conformance.subject import Subject

ArrayT = TypeVar("ArrayT")

POINTS = ["within a block", "at the end of a block", "within the first block"]


class ForkConformance(CacheKit[ArrayT]):
    """``fork``: the same positions, and neither sees what the other does later."""

    claims: Sequence[Capability[Any]] = (FORK,)

    @pytest.mark.parametrize("point", POINTS)
    def test_a_fork_and_its_parent_go_on_apart(
        self, dtype: str, window: int | None, point: str
    ) -> None:
        """R16: three different rows behind the same ones; each reads its own."""
        family = self._family(dtype, window, point)
        reads = [each.decode() for each in family]
        for seen in reads:
            seen.check(Clause.FORK)
        for length in (2, self.block_size + 1):
            for each in family:
                each.window(length).check(Clause.FORK)
        for each in family:
            each.check_holds(Clause.FORK)

    @pytest.mark.parametrize("order", list(permutations(range(3))), ids=str)
    def test_the_others_stay_right_whichever_ends_first(self, order: tuple[int, ...]) -> None:
        """R16: in all six orders."""
        family = self._family(self.dtypes[0], None, POINTS[0])
        for each in family:
            each.decode()
        for n, ended in enumerate(order):
            family[ended].cache.dispose()
            for index in order[n + 1 :]:
                family[index].window(2).check(Clause.FORK)
                family[index].check_holds(Clause.FORK)

    def test_a_trim_in_one_leaves_the_other(self, dtype: str) -> None:
        """Into a block that is full and shared, and written again."""
        parent, fork, other = self._family(dtype, None, POINTS[1])
        fork.trim(3)
        fork.window(2).check(Clause.FORK)
        parent.trim(1)
        parent.decode().check(Clause.FORK)
        other.decode().check(Clause.FORK)
        for each in (parent, fork, other):
            each.check_holds(Clause.FORK)

    def test_a_fork_of_a_fork_is_one(self, dtype: str, window: int | None) -> None:
        """Each level writes, and the levels above read on."""
        subject = self.subject(dtype, window=window, having=FORK)
        subject.window(self.block_size + 2)
        family = [subject]
        for _ in range(3):
            family.append(family[-1].fork())
            family[-1].decode().check(Clause.FORK)
        for each in family:
            each.window(3).check(Clause.FORK)
            each.check_holds(Clause.FORK)

    def test_a_fork_stores_as_its_parent_does(self, dtype: str, window: int | None) -> None:
        """The same signature and window."""
        parent, fork, _ = self._family(dtype, window, POINTS[0])
        assert fork.cache.signature() == parent.cache.signature(), Clause.FORK.value
        assert fork.cache.window == parent.cache.window, Clause.FORK.value
        assert fork.cache.start == parent.cache.start, Clause.FORK.value

    def _family(
        self, dtype: str, window: int | None, point: str
    ) -> tuple[Subject[ArrayT], Subject[ArrayT], Subject[ArrayT]]:
        """A parent and two forks of it."""
        size = self.block_size
        length = (size + size // 2, 2 * size, max(1, size // 2))[POINTS.index(point)]
        parent = self.subject(dtype, window=window, having=FORK)
        parent.window(length)
        return parent, parent.fork(), parent.fork()
