"""Stacks of attention layers over plain, paged and quantized caches, with nothing else in them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import attrs
import mlx.core as mx
from mlx_lm.models.base import scaled_dot_product_attention
from mlx_lm.models.cache import QuantizedKVCache

from pagedkv_mlx import AttentionMasks, Blocks, CacheGroup, LayerPages, PagedKVCache
from pagedkv_mlx.mlx_lm import PagedPromptCache

Step: TypeAlias = Callable[[mx.array], mx.array]
"""What one forward does to its input ``[1, Hq, L, D]``; appends L positions to every layer."""


@attrs.frozen
class Shape:
    """One layer's heads and head dim, in bf16."""

    name: str
    num_query_heads: int
    num_kv_heads: int
    dim: int

    def __str__(self) -> str:
        heads = f"{self.num_query_heads} query and {self.num_kv_heads} KV heads"
        return f"{self.name}: {heads}, D {self.dim}"

    def inputs(self, length: int) -> mx.array:
        """Unit-scale numbers ``[1, Hq, length, D]``, evaluated."""
        shape = (1, self.num_query_heads, length, self.dim)
        numbers = mx.random.normal(shape).astype(mx.bfloat16)
        mx.eval(numbers)
        return numbers

    @property
    def scale(self) -> float:
        """What scores are multiplied by."""
        return float(self.dim**-0.5)

    @property
    def bytes_per_token(self) -> int:
        """Bytes of one position's keys and values in bf16, of one layer."""
        return 2 * self.num_kv_heads * self.dim * 2


SMOLLM2 = Shape("SmolLM2-135M", 9, 3, 64)
WIDE = Shape("8 KV heads", 32, 8, 128)
TINY = Shape("tiny", 4, 2, 64)


def fetch_step(shape: Shape, caches: Sequence[Any]) -> Step:
    """Layers as mlx-lm's models have them: ``update_and_fetch``, then its attention.

    A layer's keys and values are the first heads of its input, so that, as in a model,
    nothing of a layer can begin before the layer before it has ended.
    """

    def step(inputs: mx.array) -> mx.array:
        mask = None if inputs.shape[2] == 1 else "causal"
        for cache in caches:
            rows = inputs[:, : shape.num_kv_heads]
            keys, values = cache.update_and_fetch(rows, rows)
            inputs = scaled_dot_product_attention(
                inputs, keys, values, cache=cache, scale=shape.scale, mask=mask
            )
        return inputs

    return step


def named_step(shape: Shape, caches: Sequence[PagedKVCache]) -> Step:
    """The same layers over the cache's own reads: ``append_decode`` or ``append_window``."""

    def step(inputs: mx.array) -> mx.array:
        for cache in caches:
            rows = inputs[:, : shape.num_kv_heads]
            append = cache.append_decode if inputs.shape[2] == 1 else cache.append_window
            with append(rows, rows) as read:
                inputs = read.attend(inputs, shape.scale)
        return inputs

    return step


def paged_caches(depth: int, capacity: int, **options: Any) -> CacheGroup:
    """A cache a layer with pages of its own, in blocks one after the other."""
    masks = AttentionMasks()
    return CacheGroup([PagedKVCache(capacity, masks=masks, **options) for _ in range(depth)])


def scattered_caches(depth: int, capacity: int, block_size: int) -> CacheGroup:
    """A cache a layer, in pages of which every second block belongs to somebody else."""
    masks = AttentionMasks()
    num_blocks = -(-capacity // block_size)
    caches = []
    for _ in range(depth):
        pages = LayerPages(block_size=block_size, limit=Blocks(2 * num_blocks))
        pages.pool.release(pages.pool.take(2 * num_blocks)[1::2])
        caches.append(PagedKVCache(pages=pages, masks=masks))
    return CacheGroup(caches)


def entries(group: CacheGroup) -> list[PagedPromptCache]:
    """The caches as mlx-lm's models take them."""
    return [PagedPromptCache(cache, group) for cache in group.caches]


def fill(shape: Shape, caches: Sequence[Any], length: int, chunk: int = 512) -> None:
    """Append ``length`` random rows to each of ``caches``, mlx-lm's or our own, evaluated."""
    for begin in range(0, length, chunk):
        rows = shape.inputs(min(chunk, length - begin))[:, : shape.num_kv_heads]
        for cache in caches:
            append_rows(cache, rows)
            mx.eval(arrays_of(cache))


def append_rows(cache: Any, rows: mx.array) -> None:
    """Append ``rows`` as keys and as values, unevaluated and unread."""
    if isinstance(cache, PagedKVCache):
        cache.append_window(rows, rows).dispose()
    else:
        cache.update_and_fetch(rows, rows)


def stored_arrays(caches: Sequence[Any]) -> list[mx.array]:
    """The arrays that ``caches`` hold now, reserved room included."""
    return [array for cache in caches for array in arrays_of(cache)]


def arrays_of(cache: Any) -> list[mx.array]:
    """The arrays of one cache, mlx-lm's or our own."""
    if isinstance(cache, PagedPromptCache):
        cache = cache.cache
    if isinstance(cache, PagedKVCache):
        return list(cache.state())
    if isinstance(cache, QuantizedKVCache):
        return [*cache.keys, *cache.values]
    return [cache.keys, cache.values]
