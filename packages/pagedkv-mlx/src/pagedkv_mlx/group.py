"""CacheGroup: one model's caches, where a step is whole or nothing."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import SupportsIndex

from typing_extensions import Self

from pagedkv_mlx.arguments import check_integers, trim_count
from pagedkv_mlx.cache import PagedKVCache
from pagedkv_mlx.pages import LayerPages
from pagedkv_mlx.sequence import PagedSequence
from pagedkv_protocols import Disposed, InvalidArgument, NotTrimmable


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
        check_integers(n=n)
        if n < 1:
            raise InvalidArgument(f"a step of {n} positions was wanted; at least 1 is legal")
        begins = [(cache, cache.offset, cache.sequence.step_begin) for cache in self._distinct]
        self.make_room(n)
        for cache, begin, outer in begins:
            cache.sequence.step_begin = begin if outer is None else outer
        try:
            yield
        except BaseException:
            for cache, begin, _ in begins:
                with suppress(Disposed):
                    cache.trim(max(0, cache.offset - begin))
            raise
        finally:
            for cache, _, outer in begins:
                cache.sequence.step_begin = outer

    def make_room(self, n: int, begin: int | None = None) -> None:
        """Take the blocks that ``n`` more positions need in every cache, copies included.

        ``begin``: where the append is that asks for it; a cache that is ahead of that, as it
        has had its append, needs so much less. Asking twice takes nothing twice. Raises
        ``PoolExhausted`` with nothing changed.
        """
        self.is_trimmable()  # where a cache was disposed, it says so before anything changed
        needs = [(c.sequence, n if begin is None else begin + n - c.offset) for c in self._distinct]
        needs = [(sequence, min(need, n)) for sequence, need in needs if need > 0]
        for pages, wanted in blocks_wanted(needs).items():
            short = wanted - pages.pool.num_free
            if short > 0 and not pages.can_grow():
                pages.pool.check_free(wanted)
        try:
            for sequence, _ in needs:
                sequence.release_behind()
            for sequence, need in needs:
                sequence.make_room(need)
        except BaseException:
            for cache in self._distinct:
                cache.trim(0)  # gives back room that was not written
            raise

    def is_trimmable(self, n: SupportsIndex = 0, /) -> bool:
        """Whether every cache could drop its last ``n`` positions."""
        return all(cache.is_trimmable(n) for cache in self._distinct)

    def check_trimmable(self, n: SupportsIndex, offset: int, /) -> None:
        """Refuse to drop ``n`` of ``offset`` positions unless every cache of that length could.

        Raises ``NotTrimmable``.
        """
        held = [c.start for c in self._distinct if c.offset == offset and not c.is_trimmable(n)]
        if held:
            raise NotTrimmable(
                f"wanted to trim {n} of {offset} positions; {len(held)} caches gave back what "
                f"that needs, up to {max(held)}"
            )

    def replace(self, old: PagedKVCache, new: PagedKVCache) -> None:
        """Take ``new`` in the place of ``old``, as where a layer's pages change their format.

        Raises ``InvalidArgument`` for an ``old`` of none of the group's layers, and for a
        ``new`` of another live group.
        """
        if all(cache is not old for cache in self._distinct):
            raise InvalidArgument("the cache to be replaced is none of this group's")
        new.join(weakref.ref(self))
        old.sequence.group = None
        self.caches = tuple(new if cache is old else cache for cache in self.caches)
        self._distinct = tuple(new if cache is old else cache for cache in self._distinct)

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
        check_integers(offset=offset)
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

    def __deepcopy__(self, memo: object) -> Self:
        return self.fork()

    def dispose(self) -> None:
        """Dispose every cache."""
        for cache in self._distinct:
            cache.dispose()


def blocks_wanted(needs: Sequence[tuple[PagedSequence, int]]) -> dict[LayerPages, int]:
    """Blocks that room for so many positions in each sequence takes from each pool."""
    wanted: Counter[LayerPages] = Counter()
    tails: dict[tuple[LayerPages, int], list[PagedSequence]] = {}
    for sequence, need in needs:
        if sequence.pages.is_sized:
            missing, tail = sequence.blocks_needed(need)
            wanted[sequence.pages] += missing - sequence.blocks_behind()
            if tail is not None:
                tails.setdefault((sequence.pages, tail), []).append(sequence)
    for (pages, tail), holders in tails.items():
        wanted[pages] += len(holders) - last_may_stay(tail, holders)
    return wanted


def last_may_stay(tail: int, holders: Sequence[PagedSequence]) -> bool:
    """Whether the last of ``holders`` may write into their shared block once the others left.

    Not if somebody else holds it, or a read saw a row that it would rewrite.
    """
    *others, last = holders
    pool = last.pages.pool
    seen = max([pool.pinned_rows(tail), *(other.tail_rows_seen() for other in others)])
    return len(holders) == pool.ref_cnt(tail) and seen <= last.offset % last.table.block_size
