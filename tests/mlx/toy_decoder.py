"""A stack of attention layers without RoPE, small enough to decode hundreds of tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx

from pagedkv_mlx import ContiguousKVCache, PagedKVCache

NUM_HEADS, NUM_KV_HEADS, DIM = 4, 2, 64
WIDTH = NUM_HEADS * DIM


class ToyDecoder:
    """Called as mlx-lm's models are: ``decoder(tokens, cache=entries)`` gives ``[1, L, WIDTH]``.

    No operation in it needs to know the number of stored positions.
    """

    def __init__(self, num_layers: int = 2, dtype: mx.Dtype = mx.float32) -> None:
        mx.random.seed(17)
        self.layers = [self._layer(dtype) for _ in range(num_layers)]
        self.embedding = mx.random.normal((64, WIDTH)).astype(dtype)
        mx.eval(self.layers, self.embedding)

    def __call__(self, tokens: mx.array, cache: Sequence[Any]) -> mx.array:
        x = self.embedding[tokens]
        for weights, entry in zip(self.layers, cache, strict=True):
            queries, keys, values = (self._heads(x @ weight) for weight in weights)
            mask = entry.make_mask(tokens.shape[1])
            keys, values = entry.update_and_fetch(keys, values)
            attended = mx.fast.scaled_dot_product_attention(
                queries, keys, values, scale=DIM**-0.5, mask=mask
            )
            x = x + attended.transpose(0, 2, 1, 3).flatten(2)
        return x

    def _heads(self, x: mx.array) -> mx.array:
        return mx.unflatten(x, 2, (-1, DIM)).transpose(0, 2, 1, 3)

    def _layer(self, dtype: mx.Dtype) -> list[mx.array]:
        widths = (WIDTH, NUM_KV_HEADS * DIM, NUM_KV_HEADS * DIM)
        return [(0.05 * mx.random.normal((WIDTH, width))).astype(dtype) for width in widths]


class ToyEntry:
    """What the decoder meets of a cache outside a recorded step."""

    def __init__(self, cache: PagedKVCache | ContiguousKVCache) -> None:
        self.cache = cache

    def make_mask(self, n: int) -> Any:
        """The mask for the next ``n`` positions."""
        return self.cache.make_mask(n)

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Append, and give all stored rows."""
        with self.cache.append_window(keys, values) as read:
            return read.gather()


def prefilled(
    decoder: ToyDecoder, make: Callable[[], PagedKVCache | ContiguousKVCache], length: int
) -> list[ToyEntry]:
    """An entry a layer, after ``length`` tokens."""
    entries = [ToyEntry(make()) for _ in decoder.layers]
    mx.eval(decoder(mx.arange(length)[None] % 64, entries))
    return entries
