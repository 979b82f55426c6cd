"""TurboQuant pages in the cache and in mlx-lm's loops: one set of bytes, whatever came between."""

from __future__ import annotations

import copy
from typing import Any

import mlx.core as mx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagedkv_mlx import PagedKVCache, PagedTurboQuant
from tests.mlx.reference import DTYPES, Layer, Shape, joined, normal, same

pytest.importorskip("mlx_lm")

from mlx_lm.generate import generate_step, speculative_generate_step

from pagedkv_mlx.mlx_lm import (
    STATE_IS_WHOLE,
    KeepDense,
    PagedPromptCache,
    make_paged_prompt_cache,
)
from tests.mlx.tiny_models import VOCABULARY, tiny_llama

CODECS = (PagedTurboQuant(), PagedTurboQuant(4, 4), PagedTurboQuant(3, 2), PagedTurboQuant(8, 5))
codecs = st.sampled_from(CODECS)
every_codec = pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.signature())
PROMPT = mx.array([(7 * i) % VOCABULARY for i in range(23)])


@given(codecs, st.sampled_from(DTYPES), st.lists(st.integers(-6, 9), min_size=1, max_size=8))
def test_bytes_are_those_of_encoding_all_rows_at_once_whatever_the_schedule(codec, dtype, schedule):
    layer = Layer(Shape(4, 2, 48, 64, dtype))
    cache, stored = PagedKVCache(block_size=3, turbo=codec), layer.no_rows()
    for length in schedule:
        if length > 0:
            rows = layer.rows(length)
            cache.append_window(*rows).dispose()
            stored = joined(stored, rows)
        elif cache.offset:
            cache.trim(-length)
            stored = stored[0][:, :, : cache.offset], stored[1][:, :, : cache.offset]
    if cache.offset:
        assert all(map(same, cache.page_rows(), codec.encode(*stored)))


@every_codec
def test_a_fork_that_goes_back_and_on_codes_its_rows_as_if_it_had_been_alone(codec):
    layer = Layer(Shape(4, 2, 64, 32))
    first, more = layer.rows(10), layer.rows(5)
    cache = PagedKVCache(block_size=4, turbo=codec)
    cache.append_window(*first).dispose()
    fork = cache.fork()
    fork.trim(3)
    fork.append_window(*more).dispose()
    alone = joined((first[0][:, :, :7], first[1][:, :, :7]), more)
    assert all(map(same, fork.page_rows(), codec.encode(*alone)))
    assert all(map(same, cache.page_rows(), codec.encode(*first)))


@every_codec
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rotated_reads_are_those_of_decoded_rows_but_for_rounding(codec, dtype):
    """1e-5 of the output's norm in fp32, 1e-2 in 16 bits, as the kernel set promises."""
    layer = Layer(Shape(4, 2, 64, 48, dtype))
    caches = [
        PagedKVCache(
            block_size=5, turbo=PagedTurboQuant(codec.key_bits, codec.value_bits, kernels=k)
        )
        for k in ("rotated", "plain")
    ]
    for length in (12, 1, 4, 1):
        rows, queries = layer.rows(length), layer.queries(length)
        rotated, plain = (
            cache.append_window(*rows).attend(queries, layer.scale).astype(mx.float32)
            for cache in caches
        )
        off = mx.linalg.norm((rotated - plain).flatten()) / mx.linalg.norm(plain.flatten())
        assert (off <= (1e-5 if dtype == mx.float32 else 1e-2)).item()


def test_no_position_is_rotated_back_for_a_decode_or_a_window(monkeypatch):
    cache = PagedKVCache(turbo=PagedTurboQuant())
    layer = Layer(Shape(4, 2, 64, 64))
    monkeypatch.setattr(PagedTurboQuant, "decode", None)
    for length in (9, 1):
        read = cache.append_window(*layer.rows(length))
        assert read.attend(layer.queries(length), layer.scale).shape == (1, 4, length, 64)


