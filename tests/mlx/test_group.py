"""A group's caches change together or not at all."""

import copy
import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import mlx.core as mx
import pytest
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

from pagedkv_mlx import Blocks, Bytes, CacheGroup, LayerPages, PagedKVCache
from pagedkv_protocols import NotTrimmable, PoolExhausted
from tests.mlx.reference import (
    SMALL,
    Layer,
    Rows,
    answers,
    first,
    holds,
    joined,
    poison,
    used_by,
)

BLOCK = 4


class Aborted(Exception):
    """What ends a step early."""


@contextmanager
def aborted_step(group: CacheGroup, n: int) -> Iterator[None]:
    """A step that ends by an exception behind what is done in it."""
    with suppress(Aborted), group.step(n):
        yield
        raise Aborted


def limited(*limits: int | None, **options: Any) -> list[PagedKVCache]:
    """One cache a layer, over pages of so many blocks."""
    return [
        PagedKVCache(
            pages=LayerPages(block_size=BLOCK, limit=None if n is None else Blocks(n)), **options
        )
        for n in limits
    ]


def offsets(caches: Sequence[PagedKVCache]) -> list[int]:
    return [cache.offset for cache in caches]


def append(caches: Sequence[PagedKVCache], layer: Layer, length: int) -> None:
    for cache in caches:
        cache.append_window(*layer.rows(length)).dispose()


# A step.


def test_a_step_makes_room_in_every_layer_before_the_first_append():
    layer, caches = Layer(), limited(3, 3)
    group = CacheGroup(caches)
    with group.step(9):
        assert [cache.pool.num_used for cache in caches] == [3, 3]
        append(caches, layer, 9)
    assert [len(cache.block_table) for cache in caches] == [3, 3]


def test_room_that_was_asked_for_twice_is_taken_once():
    group = CacheGroup(limited(3, None))
    for _ in range(2):
        group.make_room(9)
    assert [cache.pool.num_used for cache in group.caches] == [3, 3]
    with group.step(12):
        pass
    assert group.trim(0) == 0
    assert [cache.pool.num_used for cache in group.caches] == [0, 0]


@pytest.mark.parametrize("order", [(1, 9), (9, 1), (None, 1), (1, None)], ids=str)
def test_a_step_that_one_layer_has_no_room_for_changes_no_layer(order):
    layer, caches = Layer(), limited(*order)
    group = CacheGroup(caches)
    append(caches, layer, 3)
    before = [cache.pool.stats() for cache in caches]
    with pytest.raises(PoolExhausted, match="0 of 1 are free"), group.step(2):
        raise AssertionError
    assert [cache.pool.stats() for cache in caches] == before
    assert offsets(caches) == [3, 3]


def test_leaving_a_step_by_an_exception_takes_every_layer_back():
    layer, caches = Layer(), limited(4, 4, 4)
    group = CacheGroup(caches)
    append(caches, layer, 6)
    rows = [cache.export() for cache in caches]
    with aborted_step(group, 5):
        append(caches[:2], layer, 5)
    assert offsets(caches) == [6, 6, 6]
    assert [cache.pool.num_used for cache in caches] == [2, 2, 2]
    assert all(holds(cache, was) for cache, was in zip(caches, rows, strict=True) if was)


def test_leaving_a_step_by_an_exception_leaves_what_was_trimmed_or_ended_in_it():
    layer, caches = Layer(), limited(4, 4, 4)
    group = CacheGroup(caches)
    append(caches, layer, 6)
    with aborted_step(group, 5):
        caches[0].trim(2)
        caches[1].dispose()
        append(caches[2:], layer, 5)
    assert offsets([caches[0], caches[2]]) == [4, 6]
    assert [cache.pool.num_used for cache in caches] == [1, 0, 2]


def test_a_step_of_many_appends_goes_back_behind_the_window_it_began_with():
    layer = Layer()
    caches = limited(8, 8, window=3, release_behind=True)
    group = CacheGroup(caches)
    append(caches, layer, 6)
    for _ in range(2):
        with aborted_step(group, 12):
            for _ in range(12):
                append(caches, layer, 1)
        assert offsets(caches) == [6, 6]
        assert [cache.start for cache in caches] == [4, 4]
    with group.step(12):
        for _ in range(12):
            append(caches, layer, 1)
    append(caches, layer, 1)
    assert [cache.start for cache in caches] == [16, 16]


