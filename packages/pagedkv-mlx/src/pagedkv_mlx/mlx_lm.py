"""Paged caches for mlx-lm: entries of a prompt cache, and three ways to hand them out."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, MutableSequence, Sequence
from contextlib import contextmanager
from typing import Any, Final, Literal, SupportsIndex, cast

import attrs
import mlx.core as mx
from mlx.nn.layers.base import Module
from mlx_lm.models import cache as mlx_lm_cache
from typing_extensions import Self

from pagedkv_formats import PagedQuantization, PagedTurboQuant, codec_from_dict
from pagedkv_mlx.arguments import check_integers
from pagedkv_mlx.cache import PagedKVCache
from pagedkv_mlx.group import CacheGroup
from pagedkv_mlx.layout import PAGE_DTYPES, RowLayout
from pagedkv_mlx.masks import AttentionMasks
from pagedkv_mlx.pages import DEFAULT_BLOCK_SIZE, Blocks, Bytes, LayerPages
from pagedkv_protocols import InvalidArgument, Unsupported

STATE_IS_WHOLE: Final = not hasattr(mlx_lm_cache._BaseCache, "meta_state")
"""Whether this mlx-lm's ``from_state(state)`` takes one full tree (0.32.2 and later)."""

Meta = tuple[str, ...]
DESCRIPTION = {"format", "block_size", "window", "release_behind", "start", "rows"}


