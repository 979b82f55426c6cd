"""TurboQuant reaches the distortion that its levels promise, on data drawn with fixed seeds."""

from functools import lru_cache
from typing import cast

import mlx.core as mx
import pytest

from pagedkv_formats import PagedTurboQuant

DIMS = (64, 80, 96, 112, 128, 192, 256)
OPTIMUM = {2: 0.117482, 3: 0.034548, 4: 0.009501, 5: 0.002505, 6: 0.000644, 8: 0.0000412}
RELATIVE_ERROR = {2: 0.1195, 3: 0.0350, 4: 0.0096, 5: 0.00253, 6: 0.00065, 8: 4.3e-5}
MEAN_COSINE = {2: 0.939, 3: 0.982, 4: 0.9950, 5: 0.9987, 6: 0.9996, 8: 0.99997}
KEY_VARIANCE = {2: 0.138, 3: 0.0370, 4: 0.0099}
HALF_ULP_OF_FP16 = 2.0**-11


def normal(seed: int, *shape: int) -> mx.array:
    return mx.random.normal(shape, key=mx.random.key(seed))


def gaussian_rows(dim: int) -> mx.array:
    """4,096 of them."""
    return normal(dim, 1, 8, 512, dim)


def round_trip(rows: mx.array, bits: int) -> tuple[mx.array, mx.array]:
    """``rows`` as keys and as values of ``bits``, in fp32."""
    codec, dim = PagedTurboQuant(bits, bits), rows.shape[-1]
    return codec.decode(codec.encode(rows, rows), dim, dim, mx.float32)


@lru_cache(maxsize=64)
def gaussian_round_trip(dim: int, bits: int) -> tuple[mx.array, mx.array]:
    decoded = round_trip(gaussian_rows(dim), bits)
    mx.eval(decoded)
    return decoded


def relative_error(found: mx.array, wanted: mx.array) -> float:
    return number(mx.square(found - wanted).sum() / mx.square(wanted).sum())


def number(array: mx.array) -> float:
    return cast("float", array.item())


def unit(rows: mx.array) -> mx.array:
    return rows / mx.linalg.norm(rows, axis=-1, keepdims=True)


@pytest.mark.parametrize("bits", RELATIVE_ERROR)
@pytest.mark.parametrize("dim", DIMS)
def test_values_have_the_relative_error_of_their_bits_and_no_less_than_any_code_can(dim, bits):
    found = relative_error(gaussian_round_trip(dim, bits)[1], gaussian_rows(dim))
    assert 4.0**-bits < found <= RELATIVE_ERROR[bits]


@pytest.mark.parametrize("bits", OPTIMUM)
@pytest.mark.parametrize("dim", [80, 96, 112, 192])
def test_dims_that_are_no_power_of_2_are_within_3_percent_of_the_theory(dim, bits):
    found = relative_error(gaussian_round_trip(dim, bits)[1], gaussian_rows(dim))
    assert found <= 1.03 * OPTIMUM[bits]


@pytest.mark.parametrize("bits", [1, 7])
def test_1_and_7_bits_lie_between_the_bound_and_their_neighbours(bits):
    found = relative_error(gaussian_round_trip(128, bits)[1], gaussian_rows(128))
    assert 4.0**-bits < found <= {1: 0.3634, 7: 0.00017}[bits]


@pytest.mark.parametrize("bits", MEAN_COSINE)
def test_values_point_where_they_pointed(bits):
    rows, values = gaussian_rows(128), gaussian_round_trip(128, bits)[1]
    assert number((unit(rows) * unit(values)).sum(axis=-1).mean()) >= MEAN_COSINE[bits]


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
def test_inner_products_with_keys_have_no_bias(bits):
    """The slope of a million inner products on the exact ones."""
    queries, rows = normal(1, 1, 8, 256, 128), gaussian_rows(128)
    exact = queries @ rows.swapaxes(2, 3)
    found = queries @ gaussian_round_trip(128, bits)[0].swapaxes(2, 3)
    slope = (exact * found).sum() / mx.square(exact).sum()
    assert abs(number(slope) - 1) <= 0.003


@pytest.mark.parametrize("bits", KEY_VARIANCE)
def test_inner_products_with_keys_vary_as_little_as_they_should(bits):
    """D·E[err²] of unit queries and unit keys."""
    queries, rows = unit(normal(2, 1, 8, 256, 128)), unit(gaussian_rows(128))
    keys, _ = round_trip(rows, bits)
    error = queries @ (keys - rows).swapaxes(2, 3)
    assert 128 * number(mx.square(error).mean()) <= KEY_VARIANCE[bits]


