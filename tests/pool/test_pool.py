"""Who holds which block: taking, sharing, releasing and pinning, and what is refused."""

import copy
import random
import threading
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagedkv_pool import BlockPool, PoolStats
from pagedkv_protocols import BlockNotHeld, InvalidArgument, PagedKVError, PoolExhausted
from tests.pool.model import state_of


def holding(*held: int, num_blocks: int = 8) -> BlockPool:
    """A pool in which just these blocks are held, each once."""
    pool = BlockPool(num_blocks)
    pool.take(num_blocks)
    pool.release([block for block in range(num_blocks) if block not in held])
    return pool


def test_blocks_that_are_given_once_over_are_shared_pinned_and_released_like_a_list():
    pool = holding(1, 3)
    pool.share(iter([1, 3]))
    pool.pin(iter([1, 3]), iter([2, 2]))
    pool.release(iter([1, 3]))
    assert [pool.ref_cnt(block) for block in (1, 3)] == [1, 1]
    pool.release(iter([1, 3]))
    assert pool.num_used == 2  # the pins are left
    pool.unpin(iter([1, 3]))
    assert pool.num_used == 0


# Taking.


def test_blocks_of_a_fresh_pool_are_taken_in_order():
    assert BlockPool(4).take(3) == [0, 1, 2]


def test_a_table_extends_its_last_run_when_the_next_slot_is_free():
    assert holding(1).take(2, after=1) == [2, 3]


def test_the_longest_free_run_is_begun_when_the_next_slot_is_held():
    assert holding(1, 2, 6).take(2, after=1) == [3, 4]


def test_the_lowest_of_the_longest_runs_is_begun():
    assert holding(2, 5).take(1) == [0]
    assert holding(0, 1, 4, 7).take(1) == [2]


def test_a_take_goes_on_in_the_next_longest_run_when_one_is_used_up():
    assert holding(0, 1, 4).take(5, after=1) == [2, 3, 5, 6, 7]
    assert holding(3, 6).take(6) == [0, 1, 2, 4, 5, 7]


def test_no_block_may_be_taken_which_is_nothing():
    pool = BlockPool(2)
    assert pool.take(0) == []
    assert pool.num_free == 2


def test_a_pool_may_begin_empty_and_grow():
    pool = BlockPool()
    assert pool.num_blocks == pool.num_free == 0
    pool.grow(2)
    assert pool.take(2) == [0, 1]
    pool.grow(1)
    assert pool.take(1, after=1) == [2]


def test_grown_blocks_join_the_free_run_before_them():
    pool = holding(0, num_blocks=2)
    pool.grow(2)
    assert pool.take(3) == [1, 2, 3]


# Holding.


def test_a_block_is_free_when_its_last_holder_releases_it():
    pool = BlockPool(1)
    [block] = pool.take(1)
    pool.share([block])
    pool.release([block])
    assert (pool.num_free, pool.ref_cnt(block)) == (0, 1)
    pool.release([block])
    assert (pool.num_free, pool.ref_cnt(block)) == (1, 0)


def test_a_shared_block_is_not_writable_until_one_holder_is_left():
    pool = BlockPool(1)
    [block] = pool.take(1)
    pool.share([block])
    assert not pool.is_writable(block, 0)
    pool.release([block])
    assert pool.is_writable(block, 0)


def test_a_free_block_is_not_writable():
    assert not BlockPool(1).is_writable(0, 0)


def test_a_block_would_be_free_without_its_one_holder_unless_a_read_keeps_it():
    pool = BlockPool(3)
    alone, shared, pinned = pool.take(3)
    pool.share([shared])
    pool.pin([pinned], [1])
    assert [pool.is_free_without(block) for block in (alone, shared, pinned)] == [
        True,
        False,
        False,
    ]
    pool.drop_pins([pinned])
    assert pool.is_free_without(pinned)


# Pinning.


def test_a_pinned_block_is_not_handed_out_until_its_last_pin_is_gone():
    pool = BlockPool(1)
    [block] = pool.take(1)
    pool.pin([block], [1])
    pool.pin([block], [1])
    pool.release([block])
    pool.unpin([block])
    assert (pool.num_free, pool.num_used, pool.stats().num_pinned) == (0, 1, 1)
    pool.unpin([block])
    assert pool.take(1) == [block]


