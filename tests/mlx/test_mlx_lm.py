"""mlx-lm gets pages wherever it gets a cache, and finds in them what it finds in its own."""

from __future__ import annotations

import copy
import gc
import weakref
from typing import Any

import mlx.core as mx
import pytest

from pagedkv_formats import PagedQuantization
from pagedkv_mlx import Blocks, Bytes, PagedKVCache
from pagedkv_protocols import InvalidArgument, PoolExhausted, Unsupported

pytest.importorskip("mlx_lm")

from mlx_lm.generate import generate_step
from mlx_lm.models import llama
from mlx_lm.models.cache import KVCache, RotatingKVCache, make_prompt_cache, trim_prompt_cache

from pagedkv_mlx.mlx_lm import (
    STATE_IS_WHOLE,
    PagedPromptCache,
    make_paged_prompt_cache,
    page_prompt_cache,
    use_paged_caches,
)

VOCABULARY = 50
PROMPT = list(range(1, 20))


@pytest.fixture(scope="module")
def model() -> Any:
    mx.random.seed(3)
    args = llama.ModelArgs(
        model_type="llama",
        hidden_size=64,
        num_hidden_layers=3,
        intermediate_size=96,
        num_attention_heads=4,
        num_key_value_heads=2,
        rms_norm_eps=1e-5,
        vocab_size=VOCABULARY,
        head_dim=32,
    )
    made = llama.Model(args)
    made.set_dtype(mx.bfloat16)
    mx.eval(made.parameters())
    return made


def generate(model: Any, caches: list[Any] | None, prompt: list[int], new: int = 6) -> Any:
    """Log-probabilities ``[new, vocabulary]``."""
    steps = generate_step(
        mx.array(prompt), model, max_tokens=new, prompt_cache=caches, prefill_step_size=7
    )
    return mx.stack([log_probabilities for _, log_probabilities in steps])


def same(ours: mx.array, theirs: mx.array) -> bool:
    return bool(mx.array_equal(ours, theirs).item())


def made_again(entry: PagedPromptCache) -> PagedPromptCache:
    """As mlx-lm makes an entry from what it stored."""
    return from_parts(rows_of(entry), entry.meta_state)


def from_parts(rows: Any, meta: tuple[str, ...]) -> PagedPromptCache:
    """In the protocol of the mlx-lm that is installed."""
    if STATE_IS_WHOLE:
        return PagedPromptCache.from_state((rows, meta))
    return PagedPromptCache.from_state(rows, meta)


def rows_of(entry: PagedPromptCache) -> Any:
    return entry.state[0] if STATE_IS_WHOLE else entry.state


# Where pages come from


def test_every_layer_gets_pages_of_its_own_in_one_group(model: Any) -> None:
    entries = make_paged_prompt_cache(model, 20, block_size=8)
    assert [type(entry) for entry in entries] == [PagedPromptCache] * 3
    assert len({id(entry.cache.pages) for entry in entries}) == 3
    assert {entry.group for entry in entries} == {entries[0].group}
    assert {entry.cache.pool.num_blocks for entry in entries} == {3}
    assert same(generate(model, entries, PROMPT), generate(model, None, PROMPT))


def test_only_fresh_entries_of_all_positions_are_exchanged(model: Any) -> None:
    warm = KVCache()
    warm.update_and_fetch(mx.ones((1, 2, 3, 32)), mx.ones((1, 2, 3, 32)))
    sliding = RotatingKVCache(max_size=8)
    caches = [KVCache(), sliding, warm, KVCache()]
    assert page_prompt_cache(caches, block_size=8) is caches
    assert caches[1:3] == [sliding, warm]
    assert [type(entry) for entry in caches[::3]] == [PagedPromptCache] * 2


def test_an_entry_that_two_layers_share_stays_one(model: Any) -> None:
    shared = KVCache()
    first, second, other = page_prompt_cache([shared, shared, KVCache()])
    assert first is second
    assert other is not first
    assert isinstance(first, PagedPromptCache)


