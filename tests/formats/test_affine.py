"""Quantized pages are what MLX makes of the rows, whatever shares the call."""

import copy
import itertools
from typing import Any, cast

import mlx.core as mx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagedkv_formats import PagedQuantization, block_rows
from pagedkv_protocols import IllegalFormat

BITS = (2, 3, 4, 5, 6, 8)
GROUP_SIZES = (32, 64, 128)
MODES = ("mxfp4", "mxfp8", "nvfp4")
DTYPES = (mx.bfloat16, mx.float16, mx.float32)
CODECS = [
    *(PagedQuantization(bits, group) for bits in BITS for group in GROUP_SIZES),
    *(PagedQuantization(mode=mode) for mode in MODES),
]

codecs = st.builds(
    PagedQuantization, st.sampled_from(BITS), st.sampled_from(GROUP_SIZES),
    value_bits=st.none() | st.sampled_from(BITS),
) | st.sampled_from(CODECS)  # fmt: skip
dtypes = st.sampled_from(DTYPES)
seeds = st.integers(0, 2**32 - 1)


def normal(seed: int, *shape: int, scale: float = 1, dtype: mx.Dtype = mx.float32) -> mx.array:
    return (mx.random.normal(shape, key=mx.random.key(seed)) * scale).astype(dtype)


def through_mlx(rows: mx.array, bits: int, codec: PagedQuantization) -> mx.array:
    """What the pages must give back: MLX's own round trip, cast to the rows' dtype."""
    codes, scales, *biases = mx.quantize(rows, codec.group_size, bits, codec.mode)
    bias = biases[0] if biases else None
    back = mx.dequantize(codes, scales, bias, codec.group_size, bits, codec.mode)
    return back.astype(rows.dtype)


def same(a: mx.array, b: mx.array) -> bool:
    """Equal dtypes, shapes and numbers, NaN for NaN."""
    return a.dtype == b.dtype and bool(mx.array_equal(a, b, equal_nan=True).item())


def numbers(rows: mx.array) -> list[Any]:
    return cast("list[Any]", rows.flatten().tolist())


def round_trip(codec: PagedQuantization, keys: mx.array, values: mx.array) -> list[mx.array]:
    return list(
        codec.decode(codec.encode(keys, values), keys.shape[-1], values.shape[-1], keys.dtype)
    )


def keys_through(codec: PagedQuantization, keys: mx.array) -> mx.array:
    return round_trip(codec, keys, keys[..., :0])[0]


# What is stored.


@pytest.mark.parametrize(("dim", "widths"), [(96, (9, 15, 18)), (192, (18, 30, 36))])
def test_r02_codes_that_straddle_words_are_as_wide_as_mlx_makes_them(dim, widths):
    made = [PagedQuantization(bits, 32).planes(dim, 0, mx.bfloat16)[0].width for bits in (3, 5, 6)]
    assert tuple(made) == widths


@given(codecs, dtypes, st.integers(1, 4), st.integers(0, 4))
def test_r02_planes_are_just_what_encode_makes(codec, dtype, key_groups, value_groups):
    step = max(codec.group_size, 32)
    key_dim, value_dim = key_groups * step, value_groups * step
    specs = codec.planes(key_dim, value_dim, dtype)
    coded = codec.encode(mx.ones((1, 2, 3, key_dim), dtype), mx.ones((1, 2, 3, value_dim), dtype))
    assert [(1, 2, 3, spec.width) for spec in specs] == [rows.shape for rows in coded]
    assert [spec.dtype for spec in specs] == [rows.dtype for rows in coded]
    assert not any(spec.per_block for spec in specs)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("codec", CODECS, ids=PagedQuantization.signature)
