"""Three ways to hand paged caches to mlx-lm: for a model, into a list, and within a block."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableSequence, Sequence
from contextlib import contextmanager
from typing import Any

from mlx.nn.layers.base import Module
from mlx_lm.models import cache as mlx_lm_cache

from pagedkv_mlx.cache import PagedKVCache
from pagedkv_mlx.group import CacheGroup
from pagedkv_mlx.masks import AttentionMasks
from pagedkv_mlx.mlx_lm.entry import PagedPromptCache
from pagedkv_mlx.mlx_lm.options import PageOptions
from pagedkv_mlx.pages import Blocks, Bytes, LayerPages
from pagedkv_protocols import Unsupported


def make_paged_prompt_cache(
    model: Module, capacity: int | None = None, **options: Any
) -> list[Any]:
    """A prompt cache for ``model`` with every attention layer in pages of its own.

    ``capacity``: positions (prompt and new tokens) that each layer reserves at its first
    append; layers grow past it. ``options``: ``block_size``, ``quantization``, ``turbo``,
    ``direct``, ``policy`` (a ``KeepDense``: which layers are not quantized), and
    ``release_behind`` for layers with a sliding window. A layer that keeps something else
    than keys and values, such as recurrent state, or a sliding window with kept first tokens,
    has the entry that the model makes.

    Raises ``InvalidArgument`` as ``PagedKVCache`` does.
    """
    chosen, masks = PageOptions(**options), AttentionMasks()
    entries = mlx_lm_cache.make_prompt_cache(model)
    windows = {id(e): sliding_window(e) for e in entries if is_attention(e)}
    return grouped(
        entries,
        {
            key: chosen.layer(index, len(windows)).cache(capacity, window, masks)
            for index, (key, window) in enumerate(windows.items())
        },
    )


def page_prompt_cache(
    caches: MutableSequence[Any], capacity: int | None = None, **options: Any
) -> MutableSequence[Any]:
    """Exchange the fresh full-attention entries of ``caches`` for paged ones, in place.

    Sliding, recurrent and warm entries stay as they are. ``capacity`` and ``options`` as for
    ``make_paged_prompt_cache``; gives ``caches`` back.
    """
    chosen, masks = PageOptions(**options), AttentionMasks()
    fresh = [entry for entry in caches if is_full_attention(entry) and entry.empty()]
    paged = {
        id(entry): chosen.layer(index, len(fresh)).cache(capacity, None, masks)
        for index, entry in enumerate(fresh)
    }
    caches[:] = grouped(caches, paged)
    return caches


@contextmanager
def use_paged_caches(
    model: Module, limit: Blocks | Bytes | None = None, **options: Any
) -> Iterator[list[LayerPages]]:
    """Within the ``with`` block, mlx-lm's own calls for a prompt cache get paged ones.

    All caches that ``model`` hands out share one pool a layer, so that the server, the batch
    generator and draft models stay within ``limit``: ``Blocks`` a layer, or ``Bytes`` of all
    layers together. ``options`` as for ``make_paged_prompt_cache``. Gives the pools of the
    paged layers in order.

    Raises ``InvalidArgument`` as ``PagedKVCache`` does, ``Unsupported`` within another
    ``use_paged_caches`` of the same model.
    """
    if "make_cache" in vars(model):
        raise Unsupported("this model's caches are replaced already; leave that block first")
    chosen = PageOptions(**options)
    paged = [index for index, entry in enumerate(fresh_entries(model)) if is_attention(entry)]
    if isinstance(limit, Bytes):
        limit = Bytes(max(1, limit.count // max(1, len(paged))))
    pools = {
        index: chosen.layer(place, len(paged)).pages(limit) for place, index in enumerate(paged)
    }

    def make_cache() -> list[Any]:
        entries, masks = fresh_entries(model), AttentionMasks()
        return grouped(
            entries,
            {
                id(entries[index]): chosen.cache_over(pages, sliding_window(entries[index]), masks)
                for index, pages in pools.items()
            },
        )

    model.make_cache = make_cache
    try:
        yield list(pools.values())
    finally:
        del model.make_cache


def fresh_entries(model: Module) -> list[Any]:
    """The prompt cache that ``model``'s own class makes, whatever replaced it on ``model``."""
    make_cache = getattr(type(model), "make_cache", None)
    if make_cache is not None:
        return list(make_cache(model))
    return [mlx_lm_cache.KVCache() for _ in model.layers]


def is_full_attention(entry: Any) -> bool:
    """Whether ``entry`` is mlx-lm's plain cache of all positions."""
    return type(entry) is mlx_lm_cache.KVCache


def is_attention(entry: Any) -> bool:
    """Whether pages can stand in for ``entry``: all positions, or a plain sliding window."""
    sliding = type(entry) is mlx_lm_cache.RotatingKVCache and entry.keep == 0
    return sliding or is_full_attention(entry)


def sliding_window(entry: Any) -> int | None:
    """The window of a sliding entry; ``None`` for one that keeps all positions."""
    return None if is_full_attention(entry) else int(entry.max_size)


def grouped(entries: Sequence[Any], caches: Mapping[int, PagedKVCache]) -> list[Any]:
    """``entries`` with those whose id is in ``caches`` paged, all of them in one group.

    An entry listed twice, as where a layer borrows another's keys and values, stays one.
    """
    if not caches:
        return list(entries)
    group = CacheGroup(list(caches.values()))
    paged = {key: PagedPromptCache(cache, group) for key, cache in caches.items()}
    return [paged.get(id(entry), entry) for entry in entries]
