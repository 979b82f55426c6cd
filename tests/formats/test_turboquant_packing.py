"""Codes are packed little-endian without a gap, and come back as they were."""

import operator
from functools import reduce
from typing import cast

import mlx.core as mx
import pytest

from pagedkv_formats.turboquant.packing import pack, packed_bytes, packed_dtype, unpack

WIDTHS = range(1, 9)
DIMS = (64, 80, 96, 128)
ODD_DIMS = (16, 17, 23, 33, 50, 100, 129, 255, 576)


def packed_by_hand(codes: list[int], bits: int) -> bytes:
    """The codes as digits of one number, the first the lowest."""
    number = reduce(operator.or_, (code << i * bits for i, code in enumerate(codes)))
    return number.to_bytes(packed_bytes(len(codes), bits), "little")


def drawn(bits: int, *shape: int) -> mx.array:
    return mx.random.randint(0, 2**bits, shape, key=mx.random.key(bits)).astype(mx.uint8)


@pytest.mark.parametrize("bits", WIDTHS)
@pytest.mark.parametrize("dim", DIMS)
def test_r02_every_code_at_every_position_is_unpacked_as_it_was_packed(bits, dim):
    """Row i of the first is 0 but for one code, of the second is full but for one."""
    full = 2**bits - 1
    one = mx.eye(dim, dtype=mx.uint8) * full
    codes = mx.concatenate([one, full - one, drawn(bits, 50, dim)])
    assert mx.array_equal(unpack(pack(codes, bits), dim, bits), codes).item()


@pytest.mark.parametrize("bits", WIDTHS)
@pytest.mark.parametrize("dim", DIMS + ODD_DIMS)
def test_r02_a_vector_takes_its_bits_in_whole_bytes_and_no_more(bits, dim):
    packed = pack(drawn(bits, 3, dim), bits)
    assert packed.dtype == packed_dtype(dim, bits)
    assert packed.nbytes == 3 * packed_bytes(dim, bits)
    assert packed_bytes(dim, bits) == (dim * bits + 7) // 8


@pytest.mark.parametrize("bits", WIDTHS)
@pytest.mark.parametrize("dim", DIMS + ODD_DIMS)
def test_r02_code_i_lies_at_bit_i_times_bits(bits, dim):
    codes = drawn(bits, 2, 2, dim)
    packed = mx.view(pack(codes, bits), mx.uint8)
    found, of = (cast("list[int]", array[1, 0].tolist()) for array in (packed, codes))
    assert bytes(found) == packed_by_hand(of, bits)
    assert mx.array_equal(unpack(pack(codes, bits), dim, bits), codes).item()


@pytest.mark.parametrize("bits", WIDTHS)
@pytest.mark.parametrize("dim", [64, 80, 129])
def test_rows_in_the_middle_of_a_plane_are_unpacked_as_they_are(bits, dim):
    codes = drawn(bits, 1, 2, 9, dim)
    rows = pack(codes, bits)[:, :, 3:7]
    assert mx.array_equal(unpack(rows, dim, bits), codes[:, :, 3:7]).item()
