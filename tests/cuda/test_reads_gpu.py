"""The grids of the direct reads on an NVIDIA GPU; `nox -s gpu` runs them."""

import mlx.core as mx
import pytest

from pagedkv_cuda import CudaBackend
from pagedkv_metal import DirectRead, PageShape, Rows
from pagedkv_metal.launch import PARTITION
from tests.metal.grids import is_admitted, r07
from tests.metal.reads import Case
from tests.metal.test_reads_bits import (
    KINDS,
    assert_a_row_is_alone,
    assert_a_window_is_its_queries,
)
from tests.metal.test_reads_right import QUICK, WIDE, assert_right

pytestmark = pytest.mark.skipif(not mx.cuda.is_available(), reason="MLX has no NVIDIA GPU here")
BACKEND = CudaBackend()
ADMITTED = [case for case in r07() if is_admitted(case)]


@pytest.mark.parametrize("case", [*QUICK, *WIDE], ids=str)
def test_every_pair_of_what_may_vary_is_right(case):
    assert_right(case, BACKEND)


@pytest.mark.parametrize("case", ADMITTED, ids=str)
def test_every_ratio_and_dim_that_is_admitted_is_right(case):
    assert_right(case, BACKEND)


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("length", [*range(PARTITION - 8, PARTITION + 9), 8 * PARTITION + 3])
def test_a_window_equals_its_queries_at_every_edge(kind, length):
    for queries in range(2, 9):
        case = kind._replace(queries=queries, lengths=(length,))
        assert_a_window_is_its_queries(case, BACKEND)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_row_among_64_equals_the_row_alone(kind):
    lengths = tuple(1 + 613 * row % 4000 for row in range(64))
    for row in (0, 7, 63):
        assert_a_row_is_alone(kind._replace(lengths=lengths), row, BACKEND)


def test_rows_beyond_2_to_the_31_elements_are_found():
    heads, dim, block = 8, 128, 256
    slots = (1 << 31) // (heads * dim * block) + 64
    table = [slots - 1, 3, slots - 2, slots // 2]
    case = Case(mx.bfloat16, (32, heads), (dim, dim), block, (1000,))
    small = made_small(case, len(table))
    planes = []
    for rows in small:
        plane = mx.full((1, heads, slots * block, dim), mx.nan, mx.bfloat16)
        for index, slot in enumerate(table):
            part = rows[:, :, index * block : (index + 1) * block]
            plane = mx.slice_update(plane, part, mx.array([slot * block]), (2,))
        mx.eval(plane)
        assert plane.size > 1 << 31
        planes.append(plane)
    queries = mx.random.normal((1, 32, 1, dim)).astype(mx.bfloat16)
    shape = PageShape(heads, dim, dim, mx.bfloat16, block)
    far = attended(shape, planes, queries, table, slots)
    near = attended(shape, small, queries, [0, 1, 2, 3], 4)
    assert mx.array_equal(far, near)


def made_small(case, blocks):
    shape = (1, case.heads[1], blocks * case.block, case.dims[0])
    return [mx.random.normal(shape).astype(case.dtype) for _ in range(2)]


def attended(shape, planes, queries, table, slots):
    rows = Rows.of([table], [1000], block_size=shape.block_size, num_slots=slots)
    return DirectRead(BACKEND, shape).attend(queries, planes, rows, shape.key_dim**-0.5)
