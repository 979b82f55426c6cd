"""What pagedkv-mlx's users see: every public answer has the type that its docstring tells."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import mlx.core as mx
from typing_extensions import assert_type

from pagedkv_mlx import (
    PHASE,
    AttentionMasks,
    Blocks,
    Bytes,
    CacheGroup,
    ContiguousKVCache,
    GatheredRead,
    LayerPages,
    PagedKVCache,
    PagedQuantization,
    PagedTurboQuant,
    RowLayout,
)
from pagedkv_pool import BlockPool
from pagedkv_protocols import (
    FORK,
    Cache,
    CommittedCache,
    DonorRows,
    MaskLease,
    Masks,
    Read,
    supports,
)

ROWS = mx.ones((1, 2, 3, 32))
ONE = mx.ones((1, 2, 1, 32))
QUERIES = mx.ones((1, 4, 3, 32))


def test_a_cache_answers_in_arrays_of_mlx() -> None:
    cache = PagedKVCache(capacity=8, block_size=4, direct="auto", window=4, release_behind=True)
    with cache as entered:
        assert_type(entered, PagedKVCache)
    cache = PagedKVCache(block_size=4)
    assert_type(cache.offset, int)
    assert_type(cache.start, int)
    assert_type(cache.window, int | None)
    assert_type(cache.capacity, int | None)
    assert_type(cache.block_table, tuple[int, ...])
    assert_type(cache.pages, LayerPages)
    assert_type(cache.pool, BlockPool)
    assert_type(cache.masks, AttentionMasks)
    assert_type(cache.quantization, PagedQuantization | None)
    assert_type(cache.turbo, PagedTurboQuant | None)
    assert_type(cache.direct, bool | Literal["auto"])
    assert_type(cache.append_window(ROWS, ROWS), GatheredRead)
    assert_type(cache.append_decode(ONE, ONE), GatheredRead)
    assert_type(cache.append_committed(ROWS, ROWS), GatheredRead)
    assert_type(cache.read_block(ROWS, ROWS), GatheredRead)
    assert_type(cache.capture_donor_rows(), DonorRows[mx.array])
    assert_type(cache.capture_donor_rows().keys, mx.array)
    assert_type(cache.export(), tuple[mx.array, mx.array] | None)
    assert_type(cache.state(), tuple[mx.array, ...])
    assert_type(cache.make_mask(3), mx.array | Literal["causal"] | None)
    assert_type(cache.is_trimmable(1), bool)
    assert_type(cache.trim(1), int)
    assert_type(cache.fork(), PagedKVCache)
    assert_type(cache.signature(), str)
    assert_type(cache.bytes_per_token(), float)
    assert_type(cache.nbytes, int)


def test_the_first_windows_of_encoders_and_images_are_reads() -> None:
    spans = mx.array([1, 1, 0])
    assert_type(PagedKVCache().append_bidirectional(ROWS, ROWS, spans), GatheredRead)
    assert_type(PagedKVCache().append_encoder(ROWS, ROWS, None), GatheredRead)


def test_a_read_attends_to_an_array() -> None:
    with PagedKVCache().append_window(ROWS, ROWS) as read:
        assert_type(read, GatheredRead)
        assert_type(read.attend(QUERIES, 0.1), mx.array)
        assert_type(read.attend(QUERIES, 0.1, mask=PHASE, softcap=30.0), mx.array)
        assert_type(read.attend(QUERIES, 0.1, mask=None, sinks=mx.zeros(4)), mx.array)
        assert_type(read.attend(QUERIES, 0.1, mask=mx.ones((3, 3), mx.bool_)), mx.array)


def test_both_caches_are_what_the_protocols_ask() -> None:
    for cache in (PagedKVCache(), ContiguousKVCache()):
        attended(cache)
        forked(cache)


def attended(cache: CommittedCache[mx.array]) -> None:
    assert_type(cache.append_committed(ROWS, ROWS), Read[mx.array])
    assert_type(cache.append_window(ROWS, ROWS).attend(QUERIES, 0.1), mx.array)
    assert_type(cache.export(), tuple[mx.array, mx.array] | None)


def forked(cache: Cache[mx.array]) -> None:
    if supports(cache, FORK):
        assert_type(cache.offset, int)
        cache.fork().dispose()


def test_contiguous_caches_answer_as_paged_ones_do() -> None:
    cache = ContiguousKVCache(window=4)
    assert_type(cache.append_window(ROWS, ROWS), GatheredRead)
    assert_type(cache.append_decode(ONE, ONE), GatheredRead)
    assert_type(cache.export(), tuple[mx.array, mx.array] | None)
    assert_type(cache.fork(), ContiguousKVCache)
    assert_type(cache.trim(1), int)


def test_pages_are_limited_in_blocks_or_bytes() -> None:
    assert_type(Blocks(4).count, int)
    assert_type(Bytes(1 << 20).count, int)
    pages = LayerPages(PagedQuantization(bits=4, group_size=32), block_size=4, limit=Blocks(4))
    assert_type(pages.pool, BlockPool)
    assert_type(pages.planes, tuple[mx.array, ...])
    assert_type(pages.layout, RowLayout | None)
    assert_type(PagedKVCache(pages=pages).signature(), str)


def test_a_group_steps_trims_and_forks_as_one() -> None:
    group = CacheGroup([PagedKVCache(), PagedKVCache()])
    assert_type(group.caches, tuple[PagedKVCache, ...])
    with group.step(3) as nothing:
        assert_type(nothing, None)
    assert_type(group.trim(0), int)
    assert_type(group.is_trimmable(1), bool)
    assert_type(group.fork(), CacheGroup)
    assert_type(group.nbytes, int)


def test_masks_are_leased() -> None:
    leased(AttentionMasks())


def leased(masks: Masks[mx.array]) -> None:
    lease = masks.lease(2, 5, window=3)
    assert_type(lease, MaskLease[mx.array])
    assert_type(lease.array, mx.array)
    assert_type(masks.builds, int)


def test_a_layout_is_known_by_its_rows() -> None:
    layout = RowLayout.of(ROWS, ROWS)
    assert_type(layout, RowLayout)
    assert_type(layout.num_kv_heads, int)
    assert_type(layout.dtype, mx.Dtype)


def types_for_mlx_lm(model: Any) -> None:
    """Checked, not run: mlx-lm is an extra."""
    from pagedkv_mlx.mlx_lm import (  # noqa: PLC0415 - the rest here does without mlx-lm
        PagedPromptCache,
        make_paged_prompt_cache,
        page_prompt_cache,
        use_paged_caches,
    )

    entries = make_paged_prompt_cache(model, 100, block_size=16)
    assert_type(entries, list[Any])
    page_prompt_cache(entries, 100)
    with use_paged_caches(model, limit=Bytes(1 << 30)) as pools:
        assert_type(pools, list[LayerPages])
    entry = PagedPromptCache(PagedKVCache())
    assert_type(entry.update_and_fetch(ROWS, ROWS), tuple[mx.array, mx.array])
    assert_type(entry.cache, PagedKVCache)
    assert_type(entry.offset, int)
    assert_type(entry.make_mask(3), mx.array | Literal["causal"] | None)
    assert_type(entry.to_quantized(bits=4), PagedPromptCache)
    assert_type(PagedPromptCache.from_state(entry.state), PagedPromptCache)


def types_for_gguf() -> None:
    """Checked, not run: it would convert a model."""
    from pagedkv_mlx.gguf import find_smollm2, model_folder  # noqa: PLC0415 - as above

    assert_type(find_smollm2(), Path)
    assert_type(model_folder("a.gguf", cache_folder=Path("cache")), Path)
