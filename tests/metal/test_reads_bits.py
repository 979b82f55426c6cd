"""Batch, number of queries and length change no bit of a row's answer."""

import mlx.core as mx
import pytest

from pagedkv_metal import EmulatorBackend
from pagedkv_metal.launch import PARTITION
from tests.metal.reads import Case, attend, made

EDGES = [PARTITION + step for step in (-8, -1, 0, 1, 7, 8)]
KINDS = [
    Case(mx.bfloat16, (4, 1), (64, 64), 16),
    Case(mx.float16, (3, 1), (48, 80), 48, window=100, sinks=True),
    Case(mx.float32, (2, 1), (64, 64), 3, softcap=4.0),
    Case(mx.bfloat16, (2, 1), (64, 64), 16, bits=(4, 8)),
]


def one_by_one(case, data, backend=None):
    """Each query of the window alone, over the positions up to its own."""
    outputs = []
    for index in range(case.queries):
        lengths = tuple(n - case.queries + 1 + index for n in case.lengths)
        single = data._replace(queries=data.queries[:, :, index : index + 1])
        outputs.append(attend(case._replace(queries=1, lengths=lengths), single, backend))
    return mx.concatenate(outputs, axis=2)


def assert_a_window_is_its_queries(case, backend=None):
    data = made(case)
    assert mx.array_equal(attend(case, data, backend), one_by_one(case, data, backend))


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("queries", [2, 8])
def test_a_window_equals_its_queries_one_by_one_bit_for_bit(kind, queries):
    assert_a_window_is_its_queries(kind._replace(queries=queries, lengths=(PARTITION + 3, 40)))


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("queries", range(2, 9))
@pytest.mark.parametrize("length", [*range(PARTITION - 8, PARTITION + 9), 2 * PARTITION + 3])
def test_a_window_equals_its_queries_at_every_edge(kind, queries, length):
    assert_a_window_is_its_queries(kind._replace(queries=queries, lengths=(length,)))


def test_the_edges_of_a_partition_change_no_bit():
    for length in EDGES:
        case = Case(mx.bfloat16, (2, 1), (16, 16), 16, (length,), queries=8)
        assert_a_window_is_its_queries(case)


def assert_a_row_is_alone(case, row, backend=None):
    data = made(case)
    together = attend(case, data, backend)[row : row + 1]
    alone = case._replace(lengths=(case.lengths[row],))
    single = data._replace(queries=data.queries[row : row + 1], tables=[data.tables[row]])
    assert mx.array_equal(together, attend(alone, single, backend))


def test_a_row_among_64_equals_the_row_alone():
    lengths = tuple(1 + 37 * row % 90 for row in range(63))
    assert_a_row_is_alone(Case(mx.bfloat16, (2, 1), (16, 16), 16, (*lengths, 300)), 5)


def test_where_the_grid_of_partitions_begins_changes_no_bit():
    case = Case(mx.float16, (2, 1), (16, 16), 16, (900, 20), window=64)
    assert_a_row_is_alone(case, 0)


def test_the_order_of_threads_changes_no_bit():
    case = Case(mx.bfloat16, (4, 2), (16, 16), 16, (300, 40), queries=2)
    data = made(case)
    first = attend(case, data)
    for seed in (1, 2):
        assert mx.array_equal(attend(case, data, EmulatorBackend(seed=seed)), first)
