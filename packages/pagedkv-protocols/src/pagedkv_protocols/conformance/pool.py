"""PoolConformance: blocks that are held by several and free when nobody holds them."""

from __future__ import annotations

import abc
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import ClassVar, Protocol

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from pagedkv_protocols.conformance.clauses import Clause, check, refused
from pagedkv_protocols.errors import BlockNotHeld, InvalidArgument, PoolExhausted


class Pool(Protocol):
    """Blocks, each a number, counted by how many hold it.

    It stands here and not among the protocols of the package because nothing but this kit
    calls a pool without knowing which.
    """

    @property
    def num_free(self) -> int:
        """How many blocks could be taken now."""
        ...

    def take(self, count: int, /) -> Sequence[int]:
        """``count`` free blocks, each held once from now on.

        Raises ``PoolExhausted`` where fewer are free, ``InvalidArgument`` below 0.
        """
        ...

    def share(self, blocks: Sequence[int], /) -> None:
        """One holder more for each. Raises ``BlockNotHeld`` for a block without any."""
        ...

    def release(self, blocks: Sequence[int], /) -> None:
        """One holder fewer for each time a block is listed; without any it is free.

        Raises ``BlockNotHeld`` for a block with fewer holders than it would lose.
        """
        ...


class PoolMachine(RuleBasedStateMachine):
    """A pool beside a plain count of holders.

    True between any two rules: the pool has as many free blocks as nobody holds.
    """

    kit: ClassVar[PoolConformance]

    def __init__(self) -> None:
        super().__init__()
        self.size: int = 0
        self.holders: Counter[int] = Counter()

    @initialize(size=st.integers(1, 12))
    def begin(self, size: int) -> None:
        """A pool of that many blocks."""
        self.size = size
        self.pool: Pool = self.kit.new_pool(size)

    @rule(count=st.integers(0, 6))
    def take(self, count: int) -> None:
        """Blocks that nobody holds, or a refusal."""
        if count > self.size - len(self.holders):
            refused(PoolExhausted, lambda: self.pool.take(count), f"take({count})")
            return
        taken = list(self.pool.take(count))
        fresh = len(set(taken)) == count == len(taken) and not self.holders.keys() & set(taken)
        check(fresh, Clause.POOL_TAKE, f"held {dict(self.holders)}, take({count})", str(taken))
        self.holders.update(taken)

    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        """One holder more for some, even twice for one; none for a block that is free."""
        blocks = data.draw(st.lists(st.integers(-1, self.size), max_size=4))
        if all(block in self.holders for block in blocks):
            self.pool.share(blocks)
            self.holders.update(blocks)
        else:
            refused(BlockNotHeld, lambda: self.pool.share(blocks), f"share({blocks})")

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        """One holder fewer for some, all or nothing."""
        blocks = data.draw(st.lists(st.integers(-1, self.size), max_size=4))
        if all(self.holders[block] >= n for block, n in Counter(blocks).items()):
            self.pool.release(blocks)
            self.holders -= Counter(blocks)
        else:
            refused(BlockNotHeld, lambda: self.pool.release(blocks), f"release({blocks})")
        self.holders = +self.holders

    @invariant()
    def a_block_is_free_or_held(self) -> None:
        """And never both."""
        if self.size:
            free = self.size - len(self.holders)
            case = f"{self.size} blocks, held {dict(self.holders)}"
            check(self.pool.num_free == free, Clause.POOL_COUNT, case, str(self.pool.num_free))


