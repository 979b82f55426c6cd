"""What a direct read refuses before any kernel runs, and what is left to the gather."""

import re
from typing import cast

import mlx.core as mx
import pytest

from pagedkv_metal import (
    DirectRead,
    EmulatorBackend,
    MaskKind,
    PageShape,
    Rows,
    can_read_directly,
    why_not_direct,
)
from pagedkv_metal.read import kernel_text
from pagedkv_protocols import InvalidArgument, ShapeMismatch, Unsupported
from tests.metal.emulated import Kernel, launched
from tests.metal.reads import Case, attend, made

PAGES = PageShape(2, 64, 64, mx.bfloat16, 16)
CODED = PAGES._replace(key_bits=4, value_bits=8, group_size=32)


def rows(tables, lengths, starts=None):
    return Rows.of(tables, lengths, starts, block_size=16, num_slots=8)


def test_padding_repeats_a_rows_own_last_slot():
    found = rows([[5], [0, 1, 2, 4], [6, 7]], [16, 50, 20])
    assert found.table.reshape(3, 4).tolist() == [[5] * 4, [0, 1, 2, 4], [6, 7, 7, 7]]


def test_no_row_sees_a_block_of_another():
    """Rows of 1, 4 and 2 blocks; a block of the second is full of 1e4."""
    case = Case(mx.float32, (2, 1), (16, 16), 16, (9, 60, 20))
    data = made(case)
    keys, values = data.planes
    first = data.tables[1][0] * 16
    values = mx.slice_update(
        values, mx.full((1, 1, 16, 16), 1e4), mx.array([first], mx.int32), (2,)
    )
    before, after = attend(case, data), attend(case, data._replace(planes=[keys, values]))
    assert [mx.array_equal(before[row], after[row]) for row in range(3)] == [True, False, True]


@pytest.mark.parametrize(
    ("tables", "lengths", "starts", "said"),
    [
        ([[8]], [3], None, "slot 8"),
        ([[-1]], [3], None, "slot -1"),
        ([[0]], [17], None, "17 positions and 1 blocks"),
        ([[0]], [3, 4], None, "1 tables, 2 lengths"),
        ([[0]], [3], [4], "1 positions before"),
        ([], [], None, "0 tables"),
    ],
)
def test_r39_a_wrong_table_is_refused(tables, lengths, starts, said):
    with pytest.raises(InvalidArgument, match=said):
        rows(tables, lengths, starts)


@pytest.mark.parametrize(
    ("pages", "heads", "queries", "mask", "said"),
    [
        (PAGES, 4, 9, MaskKind.CAUSAL, "9 queries"),
        (PAGES, 4, 0, MaskKind.CAUSAL, "0 queries"),
        (PAGES, 3, 1, MaskKind.CAUSAL, "no multiple"),
        (PAGES, 4, 1, MaskKind.ARRAY, "array mask"),
        (PAGES._replace(key_dim=264), 4, 1, MaskKind.NONE, "dim 264"),
        (PAGES._replace(value_dim=20), 4, 1, MaskKind.NONE, "dim 20"),
        (PAGES._replace(value_dim=8), 4, 1, MaskKind.NONE, "dim 8"),
        (PAGES._replace(dtype=mx.int8), 4, 1, MaskKind.NONE, "pages are"),
        (PAGES._replace(block_size=0), 4, 1, MaskKind.NONE, "block_size is 0"),
        (CODED._replace(key_bits=3), 4, 1, MaskKind.CAUSAL, "3 bits"),
        (CODED._replace(group_size=48), 4, 1, MaskKind.CAUSAL, "groups of 48"),
        (CODED._replace(group_size=128), 4, 1, MaskKind.CAUSAL, "groups of 128"),
    ],
)
def test_what_no_kernel_takes_is_left_to_the_gather(pages, heads, queries, mask, said):
    assert not can_read_directly(pages, heads, queries, mx.bfloat16, mask)
    assert said in str(why_not_direct(pages, heads, queries, mx.bfloat16, mask))


def test_a_direct_read_refuses_what_the_predicate_refuses():
    read = DirectRead(EmulatorBackend(), PAGES)
    planes = [mx.zeros((1, 2, 128, 64), mx.bfloat16)] * 2
    queries = mx.zeros((1, 4, 9, 64), mx.bfloat16)
    with pytest.raises(Unsupported, match="9 queries"):
        read.attend(queries, planes, rows([[0]], [16]), 1.0)
    with pytest.raises(ShapeMismatch, match="planes have shapes"):
        read.attend(queries[:, :, :1], planes[:1], rows([[0]], [16]), 1.0)
    with pytest.raises(ShapeMismatch, match="queries are of 1 rows"):
        read.attend(queries[:, :, :1], planes, rows([[0], [1]], [16, 16]), 1.0)
    with pytest.raises(ShapeMismatch, match="queries have shape"):
        read.attend(queries[..., :32], planes, rows([[0]], [16]), 1.0)
    with pytest.raises(InvalidArgument, match="window of 0"):
        read.attend(queries[:, :, :1], planes, rows([[0]], [16]), 1.0, window=0)
    with pytest.raises(InvalidArgument, match="softcap of 0"):
        read.attend(queries[:, :, :1], planes, rows([[0]], [16]), 1.0, softcap=0.0)


def test_r08_addresses_do_not_wrap_at_32_bits():
    """Page 70,000 of 16 positions, 8 heads, dim 256 lies 2,293,760,000 elements on."""
    body = """
        const ulong head = head_address(x[0], x[1], x[2]);
        const ulong at = row_address(head, x[3], x[4]);
        y[2 * thread_position_in_grid.x] = uint(at >> 32);
        y[2 * thread_position_in_grid.x + 1] = uint(at);
    """
    for head, num_rows, row in ((0, 8, 70_000 * 16), (7, 1 << 25, (1 << 25) - 1)):
        width = 8 * 256
        x = mx.array([head, num_rows, width, row, width, 0, 0, 0], mx.uint32)
        [y] = launched(
            Kernel("address", body, kernel_text("pages.h")),
            {"x": x},
            {"y": ((64,), mx.uint32)},
            grid=(32, 1, 1),
        )
        high, low = (cast("int", y[at].item()) for at in (0, 1))
        assert (high << 32) + low == head * num_rows * width + row * width


def test_r08_no_kernel_multiplies_a_row_or_place_outside_the_address_helper():
    source = kernel_text("paged_read.metal")
    assert "row_address(" in source
    assert not re.search(r"\b(place|plane_rows)\s*\*|\*\s*(place|plane_rows)\b", source)