def test_a_step_counts_the_blocks_that_windows_give_back():
    layer, caches = Layer(), limited(2, 2, 2, window=5, release_behind=True)
    group = CacheGroup(caches)
    for _ in range(30):
        append(caches, layer, 1)
    for _ in range(10):
        with group.step(1):
            append(caches, layer, 1)
    assert offsets(caches) == [40, 40, 40]


def test_a_refused_append_behind_a_window_gives_nothing_back():
    layer = Layer()
    caches = [*limited(9, window=3, release_behind=True), *limited(2)]
    group = CacheGroup(caches)
    append(caches, layer, 8)
    assert caches[0].start == 0
    with pytest.raises(PoolExhausted):
        append(caches, layer, 1)
    assert (caches[0].start, offsets(caches)) == (0, [8, 8])
    assert group.trim(8) == 8


# Shared tails.


def test_a_step_counts_the_copies_of_shared_tails():
    layer = Layer()
    [parent] = limited(5)
    append([parent], layer, 6)
    forks = [parent.fork() for _ in range(2)]
    group = CacheGroup([parent, *forks])
    with group.step(2):  # two copies, and the last holder writes in place
        append(group.caches, layer, 2)
    assert parent.pool.num_used == 4
    assert [cache.block_table[0] for cache in group.caches] == [0, 0, 0]
    assert len({cache.block_table[1] for cache in group.caches}) == 3
    with pytest.raises(PoolExhausted, match="wanted 3 blocks, 1 of 5"), group.step(1):
        raise AssertionError
    assert parent.pool.num_used == 4


def test_a_tail_with_a_holder_outside_the_group_is_copied_by_all_of_the_group():
    layer = Layer()
    [outside] = limited(4)
    append([outside], layer, 6)
    group = CacheGroup([outside.fork(), outside.fork()])
    with group.step(2):
        append(group.caches, layer, 2)
    assert outside.pool.num_used == 4
    tails = {cache.block_table[1] for cache in (outside, *group.caches)}
    assert len(tails) == 3
    with pytest.raises(PoolExhausted), CacheGroup([outside.fork()]).step(1):
        raise AssertionError


@pytest.mark.parametrize("free", [1, 2])
def test_a_step_counts_the_copy_that_a_live_read_of_another_fork_asks_for(free):
    layer = Layer()
    [parent] = limited(2 + free)
    append([parent], layer, 4)
    read, rows = parent.append_window(*layer.rows(3)), parent.export()
    assert rows is not None
    fork = parent.fork()
    fork.trim(2)
    group = CacheGroup([parent, fork])  # the fork would rewrite rows that the read has seen
    before, tables = parent.pool.stats(), [cache.block_table for cache in group.caches]
    if free == 1:
        with pytest.raises(PoolExhausted, match="wanted 2 blocks, 1 of 3"), group.step(1):
            raise AssertionError
        assert [cache.block_table for cache in group.caches] == tables
        assert parent.pool.stats() == before
    else:
        with group.step(1):
            append(group.caches, layer, 1)
    assert answers(read, layer, 3, rows)


# Appends without a step.


@pytest.mark.parametrize("which", [0, 1, 2])
def test_an_append_without_room_first_makes_room_in_all_of_the_group(which):
    layer, caches = Layer(), limited(3, 3, 3)
    group = CacheGroup(caches)
    append(caches, layer, 8)
    append([caches[which]], layer, 1)
    assert [cache.pool.num_used for cache in caches] == [3, 3, 3]
    append([c for c in caches if c is not caches[which]], layer, 1)
    assert offsets(group.caches) == [9, 9, 9]


def test_a_first_append_makes_room_in_layers_that_wait_for_their_layout_in_bytes():
    layer = Layer()
    block = BLOCK * SMALL.num_kv_heads * (SMALL.key_dim + SMALL.value_dim) * 2
    caches = [
        PagedKVCache(pages=LayerPages(block_size=BLOCK, limit=Bytes(n * block))) for n in (2, 1)
    ]
    group = CacheGroup(caches)
    append(caches, layer, 4)
    with pytest.raises(PoolExhausted, match="wanted 1 blocks, 0 of 1"):
        append(caches, layer, 1)
    assert offsets(caches) == [4, 4]
    assert [cache.pool.num_blocks for cache in group.caches] == [2, 1]