@pytest.mark.parametrize("bits", range(1, 9))
def test_the_least_squares_scale_is_never_worse_than_the_norm_on_the_same_codes(bits):
    """For every row, but for what fp16 rounds."""
    codec, rows = PagedTurboQuant(bits, bits), gaussian_rows(128)
    keys, key_scales, codes, _ = codec.encode(rows, rows)
    norms = mx.linalg.norm(rows, axis=-1, keepdims=True)
    _, by_norm = codec.decode((keys, key_scales, codes, norms / 128**0.5), 128, 128, mx.float32)
    ours = mx.square(gaussian_round_trip(128, bits)[1] - rows).sum(axis=-1)
    theirs = mx.square(by_norm - rows).sum(axis=-1)
    rounding = mx.square(norms[..., 0]) * (HALF_ULP_OF_FP16**2 + 1e-7)
    assert mx.all(ours <= theirs + rounding).item()
    assert number(ours.sum()) < number(theirs.sum()) * (1 if bits < 8 else 1.01)


@pytest.mark.parametrize("bits", [2, 3, 4])
@pytest.mark.parametrize("dim", DIMS)
def test_sparse_rows_cost_no_more_than_5_percent_above_random_ones(dim, bits):
    """One, two and eight numbers that are not zero, and one channel of 10 or 30 times the rest."""
    rows, places = normal(9, 1, 8, 128, dim), normal(10, 1, 8, 128, dim)
    rank = mx.argsort(mx.argsort(places, axis=-1), axis=-1)
    kinds = [mx.where(rank < count, rows, 0) for count in (1, 2, 8)]
    kinds += [mx.where(rank < 1, mx.sign(rows) * times, rows) for times in (10, 30)]
    for kind in kinds:
        _, values = round_trip(kind, bits)
        assert relative_error(values, kind) <= 1.05 * OPTIMUM[bits]


# Attention.

OUTPUT_ERROR = [
    (4, 4, 1, 0.020),
    (8, 4, 1, 0.0098),
    (8, 3, 1, 0.035),
    (4, 4, 3, 0.053),
    (8, 3, 3, 0.036),
]


def attention_in_float64(queries: mx.array, keys: mx.array, values: mx.array) -> mx.array:
    with mx.stream(mx.cpu):
        queries, keys, values = (a.astype(mx.float64) for a in (queries, keys, values))
        scores = queries @ keys.swapaxes(2, 3) / queries.shape[-1] ** 0.5
        weights = mx.exp(scores - scores.max(axis=-1, keepdims=True))
        return weights @ values / weights.sum(axis=-1, keepdims=True)


@pytest.mark.parametrize(("key_bits", "value_bits", "deviation", "bound"), OUTPUT_ERROR)
def test_attention_outputs_err_no_more_than_the_codec_must(key_bits, value_bits, deviation, bound):
    """1,024 positions, 2 heads of 128 queries, logits of the standard deviation that is named."""
    keys, values = normal(11, 1, 2, 1024, 128), normal(12, 1, 2, 1024, 128)
    queries = normal(13, 1, 2, 128, 128) * deviation
    wanted = attention_in_float64(queries, keys, values)
    codec = PagedTurboQuant(key_bits, value_bits)
    decoded = codec.decode(codec.encode(keys, values), 128, 128, mx.float32)
    found = attention_in_float64(queries, *decoded)
    with mx.stream(mx.cpu):
        assert relative_error(found, wanted) <= bound


# Bytes.


@pytest.mark.parametrize(
    ("key_bits", "value_bits", "ratio"),
    [
        (8, 8, 1.97),
        (8, 4, 2.61),
        (8, 3, 2.84),
        (4, 4, 3.88),
        (4, 3, 4.41),
        (3, 3, 5.12),
        (2, 2, 7.53),
    ],
)
def test_pages_are_so_many_times_smaller_than_16_bit_ones(key_bits, value_bits, ratio):
    planes = PagedTurboQuant(key_bits, value_bits).planes(128, 128, mx.bfloat16)
    stored = sum(plane.width * plane.dtype.size for plane in planes)
    assert round(2 * 128 * 2 / stored, 2) == ratio
