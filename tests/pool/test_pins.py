"""What live reads keep, however their table lets go of it."""

import copy

import pytest

from pagedkv_pool import BlockPool
from tests.pool.tables import table_of, write


def test_a_read_of_a_table_that_only_grows_counts_nothing():
    pool = BlockPool(8)
    table = table_of(pool, 6)
    pin = table.pin(6)
    table.reserve(20)
    assert (pool.stats().num_pinned, pool.ref_cnt(0)) == (0, 1)
    assert [table.is_writable(p) for p in (5, 6, 8)] == [False, True, True]
    del pin
    assert table.is_writable(0)


def test_reads_of_one_table_share_a_pin_of_the_most_that_any_saw():
    table = table_of(BlockPool(8), 8)
    pin = table.pin(6)
    assert table.pin(3) is pin
    assert pin.end == 6
    assert table.pin(8).end == 8


def test_a_trim_below_what_a_read_saw_makes_the_next_write_copy():
    pool = BlockPool(8)
    table = table_of(pool, 7)
    pin = table.pin(7)
    table.trim(5)
    assert [pool.pinned_rows(block) for block in (0, 1)] == [4, 3]
    assert [table.is_writable(p) for p in (4, 5, 6, 7)] == [False, False, False, True]
    assert write(table, 5) == (1, 2)
    assert (pool.num_used, table.blocks) == (3, (0, 2))
    del pin
    assert pool.num_used == 2


def test_a_trim_above_what_a_read_saw_pins_nothing():
    pool = BlockPool(8)
    table = table_of(pool, 12)
    pin = table.pin(6)
    table.trim(6)
    assert pool.stats().num_pinned == 0
    assert table.is_writable(6)
    assert pin.end == 6


@pytest.mark.parametrize("end", ["close", "trim", "release_before", "replace", "drop"])
def test_no_block_that_a_live_read_saw_is_taken_however_its_table_lets_go(end):
    pool = BlockPool(4)
    table = table_of(pool, 8)
    pin = table.pin(8)
    match end:
        case "close":
            table.close()
        case "trim":
            table.trim(0)
        case "release_before":
            table.release_before(8)
        case "replace":
            table.replace(0), table.replace(1)
        case "drop":
            pass
    del table
    assert sorted(pool.take(pool.num_free)) == [2, 3]
    del pin
    assert pool.take(2) == [0, 1]


@pytest.mark.parametrize("end", [0, 2, 8])
def test_a_read_that_saw_nothing_keeps_nothing_of_what_its_table_held_later(end):
    pool = BlockPool(4)
    table = table_of(pool, 16)
    table.release_before(8)
    pin = table.pin(end)
    table.close()
    table.reserve(8)
    assert table.is_writable(0)
    table.close()
    assert pool.num_free == 4
    del table
    del pin
    assert pool.num_free == 4


def test_a_fork_may_write_what_no_read_saw_of_a_block_that_its_parent_let_go():
    pool = BlockPool(8)
    parent = table_of(pool, 6)
    pin = parent.pin(6)
    child = parent.fork(6)
    parent.close()
    assert [child.is_writable(p) for p in (4, 5, 6)] == [False, False, True]
    del pin
    assert child.is_writable(4)


def test_a_pin_that_is_copied_lets_go_once():
    pool = BlockPool(8)
    table = table_of(pool, 8)
    pins = [table.pin(8)]
    copies = [copy.deepcopy(pins), [copy.copy(pins[0])]]
    table.close()
    assert pool.num_used == 2
    pins.clear()
    copies.pop()
    assert pool.num_used == 2
    copies.clear()
    assert pool.num_used == 0
