"""One row inside a recording without shapes has the bytes and numbers of any other row."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagedkv_formats import DensePages, PagedQuantization, PagedTurboQuant, recordable
from pagedkv_formats.recorded import RecordedModes, mx_row
from pagedkv_formats.turboquant.packing import pack, unpack
from pagedkv_formats.turboquant.recorded import packed, unpacked
from pagedkv_protocols import PageCodec

Codec = PageCodec[mx.array, mx.Dtype]

DTYPES = (mx.float32, mx.float16, mx.bfloat16)
WHOLE = {1: mx.uint8, 2: mx.uint16, 4: mx.uint32}
DIMS = (17, 16, 24, 33, 56, 64, 80, 96, 100, 128)
"""Of each kind of rotation, and of each width of packed word."""

MODES = ("mxfp4", "mxfp8", "nvfp4")
SPECIAL = (
    0.0,
    -0.0,
    1e-45,
    -1e-40,
    6e-8,
    6e-5,
    65504.0,
    3.4e38,
    *map(float, ("inf", "-inf", "nan")),
)

on_cpu = pytest.mark.skipif(
    mx.default_device() != mx.cpu, reason="elsewhere the modes are kernels, recorded as they are"
)


def through_a_recording(
    codec: Codec, keys: mx.array, values: mx.array
) -> tuple[tuple[mx.array, ...], mx.array, mx.array]:
    """The coded row, and the decoded one behind 3 and then 5 stored rows, without shapes."""
    key_dim, value_dim, row = keys.shape[-1], values.shape[-1], recordable(codec)

    def step(
        keys: mx.array, values: mx.array, stored: mx.array
    ) -> tuple[tuple[mx.array, ...], mx.array, mx.array]:
        coded = row.encode(keys, values)
        keys, values = row.decode(coded, key_dim, value_dim, keys.dtype)
        return coded, mx.concatenate([stored, keys], axis=2), values

    recorded = mx.compile(step, shapeless=True)
    for length in (3, 5):
        stored = mx.zeros((*keys.shape[:2], length, key_dim), keys.dtype)
        coded, joined, decoded = recorded(keys, values, stored)
    return coded, joined[:, :, length:], decoded


def assert_same_bits(left: Sequence[mx.array], right: Sequence[mx.array]) -> None:
    assert len(left) == len(right)
    for mine, theirs in zip(left, right, strict=True):
        assert mine.dtype == theirs.dtype
        assert mine.shape == theirs.shape
        if mine.size:
            whole = WHOLE[mine.dtype.size]
            ours, given = (mx.view(mx.contiguous(rows), whole) for rows in (mine, theirs))
            assert mx.array_equal(ours, given).item()


def assert_recorded_as_batched(codec: Codec, keys: mx.array, values: mx.array) -> None:
    """The last row of a batch, alone in a recording, is what it is in the batch."""
    coded = codec.encode(keys, values)
    decoded = codec.decode(coded, keys.shape[-1], values.shape[-1], keys.dtype)
    row, new_keys, new_values = through_a_recording(codec, keys[:, :, -1:], values[:, :, -1:])
    assert_same_bits(row, [plane[:, :, -1:] for plane in coded])
    assert_same_bits((new_keys, new_values), [rows[:, :, -1:] for rows in decoded])


@pytest.mark.parametrize("key_bits", range(1, 9))
@settings(max_examples=8, deadline=None)
@given(
    value_bits=st.integers(1, 8),
    key_dim=st.sampled_from(DIMS),
    value_dim=st.sampled_from((0, *DIMS)),
    dtype=st.sampled_from(DTYPES),
    scale=st.sampled_from([0.0, 1e-6, 1.0, 3e4, float("inf"), float("nan")]),
    heads=st.integers(1, 3),
    length=st.integers(1, 3),
    seed=st.integers(0, 2**32 - 1),
)
def test_turboquant_of_any_bits_and_dims_is_recorded_to_the_bit(
    key_bits: int,
    value_bits: int,
    key_dim: int,
    value_dim: int,
    dtype: mx.Dtype,
    scale: float,
    heads: int,
    length: int,
    seed: int,
) -> None:
    keys, values = (
        (scale * mx.random.normal((1, heads, length, dim), key=mx.random.key(seed + dim))).astype(
            dtype
        )
        for dim in (key_dim, value_dim)
    )
    assert_recorded_as_batched(PagedTurboQuant(key_bits, value_bits), keys, values)
    assert_recorded_as_batched(PagedTurboQuant(key_bits, key_bits), keys, keys)


@given(bits=st.integers(1, 8), dim=st.integers(1, 600), seed=st.integers(0, 2**32 - 1))
def test_codes_are_packed_by_sums_as_by_views(bits: int, dim: int, seed: int) -> None:
    codes = mx.random.randint(0, 2**bits, (2, 3, dim), key=mx.random.key(seed)).astype(mx.uint8)
    words = pack(codes, bits)
    assert_same_bits([packed(codes, bits)], [words])
    assert_same_bits([unpacked(words, dim, bits)], [unpack(words, dim, bits)])


@pytest.mark.parametrize("mode", MODES)
@settings(max_examples=40, deadline=None)
@given(
    numbers=st.lists(st.sampled_from(SPECIAL) | st.floats(width=32), min_size=64, max_size=64),
    dtype=st.sampled_from(DTYPES),
    heads=st.integers(1, 3),
    length=st.integers(1, 3),
    value_dim=st.sampled_from([0, 32, 64]),
)
def test_the_mx_and_nv_modes_are_recorded_to_the_bit(
    mode: str, numbers: list[float], dtype: mx.Dtype, heads: int, length: int, value_dim: int
) -> None:
    row = mx.array(numbers, mx.float32).astype(dtype)
    keys = mx.broadcast_to(row, (1, heads, length, 64))
    assert_recorded_as_batched(PagedQuantization(mode=mode), keys, keys[..., :value_dim])


@on_cpu
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_every_number_of_16_bits_gives_its_group_the_scale_that_mlx_gives(
    bits: int, dtype: mx.Dtype
) -> None:
    every = mx.view(mx.arange(65536).astype(mx.uint16), dtype)[:, None]
    rows = (every * mx.linspace(1, -1, 32).astype(dtype)).reshape(1, 1, -1, 32)
    recorded = mx.compile(lambda rows: mx_row(rows, bits), shapeless=True)
    assert_same_bits(recorded(rows), mx.quantize(rows, 32, bits, f"mxfp{bits}"))


@on_cpu
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_code_under_every_scale_decodes_as_mlx_decodes_it(mode: str, dtype: mx.Dtype) -> None:
    codec = PagedQuantization(mode=mode)
    groups = 256 // codec.group_size if codec.bits == 8 else 1
    codes = mx.arange(groups * codec.group_size, dtype=mx.uint32) % 2**codec.bits
    octets = codes.astype(mx.uint8)
    words = pack(octets, codec.bits).view(mx.uint32)
    planes = (
        mx.broadcast_to(words, (1, 256, 1, words.size)),
        mx.broadcast_to(mx.arange(256).astype(mx.uint8)[None, :, None, None], (1, 256, 1, groups)),
    )
    recorded = recordable(codec)
    assert isinstance(recorded, RecordedModes)
    assert_same_bits(
        recorded.decode(planes, codes.size, 0, dtype), codec.decode(planes, codes.size, 0, dtype)
    )


def test_what_mlx_records_as_it_is_stays_as_it_is() -> None:
    for codec in (DensePages(), PagedQuantization(3), PagedTurboQuant(page_mean=True)):
        assert recordable(codec) is codec
