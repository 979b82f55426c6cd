"""Affine, mx and nv pages: every read is that of the rows as MLX's own round trip gives them."""

import mlx.core as mx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import run_state_machine_as_test

from pagedkv_mlx import LayerPages, PagedKVCache, PagedQuantization
from pagedkv_protocols import IllegalFormat
from tests.mlx.lockstep import Lockstep
from tests.mlx.reference import DTYPES, Layer, Rows, Shape, filled, holds, joined, same, shape_of

BITS = (2, 3, 4, 5, 6, 8)
GROUPS = (32, 64, 128)
MODES = ("mxfp4", "mxfp8", "nvfp4")

affine = st.builds(
    PagedQuantization,
    st.sampled_from(BITS),
    st.sampled_from(GROUPS),
    value_bits=st.none() | st.sampled_from(BITS),
)
codecs = affine | st.builds(PagedQuantization, mode=st.sampled_from(MODES))
wide_shapes = st.builds(
    shape_of,
    st.sampled_from(((1, 1), (4, 2), (6, 1))),
    st.sampled_from(((128, 128), (128, 256), (256, 128), (128, 0))),
    st.sampled_from(DTYPES),
)


class QuantizedLockstep(Lockstep):
    """The reference holds, contiguously, what the pages' format makes of the rows."""

    shapes = wide_shapes
    codecs = codecs
    block_sizes = (1, 3, 16)


def through_mlx(rows: mx.array, bits: int, codec: PagedQuantization) -> mx.array:
    """``mx.dequantize(mx.quantize(rows))`` in the rows' dtype."""
    codes, scales, *biases = mx.quantize(rows, codec.group_size, bits, codec.mode)
    bias = biases[0] if biases else None
    back = mx.dequantize(codes, scales, bias, codec.group_size, bits, codec.mode)
    return back.astype(rows.dtype)


def round_trip(rows: Rows, codec: PagedQuantization) -> Rows:
    return through_mlx(rows[0], codec.bits, codec), through_mlx(rows[1], codec.value_bits, codec)


def test_every_named_read_of_quantized_pages_is_that_of_the_rows_mlx_gives_back():
    run_state_machine_as_test(QuantizedLockstep, settings=settings(stateful_step_count=20))


@given(codecs, st.sampled_from(DTYPES), st.lists(st.integers(-6, 9), min_size=1, max_size=8))
def test_code_planes_are_those_of_quantizing_all_rows_at_once(codec, dtype, schedule):
    layer, cache = (
        Layer(Shape(4, 2, 128, 256, dtype)),
        PagedKVCache(block_size=3, quantization=codec),
    )
    stored = layer.no_rows()
    for length in schedule:
        if length > 0:
            rows = layer.rows(length)
            cache.append_window(*rows).dispose()
            stored = joined(stored, rows)
        elif cache.offset:
            cache.trim(-length)
            stored = stored[0][:, :, : cache.offset], stored[1][:, :, : cache.offset]
    if not cache.offset:
        return
    bits = (codec.bits, codec.value_bits)
    at_once = [
        plane
        for rows, width in zip(stored, bits, strict=True)
        for plane in mx.quantize(rows, codec.group_size, width, codec.mode)
    ]
    assert all(map(same, cache.page_rows(), at_once))
    assert holds(cache, round_trip(stored, codec))


@pytest.mark.parametrize("bits", BITS)
def test_a_fork_that_goes_back_and_on_codes_its_rows_as_if_it_had_been_alone(bits):
    layer, codec = Layer(Shape(4, 2, 64, 64)), PagedQuantization(bits, 32)
    cache, rows = filled(layer, 10, block_size=4, quantization=codec)
    fork, more = cache.fork(), layer.rows(5)
    fork.trim(3)
    fork.append_window(*more).dispose()
    alone = joined((rows[0][:, :, :7], rows[1][:, :, :7]), more)
    assert holds(fork, round_trip(alone, codec))
    assert holds(cache, round_trip(rows, codec))


@pytest.mark.parametrize("group_size", [32, 64])
def test_r02_3_bit_keys_of_192_and_6_bit_values_of_128_come_back_bit_for_bit(group_size):
    layer, codec = Layer(Shape(8, 2, 192, 128)), PagedQuantization(3, group_size, value_bits=6)
    cache, stored = PagedKVCache(block_size=4, quantization=codec), layer.no_rows()
    for length in (1, 5, 17):
        rows, queries = layer.rows(length), layer.queries(length)
        stored = joined(stored, rows)
        with cache.append_window(*rows) as read:
            assert all(map(same, read.gather(), round_trip(stored, codec)))
            expected = mx.fast.scaled_dot_product_attention(
                queries, *round_trip(stored, codec), scale=layer.scale, mask="causal"
            )
            assert same(read.attend(queries, layer.scale), expected)


# What a format cannot hold.

