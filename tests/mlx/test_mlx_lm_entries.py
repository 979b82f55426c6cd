"""Entries of mlx-lm's prompt cache over pages: what a plain entry says, in both protocols."""

import copy
import gc
import weakref
from collections.abc import Iterator
from typing import Any, cast

import mlx.core as mx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagedkv_mlx import Blocks, Bytes, CacheGroup, LayerPages, PagedKVCache, PagedQuantization
from pagedkv_protocols import (
    IllegalFormat,
    InvalidArgument,
    InvalidType,
    NotTrimmable,
    PoolExhausted,
    Unsupported,
)
from tests.mlx.reference import Layer, Rows, Shape, filled, holds, joined, poison, same, stored_in

pytest.importorskip("mlx_lm")

from mlx_lm.generate import generate_step, maybe_quantize_kv_cache
from mlx_lm.models import cache as mlx_lm_cache

from pagedkv_mlx import mlx_lm as integration
from pagedkv_mlx.decode import CompiledDecoder
from pagedkv_mlx.mlx_lm import (
    KeepDense,
    PagedPromptCache,
    make_paged_prompt_cache,
    page_prompt_cache,
    use_paged_caches,
)
from tests.mlx.tiny_models import HEAD_DIM, SLIDING_WINDOW, VOCABULARY, tiny_gemma3, tiny_llama

KVCache, RotatingKVCache = mlx_lm_cache.KVCache, mlx_lm_cache.RotatingKVCache
LIVE = integration.STATE_IS_WHOLE
FORMATS = [None, PagedQuantization(8, 32), PagedQuantization(mode="mxfp4")]


@pytest.fixture(scope="module")
def llama() -> Any:
    return tiny_llama()


@pytest.fixture(scope="module")
def gemma() -> Any:
    return tiny_gemma3()