def test_the_bytes_of_a_page_are_those_of_the_table(codec, dtype):
    block_size, dims = 4, (256, 128)
    groups = sum(dims) // codec.group_size
    per_group = 2 * dtype.size if codec.mode == "affine" else 1
    expected = block_size * (sum(dims) * codec.bits // 8 + groups * per_group)
    planes = codec.planes(*dims, dtype)
    assert block_size * sum(plane.width * plane.dtype.size for plane in planes) == expected


def test_planes_are_named_keys_first_and_a_mode_without_biases_has_none():
    names = [plane.name for plane in PagedQuantization().planes(64, 128, mx.float16)]
    assert names == [f"{x}_{y}" for x in ("key", "value") for y in ("codes", "scales", "biases")]
    mx_names = [plane.name for plane in PagedQuantization(mode="mxfp8").planes(64, 64, mx.float16)]
    assert mx_names == [f"{x}_{y}" for x in ("key", "value") for y in ("codes", "scales")]


@pytest.mark.parametrize("codec", CODECS[::5], ids=PagedQuantization.signature)
def test_values_of_width_0_have_no_planes_and_come_back_empty(codec):
    keys = normal(0, 1, 2, 3, 128)
    assert {plane.name[:4] for plane in codec.planes(128, 0, keys.dtype)} == {"key_"}
    decoded, values = round_trip(codec, keys, keys[..., :0])
    assert same(decoded, through_mlx(keys, codec.bits, codec))
    assert (values.shape, values.dtype) == ((1, 2, 3, 0), keys.dtype)


@pytest.mark.parametrize("bits", BITS)
def test_r02_the_codes_of_a_row_are_one_little_endian_stream_of_bits(bits):
    codec, rows = PagedQuantization(bits, 32), normal(6, 1, 1, 1, 96)
    words, scales, biases = map(numbers, codec.encode(rows, rows[..., :0]))
    stream = sum(word << 32 * i for i, word in enumerate(words))
    codes = [stream >> bits * i & 2**bits - 1 for i in range(96)]
    decoded = [scales[i // 32] * code + biases[i // 32] for i, code in enumerate(codes)]
    assert numbers(keys_through(codec, rows)) == pytest.approx(decoded, abs=1e-6)


# What comes back.


@given(
    codecs,
    dtypes,
    st.integers(1, 4),
    st.integers(1, 4),
    st.integers(1, 9),
    st.integers(-6, 3),
    seeds,
)
def test_r02_rows_come_back_as_mlx_gives_them_keys_and_values_apart(
    codec, dtype, key_groups, value_groups, length, power, seed
):
    step = max(codec.group_size, 32)
    keys = normal(seed, 1, 2, length, key_groups * step, scale=10.0**power, dtype=dtype)
    values = normal(seed + 1, 1, 2, length, value_groups * step, dtype=dtype)
    decoded = round_trip(codec, keys, values)
    assert same(decoded[0], through_mlx(keys, codec.bits, codec))
    assert same(decoded[1], through_mlx(values, codec.value_bits, codec))


@pytest.mark.parametrize("group_size", [32, 64])
@pytest.mark.parametrize("dtype", DTYPES)
def test_r02_3_bit_keys_of_192_and_6_bit_values_of_128_come_back_from_scattered_pages(
    group_size, dtype
):
    codec, block_size, slots = PagedQuantization(3, group_size, value_bits=6), 4, [5, 1, 2, 6, 0, 3]
    keys, values = normal(1, 1, 2, 23, 192, dtype=dtype), normal(2, 1, 2, 23, 128, dtype=dtype)
    specs = codec.planes(192, 128, dtype)
    pages = [mx.zeros((1, 2, 7 * block_size, spec.width), spec.dtype) for spec in specs]
    for begin, end in [(0, 1), (1, 6), (6, 23)]:
        coded = codec.encode(keys[:, :, begin:end], values[:, :, begin:end])
        at = mx.array(
            [slots[p // block_size] * block_size + p % block_size for p in range(begin, end)]
        )
        for page, rows in zip(pages, coded, strict=True):
            page[:, :, at] = rows
    gathered = [block_rows(page, mx.array(slots), block_size, 23) for page in pages]
    decoded = codec.decode(gathered, 192, 128, dtype)
    assert same(decoded[0], through_mlx(keys, 3, codec))
    assert same(decoded[1], through_mlx(values, 6, codec))


@given(codecs, dtypes, st.lists(st.integers(1, 6), min_size=1, max_size=5), seeds)
def test_r38_the_codes_of_a_row_do_not_depend_on_what_shares_the_call(codec, dtype, lengths, seed):
    keys, values = (normal(seed + i, 1, 2, sum(lengths), 256, dtype=dtype) for i in range(2))
    at_once = codec.encode(keys, values)
    ends = list(itertools.accumulate(lengths))
    spans = list(zip([0, *ends], ends, strict=False))
    parts = [codec.encode(keys[:, :, a:b], values[:, :, a:b]) for a, b in spans]
    for whole, pieces in zip(at_once, zip(*parts, strict=True), strict=True):
        assert same(whole, mx.concatenate(list(pieces), axis=2))


def test_pages_that_are_slices_of_a_plane_come_back_as_if_they_were_alone():
    codec, keys, values = PagedQuantization(3), normal(1, 1, 2, 9, 128), normal(2, 1, 2, 9, 64)
    slices = [plane[:, :, 2:7] for plane in codec.encode(keys, values)]
    for decoded, rows in zip(
        codec.decode(slices, 128, 64, mx.float32), (keys, values), strict=True
    ):
        assert same(decoded, through_mlx(rows[:, :, 2:7], 3, codec))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("codec", CODECS, ids=PagedQuantization.signature)
def test_no_rows_are_stored_as_no_rows_and_come_back_as_none(codec, dtype):
    keys, values = mx.zeros((1, 2, 0, 128), dtype), mx.zeros((1, 2, 0, 256), dtype)
    coded, specs = codec.encode(keys, values), codec.planes(128, 256, dtype)
    assert [plane.shape for plane in coded] == [(1, 2, 0, spec.width) for spec in specs]
    assert [plane.dtype for plane in coded] == [spec.dtype for spec in specs]
    for decoded, rows in zip(round_trip(codec, keys, values), (keys, values), strict=True):
        mx.eval(decoded)
        assert (decoded.shape, decoded.dtype) == (rows.shape, dtype)


# Degenerate rows.


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [64, 96])
@pytest.mark.parametrize("bits", BITS)
def test_r38_zero_and_constant_rows_come_back_exactly(bits, dim, dtype):
    rows = mx.array([0, 0.3, -7, 1e-6]).astype(dtype)[:, None] * mx.ones((1, 1, 4, dim), dtype)
    assert same(keys_through(PagedQuantization(bits, 32), rows), rows)


@pytest.mark.parametrize("bits", BITS)
def test_r38_magnitudes_below_half_of_mlx_smallest_scale_come_back_as_zeros(bits):
    tiny, codec = mx.full((1, 1, 1, 96), 1e-30), PagedQuantization(bits, 32)
    assert same(keys_through(codec, tiny), mx.zeros_like(tiny))
    assert same(keys_through(codec, tiny + 4.9e-8), mx.zeros_like(tiny))


@pytest.mark.parametrize("dim", [64, 96])
@pytest.mark.parametrize("bits", BITS)
def test_r38_a_range_far_from_zero_is_not_stretched_to_it(bits, dim):
    rows = 100 + mx.random.uniform(shape=(1, 2, 50, dim), key=mx.random.key(0))
    error = mx.abs(keys_through(PagedQuantization(bits, 32), rows) - rows)
    assert (error <= 1 / (2**bits - 1)).all().item()


@pytest.mark.parametrize("bits", BITS)
def test_r38_one_large_outlier_costs_its_own_group_the_precision_and_no_other(bits):
    rows, codec = normal(3, 1, 1, 2, 96), PagedQuantization(bits, 32)
    calm = keys_through(codec, rows)
    rows[..., 1, 40] = 1e4
    decoded = keys_through(codec, rows)
    assert numbers(decoded[0, 0, 1, 40]) == [pytest.approx(1e4, abs=1e4 / (2**bits - 1))]
    assert mx.isfinite(decoded).all().item()
    assert same(decoded[..., 0, :], calm[..., 0, :])
    assert same(decoded[..., 1, :32], calm[..., 1, :32])
    assert same(decoded[..., 1, 64:], calm[..., 1, 64:])


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("codec", CODECS, ids=PagedQuantization.signature)
def test_r38_a_nan_or_an_infinity_spoils_its_own_group_and_no_other(codec, bad):
    rows = normal(4, 1, 1, 3, 256)
    clean = keys_through(codec, rows)
    spoilt = mx.array(rows)
    spoilt[0, 0, 1, 130] = bad
    decoded = keys_through(codec, spoilt)
    begin = 130 // codec.group_size * codec.group_size
    group = (slice(None), slice(None), 1, slice(begin, begin + codec.group_size))
    clean[group] = decoded[group] = 0
    assert same(decoded, clean)


@pytest.mark.parametrize("bits", BITS)
def test_r38_a_nan_comes_back_as_its_groups_edge_and_an_infinity_as_nans(bits):
    rows, codec = normal(5, 1, 1, 1, 64), PagedQuantization(bits, 32)
    others = [x for i, x in enumerate(numbers(rows[..., :32])) if i != 3]
    rows[..., 3] = float("nan")
    [back] = numbers(keys_through(codec, rows)[..., 3])
    assert back in (pytest.approx(max(others)), pytest.approx(min(others)))
    rows[..., 3] = float("inf")
    assert mx.isnan(keys_through(codec, rows)[..., :32]).all().item()


@pytest.mark.parametrize("bits", BITS)
def test_fp16_groups_that_span_more_than_fp16_holds_come_back_infinite_as_from_mlx(bits):
    """The scales and biases are finite; MLX forms scale times code in fp16."""
    codec, rows = PagedQuantization(bits, 32), mx.linspace(-65000, 65000, 64).astype(mx.float16)
    rows = mx.stack([rows[::2], rows[::2] / 2.1]).reshape(1, 1, 2, 32)
    coded = codec.encode(rows, rows[..., :0])
    assert mx.isfinite(coded[1]).all().item()
    assert mx.isfinite(coded[2]).all().item()
    [decoded, _] = codec.decode(coded, 32, 0, mx.float16)
    assert same(decoded, through_mlx(rows, bits, codec))
    assert mx.isinf(decoded[..., 0, :]).any().item()
    assert mx.isfinite(decoded[..., 1, :]).all().item()
    for wide in (mx.bfloat16, mx.float32):
        assert mx.isfinite(keys_through(codec, rows.astype(wide))).all().item()


def test_mx_and_nv_modes_end_where_their_documentation_says():
    big = mx.full((1, 1, 1, 32), 60000.0)
    ends = {mode: keys_through(PagedQuantization(mode=mode), big).max().item() for mode in MODES}
    assert ends == {"mxfp4": 65536, "mxfp8": 61440, "nvfp4": 2688}
    half = keys_through(PagedQuantization(mode="mxfp4"), big.astype(mx.float16))
    assert mx.isinf(half).all().item()


# The codec as a value.


@given(codecs)
def test_a_codec_is_a_value_that_its_repr_its_copy_and_its_parameters_make_again(codec):
    again = PagedQuantization.from_dict(codec.to_dict())
    assert codec == again == copy.deepcopy(codec) == eval(repr(codec))
    assert hash(codec) == hash(again)


def test_no_two_settings_share_a_signature():
    pairs = itertools.product(BITS, BITS, GROUP_SIZES)
    settings = {PagedQuantization(k, g, value_bits=v) for k, v, g in pairs} | set(CODECS)
    assert len({codec.signature() for codec in settings}) == len(settings) == 6 * 6 * 3 + 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bits": None}, "bits is None; this format has 4"),
        ({"bits": 7}, "bits is 7; mode affine takes"),
        ({"bits": 4.0}, "bits is 4.0; mode affine takes"),
        ({"value_bits": None}, "value_bits is None; this format has 4"),
        ({"group_size": "64"}, "group_size is '64'; mode affine takes 32, 64, 128"),
        ({"format": "dense"}, "mode is 'dense'; affine, mxfp4, mxfp8, nvfp4 are legal"),
        ({"format": "mxfp4"}, "group_size is 64; mode mxfp4 takes 32"),
        ({"format": None}, "mode is None; affine"),
        ({"zero_point": 0}, "a page format was described by .*zero_point"),
    ],
)
def test_parameters_that_are_different_or_unknown_are_refused(change, message):
    with pytest.raises(IllegalFormat, match=message):
        PagedQuantization.from_dict({**PagedQuantization().to_dict(), **change})


@pytest.mark.parametrize("key", ["format", "bits", "group_size", "value_bits"])
def test_a_missing_parameter_is_refused(key):
    data = PagedQuantization().to_dict()
    del data[key]
    with pytest.raises(IllegalFormat, match="it takes"):
        PagedQuantization.from_dict(data)