LEGAL = {96: 32, 192: 64, 64: 64, 128: 128, 256: 128, 512: 128, 576: 64}
"""The largest group that divides each head dim."""


@pytest.mark.parametrize("dims", [(80, 80), (112, 112), (64, 72), (72, 64)], ids=str)
def test_r01_a_dim_no_group_divides_is_refused_at_the_first_append_with_nothing_allocated(dims):
    layer = Layer(Shape(4, 2, *dims))
    rows = layer.rows(3)
    mx.eval(rows)
    mx.synchronize()
    for codec in (PagedQuantization(8, 32), PagedQuantization(mode="nvfp4")):
        cache, before = PagedKVCache(100, quantization=codec), mx.get_active_memory()
        which, dim = ("K", dims[0]) if dims[0] % 32 else ("V", dims[1])
        with pytest.raises(IllegalFormat, match=rf"^{which} dim {dim} .* no group"):
            cache.append_window(*rows)
        assert (cache.offset, cache.block_table, cache.state()) == (0, (), ())
        assert cache.pages.layout is None
        assert mx.get_active_memory() == before


@pytest.mark.parametrize("dims", [(96, 96), (192, 128), (256, 256), (576, 512)], ids=str)
@pytest.mark.parametrize("group_size", GROUPS)
def test_r01_a_group_is_taken_or_refused_for_keys_and_values_apart(dims, group_size):
    layer = Layer(Shape(4, 2, *dims))
    cache = PagedKVCache(quantization=PagedQuantization(4, group_size))
    bad = [(name, dim) for name, dim in zip("KV", dims, strict=True) if LEGAL[dim] < group_size]
    if not bad:
        cache.append_window(*layer.rows(3)).dispose()
        assert cache.offset == 3
        return
    name, dim = bad[0]
    with pytest.raises(IllegalFormat, match=rf"^{name} dim {dim} .* divides by group"):
        cache.append_window(*layer.rows(3))
    assert (cache.offset, cache.state()) == (0, ())


# Degenerate rows, through the cache.


def test_r38_zero_and_constant_rows_are_read_exactly():
    rows = mx.array([0, 0.3, -7, 1e-6]).astype(mx.bfloat16)[:, None]
    rows = rows * mx.ones((1, 2, 4, 96), mx.bfloat16)
    for bits in BITS:
        cache = PagedKVCache(block_size=3, quantization=PagedQuantization(bits, 32))
        cache.append_window(rows, rows).dispose()
        assert holds(cache, (rows, rows))


@pytest.mark.parametrize("bits", BITS)
def test_r38_a_range_far_from_zero_is_read_within_one_step_of_its_own(bits):
    rows = 100 + mx.random.uniform(shape=(1, 2, 9, 64), key=mx.random.key(0))
    cache = PagedKVCache(block_size=4, quantization=PagedQuantization(bits, 32))
    cache.append_window(rows, rows).dispose()
    keys, values = cache.export() or (None, None)
    assert keys is not None
    assert values is not None
    for read in (keys, values):
        assert (mx.abs(read - rows) <= 1 / (2**bits - 1)).all().item()


@pytest.mark.parametrize("codec", [*(PagedQuantization(b, 32) for b in BITS)], ids=str)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e30], ids=str)
def test_r38_a_row_that_is_not_finite_or_has_an_outlier_changes_no_other_row(codec, bad):
    layer = Layer(Shape(4, 2, 64, 64, mx.float32))
    rows = layer.rows(9)
    for part in rows:
        part[:, :, 4, 3] = bad
    at_once, alone = (PagedKVCache(block_size=4, quantization=codec) for _ in range(2))
    at_once.append_window(*rows).dispose()
    for i in range(9):
        alone.append_decode(*(part[:, :, i : i + 1] for part in rows)).dispose()
    assert all(map(same, at_once.page_rows(), alone.page_rows()))
    clean = [part[:, :, [0, 1, 2, 3, 5, 6, 7, 8]] for part in at_once.export() or ()]
    other = round_trip(rows, codec)
    assert all(map(same, clean, (part[:, :, [0, 1, 2, 3, 5, 6, 7, 8]] for part in other)))
    assert all(mx.isfinite(part).all().item() for part in clean)


def test_a_second_cache_rounds_rows_to_the_dtype_of_the_shared_pages_before_it_codes_them():
    codec, layer = PagedQuantization(4, 32), Layer(Shape(4, 2, 64, 64, mx.float32))
    pages = LayerPages(codec, block_size=4)
    PagedKVCache(pages=pages).append_window(
        *(part.astype(mx.bfloat16) for part in layer.rows(2))
    ).dispose()
    cache, rows = filled(layer, 5, PagedKVCache(pages=pages))
    rounded = tuple(part.astype(mx.bfloat16) for part in rows)
    assert holds(cache, round_trip((rounded[0], rounded[1]), codec))