class PagedPromptCache:
    """One layer's entry in mlx-lm's prompt cache, over a ``PagedKVCache``.

    Speaks both live cache protocols: up to 0.32.1 ``state`` is the arrays and
    ``meta_state`` the rest, from 0.32.2 on ``state`` is everything. Either way the arrays
    are the pages' rows of this sequence: never a trimmed row, never a neighbour's.

    >>> entry = PagedPromptCache(PagedKVCache(block_size=16))
    >>> keys, values = entry.update_and_fetch(mx.ones((1, 2, 3, 8)), mx.ones((1, 2, 3, 8)))
    >>> keys.shape, entry.offset, entry.trim(1), entry.size()
    ((1, 2, 3, 8), 3, 1, 2)
    """

    def __init__(self, cache: PagedKVCache, group: CacheGroup | None = None) -> None:
        self.cache: PagedKVCache = cache
        self.group = group  # the layers' caches live as long as one of them is in use

    @property
    def offset(self) -> int:
        """How many positions the sequence has."""
        return self.cache.offset

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Append ``[1, Hkv, L, D]`` rows; gives all stored ones, as arrays to attend.

        Raises as ``PagedKVCache.append_window`` does.
        """
        return self.cache.append_rows(keys, values)

    def keys_and_values(self) -> tuple[mx.array, mx.array] | tuple[None, None]:
        """The stored rows, decoded; ``(None, None)`` before the first append."""
        return self.cache.gather() or (None, None)

    @property
    def state(self) -> Any:
        """The pages' rows of this sequence, and from mlx-lm 0.32.2 on what they mean."""
        rows = self.cache.page_rows()
        return (rows, self._meta()) if STATE_IS_WHOLE else rows

    @state.setter
    def state(self, state: Any) -> None:
        if STATE_IS_WHOLE:
            rows, meta = state
            self._take(restore(rows, meta))
        else:
            self._restored_rows = tuple(state)

    @property
    def meta_state(self) -> Meta:
        """What the rows of ``state`` mean, as strings."""
        return self._meta()

    @meta_state.setter
    def meta_state(self, meta: Sequence[str]) -> None:
        self._take(restore(self.__dict__.pop("_restored_rows", ()), tuple(meta)))

    @classmethod
    def from_state(cls, state: Any, meta_state: Sequence[str] | None = None) -> Self:
        """An entry with pages of its own from another's ``state`` (and ``meta_state``).

        Raises ``IllegalFormat`` or ``InvalidArgument`` for parameters that mean nothing here.
        """
        entry = cls.__new__(cls)
        entry.group = None
        entry.state = state
        if meta_state is not None:
            entry.meta_state = tuple(meta_state)
        return entry

    def size(self) -> int:
        """How many positions are stored."""
        return self.cache.num_rows

    def empty(self) -> bool:
        """Whether no position is stored."""
        return self.cache.num_rows == 0

    @property
    def nbytes(self) -> int:
        """Bytes of the blocks in use, shared ones by part."""
        return self.cache.nbytes

    def make_mask(
        self,
        N: int,  # noqa: N803 - mlx-lm's models may name it
        return_array: bool = False,
        window_size: int | None = None,
    ) -> mx.array | Literal["causal"] | None:
        """The mask for the next ``N`` positions, by the policy of ``KVCache``."""
        return self.cache.make_mask(N, window_size=window_size, return_array=return_array)

    def is_trimmable(self, n: SupportsIndex = 0) -> bool:
        """Whether the last ``n`` positions could be dropped."""
        return self.cache.is_trimmable(n)

    def trim(self, n: SupportsIndex) -> int:
        """Drop the last ``n`` positions, or all if fewer; raises as ``PagedKVCache.trim``.

        mlx-lm asks one layer after the other: the first refuses for all that are as long.
        """
        if self.group is not None:
            self.group.check_trimmable(n, self.offset)
        return self.cache.trim(n)

    def to_quantized(self, group_size: int = 64, bits: int = 4) -> PagedPromptCache:
        """The same positions in affine pages of ``bits``, group ``group_size``, of its own.

        It takes this entry's place in the group, so that the 16-bit pages go with this entry.
        An entry whose pages are already quantized is given back as it is, for mlx-lm asks again
        after every step. Raises ``IllegalFormat`` where rows do not fit the format,
        ``Unsupported`` where positions were given back.
        """
        if self.cache.quantization is not None or self.cache.turbo is not None:
            return self
        cache = self.cache
        check_whole(cache.start)
        quantized = PagedKVCache(
            cache.capacity,
            block_size=cache.block_size,
            quantization=PagedQuantization(bits=bits, group_size=group_size),
            direct=cache.direct,
            masks=cache.masks,
            window=cache.window,
            release_behind=cache.release_behind,
        )
        rows = cache.gather()
        if rows is not None and cache.num_rows:
            quantized.append_window(*rows).dispose()
        if self.group is None or cache not in self.group.caches:
            return PagedPromptCache(quantized)
        self.group.replace(cache, quantized)
        return PagedPromptCache(quantized, self.group)

    def __deepcopy__(self, memo: dict[Any, Any]) -> PagedPromptCache:
        """A fork; entries of one group that are copied together are a group again."""
        fork = PagedPromptCache(self.cache.fork())
        if self.group is not None:
            together: list[PagedPromptCache] = memo.setdefault((PagedPromptCache, self.group), [])
            together.append(fork)
            regroup(together)
        return fork

    def _take(self, cache: PagedKVCache) -> None:
        """Go on with ``cache``, in the group too, where there is one."""
        if self.group is not None and self.cache in self.group.caches:
            self.group.replace(self.cache, cache)
        self.cache = cache

    def _meta(self) -> Meta:
        layout = self.cache.pages.layout
        rows = {} if layout is None else attrs.asdict(layout) | {"dtype": str(layout.dtype)}
        parameters = {
            "format": self.cache.pages.codec.to_dict(),
            "block_size": self.cache.block_size,
            "window": self.cache.window,
            "release_behind": self.cache.release_behind,
            "start": self.cache.start,
            "rows": rows,
        }
        return ("pagedkv", json.dumps(parameters, sort_keys=True))


def restore(rows: Sequence[mx.array], meta: Sequence[str]) -> PagedKVCache:
    """A cache with pages of its own that hold ``rows`` as they are, described by ``meta``.

    Raises ``InvalidArgument`` for a ``meta`` that no entry wrote, ``IllegalFormat`` for a
    format that is not known, ``Unsupported`` for rows that do not begin at position 0.
    """
    parameters = described(meta)
    check_whole(parameters["start"])
    cache = PagedKVCache(
        pages=LayerPages(
            codec_from_dict(parameters["format"]), block_size=parameters["block_size"]
        ),
        window=parameters["window"],
        release_behind=parameters["release_behind"],
    )
    if parameters["rows"]:
        cache.restore_rows(parameters["rows"], rows)
    return cache


