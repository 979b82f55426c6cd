"""A sequence's blocks: growing, trimming, giving back, forking and copying on write."""

import contextlib
import copy
import itertools
import threading

import pytest

from pagedkv_pool import BlockPool, BlockTable
from pagedkv_protocols import InvalidArgument, PoolExhausted
from tests.pool.model import state_of
from tests.pool.tables import table_of, write

# Room.


def test_a_table_has_room_for_what_it_reserved_rounded_up_to_blocks():
    table = table_of(BlockPool(8), 9)
    assert (table.blocks, table.capacity, table.num_blocks) == ((0, 1, 2), 12, 3)
    assert [table.missing(length) for length in (0, 12, 13, 16, 17)] == [0, 0, 1, 1, 2]


def test_reserving_what_is_there_takes_nothing():
    pool = BlockPool(8)
    table = table_of(pool, 9)
    before = state_of(pool, table)
    for length in (0, 1, 9, 12):
        table.reserve(length)
    assert state_of(pool, table) == before


def test_a_table_goes_on_behind_its_last_block():
    pool = BlockPool(8)
    first, second = table_of(pool, 4), table_of(pool, 4)
    pool.release(pool.take(1))
    second.reserve(12)
    assert (first.blocks, second.blocks) == ((0,), (1, 2, 3))


def test_a_reservation_that_does_not_fit_takes_nothing():
    pool = BlockPool(3)
    table, other = table_of(pool, 4), table_of(pool, 4)
    before = state_of(pool, table, other)
    with pytest.raises(PoolExhausted, match="wanted 2 blocks, 1 of 3 are free"):
        table.reserve(12)
    assert state_of(pool, table, other) == before


@pytest.mark.parametrize("block_size", [0, -1])
def test_a_block_holds_at_least_one_position(block_size):
    pool = BlockPool(1)
    with pytest.raises(InvalidArgument, match=f"block_size is {block_size}; at least 1 is legal"):
        BlockTable(pool, block_size)
    assert pool.num_free == 1


# Runs.


def test_a_span_in_one_run_is_known_by_its_first_row():
    pool = BlockPool(8)
    table, _ = table_of(pool, 8), table_of(pool, 4)
    table.reserve(16)
    assert table.blocks == (0, 1, 3, 4)
    assert (table.run(1, 8), table.run(8, 16), table.run(7, 9)) == (1, 12, None)
    assert table.rows(6, 10) == [6, 7, 12, 13]
    assert not table.is_run
    table.trim(8)
    assert table.is_run


def test_the_list_of_rows_is_the_callers_to_change():
    table = table_of(BlockPool(2), 8)
    table.rows(0, 8).clear()
    assert table.rows(0, 8) == list(range(8))


def test_a_snapshot_is_changed_by_growth_alone():
    pool = BlockPool(8)
    table = table_of(pool, 8)
    snapshot = table.snapshot()
    table.reserve(12)
    assert list(snapshot) == [0, 1, 2]
    table.trim(4)
    table.reserve(5)
    table.replace(0)
    table.release_before(4)
    assert list(snapshot) == [0, 1, 2]


@pytest.mark.parametrize("position", [0, 3])
def test_a_position_that_was_given_back_is_an_error_and_not_another_one(position):
    table = table_of(BlockPool(8), 12)
    table.release_before(4)
    for call in (
        lambda: table.slot(0),
        lambda: table.run(position, 12),
        lambda: table.rows(position, 12),
        lambda: table.is_writable(position),
        lambda: table.replace(0),
    ):
        with pytest.raises(AssertionError):
            call()


# R14, R16, R18: what of them is integers.