def test_after_a_failed_forward_the_caller_trims_all_layers_to_where_they_were():
    layer, caches = Layer(), limited(4, 4, 4)
    group = CacheGroup(caches)
    append(caches, layer, 6)
    rows = [cache.export() for cache in caches]
    append(caches[:1], layer, 7)  # and the forward fails in the second layer
    group.trim_to(6)
    assert offsets(caches) == [6, 6, 6]
    assert [cache.pool.num_used for cache in caches] == [2, 2, 2]
    assert all(holds(cache, was) for cache, was in zip(caches, rows, strict=True) if was)
    group.trim_to(99)
    assert offsets(caches) == [6, 6, 6]


def test_a_cache_whose_group_is_gone_goes_on_alone():
    layer, caches = Layer(), limited(1, 9)
    group = CacheGroup(caches)
    append(caches, layer, 4)
    with pytest.raises(PoolExhausted):
        append(caches[1:], layer, 1)
    del group
    gc.collect()
    append(caches[1:], layer, 1)
    assert offsets(caches) == [4, 5]


# Trims.


def test_r13_a_stack_in_which_one_layer_cannot_trim_trims_no_layer_and_says_so():
    layer = Layer()
    caches = [*limited(9), *limited(9, window=3, release_behind=True), *limited(9)]
    group = CacheGroup(caches)
    append(caches, layer, 8)
    append(caches, layer, 4)
    assert caches[1].start == 4
    assert (group.is_trimmable(6), group.is_trimmable(7)) == (True, False)
    with pytest.raises(NotTrimmable, match="wanted to trim 7 positions; 1 caches gave back"):
        group.trim(7)
    with pytest.raises(NotTrimmable, match="wanted to trim to 5"):
        group.trim_to(5)
    assert offsets(caches) == [12, 12, 12]
    assert group.trim(6) == 6
    assert offsets(caches) == [6, 6, 6]


def test_r13_a_group_trims_as_far_as_each_layer_goes_and_answers_the_least():
    layer, caches = Layer(), limited(9, 9)
    group = CacheGroup(caches)
    append(caches, layer, 5)
    append(caches[:1], layer, 3)
    assert group.trim(2) == 2
    assert offsets(caches) == [6, 3]
    assert group.trim(99) == 3
    assert offsets(caches) == [0, 0]


# Layers that borrow.


def test_r40_a_cache_listed_twice_is_changed_once():
    layer, caches = Layer(), limited(3, 3)
    group = CacheGroup([*caches, caches[0]])
    with group.step(4):
        append(caches, layer, 4)
    assert group.trim(3) == 3
    assert offsets(group.caches) == [1, 1, 1]
    assert group.nbytes == sum(cache.nbytes for cache in caches)


@pytest.mark.parametrize("split", [CacheGroup.fork, copy.deepcopy], ids=["fork", "deepcopy"])
def test_r40_a_fork_keeps_borrowed_layers_borrowed_and_makes_a_group_of_its_own(split):
    layer, caches = Layer(), limited(4, 4)
    group = CacheGroup([*caches, caches[0]])
    append(caches, layer, 6)
    rows = [cache.export() for cache in group.caches]
    fork = split(group)
    assert fork.caches[0] is fork.caches[2]
    assert not {*fork.caches} & {*group.caches}
    append(fork.caches[:1], layer, 3)  # no room in its own table: room in all of the fork's
    assert [len(cache.block_table) for cache in fork.caches] == [3, 3, 3]
    assert [len(cache.block_table) for cache in group.caches] == [2, 2, 2]
    fork.dispose()
    assert all(holds(cache, was) for cache, was in zip(group.caches, rows, strict=True) if was)
    assert [cache.pool.num_used for cache in caches] == [2, 2]


# Anything, in any order.