class PoolConformance(abc.ABC):
    """Take, share and release, each of which happens or changes nothing (R20)."""

    machine_settings: settings | None = None

    @abc.abstractmethod
    def new_pool(self, num_blocks: int) -> Pool:
        """A pool of ``num_blocks`` free blocks that does not grow by itself."""

    def test_every_block_can_be_taken_once(self) -> None:
        """All at once, or one by one; then none is left."""
        for counts in ([5], [1] * 5, [2, 0, 3]):
            pool = self.new_pool(5)
            taken = [block for count in counts for block in pool.take(count)]
            check(len(set(taken)) == 5, Clause.POOL_TAKE, f"5 blocks, take {counts}", str(taken))
            check(pool.num_free == 0, Clause.POOL_COUNT, f"take {counts}", str(pool.num_free))
            refused(PoolExhausted, partial(pool.take, 1), "take(1) of 0")

    def test_more_than_are_free_are_refused_whole(self) -> None:
        """Not one of them is taken."""
        pool = self.new_pool(4)
        held = pool.take(2)
        refused(PoolExhausted, lambda: pool.take(3), "take(3) of 2")
        check(pool.num_free == 2, Clause.UNCHANGED, "take(3) of 2", str(pool.num_free))
        again = pool.take(2)
        check(not set(held) & set(again), Clause.POOL_TAKE, f"held {held}", str(again))

    def test_a_negative_count_is_refused(self) -> None:
        """Nothing can be given back that way."""
        pool = self.new_pool(4)
        refused(InvalidArgument, lambda: pool.take(-1), "take(-1)")
        check(pool.num_free == 4, Clause.UNCHANGED, "take(-1)", str(pool.num_free))

    def test_a_block_is_free_when_its_last_holder_lets_go(self) -> None:
        """And not before."""
        pool = self.new_pool(3)
        block, other = pool.take(2)
        pool.share([block])
        pool.share([block])
        for holders in (3, 2, 1):
            case, free = f"{holders} holders", pool.num_free
            check(free == 1, Clause.POOL_HOLDERS, case, f"{free} free")
            pool.release([block])
        check(pool.num_free == 2, Clause.POOL_HOLDERS, "no holder", f"{pool.num_free} free")
        pool.release([other])
        check(pool.num_free == 3, Clause.POOL_HOLDERS, "all released", f"{pool.num_free} free")

    def test_a_block_released_twice_at_once_needs_two_holders(self) -> None:
        """R20: with one it is refused and stays held; with two it is freed once."""
        pool = self.new_pool(3)
        [block] = pool.take(1)
        refused(BlockNotHeld, lambda: pool.release([block, block]), "one holder, released twice")
        check(pool.num_free == 2, Clause.UNCHANGED, "one holder left", str(pool.num_free))
        pool.share([block])
        pool.release([block, block])
        check(pool.num_free == 3, Clause.POOL_HOLDERS, "two holders", str(pool.num_free))
        check(len(set(pool.take(3))) == 3, Clause.POOL_TAKE, "after that, take(3)", "a block twice")

    @pytest.mark.parametrize("method", ["share", "release"])
    def test_a_list_with_a_block_that_nobody_holds_is_refused_whole(self, method: str) -> None:
        """R20: never taken, released already, negative, or beyond the last."""
        pool = self.new_pool(3)
        held, gone = pool.take(2)
        pool.release([gone])
        for stranger in (gone, -1, 3, 10**6):
            case = f"{method}([{held}, {stranger}])"
            refused(BlockNotHeld, partial(getattr(pool, method), [held, stranger]), case)
            check(pool.num_free == 2, Clause.UNCHANGED, case, str(pool.num_free))
        pool.release([held])
        check(pool.num_free == 3, Clause.UNCHANGED, "released once", str(pool.num_free))

    def test_a_list_in_hand_does_not_change(self) -> None:
        """R31: neither by the pool nor, through it, the pool."""
        pool = self.new_pool(4)
        first = pool.take(2)
        before = list(first)
        pool.take(1)
        check(list(first) == before, Clause.HANDED_OUT, "take(2), take(1)", str(first))
        if isinstance(first, list):
            first.clear()
        pool.release(before)
        check(pool.num_free == 3, Clause.HANDED_OUT, "a list cleared", str(pool.num_free))

    def test_a_block_is_free_or_held_whatever_is_done(self) -> None:
        """Hypothesis looks for a schedule that breaks it, and prints the shortest."""
        chosen = self.machine_settings or settings(deadline=None, stateful_step_count=40)

        class AuthorsMachine(PoolMachine):
            kit = self

        run_state_machine_as_test(AuthorsMachine, settings=chosen)
