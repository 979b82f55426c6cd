"""Pages to rows in order: the rows of a list of blocks, whichever way they are collected."""

import mlx.core as mx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagedkv_formats import block_rows, run_rows

dtypes = st.sampled_from([mx.bfloat16, mx.float16, mx.float32, mx.uint32, mx.uint8])


def numbered(heads: int, rows: int, width: int, dtype: mx.Dtype = mx.float32) -> mx.array:
    """A plane that says in each element where it is, where the dtype can say it."""
    return mx.arange(heads * rows * width).reshape(1, heads, rows, width).astype(dtype)


def flat_rows(slots: list[int], block_size: int, count: int) -> list[int]:
    """The readable reference: where position p lies."""
    return [slots[p // block_size] * block_size + p % block_size for p in range(count)]


@given(st.data(), dtypes, st.sampled_from([1, 2, 3, 7, 16]), st.integers(1, 3), st.integers(1, 5))
def test_block_rows_are_the_rows_of_the_blocks_in_order(data, dtype, block_size, heads, width):
    plane = numbered(heads, 6 * block_size, width, dtype)
    slots = data.draw(st.lists(st.integers(0, 5), min_size=1, max_size=8))
    count = data.draw(st.integers((len(slots) - 1) * block_size + 1, len(slots) * block_size))
    rows = block_rows(plane, mx.array(slots), block_size, count)
    expected = plane[:, :, mx.array(flat_rows(slots, block_size, count))]
    assert (rows.dtype, rows.shape) == (dtype, (1, heads, count, width))
    assert mx.array_equal(rows, expected).item()


@given(st.data(), dtypes)
def test_run_rows_and_block_rows_agree_where_the_blocks_are_a_run(data, dtype):
    plane, block_size = numbered(2, 24, 3, dtype), 4
    first = data.draw(st.integers(0, 5))
    slots = list(range(first, data.draw(st.integers(first + 1, 6))))
    count = data.draw(st.integers(1, len(slots) * block_size))
    scattered = block_rows(plane, mx.array(slots), block_size, count)
    assert mx.array_equal(run_rows(plane, first * block_size, count), scattered).item()


@given(dtypes, st.integers(1, 3), st.integers(1, 5), st.integers(0, 11), st.data())
def test_run_rows_are_a_slice(dtype, heads, width, row, data):
    plane, count = numbered(heads, 12, width, dtype), data.draw(st.integers(1, 12 - row))
    rows = run_rows(plane, row, count)
    assert (rows.dtype, rows.shape) == (dtype, (1, heads, count, width))
    assert mx.array_equal(rows, plane[:, :, row : row + count]).item()


def test_run_rows_copy_nothing():
    plane = mx.zeros((1, 1, 1 << 20, 4))
    mx.eval(plane)
    mx.synchronize()
    before = mx.get_active_memory()
    rows = run_rows(plane, 5, 1 << 19)
    mx.eval(rows)
    mx.synchronize()
    assert mx.get_active_memory() - before < plane.nbytes // 100


@pytest.mark.parametrize("count", [5, 6])
def test_rows_behind_the_count_are_left_out_whatever_they_hold(count):
    plane = numbered(1, 8, 1)
    plane[0, 0, 6:] = float("nan")
    rows = block_rows(plane, mx.array([0, 3, 2]), 2, count)
    assert rows.shape[2] == count
    assert mx.isnan(rows).flatten().tolist() == [False, False, True, True, False, False][:count]