def test_r14_blocks_in_use_are_those_of_the_offset_after_any_append_trim_append():
    for n, m in itertools.product(range(10), range(10)):
        for t in range(n + 1):
            pool = BlockPool(8)
            table = table_of(pool, n)
            table.trim(n - t)
            table.reserve(n - t + m)
            assert pool.num_used == table.num_blocks == -(-(n - t + m) // 4)
            assert table.blocks == tuple(range(table.num_blocks))
            assert all(table.is_writable(position) for position in range(n - t, n - t + m))


def test_r14_a_thousand_trims_of_one_position_take_no_block_and_move_none():
    pool = BlockPool(40)
    table = table_of(pool, 8192, block_size=256)
    blocks, peak = table.blocks, pool.stats().peak_used
    for length in range(8191, 7191, -1):
        table.trim(length)
        assert table.blocks == blocks[: -(-length // 256)]
    assert pool.stats().peak_used == peak
    assert pool.num_used == 29


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_r16_a_shared_partial_block_is_copied_by_each_writer_but_the_last(order):
    pool = BlockPool(8)
    parent = table_of(pool, 6)
    tables = [parent, parent.fork(6), parent.fork(6)]
    copies = [write(table, 6) for table in tables]
    assert copies == [(1, 2), (1, 3), None]
    assert [table.blocks for table in tables] == [(0, 2), (0, 3), (0, 1)]
    assert (pool.ref_cnt(0), [pool.ref_cnt(b) for b in (1, 2, 3)]) == (3, [1, 1, 1])
    for still_there, index in enumerate(order):
        assert pool.ref_cnt(0) == 3 - still_there
        tables[index].close()
        tables[index].close()  # gives nothing back twice
    assert pool.take(8) == list(range(8))


def test_r16_a_fork_at_a_block_boundary_copies_nothing():
    pool = BlockPool(8)
    parent = table_of(pool, 8)
    tables = [parent, parent.fork(8), parent.fork(8)]
    assert [write(table, 8) for table in tables] == [None, None, None]
    assert [table.blocks for table in tables] == [(0, 1, 2), (0, 1, 3), (0, 1, 4)]
    assert [pool.ref_cnt(b) for b in range(5)] == [3, 3, 1, 1, 1]


def test_r16_a_trim_into_a_full_shared_block_makes_the_next_write_copy_it():
    pool = BlockPool(8)
    parent = table_of(pool, 8)
    child = parent.fork(8)
    child.trim(6)
    assert write(child, 6) == (1, 2)
    assert (parent.blocks, child.blocks) == ((0, 1), (0, 2))


def test_r16_the_blocks_that_a_table_shows_cannot_be_changed_through_what_it_returned():
    table = table_of(BlockPool(8), 8)
    assert isinstance(table.blocks, tuple)


def test_r18_every_way_to_end_gives_every_block_back():
    pool = BlockPool(64)
    for turn in range(50):
        if turn % 5 == 0:
            with contextlib.suppress(RuntimeError):
                fail_with(table_of(pool, 300, block_size=16))
        elif turn % 5 == 1:
            table_of(pool, 300, block_size=16)  # the last reference is dropped at once
        else:
            table_of(pool, 300, block_size=16).close()
        assert pool.num_free == 64
    assert pool.stats().peak_used == 19


def fail_with(table: BlockTable) -> None:
    raise RuntimeError(table.num_blocks)


def test_r18_closing_one_of_two_that_share_a_prefix_leaves_the_other_its_blocks():
    pool = BlockPool(8)
    parent = table_of(pool, 8)
    child = parent.fork(8)
    parent.close()
    assert (child.blocks, pool.num_used) == ((0, 1), 2)
    assert table_of(pool, 4).blocks == (2,)


def test_r18_a_table_that_another_thread_lets_go_of_gives_its_blocks_back():
    pool = BlockPool(2)
    tables = [table_of(pool, 8)]
    thread = threading.Thread(target=tables.clear)
    thread.start()
    thread.join()
    assert pool.num_free == 2


# Giving back in front.


def test_blocks_wholly_before_a_position_are_given_back():
    pool = BlockPool(8)
    table = table_of(pool, 16)
    assert [table.release_before(p) for p in (-1, 3, 4, 11, 11)] == [0, 0, 1, 1, 0]
    assert (table.start, table.blocks, table.capacity, pool.num_used) == (8, (2, 3), 16, 2)
    assert (table.slot(2), table.run(9, 16)) == (2, 9)


def test_a_fork_begins_where_its_parent_begins():
    table = table_of(BlockPool(8), 16)
    table.release_before(8)
    child = table.fork(13)
    assert (child.start, child.blocks, child.capacity) == (8, (2, 3), 16)
    assert (table.fork(12).blocks, table.fork(8).blocks) == ((2,), ())


def test_a_table_that_gave_all_back_goes_on_where_it_was():
    table = table_of(BlockPool(8), 8)
    assert table.release_before(100) == 2
    assert (table.start, table.capacity, table.blocks) == (8, 8, ())
    table.reserve(9)
    assert (table.capacity, table.slot(2)) == (12, table.blocks[0])


def test_what_giving_back_in_front_frees_is_foretold():
    pool = BlockPool(8)
    table = table_of(pool, 20)
    shared = table.fork(4)
    pin = table.pin(7)
    assert table.freed_before(16) == 2  # block 0 is shared, 1 was seen by a read
    assert (table.release_before(16), pool.num_free) == (4, 5)
    shared.close()
    assert pool.num_free == 5
    del pin
    assert pool.num_free == 7
    assert table.freed_before(100) == 1


def test_a_closed_table_may_be_used_anew():
    pool = BlockPool(8)
    table = table_of(pool, 16)
    table.release_before(8)
    table.close()
    assert (table.start, table.blocks, table.capacity) == (0, (), 0)
    table.reserve(5)
    assert (table.blocks, table.capacity, table.is_run) == ((0, 1), 8, True)


# Copying on write.


def test_a_block_is_replaced_by_the_slot_behind_the_one_before_it():
    pool = BlockPool(8)
    table = table_of(pool, 12)
    other = table.fork(12)
    assert (table.replace(0), other.replace(2)) == ((0, 3), (2, 4))
    pool.release(pool.take(1))
    assert other.replace(1) == (1, 5)
    assert (table.blocks, other.blocks) == ((3, 1, 2), (0, 5, 4))
    assert not table.is_run


def test_a_copy_that_finds_no_block_changes_nothing():
    pool = BlockPool(2)
    table = table_of(pool, 8)
    other = table.fork(8)
    pin = table.pin(8)
    before = state_of(pool, table, other)
    with pytest.raises(PoolExhausted, match="wanted 1 blocks, 0 of 2 are free"):
        table.replace(1)
    assert state_of(pool, table, other) == before
    assert pin.end == 8


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_a_copy_of_a_table_shares_its_blocks_as_a_fork_does(copied):
    pool = BlockPool(8)
    table = table_of(pool, 6)
    other = copied(table)
    assert (other.blocks, other.start) == (table.blocks, table.start)
    assert [pool.ref_cnt(block) for block in table.blocks] == [2, 2]
    assert write(other, 6) == (1, 2)
    del other
    assert [pool.ref_cnt(block) for block in table.blocks] == [1, 1]
