"""The caches of pagedkv-mlx, seen by mypy and basedpyright; never run."""

from __future__ import annotations

import mlx.core as mx
from typing_extensions import assert_type

from pagedkv_formats import DensePages
from pagedkv_mlx import ContiguousKVCache, PagedKVCache
from pagedkv_protocols import (
    FORK,
    BidirectionalCache,
    BlockReadCache,
    Cache,
    CommittedCache,
    DonorCache,
    DonorRows,
    EncoderCache,
    ForkableCache,
    PageCodec,
    Read,
    supports,
)
from pagedkv_protocols.conformance import ArrayAdapter
from tests.mlx_arrays import MLXArrays


def both_caches_satisfy_every_protocol(paged: PagedKVCache, contiguous: ContiguousKVCache) -> None:
    for cache in (paged, contiguous):
        core: Cache[mx.array] = cache
        committed: CommittedCache[mx.array] = cache
        bidirectional: BidirectionalCache[mx.array] = cache
        encoder: EncoderCache[mx.array] = cache
        block: BlockReadCache[mx.array] = cache
        donor: DonorCache[mx.array] = cache
        fork: ForkableCache[mx.array] = cache
        print(core, committed, bidirectional, encoder, block, donor, fork)
    arrays: ArrayAdapter[mx.array] = MLXArrays()
    codec: PageCodec[mx.array, mx.Dtype] = DensePages()
    print(arrays, codec)


def a_paged_cache_keeps_its_own_type(cache: PagedKVCache) -> None:
    assert_type(cache.fork(), PagedKVCache)
    with cache as same:
        assert_type(same, PagedKVCache)
    if supports(cache, FORK):
        assert_type(cache, PagedKVCache)


def reads_of_a_paged_cache_give_arrays(cache: PagedKVCache, rows: mx.array) -> None:
    reads: list[Read[mx.array]] = [
        cache.append_decode(rows, rows),
        cache.append_window(rows, rows),
        cache.append_committed(rows, rows),
        cache.append_bidirectional(rows, rows, rows),
        cache.append_encoder(rows, rows, None),
        cache.read_block(rows, rows),
    ]
    for read in reads:
        assert_type(read.attend(rows, 0.125), mx.array)
    with cache.append_window(rows, rows) as mine:
        assert_type(mine.attend(rows, 0.125, mask=None, softcap=50.0), mx.array)


def what_a_paged_cache_hands_out_is_typed(cache: PagedKVCache) -> None:
    assert_type(cache.offset, int)
    assert_type(cache.start, int)
    assert_type(cache.window, "int | None")
    assert_type(cache.block_table, tuple[int, ...])
    assert_type(cache.trim(3), int)
    assert_type(cache.state(), tuple[mx.array, ...])
    assert_type(cache.export(), "tuple[mx.array, mx.array] | None")
    assert_type(cache.capture_donor_rows(), DonorRows[mx.array])
    assert_type(cache.capture_donor_rows().keys, mx.array)
