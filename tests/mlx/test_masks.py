"""Masks: each built once a forward, whatever their form, and never dropped on any path."""

import gc

import mlx.core as mx
import pytest

from pagedkv_mlx import (
    PHASE,
    AttentionMasks,
    ContiguousKVCache,
    GatheredRead,
    LayerPages,
    PagedKVCache,
    PagedQuantization,
    PagedTurboQuant,
)
from pagedkv_protocols import InvalidArgument, Unsupported
from tests.mlx.reference import (
    DTYPES,
    Layer,
    Rows,
    Shape,
    answers,
    causal,
    filled,
    first,
    holds,
    joined,
    normal,
    overlaid,
    poison,
    same,
)

Codec = PagedQuantization | PagedTurboQuant | None

FORMATS: dict[str, Codec] = {
    "bf16": None,
    "8 bits": PagedQuantization(8, 32),
    "3 bits": PagedQuantization(3, 32),
}
TURBO: dict[str, Codec] = {"TurboQuant": PagedTurboQuant(8, 8)}
formats = pytest.mark.parametrize("codec", FORMATS.values(), ids=FORMATS)
every_format = pytest.mark.parametrize("codec", (FORMATS | TURBO).values(), ids=FORMATS | TURBO)
lengths = pytest.mark.parametrize("length", [3, 12])


def agree(codec: Codec, answer: mx.array, right: mx.array) -> bool:
    """Whether they are the same: to the bit, or in TurboQuant's rotated domain to bf16's."""
    if not isinstance(codec, PagedTurboQuant):
        return same(answer, right)
    return answer.dtype == right.dtype and bool(mx.allclose(answer, right, atol=0.05).item())


# One forward, many layers.


def layers_of(count: int, **options: object) -> tuple[AttentionMasks, list[PagedKVCache]]:
    masks = AttentionMasks()
    return masks, [PagedKVCache(block_size=4, masks=masks, **options) for _ in range(count)]  # type: ignore[arg-type]


def forward(layer: Layer, caches: list[PagedKVCache], length: int) -> list[GatheredRead]:
    """Append to every layer and attend every read, as a model does."""
    reads = []
    for cache in caches:
        reads.append(cache.append_window(*layer.rows(length)))
        reads[-1].attend(layer.queries(length), layer.scale)
    return reads


def test_a_mask_is_built_once_a_forward_by_30_layers_that_share():
    layer, (masks, caches) = Layer(), layers_of(30, window=3)
    for builds, length in enumerate((7, 1, 1, 5), 1):
        forward(layer, caches, length)
        assert masks.builds == builds


def test_windows_of_two_sizes_are_built_once_each():
    layer, (masks, caches) = Layer(), layers_of(15, window=3)
    caches += [PagedKVCache(block_size=4, masks=masks, window=5) for _ in range(15)]
    forward(layer, caches, 7)
    assert masks.builds == 2


def test_an_overlay_is_laid_once_a_forward_by_30_layers_that_share():
    layer, (masks, caches) = Layer(), layers_of(30)
    for cache in caches:
        read = cache.append_bidirectional(*layer.rows(5), mx.array([0, 1, 1, 0, 2]))
        read.attend(layer.queries(5), layer.scale)
    assert masks.builds == 1


def test_no_mask_is_built_where_none_is_needed():
    layer, (masks, caches) = Layer(), layers_of(3)
    for length in (7, 1, 12):
        forward(layer, caches, length)
    assert masks.builds == 0


def test_reads_keep_the_masks_of_their_forward_when_later_ones_replace_them():
    layer, (masks, caches) = Layer(), layers_of(30, window=3)
    reads = forward(layer, caches, 7)
    rows = [cache.export() for cache in caches]
    for length in (1, 2, 3, 4, 5, 6, 7, 8, 9):
        forward(layer, caches, length)
    assert masks.builds == 10
    queries = layer.queries(7)
    for read, seen in zip(reads, rows, strict=True):
        assert seen is not None
        expected = layer.attend(queries, seen, causal(7, 7, window=3))
        assert same(read.attend(queries, layer.scale), expected)
    assert masks.builds == 10