def test_within_the_block_mlx_lm_itself_gets_paged_caches(model: Any) -> None:
    expected = generate(model, None, PROMPT)
    with use_paged_caches(model, block_size=4) as pools:
        assert same(generate(model, None, PROMPT), expected)
        first, second = make_prompt_cache(model), make_prompt_cache(model)
        assert [entry.cache.pages for entry in first] == pools
        assert [entry.cache.pages for entry in second] == pools
        assert {pool.pool.num_used for pool in pools} == {0}
    assert {type(entry) for entry in make_prompt_cache(model)} == {KVCache}


def test_pages_of_a_model_are_replaced_once_at_a_time(model: Any) -> None:
    with use_paged_caches(model), pytest.raises(Unsupported), use_paged_caches(model):
        pass
    with pytest.raises(ZeroDivisionError), use_paged_caches(model):
        raise ZeroDivisionError
    assert {type(entry) for entry in make_prompt_cache(model)} == {KVCache}


@pytest.mark.parametrize("limit", [Blocks(3), Bytes(3 * 3 * 1024)])
def test_a_limit_refuses_a_forward_before_any_layer_took_it(
    model: Any, limit: Blocks | Bytes
) -> None:
    """A block of 4 positions takes 1024 bytes a layer; 19 prompt tokens want 5 of them."""
    with use_paged_caches(model, limit, block_size=4):
        entries = make_prompt_cache(model)
        with pytest.raises(PoolExhausted):
            generate(model, entries, PROMPT)
        assert {entry.offset for entry in entries} == {7}
        entries[0].group.trim_to(0)
        assert generate(model, entries, PROMPT[:6], new=3).shape == (3, VOCABULARY)


# What mlx-lm does with them


def test_copies_go_their_own_ways(model: Any) -> None:
    entries = make_paged_prompt_cache(model, block_size=4)
    model(mx.array([PROMPT]), cache=entries)
    copied = copy.deepcopy(entries)
    assert [entry.cache.block_table for entry in copied] == [
        entry.cache.block_table for entry in entries
    ]
    ours = [generate(model, entries, [5, 6]), generate(model, copied, [7, 8])]
    for prompt, log_probabilities in zip(([5, 6], [7, 8]), ours, strict=True):
        plain = make_prompt_cache(model)
        model(mx.array([PROMPT]), cache=plain)
        assert same(log_probabilities, generate(model, plain, prompt))


def test_copies_of_a_whole_cache_are_a_group_again(model: Any) -> None:
    with use_paged_caches(model, Blocks(6), block_size=4):
        entries = make_prompt_cache(model)
        model(mx.array([PROMPT]), cache=entries)
        copied = copy.deepcopy(entries)
        assert len({entry.group for entry in copied}) == 1
        assert copied[0].group is not entries[0].group
        assert [entry.cache for entry in copied] == list(copied[0].group.caches)
        with pytest.raises(PoolExhausted):
            model(mx.array([PROMPT]), cache=copied)
        assert {entry.offset for entry in (*entries, *copied)} == {19}


def test_a_copy_of_some_layers_is_a_group_of_these(model: Any) -> None:
    """Such as the first layers, taken as the caches of a draft model."""
    entries = make_paged_prompt_cache(model)
    copied = copy.deepcopy(entries[:2])
    assert copied[0].group.caches == (copied[0].cache, copied[1].cache)
    alone = copy.deepcopy(PagedPromptCache(copied[0].cache))
    assert alone.group is None


def test_state_is_the_rows_of_this_sequence_and_no_trimmed_one(model: Any) -> None:
    with use_paged_caches(model, block_size=4):
        entries, neighbours = make_prompt_cache(model), make_prompt_cache(model)
        for begin in range(0, 18, 3):
            model(mx.array([PROMPT[begin : begin + 3]]), cache=entries)
            model(mx.array([PROMPT[begin : begin + 2]]), cache=neighbours)
    assert entries[0].cache.block_table[:3] == (0, 2, 3)
    assert trim_prompt_cache(entries, 5) == 5
    plain = make_prompt_cache(model)
    for begin in range(0, 18, 3):
        model(mx.array([PROMPT[begin : begin + 3]]), cache=plain)
    for ours, theirs in zip(entries, plain, strict=True):
        for rows, wanted in zip(rows_of(ours), (theirs.keys, theirs.values), strict=True):
            assert same(rows, wanted[..., :13, :])