def test_pinned_rows_are_the_most_that_any_pin_saw_until_all_are_gone():
    pool = BlockPool(1)
    [block] = pool.take(1)
    for rows in (3, 5, 2):
        pool.pin([block], [rows])
    pool.unpin([block, block])
    assert (pool.pinned_rows(block), pool.is_writable(block, 4)) == (5, False)
    assert pool.is_writable(block, 5)
    pool.unpin([block])
    assert (pool.pinned_rows(block), pool.is_writable(block, 0)) == (0, True)


def test_a_block_that_only_reads_keep_may_be_pinned_again():
    pool = BlockPool(1)
    [block] = pool.take(1)
    pool.pin([block], [1])
    pool.release([block])
    pool.pin([block], [2])
    pool.unpin([block])
    assert pool.num_free == 0


# Finalizers.


def test_what_finalizers_drop_is_given_back_by_the_next_call():
    pool = BlockPool(2)
    blocks = pool.take(2)
    pool.pin(blocks, [1, 1])
    pool.drop_holds(blocks)
    assert pool.num_free == 0
    pool.drop_pins(blocks)
    assert pool.num_free == 2


def test_a_finalizer_may_run_on_any_thread():
    pool = BlockPool(1)
    thread = threading.Thread(target=pool.drop_holds, args=[pool.take(1)])
    thread.start()
    thread.join()
    assert pool.num_free == 1


@pytest.mark.parametrize(
    "call",
    [
        lambda pool, blocks: pool.share(blocks),
        lambda pool, blocks: pool.release(blocks),
        lambda pool, blocks: pool.pin(blocks, [1]),
    ],
    ids=["share", "release", "pin"],
)
def test_what_a_finalizer_dropped_is_not_held_any_more(call):
    pool = BlockPool(1)
    blocks = pool.take(1)
    pool.drop_holds(blocks)
    with pytest.raises(BlockNotHeld):
        call(pool, blocks)
    assert pool.take(1) == blocks


def test_what_a_finalizer_unpinned_is_not_pinned_any_more():
    pool = BlockPool(1)
    blocks = pool.take(1)
    pool.pin(blocks, [1])
    pool.drop_pins(blocks)
    with pytest.raises(BlockNotHeld):
        pool.unpin(blocks)
    pool.release(blocks)
    assert pool.num_free == 1


# The rest.


def test_statistics_are_those_of_the_moment():
    pool = BlockPool(6)
    first, second, third = pool.take(3)
    pool.share([first])
    pool.pin([second], [1])
    pool.release([third])
    assert pool.stats() == PoolStats(
        num_blocks=6, num_free=4, num_used=2, num_shared=1, num_pinned=1, peak_used=3
    )


def test_a_pool_deep_copies_to_itself():
    pool = BlockPool(1)
    assert copy.deepcopy([pool])[0] is pool


# What is refused changes nothing.

REFUSED = [
    (lambda pool: pool.take(4), PoolExhausted, "wanted 4 blocks, 3 of 8 are free; release a seq"),
    (lambda pool: pool.take(-1), InvalidArgument, "wanted -1 blocks; at least 0 is legal"),
    (lambda pool: pool.check_free(4), PoolExhausted, "wanted 4 blocks, 3 of 8 are free"),
    (lambda pool: pool.grow(0), InvalidArgument, "grow by 0 blocks; at least 1 is legal"),
    (lambda pool: pool.grow(-2), InvalidArgument, "grow by -2 blocks"),
    (lambda pool: pool.share([0, 7]), BlockNotHeld, "block 7 has 0 holders, 1 are needed"),
    (lambda pool: pool.share([0, 4]), BlockNotHeld, "block 4 has 0 holders"),
    (lambda pool: pool.share([0, 8]), BlockNotHeld, "block 8 is none of this pool's 8"),
    (lambda pool: pool.release([0, 7]), BlockNotHeld, "block 7 has 0 holders"),
    (lambda pool: pool.release([0, 1, 0]), BlockNotHeld, "block 0 has 1 holders, 2 are needed"),
    (lambda pool: pool.release([0, 8]), BlockNotHeld, "block 8 is none of this pool's 8"),
    (lambda pool: pool.release([0, -1]), BlockNotHeld, "block -1 is none of this pool's 8"),
    (lambda pool: pool.pin([0, 7], [1, 1]), BlockNotHeld, "pin block 7, which is free"),
    (lambda pool: pool.pin([0, -1], [1, 1]), BlockNotHeld, "block -1 is none"),
    (lambda pool: pool.pin([0, 1], [1]), InvalidArgument, "pin 2 blocks, 1 numbers of rows"),
    (lambda pool: pool.unpin([3, 0]), BlockNotHeld, "unpin block 0 1 times, pinned 0"),
    (lambda pool: pool.unpin([3, 3]), BlockNotHeld, "unpin block 3 2 times, pinned 1"),
    (lambda pool: pool.unpin([3, 8]), BlockNotHeld, "block 8 is none"),
    (lambda pool: pool.ref_cnt(-1), BlockNotHeld, "block -1 is none"),
]