def test_a_page_mean_is_that_of_the_first_write_and_goes_with_copies_and_forks():
    codec = PagedTurboQuant(4, 4, page_mean=True)
    keys = normal(1, 1, 2, 12, 64) + 5 * normal(2, 1, 2, 1, 64)
    values = normal(3, 1, 2, 12, 64)
    cache = PagedKVCache(block_size=4, turbo=codec)
    cache.append_window(keys[:, :, :6], values[:, :, :6]).dispose()
    before = cache.page_rows()
    fork = cache.fork()
    fork.append_window(keys[:, :, 6:], values[:, :, 6:]).dispose()
    assert all(same(a, b[:, :, :6]) for a, b in zip(before, fork.page_rows(), strict=True))
    assert all(map(same, cache.page_rows(), before))
    exported = fork.export()
    assert exported is not None
    error = (
        mx.square(exported[0] - keys).sum() / mx.square(keys - keys.mean(2, keepdims=True)).sum()
    )
    assert (error < 0.02).item()  # of what varies: the constant part costs nothing


def tokens_and_logprobs(model: Any, caches: list[Any], new: int = 12) -> tuple[list[int], Any]:
    steps = list(generate_step(PROMPT, model, max_tokens=new, prompt_cache=caches))
    return [token for token, _ in steps], [logprobs for _, logprobs in steps]


@every_codec
@pytest.mark.parametrize("block_size", [1, 5, 256])
def test_mlx_lms_loop_has_the_bits_of_any_schedule_over_the_same_pages(codec, block_size):
    """Nothing but block sizes and prefill chunks differs, so no bit may."""
    model = tiny_llama()
    made = [
        make_paged_prompt_cache(model, block_size=size, turbo=codec) for size in (256, block_size)
    ]
    expected = tokens_and_logprobs(model, made[0])
    found = tokens_and_logprobs(model, made[1])
    assert found[0] == expected[0]
    assert all(map(same, found[1], expected[1]))


@every_codec
def test_a_trim_and_the_same_tokens_again_give_the_same_logits(codec):
    model = tiny_llama()
    caches = make_paged_prompt_cache(model, block_size=4, turbo=codec)
    mx.eval(model(PROMPT[None], cache=caches))
    straight = model(mx.array([[5]]), cache=copy.deepcopy(caches))
    model(mx.array([[9, 9, 9, 9, 9]]), cache=caches)
    for entry in caches:
        assert entry.trim(5) == 5
    assert same(model(mx.array([[5]]), cache=caches), straight)


def test_speculative_decoding_over_turboquant_pages_keeps_the_greedy_tokens():
    model, draft = tiny_llama(), tiny_llama(num_layers=1)
    turbo = PagedTurboQuant()
    greedy, _ = tokens_and_logprobs(model, make_paged_prompt_cache(model, turbo=turbo))
    caches = [
        entry
        for each in (model, draft)
        for entry in make_paged_prompt_cache(each, block_size=4, turbo=turbo)
    ]
    steps = speculative_generate_step(
        PROMPT, model, draft, num_draft_tokens=3, max_tokens=12, prompt_cache=caches
    )
    assert [token for token, _, _ in steps] == greedy


@every_codec
def test_an_entry_is_restored_from_its_state_under_the_live_protocol(codec):
    model = tiny_llama()
    caches = make_paged_prompt_cache(model, block_size=3, turbo=codec)
    mx.eval(model(PROMPT[None], cache=caches))
    states = [
        entry.state if STATE_IS_WHOLE else (entry.state, entry.meta_state) for entry in caches
    ]
    again = [
        PagedPromptCache.from_state(state)
        if STATE_IS_WHOLE
        else PagedPromptCache.from_state(*state)
        for state in states
    ]
    token = mx.array([[3]])
    assert same(model(token, cache=again), model(token, cache=caches))


def test_a_policy_keeps_the_first_and_last_layers_as_they_came():
    caches = make_paged_prompt_cache(
        tiny_llama(4), turbo=PagedTurboQuant(), policy=KeepDense(first=1, last=1)
    )
    assert [entry.cache.turbo is None for entry in caches] == [True, False, False, True]