def test_a_read_that_was_not_attended_in_its_forward_builds_its_mask_late():
    layer, (_, [cache]) = Layer(), layers_of(1, window=3)
    read = cache.append_window(*layer.rows(7))
    rows = cache.export()
    assert rows is not None
    for length in range(1, 10):
        forward(layer, [cache], length)
    queries = layer.queries(7)
    expected = layer.attend(queries, rows, causal(7, 7, window=3))
    assert same(read.attend(queries, layer.scale), expected)


def test_a_mask_goes_when_its_last_read_is_disposed():
    masks = AttentionMasks()
    mx.eval(masks.lease(2048, 2048).array)
    lease = masks.lease(2048, 2048)
    for length in range(1, 9):
        masks.lease(length, length)
    gc.collect()
    mx.synchronize()
    mx.clear_cache()
    held = mx.get_active_memory()
    lease.release()
    lease.release()
    gc.collect()
    assert held - mx.get_active_memory() >= 2048 * 2048


@pytest.mark.parametrize("window", [None, 1, 3, 7, 20])
def test_a_mask_is_what_its_docstring_says(window):
    masks = AttentionMasks()
    for num_queries, num_keys in [(1, 1), (1, 9), (3, 3), (4, 9), (9, 9)]:
        mask = masks.lease(num_queries, num_keys, window=window).array
        assert same(mask, causal(num_queries, num_keys, window))


@pytest.mark.parametrize("counts", [(0, 3), (4, 3), (-1, 3)], ids=str)
def test_a_mask_for_no_query_or_more_queries_than_keys_is_refused(counts):
    with pytest.raises(InvalidArgument, match=f"{counts[0]} queries over {counts[1]} keys"):
        AttentionMasks().lease(*counts)
    with pytest.raises(InvalidArgument, match="window 0"):
        AttentionMasks().lease(2, 3, window=0)


def test_overlays_are_told_apart_by_what_they_hold():
    masks = AttentionMasks()
    flags = mx.array([False, False, False])
    before = masks.lease(3, 3, overlay=flags).array
    flags[0], flags[2] = True, True
    after = masks.lease(3, 3, overlay=flags).array
    equal = masks.lease(3, 3, overlay=mx.array([True, False, True])).array
    assert (masks.builds, equal is after) == (2, True)
    assert same(before, causal(3, 3))
    assert same(after, overlaid([True, False, True], None))


# What make_mask says: the policy of a plain cache.


@pytest.mark.parametrize("n", [1, 2, 5])
@pytest.mark.parametrize("offset", [0, 3, 8])
@pytest.mark.parametrize("window", [None, 1, 3, 20])
@pytest.mark.parametrize("return_array", [False, True])
def test_make_mask_follows_the_policy_of_mlx_lms_cache(n, offset, window, return_array):
    policy = pytest.importorskip("mlx_lm.models.cache").create_attention_mask
    expected = policy(n, offset, return_array, window)
    asked, _ = filled(Layer(), offset, block_size=4)
    own, _ = filled(Layer(), offset, PagedKVCache(block_size=4, window=window))
    reference = ContiguousKVCache(window=window)
    if offset:
        reference.append_window(*Layer().rows(offset)).dispose()
    for mask in (
        asked.make_mask(n, window_size=window, return_array=return_array),
        own.make_mask(n, return_array=return_array),
        reference.make_mask(n, return_array=return_array),
    ):
        if isinstance(expected, mx.array):
            assert isinstance(mask, mx.array)
            assert same(mask, expected)
        else:
            assert mask == expected


def test_make_mask_is_for_the_rows_that_the_next_append_leaves():
    layer = Layer()
    for kind in (PagedKVCache, ContiguousKVCache):
        cache = kind(block_size=4, window=3, release_behind=True)
        for length in (6, 1, 1, 4, 2):
            mask, rows, queries = cache.make_mask(length), layer.rows(length), layer.queries(length)
            read = cache.append_window(*rows)
            assert isinstance(mask, mx.array)
            expected = read.attend(queries, layer.scale)
            assert same(read.attend(queries, layer.scale, mask=mask), expected)
            assert same(mask, causal(length, cache.offset, 3, cache.start))


