"""Codes taken apart here give the bits that MLX gives, and hold less while they do."""

import itertools

import mlx.core as mx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagedkv_formats import PagedQuantization
from pagedkv_formats.unpacking import affine_numbers, unpacked

BITS = (2, 3, 4, 5, 6, 8)
DTYPES = (mx.bfloat16, mx.float16, mx.float32)


@pytest.mark.parametrize(("bits", "dtype"), [*itertools.product(BITS, DTYPES)])
@given(
    group_size=st.sampled_from([32, 64, 128]),
    groups=st.integers(1, 5),
    length=st.integers(1, 9),
    scale=st.sampled_from([1e-9, 1e-4, 1.0, 300.0, 6e4]),
    seed=st.integers(0, 2**32 - 1),
)
def test_numbers_are_those_of_mlx_bit_for_bit(
    bits: int, dtype: mx.Dtype, group_size: int, groups: int, length: int, scale: float, seed: int
) -> None:
    shape = (1, 2, length, groups * group_size)
    rows = (mx.random.normal(shape, key=mx.random.key(seed)) * scale).astype(dtype)
    coded = mx.quantize(rows, group_size, bits)
    ours, theirs = (
        affine_numbers(*coded, group_size, bits),
        mx.dequantize(*coded, group_size, bits),
    )
    assert ours.dtype == theirs.dtype == dtype
    assert ours.shape == theirs.shape == shape
    assert mx.array_equal(ours, theirs, equal_nan=True).item()


@pytest.mark.parametrize("bits", BITS)
def test_every_code_comes_back_in_its_place(bits: int) -> None:
    codes = [(7 * index + 3) % 2**bits for index in range(64)]
    stream = sum(code << (index * bits) for index, code in enumerate(codes))
    words = [(stream >> (32 * index)) & (2**32 - 1) for index in range(2 * bits)]
    assert unpacked(mx.array(words, mx.uint32), bits).tolist() == codes


@pytest.mark.parametrize("bits", BITS)
def test_decoding_holds_little_besides_the_rows_it_makes(bits: int) -> None:
    if mx.default_device() != mx.cpu:
        pytest.skip("elsewhere MLX has a kernel")
    codec = PagedQuantization(bits, 64)
    rows = mx.random.normal((1, 3, 4096, 64)).astype(mx.bfloat16)
    planes = codec.encode(rows, rows)
    mx.eval(planes)
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    mx.eval(codec.decode(planes, 64, 64, mx.bfloat16))
    assert mx.get_peak_memory() - before < 2.6 * 2 * rows.nbytes  # MLX's own way: 5 to 15