@pytest.mark.parametrize(("call", "error", "message"), REFUSED, ids=[why for *_, why in REFUSED])
def test_a_call_that_is_refused_says_why_and_changes_nothing(call, error, message):
    pool = holding(0, 1, 2, 3, 4)  # 2 is shared, 3 pinned, 4 pinned and not held
    pool.share([2])
    pool.pin([3, 4], [1, 2])
    pool.release([4])
    before = state_of(pool)
    with pytest.raises(error, match=message) as refusal:
        call(pool)
    assert isinstance(refusal.value, PagedKVError)
    assert state_of(pool) == before
    assert pool.take(3) == [5, 6, 7]


def test_a_pool_of_fewer_than_no_blocks_is_refused():
    with pytest.raises(InvalidArgument):
        BlockPool(-1)


# R20.


def test_r20_a_block_listed_twice_is_refused_with_one_holder_and_freed_once_with_two():
    pool = BlockPool(2)
    [block] = pool.take(1)
    before = state_of(pool)
    with pytest.raises(BlockNotHeld):
        pool.release([block, block])
    assert state_of(pool) == before
    pool.share([block])
    pool.release([block, block])
    assert pool.take(2) == [0, 1]  # once each


@pytest.mark.parametrize("block", [0, 1, 2, -1, -2])
def test_r20_a_block_that_was_never_taken_cannot_be_released(block):
    pool = BlockPool(2)
    before = state_of(pool)
    with pytest.raises(BlockNotHeld):
        pool.release([block])
    assert state_of(pool) == before


@settings(max_examples=5)
@given(st.integers(0, 2**32 - 1))
def test_r20_ten_thousand_random_calls_hand_out_no_block_that_is_held(seed):
    random_pool = RandomCalls(seed)
    for _ in range(10_000):
        random_pool.one_call()
    random_pool.release_all()


class RandomCalls:
    """A pool called at random, wrongly at times, beside a count of each block's holders."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.pool = BlockPool(24)
        self.held = Counter[int]()

    def one_call(self) -> None:
        blocks = [self.random.randrange(-2, 27) for _ in range(self.random.randrange(4))]
        self.random.choice([self.take, self.share, self.release])(blocks)
        num_used = len(+self.held)
        assert (self.pool.num_used, self.pool.num_free) == (num_used, 24 - num_used)

    def take(self, blocks: list[int]) -> None:
        if len(blocks) > 24 - len(+self.held):
            self.refused(PoolExhausted, lambda: self.pool.take(len(blocks)))
            return
        taken = self.pool.take(len(blocks), self.random.choice([None, *+self.held]))
        assert len(set(taken)) == len(blocks)
        assert not any(self.held[block] for block in taken)
        self.held.update(taken)

    def share(self, blocks: list[int]) -> None:
        if all(self.held[block] for block in blocks):
            self.pool.share(blocks)
            self.held.update(blocks)
        else:
            self.refused(BlockNotHeld, lambda: self.pool.share(blocks))

    def release(self, blocks: list[int]) -> None:
        if Counter(blocks) <= self.held:
            self.pool.release(blocks)
            self.held.subtract(blocks)
        else:
            self.refused(BlockNotHeld, lambda: self.pool.release(blocks))

    def refused(self, error, call):
        with pytest.raises(error):
            call()
        assert [self.pool.ref_cnt(b) for b in range(24)] == [self.held[b] for b in range(24)]

    def release_all(self) -> None:
        """None is lost, and none is free twice."""
        self.pool.release(list(self.held.elements()))
        assert sorted(self.pool.take(24)) == list(range(24))
