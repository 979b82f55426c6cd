"""BlockPool: who holds which block."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

import attrs

from pagedkv_pool.runs import FreeRuns
from pagedkv_protocols import BlockNotHeld, InvalidArgument, PoolExhausted

LetGo: TypeAlias = Callable[["BlockPool", Iterable[int]], None]


@attrs.frozen
class PoolStats:
    """How a pool's blocks are used, at one moment; counts of blocks.

    ``num_shared`` blocks have several holders; ``num_pinned`` are kept from reuse by a read
    that saw them; ``peak_used`` is the most that were ever used at once.
    """

    num_blocks: int
    num_free: int
    num_used: int
    num_shared: int
    num_pinned: int
    peak_used: int


class BlockPool:
    """Reference-counted blocks, taken so that a table stays one run where it can.

    True between any two calls:

    - every block is free or used: ``num_free + num_used == num_blocks``;
    - a free block has no holders and no pins;
    - a call that raises one of our errors changed nothing.

    >>> pool = BlockPool(num_blocks=4)
    >>> a, b = pool.take(2)
    >>> pool.share([a])
    >>> pool.release([a, b])
    >>> pool.num_free  # a still has one holder
    3
    """

    def __init__(self, num_blocks: int = 0) -> None:
        self._ref_cnt: list[int] = []
        self._pin_cnt: list[int] = []
        self._pinned_rows: list[int] = []
        self._free = FreeRuns()
        self._peak_used = 0
        # What finalizers let go of, and how; appending is atomic, so they need no lock.
        self._dropped: deque[tuple[LetGo, Sequence[int]]] = deque()
        if num_blocks:
            self.grow(num_blocks)

    @property
    def num_blocks(self) -> int:
        """How many blocks there are."""
        return len(self._ref_cnt)

    @property
    def num_free(self) -> int:
        """How many blocks could be taken now."""
        self._drain()
        return len(self._free)

    @property
    def num_used(self) -> int:
        """How many blocks are held by a table or kept by a read."""
        return self.num_blocks - self.num_free

    def grow(self, count: int) -> None:
        """Add ``count`` free blocks behind the last. Raises ``InvalidArgument`` below 1.

        >>> pool = BlockPool(num_blocks=1)
        >>> pool.grow(2)
        >>> pool.num_blocks, pool.num_free
        (3, 3)
        """
        if count < 1:
            raise InvalidArgument(f"wanted to grow by {count} blocks; at least 1 is legal")
        first = self.num_blocks
        for counts in (self._ref_cnt, self._pin_cnt, self._pinned_rows):
            counts.extend([0] * count)
        self._free.add(first, first + count)

    def take(self, count: int, after: int | None = None) -> list[int]:
        """Take ``count`` blocks, each held once: the way a table beginning at ``after`` grows.

        Each is the slot after the last (at first ``after``) if that is free, else the start
        of the longest free run, the lowest slot on ties.

        Raises ``PoolExhausted`` where fewer are free, ``InvalidArgument`` for a negative
        count.

        >>> pool = BlockPool(num_blocks=6)
        >>> pool.take(2), pool.take(1, after=None), pool.take(2, after=1)
        ([0, 1], [2], [3, 4])
        """
        if count < 0:
            raise InvalidArgument(f"wanted {count} blocks; at least 0 is legal")
        self.check_free(count)
        taken: list[int] = []
        while len(taken) < count:
            taken += self._take_run(count - len(taken), taken[-1] if taken else after)
        for block in taken:
            self._ref_cnt[block] = 1
        self._peak_used = max(self._peak_used, self.num_blocks - len(self._free))
        return taken

    def check_free(self, count: int) -> None:
        """Refuse with ``PoolExhausted`` where fewer than ``count`` blocks are free.

        >>> BlockPool(num_blocks=3).check_free(3)
        """
        if count > self.num_free:
            raise PoolExhausted(
                f"wanted {count} blocks, {len(self._free)} of {self.num_blocks} are free; "
                "release a sequence or raise the pool's limit"
            )

    def share(self, blocks: Iterable[int]) -> None:
        """Add a holder to each of ``blocks``. Raises ``BlockNotHeld`` for one without any."""
        self._drain()
        blocks = list(blocks)
        for block in blocks:
            self._check_held(block, 1)
        for block in blocks:
            self._ref_cnt[block] += 1

    def release(self, blocks: Iterable[int]) -> None:
        """Drop a holder of each of ``blocks``; one left without holders or pins is free.

        A block that is listed twice loses two. Raises ``BlockNotHeld`` for a block with
        fewer holders than it would lose.
        """
        self._drain()
        blocks = list(blocks)
        for block, count in Counter(blocks).items():
            self._check_held(block, count)
        self._release(blocks)

    def ref_cnt(self, block: int) -> int:
        """How many holders ``block`` has. Raises ``BlockNotHeld`` for one that is not there."""
        self._check_exists(block)
        self._drain()
        return self._ref_cnt[block]

    def pinned_rows(self, block: int) -> int:
        """The most rows of ``block`` that any pin has seen since it was last without pins."""
        self._drain()
        return self._pinned_rows[block]

    def is_free_without(self, block: int) -> bool:
        """Whether ``block`` would be free if its one holder let go of it."""
        self._drain()
        return self._ref_cnt[block] == 1 and not self._pin_cnt[block]

    def is_writable(self, block: int, row: int) -> bool:
        """Whether rows of ``block`` from ``row`` on may be written in place by its holder.

        That is so if nobody else holds it and no pin has seen row ``row`` or a later one.

        >>> pool = BlockPool(num_blocks=1)
        >>> [block] = pool.take(1)
        >>> pool.pin([block], [5])
        >>> pool.is_writable(block, 4), pool.is_writable(block, 5)
        (False, True)
        """
        if self._dropped:
            self._drain()
        return self._ref_cnt[block] == 1 and self._pinned_rows[block] <= row

    def pin(self, blocks: Iterable[int], rows: Iterable[int]) -> None:
        """Keep ``blocks`` from reuse, and the first ``rows`` of each from being rewritten.

        Raises ``BlockNotHeld`` for a block that nobody holds or pins, ``InvalidArgument``
        where there is not one number of rows for each block.
        """
        self._drain()
        blocks, rows = list(blocks), list(rows)
        if len(rows) != len(blocks):
            raise InvalidArgument(
                f"wanted to pin {len(blocks)} blocks, {len(rows)} numbers of rows were given"
            )
        for block in blocks:
            self._check_exists(block)
            if not (self._ref_cnt[block] or self._pin_cnt[block]):
                raise BlockNotHeld(f"wanted to pin block {block}, which is free")
        for block, count in zip(blocks, rows, strict=True):
            self._pin_cnt[block] += 1
            self._pinned_rows[block] = max(self._pinned_rows[block], count)

    def unpin(self, blocks: Iterable[int]) -> None:
        """Undo one ``pin`` of each of ``blocks``. Raises ``BlockNotHeld`` where none is."""
        self._drain()
        blocks = list(blocks)
        for block, count in Counter(blocks).items():
            self._check_exists(block)
            if self._pin_cnt[block] < count:
                raise BlockNotHeld(
                    f"wanted to unpin block {block} {count} times, pinned {self._pin_cnt[block]}"
                )
        self._unpin(blocks)

    def stats(self) -> PoolStats:
        """The counts of now.

        >>> BlockPool(num_blocks=2).stats().num_free
        2
        """
        num_free = self.num_free
        return PoolStats(
            num_blocks=self.num_blocks,
            num_free=num_free,
            num_used=self.num_blocks - num_free,
            num_shared=sum(count > 1 for count in self._ref_cnt),
            num_pinned=sum(count > 0 for count in self._pin_cnt),
            peak_used=self._peak_used,
        )

    def __deepcopy__(self, memo: object) -> BlockPool:
        return self  # two copies of one pool would hand out the same slot twice

    def drop_holds(self, blocks: Sequence[int]) -> None:
        """Release ``blocks`` at the next call: for finalizers, which may take no lock."""
        self._dropped.append((BlockPool._release, blocks))

    def drop_pins(self, blocks: Sequence[int]) -> None:
        """Unpin ``blocks`` at the next call: for finalizers, which may take no lock."""
        self._dropped.append((BlockPool._unpin, blocks))

    def _drain(self) -> None:
        while self._dropped:
            let_go, blocks = self._dropped.popleft()
            let_go(self, blocks)

    def _take_run(self, count: int, after: int | None) -> range:
        start = -1 if after is None else after + 1
        length = self._free.length_from(start)
        if not length:
            start = self._free.longest()
            length = self._free.length_from(start)
        length = min(length, count)
        self._free.cut(start, length)
        return range(start, start + length)

    def _release(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            assert self._ref_cnt[block] > 0
            self._ref_cnt[block] -= 1
            self._free_if_unused(block)

    def _unpin(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            assert self._pin_cnt[block] > 0
            self._pin_cnt[block] -= 1
            if not self._pin_cnt[block]:
                self._pinned_rows[block] = 0
                self._free_if_unused(block)

    def _free_if_unused(self, block: int) -> None:
        if not (self._ref_cnt[block] or self._pin_cnt[block]):
            self._free.add(block, block + 1)

    def _check_exists(self, block: int) -> None:
        if not 0 <= block < self.num_blocks:
            raise BlockNotHeld(f"block {block} is none of this pool's {self.num_blocks}")

    def _check_held(self, block: int, count: int) -> None:
        self._check_exists(block)
        if self._ref_cnt[block] < count:
            raise BlockNotHeld(
                f"block {block} has {self._ref_cnt[block]} holders, {count} are needed"
            )