# R03: a mask with one plane per query head.


def read_of(length: int, stored: int, codec: Codec) -> tuple[Layer, GatheredRead, Rows]:
    """8 query heads over 2, block size 4: a read of the last ``length`` of ``stored``."""
    layer = Layer(Shape(8, 2, 64, 64))
    cache, _ = filled(layer, stored - length, PagedKVCache(pages=LayerPages(codec, block_size=4)))
    read = cache.append_window(*layer.rows(length))
    poison(cache.pages)
    return layer, read, read.gather()


@every_format
@lengths
@pytest.mark.parametrize("kind", ["bool", "additive"])
def test_r03_a_mask_of_any_broadcastable_shape_is_sdpas(codec, length, kind):
    layer, read, rows = read_of(length, length + 6, codec)
    queries, stored = layer.queries(length), length + 6
    for seed, shape in enumerate(
        [(length, stored), (stored,), (1, 1, length, stored), (1, 8, length, stored), (8, 1, 1)]
    ):
        mask = normal(seed, *shape)
        mask = mask > -0.5 if kind == "bool" else mask.astype(mx.bfloat16)
        answer = read.attend(queries, layer.scale, mask=mask)
        assert agree(codec, answer, layer.attend(queries, rows, mask))


@every_format
@lengths
def test_r03_head_h_uses_plane_h(codec, length):
    layer, read, rows = read_of(length, length + 6, codec)
    queries, stored = layer.queries(length), length + 6
    for head in range(8):
        only = head % stored
        mask = mx.ones((1, 8, length, stored), mx.bool_)
        mask[:, head] = mx.arange(stored) == only
        answer = read.attend(queries, layer.scale, mask=mask)
        seen = mx.broadcast_to(rows[1][:, head // 4, only : only + 1], (1, length, 64))
        assert agree(codec, answer[:, head], seen)
        assert agree(codec, answer, layer.attend(queries, rows, mask))


# R04: fill value, dtype, fully masked rows.


@formats
@pytest.mark.parametrize("softcap", [None, 50.0])
def test_r04_a_masked_key_has_no_weight_where_every_score_is_negative(codec, softcap):
    layer = Layer(Shape(4, 2, 64, 64))
    query = normal(1, 1, 1, 1, 64, dtype=mx.bfloat16)
    scores = (query.astype(mx.float32) ** 2).sum() * layer.scale
    keys = mx.broadcast_to(-50 / scores * query, (1, 2, 8, 64)).astype(mx.bfloat16)
    values = mx.concatenate([mx.ones((1, 2, 4, 64)), mx.full((1, 2, 4, 64), 1e4)], axis=2)
    cache = PagedKVCache(block_size=3, quantization=codec)
    cache.append_window(keys[:, :, :7], values[:, :, :7].astype(mx.bfloat16)).dispose()
    read = cache.append_decode(keys[:, :, 7:], values[:, :, 7:].astype(mx.bfloat16))
    seen = mx.arange(8) < 4
    hidden = mx.where(seen, mx.array(0.0), mx.array(-float("inf"))).astype(mx.bfloat16)
    for mask in (seen, hidden):
        queries = mx.broadcast_to(query, (1, 4, 1, 64))
        answer = read.attend(queries, layer.scale, mask=mask, softcap=softcap)
        assert mx.all(mx.abs(answer.astype(mx.float32) - 1) <= 2**-7).item()


@formats
@pytest.mark.parametrize("queried", DTYPES, ids=str)
@pytest.mark.parametrize("masked", [mx.bool_, *DTYPES], ids=str)
def test_r04_an_additive_mask_is_cast_to_the_dtype_of_the_queries(codec, queried, masked):
    layer, read, rows = read_of(3, 9, codec)
    queries = layer.queries(3).astype(queried)
    mask = normal(5, 3, 9)
    mask = mask > 0 if masked == mx.bool_ else mask.astype(masked)
    cast = mask if masked == mx.bool_ else mask.astype(queried)
    answer = read.attend(queries, layer.scale, mask=mask)
    assert answer.dtype == queried
    assert same(answer, layer.attend(queries, rows, cast).astype(queried))


@formats
def test_r04_the_causal_rule_is_the_causal_mask_in_every_dtype(codec):
    layer, read, rows = read_of(3, 9, codec)
    queries = layer.queries(3)
    seen = causal(3, 9)
    answer = read.attend(queries, layer.scale)
    assert same(answer, read.attend(queries, layer.scale, mask=seen))
    for dtype in DTYPES:
        added = mx.where(seen, mx.array(0.0), mx.array(-float("inf"))).astype(dtype)
        assert same(answer, read.attend(queries, layer.scale, mask=added))
    assert same(answer, layer.attend(queries, rows, seen))


@every_format
@pytest.mark.parametrize("softcap", [None, 50.0])
def test_r04_a_fully_masked_row_is_finite_or_nan_by_itself_and_changes_no_other(codec, softcap):
    layer, read, _ = read_of(3, 9, codec)
    queries, mask = layer.queries(3), causal(3, 9)
    whole = read.attend(queries, layer.scale, mask=mask, softcap=softcap)
    mask[1] = False
    answer = read.attend(queries, layer.scale, mask=mask, softcap=softcap)
    assert mx.isfinite(answer).all().item()
    added = mx.where(mask, mx.array(0.0), mx.array(-float("inf")))
    spoilt = read.attend(queries, layer.scale, mask=added, softcap=softcap)
    assert mx.isnan(spoilt[:, :, 1]).all().item()
    for row in (0, 2):
        assert same(answer[:, :, row], whole[:, :, row])
        assert same(spoilt[:, :, row], whole[:, :, row])


def test_r04_a_row_with_no_key_allowed_is_the_mean_of_all_values_as_in_sdpa():
    layer, read, rows = read_of(3, 9, None)
    queries, mask = layer.queries(3), mx.zeros((3, 9), mx.bool_)
    assert same(read.attend(queries, layer.scale, mask=mask), layer.attend(queries, rows, mask))


# R10: a multi-token step on a warm cache.


@pytest.mark.parametrize("length", [2, 4, 7, 8, 9, 33])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_r10_a_window_on_a_warm_cache_is_as_many_single_steps_row_by_row(length, dtype):
    layer = Layer(Shape(4, 2, 16, 16, dtype))
    at_once, rows = filled(layer, 37, block_size=16)
    one_by_one, _ = filled(layer, 37, block_size=16)
    one_by_one.trim(37)
    one_by_one.append_window(*rows).dispose()
    more, queries = layer.rows(length), layer.queries(length)
    window = at_once.append_window(*more).attend(queries, layer.scale)
    for i in range(length):
        read = one_by_one.append_decode(*(part[:, :, i : i + 1] for part in more))
        step = read.attend(queries[:, :, i : i + 1], layer.scale)
        close = 2e-2 if dtype == mx.bfloat16 else 3e-3 if dtype == mx.float16 else 1e-5
        assert mx.allclose(window[:, :, i : i + 1], step, rtol=close, atol=close).item()
    assert same(window, layer.attend(queries, joined(rows, more), causal(length, 37 + length)))


@formats
def test_r10_no_mask_means_every_position_and_differs_from_causal(codec):
    layer, read, rows = read_of(4, 41, codec)
    queries = layer.queries(4)
    every = read.attend(queries, layer.scale, mask=None)
    assert same(every, layer.attend(queries, rows))
    assert not same(every, read.attend(queries, layer.scale, mask=PHASE))
    assert same(every[:, :, 3:], read.attend(queries, layer.scale)[:, :, 3:])


# R11: an option is honoured or refused, never dropped.


def capped(layer: Layer, queries: mx.array, rows: Rows, mask: mx.array, softcap: float) -> mx.array:
    """The formula, in fp32, head by head."""
    heads = []
    for head in range(layer.shape.num_heads):
        group = head * layer.shape.num_kv_heads // layer.shape.num_heads
        keys, values = (part[0, group].astype(mx.float32) for part in rows)
        scores = queries[0, head].astype(mx.float32) @ keys.T * layer.scale
        scores = mx.where(mask, softcap * mx.tanh(scores / softcap), -mx.inf)
        heads.append(mx.softmax(scores, axis=-1) @ values)
    return mx.stack(heads)[None]


@formats
@pytest.mark.parametrize("length", [1, 3, 12])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_r11_softcap_is_its_formula_under_every_mask(codec, length, dtype):
    layer = Layer(Shape(8, 2, 64, 64, dtype))
    cache, _ = filled(layer, 9, block_size=3, quantization=codec)
    read = cache.append_window(*layer.rows(length))
    rows, queries = read.gather(), 30 * layer.queries(length)
    stored = 9 + length
    every, hidden = mx.ones((length, stored), mx.bool_), normal(1, length, stored) > -1
    hidden[:, 0] = True
    for mask, seen in [(PHASE, causal(length, stored)), (None, every), (hidden, hidden)]:
        answer = read.attend(queries, layer.scale, mask=mask, softcap=50.0)
        expected = capped(layer, queries, rows, seen, 50.0)
        close = {mx.bfloat16: 1.6e-2, mx.float16: 2e-3}.get(dtype, 1e-5)
        assert answer.dtype == dtype
        assert mx.allclose(answer.astype(mx.float32), expected, rtol=close, atol=close).item()
        assert not same(answer, read.attend(queries, layer.scale, mask=mask))


@formats
@pytest.mark.parametrize("length", [1, 3, 12])
def test_r11_sinks_are_sdpas_with_and_without_a_softcap(codec, length):
    layer, read, rows = read_of(length, 9 + length, codec)
    queries, sinks = layer.queries(length), normal(3, 8)
    for mask in (None, causal(length, 9 + length)):
        expected = mx.fast.scaled_dot_product_attention(
            queries, *rows, scale=layer.scale, mask=mask, sinks=sinks.astype(mx.bfloat16)
        )
        assert same(read.attend(queries, layer.scale, mask=mask, sinks=sinks), expected)
        large = read.attend(queries, layer.scale, mask=mask, sinks=sinks, softcap=1e4)
        assert mx.allclose(
            large.astype(mx.float32), expected.astype(mx.float32), rtol=2e-2, atol=2e-2
        ).item()
        assert not same(expected, read.attend(queries, layer.scale, mask=mask))


@formats
@pytest.mark.parametrize("release_behind", [False, True])
@pytest.mark.parametrize("length", [1, 2])
def test_r11_a_window_lets_no_key_behind_it_leak(codec, release_behind, length):
    layer = Layer(Shape(4, 2, 64, 64))
    cache = PagedKVCache(block_size=3, quantization=codec, window=4, release_behind=release_behind)
    rows = layer.rows(11)
    first_seen = 11 - length - 3  # by the first of the queries
    rows[1][:, :, :first_seen] = 1e4
    cache.append_window(*first(rows, 11 - length)).dispose()
    read = cache.append_window(*(part[:, :, 11 - length :] for part in rows))
    answer = read.attend(layer.queries(length), layer.scale)
    assert (mx.abs(answer) < 100).all().item()
    rows = layer.rows(11)
    marked = mx.zeros_like(rows[1])
    for position in range(11):
        marked[:, :, position, position] = 64
    cache.trim(cache.offset if cache.is_trimmable(cache.offset) else 0)
    fresh = PagedKVCache(block_size=3, window=4, release_behind=release_behind)
    fresh.append_window(rows[0][:, :, : 11 - length], marked[:, :, : 11 - length]).dispose()
    read = fresh.append_window(rows[0][:, :, 11 - length :], marked[:, :, 11 - length :])
    weights = read.attend(mx.zeros((1, 4, length, 64), mx.bfloat16), layer.scale)[0, 0]
    for i in range(length):
        counted = [p for p in range(11) if weights[i, p].item() != 0]
        assert counted == list(range(11 - length + i - 3, 11 - length + i + 1))
        assert {weights[i, p].item() for p in counted} == {16.0}


# R36: a bidirectional vision window.

SPANS = [0] * 30
SPANS[5:13], SPANS[18:26] = [1] * 8, [2] * 8


@pytest.mark.parametrize("dtype", [mx.int32, mx.uint8, mx.int64], ids=str)
@pytest.mark.parametrize("window", [None, 6])
def test_r36_spans_see_themselves_whole_and_text_stays_causal(window, dtype):
    layer = Layer()
    cache = PagedKVCache(block_size=8, window=window)
    rows, queries = layer.rows(30), layer.queries(30)
    read = cache.append_bidirectional(*rows, mx.array(SPANS).astype(dtype))
    expected = layer.attend(queries, rows, overlaid(SPANS, window))
    assert same(read.attend(queries, layer.scale), expected)
    causally = layer.attend(queries, rows, causal(30, 30, window))
    for i in range(30):
        equal = same(expected[:, :, i], causally[:, :, i])
        sees_more = SPANS[i] != 0 and (i not in (12, 25) or window is not None)
        assert equal != sees_more


def test_r36_span_ids_are_told_apart_by_all_of_their_bits():
    layer = Layer()
    rows, queries = layer.rows(4), layer.queries(4)
    spans = [2**32, 1, 2**32 + 1, 2**32]
    read = PagedKVCache().append_bidirectional(*rows, mx.array(spans, mx.int64))
    expected = layer.attend(queries, rows, overlaid(spans, None))
    assert same(read.attend(queries, layer.scale), expected)


def test_r36_flagged_pairs_are_not_clamped_by_the_window():
    layer = Layer()
    rows, queries = layer.rows(20), layer.queries(20)
    flags = [i in (0, 19) for i in range(20)]
    for kind in (PagedKVCache, ContiguousKVCache):
        read = kind(block_size=8, window=6).append_bidirectional(*rows, mx.array(flags))
        expected = layer.attend(queries, rows, overlaid(flags, 6))
        assert same(read.attend(queries, layer.scale), expected)


@pytest.mark.parametrize("chunk", [8, 7, 1])
def test_r36_spans_cannot_be_split_over_chunks(chunk):
    layer, spans = Layer(), mx.array(SPANS)
    cache, rows = PagedKVCache(block_size=8), layer.rows(30)
    cache.append_bidirectional(*first(rows, chunk), spans[:chunk]).dispose()
    rest = rows[0][:, :, chunk:], rows[1][:, :, chunk:]
    with pytest.raises(Unsupported, match="takes the first window of a sequence"):
        cache.append_bidirectional(*rest, spans[chunk:])
    assert cache.offset == chunk
    assert holds(cache, first(rows, chunk))


def test_r36_later_decodes_need_no_mask():
    layer, masks = Layer(), AttentionMasks()
    cache = PagedKVCache(block_size=8, masks=masks)
    cache.append_bidirectional(*layer.rows(30), mx.array(SPANS)).attend(
        layer.queries(30), layer.scale
    )
    read = cache.append_decode(*layer.rows(1))
    rows = cache.export()
    assert rows is not None
    assert cache.make_mask(1) is None
    assert answers(read, layer, 1, rows)
    assert masks.builds == 1


def test_r36_a_trim_into_a_span_drops_rows_and_nothing_else():
    layer = Layer()
    cache = PagedKVCache(block_size=8)
    rows = layer.rows(30)
    cache.append_bidirectional(*rows, mx.array(SPANS)).dispose()
    assert cache.trim(10) == 10
    more = layer.rows(2)
    read = cache.append_window(*more)
    assert answers(read, layer, 2, joined(first(rows, 20), more))
