"""CacheGroup: one model's caches, where a step is whole or nothing."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import SupportsIndex

from typing_extensions import Self

from pagedkv_mlx.arguments import trim_count
from pagedkv_mlx.cache import PagedKVCache
from pagedkv_mlx.pages import LayerPages
from pagedkv_protocols import InvalidArgument, NotTrimmable


class CacheGroup:
    """The caches of one model's layers, changed together or not at all.

    A layer that borrows another's keys and values is listed with the other's cache; each
    cache is changed once.

    >>> import mlx.core as mx
    >>> group = CacheGroup([PagedKVCache(block_size=4) for _ in range(2)])
    >>> with group.step(1):
    ...     for cache in group.caches:
    ...         cache.append_decode(mx.ones((1, 1, 1, 8)), mx.ones((1, 1, 1, 8))).dispose()
    >>> group.trim(1), [cache.offset for cache in group.caches]
    (1, [0, 0])
    """

    def __init__(self, caches: Sequence[PagedKVCache]) -> None:
        """Raises ``InvalidArgument`` for no caches, or caches of another live group."""
        if not caches:
            raise InvalidArgument("a group has at least one cache")
        self.caches: tuple[PagedKVCache, ...] = tuple(caches)
        self._distinct = tuple({id(cache): cache for cache in caches}.values())
        for cache in self._distinct:
            cache.join(weakref.ref(self))

    @property
    def nbytes(self) -> int:
        """Bytes of the blocks in use by the group, shared ones by part."""
        return sum(cache.nbytes for cache in self._distinct)

    @contextmanager
    def step(self, n: int) -> Iterator[None]:
        """Room for ``n`` more positions in every cache, for the appends in the ``with`` block.

        Leaving by an exception trims every cache to where it was. Raises ``PoolExhausted``
        before anything changed where a pool has too little, ``InvalidArgument`` for
        ``n < 1``.
        """
        if n < 1:
            raise InvalidArgument(f"a step of {n} positions was wanted; at least 1 is legal")
        offsets = [cache.offset for cache in self._distinct]
        self.make_room(n)
        try:
            yield
        except BaseException:
            for cache, offset in zip(self._distinct, offsets, strict=True):
                cache.trim(cache.offset - offset)
            raise

    def make_room(self, n: int) -> None:
        """Take the blocks that ``n`` more positions need in every cache, copies included.

        Asking twice takes nothing twice. Raises ``PoolExhausted`` with nothing changed.
        """
        for pages, wanted in self._wanted(n).items():
            short = wanted - pages.pool.num_free
            if short > 0 and not pages.can_grow():
                pages.pool.check_free(wanted)
        try:
            for cache in self._distinct:
                cache.make_room(n)
        except BaseException:
            for cache in self._distinct:
                cache.trim(0)  # gives back room that was not written
            raise

    def is_trimmable(self, n: SupportsIndex = 0, /) -> bool:
        """Whether every cache could drop its last ``n`` positions."""
        return all(cache.is_trimmable(n) for cache in self._distinct)

    def trim(self, n: SupportsIndex, /) -> int:
        """Drop the last ``n`` positions of every cache; gives how many the shortest dropped.

        Raises as ``PagedKVCache.trim`` does, before any cache changed.
        """
        count = trim_count(n)
        if not self.is_trimmable(count):
            held = [cache.start for cache in self._distinct if not cache.is_trimmable(count)]
            raise NotTrimmable(
                f"wanted to trim {count} positions; {len(held)} caches gave back what that needs"
            )
        return min([cache.trim(count) for cache in self._distinct])

    def trim_to(self, offset: int) -> None:
        """Trim every cache to ``offset`` positions: the way back after a forward that failed.

        Caches that are shorter stay. Raises ``NotTrimmable`` before any cache changed.
        """
        if offset < 0:
            raise InvalidArgument(f"wanted to trim to {offset}; at least 0 is legal")
        excess = [max(0, cache.offset - offset) for cache in self._distinct]
        if not all(cache.is_trimmable(n) for cache, n in zip(self._distinct, excess, strict=True)):
            raise NotTrimmable(f"wanted to trim to {offset}; a cache gave back what that needs")
        for cache, n in zip(self._distinct, excess, strict=True):
            cache.trim(n)

    def fork(self) -> Self:
        """A group of forks; layers that shared a cache share its fork."""
        forks = {id(cache): cache.fork() for cache in self._distinct}
        return type(self)([forks[id(cache)] for cache in self.caches])

    def dispose(self) -> None:
        """Dispose every cache."""
        for cache in self._distinct:
            cache.dispose()

    def _wanted(self, n: int) -> dict[LayerPages, int]:
        """Blocks that room for ``n`` positions takes from each pool."""
        wanted: Counter[LayerPages] = Counter()
        tails: dict[tuple[LayerPages, int], list[int]] = {}
        for cache in self._distinct:
            missing, tail = cache.blocks_needed(n)
            wanted[cache.pages] += missing
            if tail is not None:
                row = cache.offset % cache.block_size
                tails.setdefault((cache.pages, tail), []).append(row)
        for (pages, tail), rows in tails.items():
            # The last of its holders need not copy, unless a read saw what it would rewrite.
            stays = len(rows) == pages.pool.ref_cnt(tail)
            wanted[pages] += len(rows) - (stays and pages.pool.pinned_rows(tail) <= rows[-1])
        return wanted
