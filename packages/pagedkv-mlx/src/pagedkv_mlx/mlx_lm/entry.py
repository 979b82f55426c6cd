"""PagedPromptCache: what mlx-lm's prompt cache holds for one layer, in both of its protocols."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final, Literal, SupportsIndex, cast

import attrs
import mlx.core as mx
from mlx_lm.models import cache as mlx_lm_cache
from typing_extensions import Self

from pagedkv_formats import PagedQuantization, codec_from_dict
from pagedkv_mlx.cache import PagedKVCache
from pagedkv_mlx.group import CacheGroup
from pagedkv_mlx.layout import PAGE_DTYPES, RowLayout
from pagedkv_mlx.pages import LayerPages
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