def described(meta: Sequence[str]) -> dict[str, Any]:
    """What an entry wrote as ``meta``, its ``rows`` as a ``RowLayout``, or ``None`` before any.

    Raises ``InvalidArgument`` for what no entry wrote.
    """
    try:
        name, text = meta
        parameters = json.loads(text)
        rows = parameters["rows"]
        if rows:
            dtype = {str(dtype): dtype for dtype in PAGE_DTYPES}[rows["dtype"]]
            parameters["rows"] = RowLayout(**{**rows, "dtype": dtype})
        if name != "pagedkv" or DESCRIPTION - parameters.keys():
            raise ValueError(name)
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidArgument(f"a paged entry's state was described by {meta!r}") from error
    return cast("dict[str, Any]", parameters)


def check_whole(start: int) -> None:
    """Refuse rows that do not begin at position 0. Raises ``Unsupported``."""
    if start:
        raise Unsupported(
            f"positions before {start} were given back behind the window; an entry "
            "is made again from all positions: leave release_behind out"
        )


def regroup(entries: Sequence[PagedPromptCache]) -> None:
    """Put ``entries`` into one group, instead of any that only they were in."""
    for entry in entries:
        entry.group = None
    group = CacheGroup([entry.cache for entry in entries])
    for entry in entries:
        entry.group = group


@attrs.frozen
class KeepDense:
    """A policy: the first and last so many attention layers keep pages as the rows came.

    Those are the layers whose keys and values a model minds most when they are rounded.

    >>> [KeepDense(first=1, last=2).keeps(layer, num_layers=5) for layer in range(5)]
    [True, False, False, True, True]
    """

    first: int = 1
    last: int = 1

    def __attrs_post_init__(self) -> None:
        check_integers(first=self.first, last=self.last)
        if min(self.first, self.last) < 0:
            raise InvalidArgument(f"{self} was asked for; at least 0 layers are legal")

    def keeps(self, layer: int, num_layers: int) -> bool:
        """Whether attention layer ``layer`` of ``num_layers`` keeps its rows as they came."""
        return layer < self.first or layer >= num_layers - self.last


@attrs.frozen(kw_only=True)
class PageOptions:
    """How the pages of a model's layers are made; see ``PagedKVCache`` for each."""

    policy: KeepDense | None = None
    block_size: int | None = None
    quantization: PagedQuantization | None = None
    turbo: PagedTurboQuant | None = None
    direct: bool | Literal["auto"] = False
    release_behind: bool = False

    def layer(self, index: int, num_layers: int) -> PageOptions:
        """The options of attention layer ``index``, by the policy."""
        if self.policy is not None and self.policy.keeps(index, num_layers):
            return attrs.evolve(self, quantization=None, turbo=None)
        return self

    def cache(
        self, capacity: int | None, window: int | None, masks: AttentionMasks
    ) -> PagedKVCache:
        """A cache with pages of its own; ``window`` is that of a sliding layer."""
        return PagedKVCache(
            capacity,
            block_size=self.block_size,
            quantization=self.quantization,
            turbo=self.turbo,
            direct=self.direct,
            masks=masks,
            window=window,
            release_behind=self.release_behind and window is not None,
        )

    def pages(self, limit: Blocks | Bytes | None) -> LayerPages:
        """Pages for many caches of one layer."""
        size = DEFAULT_BLOCK_SIZE if self.block_size is None else self.block_size
        return LayerPages(self.quantization or self.turbo, block_size=size, limit=limit)

    def cache_over(
        self, pages: LayerPages, window: int | None, masks: AttentionMasks
    ) -> PagedKVCache:
        """A cache over shared ``pages``."""
        return PagedKVCache(
            direct=self.direct,
            masks=masks,
            pages=pages,
            window=window,
            release_behind=self.release_behind and window is not None,
        )


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