@pytest.mark.parametrize("quantization", [None, PagedQuantization(4, 32), PagedQuantization(3, 32)])
def test_entries_made_again_from_their_state_go_on_with_the_same_bits(
    model: Any, quantization: PagedQuantization | None
) -> None:
    entries = make_paged_prompt_cache(model, block_size=4, quantization=quantization)
    model(mx.array([PROMPT]), cache=entries)
    trim_prompt_cache(entries, 2)
    again = [made_again(entry) for entry in entries]
    assert {entry.offset for entry in again} == {17}
    assert {entry.cache.quantization for entry in again} == {quantization}
    assert {entry.cache.block_size for entry in again} == {4}
    assert same(generate(model, again, [3, 4]), generate(model, entries, [3, 4]))


def test_an_entry_without_a_row_is_made_again_without_one(model: Any) -> None:
    again = made_again(make_paged_prompt_cache(model, block_size=4)[0])
    assert again.empty()
    assert (again.offset, again.size(), again.cache.block_size) == (0, 0, 4)


def test_a_sliding_entry_is_made_again_with_its_window() -> None:
    rows = mx.random.normal((1, 2, 9, 32))

    def sliding(*, release: bool) -> PagedPromptCache:
        cache = PagedKVCache(block_size=2, window=3, release_behind=release)
        entry = PagedPromptCache(cache)
        for begin in range(0, 9, 3):
            entry.update_and_fetch(*[rows[:, :, begin : begin + 3]] * 2)
        return entry

    again = made_again(sliding(release=False))
    assert (again.offset, again.cache.window) == (9, 3)
    with pytest.raises(Unsupported, match="leave release_behind out"):
        made_again(sliding(release=True))


def test_a_state_of_others_is_refused() -> None:
    with pytest.raises(InvalidArgument):
        from_parts((), ("a", "b"))


def test_once_all_are_quantized_the_16_bit_pages_are_gone(model: Any) -> None:
    entries: list[Any] = make_paged_prompt_cache(model, block_size=4)
    model(mx.array([PROMPT]), cache=entries)
    pages = [weakref.ref(entry.cache.pages) for entry in entries]
    entries[:] = [entry.to_quantized(group_size=32, bits=4) for entry in entries]
    gc.collect()
    assert [ref() for ref in pages] == [None] * 3
    assert {entry.cache.quantization for entry in entries} == {PagedQuantization(4, 32)}
    assert all(entry.to_quantized(group_size=32, bits=4) is entry for entry in entries)


def test_a_quantized_entry_holds_the_codes_of_its_rows(model: Any) -> None:
    entry = make_paged_prompt_cache(model, block_size=4)[0]
    keys, values = mx.random.normal((2, 1, 2, 9, 32)).astype(mx.bfloat16)
    entry.update_and_fetch(keys, values)
    entry.trim(2)
    quantized = entry.to_quantized(group_size=32, bits=4)
    assert (quantized.offset, quantized.cache.block_size) == (7, 4)
    codes = mx.quantize(keys[..., :7, :], group_size=32, bits=4)
    assert all(map(same, rows_of(quantized)[:3], codes))
    stored = quantized.keys_and_values()
    assert same(stored[0], mx.dequantize(*codes, group_size=32, bits=4))


def test_an_entry_answers_as_mlx_lms_own_does(model: Any) -> None:
    ours, theirs = make_paged_prompt_cache(model)[0], KVCache()
    rows = mx.random.normal((1, 2, 5, 32)).astype(mx.bfloat16)
    assert ours.empty() == theirs.empty() is True
    assert ours.keys_and_values() == (None, None)
    for length in (5, 1):
        for array, window in ((False, None), (True, None), (True, 3), (False, 3)):
            masks = [
                e.make_mask(length, return_array=array, window_size=window) for e in (ours, theirs)
            ]
            assert type(masks[0]) is type(masks[1])
            if isinstance(masks[0], mx.array):
                assert same(*masks)
            else:
                assert masks[0] == masks[1]
        fetched = [
            e.update_and_fetch(rows[:, :, :length], rows[:, :, :length]) for e in (ours, theirs)
        ]
        assert all(map(same, *fetched))
    assert (ours.offset, ours.size(), ours.is_trimmable()) == (6, theirs.size(), True)
    assert ours.trim(10) == theirs.trim(10) == 6
    assert ours.nbytes == 0
    assert bool(ours)
    assert not hasattr(ours, "bits")