class Groups(RuleBasedStateMachine):
    """A full and a sliding layer under limits, groups that fork: all layers are as long.

    Rows of a group are the same in each layer, so that one list of them is the model.
    """

    @initialize(
        limits=st.tuples(*(st.sampled_from([None, 4, 7, 12]),) * 2),
        size=st.integers(1, 5),
        window=st.sampled_from([None, 1, 3, 6]),
    )
    def begin(self, limits: tuple[int | None, int | None], size: int, window: int | None) -> None:
        self.layer = Layer()
        self.pools = [
            LayerPages(block_size=size, limit=None if n is None else Blocks(n)) for n in limits
        ]
        sliding = PagedKVCache(
            pages=self.pools[1], window=window, release_behind=window is not None
        )
        self.groups = [CacheGroup([PagedKVCache(pages=self.pools[0]), sliding])]
        self.rows = [self.layer.no_rows()]
        self.reads: list[Any] = []

    def stats(self) -> list[object]:
        return [pages.pool.stats() for pages in self.pools]

    def tables(self) -> list[object]:
        return [cache.block_table for group in self.groups for cache in group.caches]

    def write(self, at: int, rows: Rows) -> None:
        for cache in self.groups[at].caches:
            cache.append_window(*rows).dispose()

    @rule(which=st.integers(0, 2), length=st.integers(1, 6), kept=st.booleans())
    def step(self, which: int, length: int, kept: bool) -> None:
        at = which % len(self.groups)
        rows, before = self.layer.rows(length), (self.stats(), self.tables())
        done = False
        try:
            with self.groups[at].step(length):
                done = True
                self.write(at, rows)
                if not kept:
                    raise Aborted
        except PoolExhausted:
            assert not done
            assert (self.stats(), self.tables()) == before
        except Aborted:
            pass
        else:
            self.rows[at] = joined(self.rows[at], rows)

    @rule(which=st.integers(0, 2), length=st.integers(1, 6))
    def forward(self, which: int, length: int) -> None:
        at = which % len(self.groups)
        rows, before = self.layer.rows(length), self.tables()
        try:
            self.write(at, rows)
        except PoolExhausted:
            assert self.tables() == before
        else:
            self.rows[at] = joined(self.rows[at], rows)

    @rule(which=st.integers(0, 2), n=st.integers(0, 8), to=st.booleans())
    def trim(self, which: int, n: int, to: bool) -> None:
        at = which % len(self.groups)
        end = self.rows[at][0].shape[2]
        left, group = max(0, end - n), self.groups[at]
        trim = partial(group.trim_to, left) if to else partial(group.trim, n)
        if not group.is_trimmable(n):
            with pytest.raises(NotTrimmable):
                trim()
            return
        assert trim() == (None if to else end - left)
        self.rows[at] = first(self.rows[at], left)

    @precondition(lambda self: len(self.groups) < 3)
    @rule(which=st.integers(0, 2))
    def fork(self, which: int) -> None:
        at = which % len(self.groups)
        self.groups.append(self.groups[at].fork())
        self.rows.append(self.rows[at])

    @precondition(lambda self: len(self.groups) > 1)
    @rule(which=st.integers(0, 2), dispose=st.booleans())
    def end(self, which: int, dispose: bool) -> None:
        at = which % len(self.groups)
        self.rows.pop(at)
        group = self.groups.pop(at)
        if dispose:
            group.dispose()

    @rule(which=st.integers(0, 2))
    def keep_a_read(self, which: int) -> None:
        at = which % len(self.groups)
        if self.rows[at][0].shape[2] and len(self.reads) < 3:
            cache = self.groups[at].caches[0]
            read = cache.read_block(*self.layer.rows(1))
            self.reads.append((read, self.rows[at]))

    @rule()
    def let_go_of_a_read(self) -> None:
        if self.reads:
            read, rows = self.reads.pop(0)
            assert all(
                mx.array_equal(part[:, :, :-1], want).item()
                for part, want in zip(read.gather(), rows, strict=True)
            )

    @rule()
    def poison_what_is_free(self) -> None:
        for pages in self.pools:
            poison(pages)

    @invariant()
    def every_layer_holds_the_rows(self) -> None:
        for group, rows in zip(self.groups, self.rows, strict=True):
            assert offsets(group.caches) == [rows[0].shape[2]] * 2
            for cache in group.caches:
                kept = rows[0][:, :, cache.start :], rows[1][:, :, cache.start :]
                assert holds(cache, kept) or not cache.offset

    @invariant()
    def only_tables_and_reads_hold_blocks(self) -> None:
        for at, pages in enumerate(self.pools):
            held = used_by(group.caches[at] for group in self.groups)
            used = pages.pool.num_used
            assert used >= held if self.reads else used == held


def test_any_steps_forwards_trims_and_forks_leave_all_layers_as_long():
    run_state_machine_as_test(Groups, settings=settings(stateful_step_count=20))
