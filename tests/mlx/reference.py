"""Rows to append, attention in the plainest way, and pages whose unseen rows are NaN."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any, NamedTuple

import mlx.core as mx
from hypothesis import strategies as st

from pagedkv_mlx import ContiguousKVCache, GatheredRead, LayerPages, PagedKVCache

Rows = tuple[mx.array, mx.array]
"""Keys ``[1, Hkv, L, Dk]`` and values ``[1, Hkv, L, Dv]``."""

DTYPES = (mx.bfloat16, mx.float16, mx.float32)
BLOCK_SIZES = (1, 2, 3, 7, 16, 100, 256)


class Shape(NamedTuple):
    """The heads, dims and dtype of a layer."""

    num_heads: int = 4
    num_kv_heads: int = 2
    key_dim: int = 16
    value_dim: int = 16
    dtype: mx.Dtype = mx.bfloat16


HEADS = ((1, 1), (4, 4), (6, 1), (7, 1), (8, 2), (9, 3), (10, 2), (24, 4), (71, 1))
DIMS = (
    *((16, 16), (48, 48), (64, 64), (80, 80), (96, 96), (128, 128), (256, 256)),
    *((192, 128), (128, 192), (5, 3), (64, 0)),
)

SMALL = Shape()


def shape_of(heads: tuple[int, int], dims: tuple[int, int], dtype: mx.Dtype) -> Shape:
    return Shape(heads[0], heads[1], dims[0], dims[1], dtype)


shapes = st.builds(
    shape_of,
    st.sampled_from(HEADS),
    st.sampled_from(DIMS),
    st.sampled_from(DTYPES),
)
small_shapes = st.builds(
    shape_of,
    st.sampled_from(((1, 1), (4, 2), (6, 1))),
    st.sampled_from(((16, 16), (8, 24), (5, 3))),
    st.sampled_from(DTYPES),
)


def normal(seed: int, *shape: int, dtype: mx.Dtype = mx.float32) -> mx.array:
    return mx.random.normal(shape, key=mx.random.key(seed)).astype(dtype)


def same(a: Any, b: Any) -> bool:
    """Whether two arrays have equal dtypes, shapes and numbers, NaN for NaN."""
    return a.dtype == b.dtype and bool(mx.array_equal(a, b, equal_nan=True).item())


class Layer:
    """What a layer of a model makes: rows and queries, no two of them alike."""

    def __init__(self, shape: Shape = SMALL, seed: int = 0) -> None:
        self.shape = shape
        self.scale = shape.key_dim**-0.5
        self._seeds = itertools.count(1000 * seed)

    def rows(self, length: int) -> Rows:
        _, heads, key_dim, value_dim, dtype = self.shape
        keys = normal(next(self._seeds), 1, heads, length, key_dim, dtype=dtype)
        return keys, normal(next(self._seeds), 1, heads, length, value_dim, dtype=dtype)

    def queries(self, length: int) -> mx.array:
        heads, _, dim, _, dtype = self.shape
        return normal(next(self._seeds), 1, heads, length, dim, dtype=dtype)

    def no_rows(self) -> Rows:
        keys, values = self.rows(1)
        return keys[:, :, :0], values[:, :, :0]

    def attend(self, queries: mx.array, rows: Rows, mask: mx.array | None = None) -> mx.array:
        """MLX's fused attention over ``rows``, and nothing else."""
        return mx.fast.scaled_dot_product_attention(queries, *rows, scale=self.scale, mask=mask)


def joined(*parts: Rows) -> Rows:
    """Rows one after the other."""
    keys, values = zip(*parts, strict=True)
    return mx.concatenate(list(keys), axis=2), mx.concatenate(list(values), axis=2)


def first(rows: Rows, count: int) -> Rows:
    return rows[0][:, :, :count], rows[1][:, :, :count]


def stored_in(plain: Any) -> Rows:
    """The rows of an mlx-lm ``KVCache``, in any of its versions."""
    return plain.keys[..., : plain.offset, :], plain.values[..., : plain.offset, :]


def causal(length: int, end: int, window: int | None = None, start: int = 0) -> mx.array:
    """Who sees whom, position by position: the last ``length`` of ``end``, keys from ``start``."""
    reach = end if window is None else window
    queries, keys = range(end - length, end), range(start, end)
    return mx.array([[0 <= q - k < reach for k in keys] for q in queries])


def overlaid(spans: list[int] | list[bool], window: int | None) -> mx.array:
    """Causal in the window, or both in one span that is not 0."""
    reach = len(spans) if window is None else window
    positions = range(len(spans))
    return mx.array(
        [[0 <= q - k < reach or spans[q] == spans[k] != 0 for k in positions] for q in positions]
    )


def attend(cache: PagedKVCache | ContiguousKVCache, layer: Layer, length: int) -> mx.array:
    """Append ``length`` new rows and attend them at once."""
    with cache.append_window(*layer.rows(length)) as read:
        return read.attend(layer.queries(length), layer.scale)


def filled(
    layer: Layer, length: int, cache: PagedKVCache | None = None, **options: object
) -> tuple[PagedKVCache, Rows]:
    """A cache of ``length`` positions (a fresh one unless given), and its rows."""
    cache = PagedKVCache(**options) if cache is None else cache  # type: ignore[arg-type]
    rows = layer.rows(length) if length else layer.no_rows()
    if length:
        cache.append_window(*rows).dispose()
    return cache, rows


def holds(cache: PagedKVCache, rows: Rows) -> bool:
    """Whether the cache stores just these rows, bit for bit."""
    exported = cache.export()
    if exported is None:
        return not rows[0].shape[2]
    return all(same(have, want) for have, want in zip(exported, rows, strict=True))


def answers(read: GatheredRead, layer: Layer, length: int, rows: Rows) -> bool:
    """Whether a causal read of ``length`` queries sees just ``rows``."""
    queries = layer.queries(length)
    mask = causal(length, rows[0].shape[2])
    return same(read.attend(queries, layer.scale), layer.attend(queries, rows, mask))


def used_by(caches: Iterable[PagedKVCache]) -> int:
    """How many blocks the tables of ``caches`` hold, shared ones once."""
    return len({(id(cache.pool), slot) for cache in caches for slot in cache.block_table})


def free_slots(pages: LayerPages) -> list[int]:
    pages.pool.stats()  # takes in what finalizers let go of
    return [slot for start, end in pages.pool._free.spans() for slot in range(start, end)]


def poison(pages: LayerPages) -> None:
    """Make every row of every free slot NaN (and codes all ones): nothing may be read of them."""
    size, slots = pages.block_size, free_slots(pages)
    if not pages.planes:
        return
    end = pages.planes[0].shape[2]  # the pool may be ahead: planes grow when they are written
    rows = [slot * size + row for slot in slots for row in range(size) if slot * size < end]
    if rows:
        pages.planes = tuple(_poisoned(plane, mx.array(rows)) for plane in pages.planes)


def _poisoned(plane: mx.array, rows: mx.array) -> mx.array:
    bad = float("nan") if mx.issubdtype(plane.dtype, mx.floating) else 255
    index = mx.broadcast_to(
        rows.reshape(1, 1, -1, 1), (*plane.shape[:2], rows.size, plane.shape[3])
    )
    return mx.put_along_axis(plane, index, mx.full(index.shape, bad, plane.dtype), 2)