@pytest.fixture(params=[True, False], ids=["state is whole", "state and meta_state"])
def whole(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Both cache protocols, whichever the installed mlx-lm speaks."""
    monkeypatch.setattr("pagedkv_mlx.mlx_lm.entry.STATE_IS_WHOLE", request.param)
    return bool(request.param)


def entry_of(layer: Layer, length: int, **options: Any) -> tuple[PagedPromptCache, Rows]:
    cache, rows = filled(layer, length, PagedKVCache(block_size=4, **options))
    return PagedPromptCache(cache), rows


def restored(entry: PagedPromptCache, whole: bool) -> PagedPromptCache:
    """What mlx-lm makes of the entry's state."""
    if whole:
        return PagedPromptCache.from_state(entry.state)
    return PagedPromptCache.from_state(entry.state, entry.meta_state)


def rows_in(entry: PagedPromptCache, whole: bool) -> tuple[mx.array, ...]:
    state = entry.state
    return tuple(state[0] if whole else state)


# One entry beside a plain one.


def test_the_protocol_that_is_live_is_that_of_the_installed_mlx_lm():
    plain = KVCache()
    plain.update_and_fetch(*Layer().rows(3))
    assert len(plain.state) == (3 if LIVE else 2)
    assert hasattr(plain, "meta_state") != LIVE


@given(st.lists(st.integers(-9, 9).filter(bool), min_size=1, max_size=10), st.integers(1, 7))
def test_an_entry_says_what_a_plain_entry_says(schedule, block_size):
    layer, entry, plain = Layer(), PagedPromptCache(PagedKVCache(block_size=block_size)), KVCache()
    for length in schedule:
        if length < 0:
            assert entry.trim(-length) == plain.trim(-length)
        else:
            for return_array in (False, True):
                masks = [
                    each.make_mask(length, return_array=return_array, window_size=None)
                    for each in (entry, plain)
                ]
                if isinstance(masks[1], mx.array):
                    assert same(*masks)
                else:
                    assert masks[0] == masks[1]
            rows = layer.rows(length)
            fetched = entry.update_and_fetch(*rows)
            assert all(map(same, fetched, plain.update_and_fetch(*rows)))
        assert (entry.offset, entry.size()) == (plain.offset, plain.offset)
        assert entry.empty() == (plain.offset == 0)
        assert entry.is_trimmable() is plain.is_trimmable() is True
        if plain.offset:
            assert all(map(same, entry.keys_and_values(), stored_in(plain)))


def test_an_entry_is_true_has_no_length_and_no_bits():
    for codec in FORMATS:
        entry, _ = entry_of(Layer(Shape(4, 2, 32, 32)), 0, quantization=codec)
        assert bool(entry)
        assert not hasattr(entry, "__len__")
        assert not hasattr(entry, "bits")
        assert entry.keys_and_values() == (None, None)
        assert (entry.nbytes, entry.size(), entry.empty()) == (0, 0, True)


def test_nbytes_are_those_of_the_blocks_in_use_and_shared_ones_count_by_part():
    entry, _ = entry_of(Layer(), 6)
    block = 4 * 2 * 32 * 2
    assert entry.nbytes == 2 * block
    other = copy.deepcopy(entry)
    assert entry.nbytes == other.nbytes == block
    other.update_and_fetch(*Layer().rows(1))
    assert entry.nbytes == other.nbytes == block // 2 + block


# State.


@pytest.mark.parametrize("codec", FORMATS, ids=str)
@pytest.mark.parametrize("length", [0, 1, 4, 11])
def test_an_entry_restored_from_its_state_goes_on_as_it_would_have(codec, length, whole):
    layer = Layer(Shape(4, 2, 32, 32))
    entry, _ = entry_of(layer, length, quantization=codec)
    other = restored(entry, whole)
    assert other.cache.signature() == entry.cache.signature()
    assert other.cache.pages is not entry.cache.pages
    assert (other.offset, other.size()) == (length, length)
    assert all(map(same, other.cache.page_rows(), entry.cache.page_rows()))
    rows = layer.rows(3)
    fetched = [each.update_and_fetch(*rows) for each in (entry, other)]
    assert all(map(same, *fetched))


def test_an_entry_that_was_emptied_is_restored_empty(whole):
    layer = Layer()
    entry, _ = entry_of(layer, 5)
    entry.trim(5)
    other, rows = restored(entry, whole), layer.rows(3)
    assert (other.offset, other.empty()) == (0, True)
    assert all(map(same, other.update_and_fetch(*rows), rows))


def test_an_entry_that_gave_positions_back_is_neither_restored_nor_quantized(whole):
    layer = Layer(Shape(4, 2, 32, 32))
    cache = PagedKVCache(block_size=4, window=3, release_behind=True)
    entry = PagedPromptCache(cache)
    for length in (7, 1, 5, 1):
        entry.update_and_fetch(*layer.rows(length))
    before = cache.block_table, cache.pool.stats()
    for again in (lambda: restored(entry, whole), lambda: entry.to_quantized(32, 4)):
        with pytest.raises(Unsupported, match="positions before 8 were given back"):
            again()
    assert (cache.block_table, cache.pool.stats()) == before


def test_state_shows_no_trimmed_row_and_no_neighbour(whole):
    layer, pages = Layer(), LayerPages(block_size=4)
    caches = [PagedKVCache(pages=pages) for _ in range(2)]
    stored = [layer.no_rows(), layer.no_rows()]
    for _ in range(3):  # the tables scatter
        for at, cache in enumerate(caches):
            rows = layer.rows(3)
            cache.append_window(*rows).dispose()
            stored[at] = joined(stored[at], rows)
    caches[0].trim(4)
    poison(pages)
    for cache, rows in zip(caches, stored, strict=True):
        entry = PagedPromptCache(cache)
        live = tuple(part[:, :, : entry.offset] for part in rows)
        assert all(map(same, rows_in(entry, whole), live))
        assert all(map(same, restored(entry, whole).keys_and_values(), live))


def test_state_is_evaluated_as_mlx_lm_evaluates_it(whole):
    entry, _ = entry_of(Layer(), 6)
    mx.eval([each.state for each in (entry, PagedPromptCache(PagedKVCache()))])


def test_state_of_one_run_copies_nothing(whole):
    layer = Layer(Shape(1, 1, 256, 256))
    entry, _ = entry_of(layer, 2000, capacity=2048)
    mx.eval(entry.cache.state())
    mx.synchronize()
    before = mx.get_active_memory()
    state = rows_in(entry, whole)
    mx.eval(state)
    mx.synchronize()
    assert mx.get_active_memory() - before < 2000 * 256 * 2


def test_a_state_that_no_entry_wrote_is_refused(whole):
    entry, _ = entry_of(Layer(), 6)
    rows, meta = entry.cache.page_rows(), entry.meta_state
    unknown = meta[1].replace('"dense"', '"sparse"')
    odd_dtype = meta[1].replace("mlx.core.bfloat16", "bytes")
    for text in ("", "{}", "[]", "{", odd_dtype):
        for bad in ((), ("", text), (meta[0], text), (*meta, text)):
            with pytest.raises(InvalidArgument, match="state was described by"):
                PagedPromptCache.from_state(*((rows, bad),) if whole else (rows, bad))
    bad = (meta[0], unknown)
    with pytest.raises(IllegalFormat, match="sparse"):
        PagedPromptCache.from_state(*((rows, bad),) if whole else (rows, bad))


def test_a_plain_entrys_file_is_written_by_mlx_lm_from_paged_entries(tmp_path):
    if not LIVE:
        pytest.skip("mlx-lm before 0.32.2 saves arrays alone")
    entries = [entry_of(Layer(), 6)[0], entry_of(Layer(), 9)[0]]
    mlx_lm_cache.save_prompt_cache(str(tmp_path / "cache.safetensors"), entries)
    assert len(mx.load(str(tmp_path / "cache.safetensors"))) > 4


# Copies.


def test_a_deep_copy_goes_its_own_way_and_shares_pages_until_then():
    layer = Layer()
    entry, rows = entry_of(layer, 6)
    other = copy.deepcopy(entry)
    assert other.cache.pages is entry.cache.pages
    more, own = layer.rows(2), layer.rows(3)
    entry.update_and_fetch(*more)
    other.trim(1)
    other.update_and_fetch(*own)
    assert holds(entry.cache, joined(rows, more))
    assert holds(other.cache, joined(tuple(part[:, :, :5] for part in rows), own))  # type: ignore[arg-type]


def test_a_deep_copied_prompt_cache_is_a_group_of_its_own(llama):
    entries = make_paged_prompt_cache(llama, block_size=4)
    run(llama, entries, TOKENS[:6])
    copied = copy.deepcopy([*entries, entries[0]])
    assert copied[3] is copied[0]
    groups = {id(entry.group) for entry in copied}
    assert len(groups) == 1
    assert groups != {id(entries[0].group)}
    run(llama, copied, TOKENS[6:9])
    assert [entry.offset for entry in entries] == [6, 6, 6]
    assert [entry.offset for entry in copied] == [9, 9, 9, 9]
    assert [cache.offset for cache in copied[0].group.caches] == [9, 9, 9]


# Models.

TOKENS = [(7 * i * i + 3 * i + 5) % VOCABULARY for i in range(60)]
CHUNKS = [(3, 1, 1, 9, 1, 2), (1,) * 12, (30, 1, 1, 1), (5, 5, 5, 5, 5)]


def run(model: Any, caches: list[Any], tokens: list[int]) -> mx.array:
    """The logits of one forward."""
    logits: mx.array = model(mx.array([tokens]), cache=caches)
    mx.eval(logits, [entry.state for entry in caches])
    return logits


def chunked(tokens: list[int], lengths: tuple[int, ...]) -> Iterator[list[int]]:
    begin = 0
    for length in lengths:
        yield tokens[begin : begin + length]
        begin += length


@pytest.mark.parametrize("chunks", CHUNKS, ids=str)
@pytest.mark.parametrize("block_size", [1, 4, 256])
def test_a_model_over_paged_entries_has_the_logits_of_plain_entries(llama, chunks, block_size):
    paged = make_paged_prompt_cache(llama, block_size=block_size)
    plain = mlx_lm_cache.make_prompt_cache(llama)
    for turn, tokens in enumerate(chunked(TOKENS, chunks)):
        assert same(run(llama, paged, tokens), run(llama, plain, tokens))
        if turn == 2:
            for caches in (paged, plain):
                assert mlx_lm_cache.can_trim_prompt_cache(caches)
                assert mlx_lm_cache.trim_prompt_cache(caches, 2) == 2
    assert all(type(entry) is PagedPromptCache for entry in paged)


@pytest.mark.parametrize("chunks", CHUNKS, ids=str)
@pytest.mark.parametrize("release_behind", [False, True])
def test_a_sliding_model_over_paged_entries_has_the_logits_of_windowed_plain_entries(
    gemma, chunks, release_behind
):
    paged = make_paged_prompt_cache(gemma, block_size=4, release_behind=release_behind)
    plain = [KVCache() for _ in gemma.layers]
    for tokens in chunked(TOKENS, chunks):
        assert same(run(gemma, paged, tokens), run(gemma, plain, tokens))
    windows = [entry.cache.window for entry in paged]
    assert windows == [SLIDING_WINDOW, SLIDING_WINDOW, None] * 2
    held = [len(entry.cache.block_table) for entry in paged[:2]]
    whole = -(-sum(chunks) // 4)
    assert len(paged[2].cache.block_table) == whole
    most = -(-(SLIDING_WINDOW + chunks[-1] - 2) // 4) + 1
    assert all(n <= most for n in held) if release_behind else held == [whole, whole]


@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float32], ids=str)
def test_a_sliding_model_has_the_bits_of_rotating_entries_until_these_first_wrap(dtype):
    gemma = tiny_gemma3()
    gemma.set_dtype(dtype)
    paged = make_paged_prompt_cache(gemma, block_size=4)
    rotating = mlx_lm_cache.make_prompt_cache(gemma)
    assert {type(entry) for entry in rotating} == {KVCache, RotatingKVCache}
    differences = []
    for token in TOKENS[:40]:
        ours, theirs = run(gemma, paged, [token]), run(gemma, rotating, [token])
        differences.append(float(cast("float", mx.abs(ours - theirs).max().item())))
    print(f"largest logit {mx.abs(ours).max().item():.3g}; largest difference from")
    print(f"RotatingKVCache after its first wrap {max(differences[SLIDING_WINDOW:]):.3g}")
    assert differences[:SLIDING_WINDOW] == [0] * SLIDING_WINDOW
    assert max(differences) < 0.1


@pytest.mark.parametrize("codec", FORMATS, ids=str)
def test_mlx_lms_own_loop_generates_through_paged_entries(llama, codec):
    prompt = mx.array(TOKENS[:20])
    plain = mlx_lm_cache.make_prompt_cache(llama)
    paged = make_paged_prompt_cache(llama, block_size=4, quantization=codec)
    ours, theirs = (
        list(generate_step(prompt, llama, max_tokens=9, prompt_cache=caches, prefill_step_size=8))
        for caches in (paged, plain)
    )
    assert len(ours) == 9
    assert {entry.offset for entry in paged} == {entry.offset for entry in plain}
    if codec is None:
        assert [token for token, _ in ours] == [token for token, _ in theirs]
        assert all(same(a[1], b[1]) for a, b in zip(ours, theirs, strict=True))


# Factories.


def test_a_factory_puts_a_models_caches_in_one_group_that_lives_as_long_as_an_entry(llama):
    entries = make_paged_prompt_cache(llama, capacity=100, block_size=8)
    group = entries[0].group
    assert group.caches == tuple(entry.cache for entry in entries)
    assert {entry.cache.capacity for entry in entries} == {100}
    assert len({id(entry.cache.masks) for entry in entries}) == 1
    assert len({id(entry.cache.pages) for entry in entries}) == 3
    seen = weakref.ref(group)
    del group, entries[1:]
    gc.collect()
    assert seen() is not None
    del entries
    gc.collect()
    assert seen() is None


def test_fresh_full_entries_are_exchanged_in_place_and_all_others_stay(gemma, llama):
    entries: list[Any] = mlx_lm_cache.make_prompt_cache(gemma)
    before = list(entries)
    assert page_prompt_cache(entries, block_size=4) is entries
    kinds = [type(entry) for entry in entries]
    assert kinds == [RotatingKVCache, RotatingKVCache, PagedPromptCache] * 2
    assert [a is b for a, b in zip(entries, before, strict=True)] == [True, True, False] * 2
    assert entries[2].group.caches == (entries[2].cache, entries[5].cache)
    plain = mlx_lm_cache.make_prompt_cache(gemma)
    for tokens in chunked(TOKENS, CHUNKS[0]):
        assert same(run(gemma, entries, tokens), run(gemma, plain, tokens))
    warm = mlx_lm_cache.make_prompt_cache(llama)
    run(llama, warm, TOKENS[:3])
    kept = list(warm)
    assert page_prompt_cache(warm) == kept
    sinks = [RotatingKVCache(max_size=8, keep=4), KVCache()]
    page_prompt_cache(sinks)
    assert [type(entry) for entry in sinks] == [RotatingKVCache, PagedPromptCache]


def test_a_factory_refuses_options_that_are_not_legal(llama):
    with pytest.raises(InvalidArgument, match="capacity is 0"):
        make_paged_prompt_cache(llama, capacity=0)
    with pytest.raises(InvalidArgument, match="block_size is 0"):
        page_prompt_cache(mlx_lm_cache.make_prompt_cache(llama), block_size=0)
    with (
        pytest.raises(InvalidArgument, match="block_size is -1"),
        use_paged_caches(llama, block_size=-1),
    ):
        raise AssertionError


@pytest.mark.parametrize("kind", ["llama", "gemma"])
def test_within_the_block_mlx_lm_is_handed_paged_caches_over_one_pool_a_layer(kind, request):
    model = request.getfixturevalue(kind)
    plain = mlx_lm_cache.make_prompt_cache(model)
    with use_paged_caches(model, block_size=4) as pools:
        with (
            pytest.raises(Unsupported, match="leave that block first"),
            use_paged_caches(model),
        ):
            raise AssertionError
        caches = [mlx_lm_cache.make_prompt_cache(model) for _ in range(2)]
        for entries in caches:
            assert [entry.cache.pages for entry in entries] == pools
        assert caches[0][0].group is not caches[1][0].group
        plains = [[KVCache() for _ in model.layers] for _ in range(2)]
        for tokens in chunked(TOKENS, CHUNKS[0]):  # two sequences, in turns
            for entries, others in zip(caches, plains, strict=True):
                assert same(run(model, entries, tokens), run(model, others, tokens))
        used = [pages.pool.num_used for pages in pools]
        assert used == [2 * -(-17 // 4)] * len(pools)
        del caches, entries
        gc.collect()
        assert [pages.pool.num_used for pages in pools] == [0] * len(pools)
    again = mlx_lm_cache.make_prompt_cache(model)
    assert [type(entry) for entry in again] == [type(entry) for entry in plain]


@pytest.mark.parametrize("limit", [Blocks(3), Bytes(3 * 3 * 4 * 2 * 2 * HEAD_DIM * 2)], ids=str)
def test_a_forward_past_the_limit_is_refused_before_any_layer_changed(llama, limit):
    with use_paged_caches(llama, limit, block_size=4) as pools:
        first, second = (mlx_lm_cache.make_prompt_cache(llama) for _ in range(2))
        run(llama, first, TOKENS[:4])
        run(llama, second, TOKENS[:8])
        with pytest.raises(PoolExhausted, match="wanted 1 blocks, 0 of 3 are free"):
            run(llama, first, TOKENS[4:6])
        assert [entry.offset for entry in first] == [4, 4, 4]
        assert [pages.pool.num_used for pages in pools] == [3, 3, 3]
        del second
        gc.collect()
        plain = mlx_lm_cache.KVCache
        others = [plain() for _ in first]
        run(llama, others, TOKENS[:4])
        assert same(run(llama, first, TOKENS[4:6]), run(llama, others, TOKENS[4:6]))


def test_r13_a_trim_that_one_layer_cannot_do_is_refused_by_the_first(gemma):
    paged = make_paged_prompt_cache(gemma, block_size=4, release_behind=True)
    ordered = [paged[2], *paged[:2], *paged[3:]]  # a full layer is asked first
    for tokens in chunked(TOKENS, (9, 9, 9)):
        run(gemma, paged, tokens)
    with pytest.raises(NotTrimmable):
        mlx_lm_cache.trim_prompt_cache(ordered, 14)
    assert {entry.offset for entry in paged} == {27}
    assert mlx_lm_cache.trim_prompt_cache(ordered, 9) == 9
    assert {entry.offset for entry in paged} == {18}
    run(gemma, paged, TOKENS[18:20])


# Quantized on the way.


def quantize(caches: list[Any], bits: int = 4, start: int = 0) -> None:
    maybe_quantize_kv_cache(caches, start, 32, bits)


def test_mlx_lm_quantizes_entries_in_place_once_they_are_long_enough(llama):
    entries = make_paged_prompt_cache(llama, capacity=40, block_size=4)
    run(llama, entries, TOKENS[:9])
    rows = [entry.keys_and_values() for entry in entries]
    before = list(entries)
    quantize(entries, start=10)
    assert entries == before
    quantize(entries, start=9)
    codec = PagedQuantization(4, 32)
    assert [entry.cache.quantization for entry in entries] == [codec] * 3
    assert {entry.cache.capacity for entry in entries} == {40}
    for entry, stored in zip(entries, rows, strict=True):
        coded = [plane for part in stored for plane in mx.quantize(part, 32, 4)]
        assert all(map(same, entry.cache.page_rows(), coded))
        assert entry.offset == 9
    kept = list(entries)
    quantize(entries)
    assert all(a is b for a, b in zip(entries, kept, strict=True))
    run(llama, entries, TOKENS[9:12])
    assert {entry.offset for entry in entries} == {12}


def test_quantized_entries_stay_one_group_and_let_go_of_their_16_bit_pages(llama):
    entries = make_paged_prompt_cache(llama, block_size=4)
    run(llama, entries, TOKENS[:9])
    pages = [weakref.ref(entry.cache.pages) for entry in entries]
    quantize(entries)
    gc.collect()
    assert [seen() for seen in pages] == [None] * 3
    [group] = {id(entry.group): entry.group for entry in entries}.values()
    assert group.caches == tuple(entry.cache for entry in entries)
    assert group.trim(2) == 2
    assert {entry.offset for entry in entries} == {7}


def test_r37_conversion_to_4_bits_is_per_layer():
    layer = Layer(Shape(4, 2, 64, 64))
    entries: list[Any] = []
    for _ in range(8):
        cache, _ = filled(layer, 2048, PagedKVCache(2048))
        entries.append(PagedPromptCache(cache))
    group = CacheGroup([entry.cache for entry in entries])
    for entry in entries:
        entry.group = group
    del cache, group, entry
    mx.eval([entry.cache.state() for entry in entries])
    gc.collect()
    mx.synchronize()
    mx.clear_cache()
    held = mx.get_active_memory()
    one = entries[0].cache.pages.nbytes
    mx.reset_peak_memory()
    for at in range(8):
        quantize(only := [entries[at]])
        entries[at] = only.pop()
        mx.eval(entries[at].cache.state())
    mx.synchronize()
    assert mx.get_peak_memory() - held < 3 * one
    assert mx.get_active_memory() < held - 8 * one * 0.65


@pytest.mark.parametrize("release_behind", [False, True])
def test_a_sliding_entry_is_quantized_with_its_window(release_behind):
    layer = Layer(Shape(4, 2, 32, 32))
    cache, rows = filled(
        layer, 15, PagedKVCache(block_size=4, window=3, release_behind=release_behind)
    )
    entry = PagedPromptCache(cache)
    quantized = entry.to_quantized(group_size=32, bits=8)
    for each in (quantized.cache, cache):
        assert (each.offset, each.window, each.release_behind) == (15, 3, release_behind)
    coded = [plane for part in rows for plane in mx.quantize(part, 32, 8)]
    assert all(map(same, quantized.cache.page_rows(), coded))
    assert same(quantized.make_mask(4), entry.make_mask(4))
    more = layer.rows(4)
    quantized.update_and_fetch(*more)
    entry.update_and_fetch(*more)
    assert (quantized.offset, quantized.cache.start) == (entry.offset, cache.start)


def test_an_entry_whose_rows_fit_no_group_is_not_quantized():
    layer = Layer(Shape(4, 2, 80, 80))
    entry, rows = entry_of(layer, 5)
    with pytest.raises(IllegalFormat, match="K dim 80"):
        entry.to_quantized(group_size=32, bits=4)
    assert holds(entry.cache, rows)


def test_a_fresh_entry_is_quantized_before_its_first_row():
    entry = PagedPromptCache(PagedKVCache(block_size=4)).to_quantized(group_size=32, bits=2)
    assert entry.cache.quantization == PagedQuantization(2, 32)
    assert PagedPromptCache(PagedKVCache(direct="auto")).to_quantized().cache.direct == "auto"
    rows = Layer(Shape(4, 2, 32, 32)).rows(3)
    entry.update_and_fetch(*rows)
    assert entry.offset == 3


def test_mlx_lms_loop_with_kv_bits_reads_affine_pages(llama):
    caches = make_paged_prompt_cache(llama, block_size=4)
    steps = generate_step(
        mx.array(TOKENS[:20]), llama, max_tokens=6, prompt_cache=caches, prefill_step_size=8,
        kv_bits=8, kv_group_size=32, quantized_kv_start=0,
    )  # fmt: skip
    plain = generate_step(
        mx.array(TOKENS[:20]),
        llama,
        max_tokens=6,
        prompt_cache=mlx_lm_cache.make_prompt_cache(llama),
    )
    for (_, ours), (_, theirs) in zip(steps, plain, strict=True):
        assert mx.allclose(ours, theirs, atol=1).item()
    assert {entry.cache.quantization for entry in caches} == {PagedQuantization(8, 32)}
    assert {entry.offset for entry in caches} == {26}


def test_a_policy_of_no_count_of_layers_is_refused():
    with pytest.raises(InvalidArgument, match="at least 0 layers"):
        KeepDense(first=-1)
    with pytest.raises(InvalidType, match=r"last is 1\.5; it must be an integer"):
        KeepDense(last=cast("Any", 1.5))


def test_an_entry_that_is_given_another_state_stays_in_its_group(llama, whole):
    entries = make_paged_prompt_cache(llama, block_size=4)
    llama(mx.array([TOKENS[:6]]), cache=entries)
    first = entries[0]
    pool = first.cache.pool
    state, meta = first.state, first.meta_state
    first.state = state
    if not whole:
        first.meta_state = meta
    assert [entry.cache for entry in entries] == list(first.group.caches)
    assert pool is not first.cache.pool
    assert pool.num_used == 0


@pytest.mark.parametrize("trimmed", [0, 1, 2])
def test_a_recorded_step_over_layers_of_unequal_lengths_has_the_bits_of_the_eager_one(
    llama, trimmed
):
    entries = make_paged_prompt_cache(llama, block_size=4)
    llama(mx.array([TOKENS[:6]]), cache=entries)
    entries[trimmed].cache.trim(2)
    others, token, decoder = copy.deepcopy(entries), mx.array([[7]]), CompiledDecoder(llama)
    with pytest.warns(UserWarning, match="layers of unequal lengths"):
        logits = decoder(token, cache=entries)
    assert same(logits, llama(token, cache=others))
    assert [entry.offset for entry in entries] == [entry.offset for entry in others]


def test_a_first_token_goes_to_the_model_and_nothing_is_said(llama):
    entries, decoder = make_paged_prompt_cache(llama, block_size=4), CompiledDecoder(llama)
    for step in range(3):
        decoder(mx.array([[step]]), cache=entries)
    assert decoder.num_traces == 1
