"""BlockTable: a sequence's blocks in order, its runs, and what its reads have seen."""

from __future__ import annotations

import weakref
from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from pagedkv_pool.pool import BlockPool
from pagedkv_protocols import InvalidArgument


class Pin:
    """What the live reads of one table saw; held by those reads alone.

    While the table only grows, nothing needs to be counted: a read holds its ``Pin``, the
    ``Pin`` holds the table. Before the table lets go of a block or rewrites a row, it
    *settles*: the blocks seen are pinned in the pool until the last read lets go.
    """

    __slots__ = ("__weakref__", "_settled", "_table", "end")

    def __init__(self, table: BlockTable) -> None:
        self.end: int = 0
        self._table: BlockTable | None = table
        self._settled: tuple[BlockPool, Sequence[int]] | None = None

    def settle(self, pool: BlockPool, blocks: Sequence[int], rows: Sequence[int]) -> None:
        """Pin ``blocks`` until the last read lets go, and hold the table no longer."""
        pool.pin(blocks, rows)
        self._settled = (pool, blocks)
        self._table = None

    def __copy__(self) -> Pin:
        return self  # who holds it twice lets go of it twice

    def __deepcopy__(self, memo: object) -> Pin:
        return self

    def __del__(self) -> None:
        if self._settled is not None:
            pool, blocks = self._settled
            pool.drop_pins(blocks)


class BlockTable:
    """The blocks of one sequence in logical order, each holding ``block_size`` positions.

    True between any two calls:

    - position p is in block ``p // block_size``, whose slot is ``slot(p // block_size)``;
    - ``capacity`` is one past the last position that the blocks have room for;
    - the list of slots that a snapshot took never changes, only what the table points to.

    >>> pool = BlockPool(num_blocks=8)
    >>> table = BlockTable(pool, block_size=4)
    >>> table.reserve(10)
    >>> table.blocks, table.capacity, table.run(2, 10)
    ((0, 1, 2), 12, 2)
    >>> table.trim(4)
    >>> table.blocks, pool.num_free
    ((0,), 7)
    """

    def __init__(self, pool: BlockPool, block_size: int) -> None:
        if block_size < 1:
            raise InvalidArgument(f"block_size is {block_size}; at least 1 is legal")
        self.pool = pool
        self.block_size = block_size
        self._slots: list[int] = []  # appended to; replaced, never edited otherwise
        self._breaks: list[int] = []  # indices into _slots where a run ends and another begins
        self._first = 0  # logical index of _slots[0]
        self._pin: weakref.ref[Pin] | None = None

    @property
    def blocks(self) -> tuple[int, ...]:
        """The slots, in logical order, from the first that is still held."""
        return tuple(self._slots)

    @property
    def num_blocks(self) -> int:
        """How many blocks are held."""
        return len(self._slots)

    @property
    def start(self) -> int:
        """The first position held, a multiple of ``block_size``."""
        return self._first * self.block_size

    @property
    def capacity(self) -> int:
        """One past the last position that there is a block for."""
        return (self._first + len(self._slots)) * self.block_size

    @property
    def is_run(self) -> bool:
        """Whether all slots are consecutive."""
        return not self._breaks

    def slot(self, index: int) -> int:
        """The slot of logical block ``index``, one that is held."""
        return self._slots[self._at(index)]

    def snapshot(self) -> Sequence[int]:
        """The slots so far, uncopied: later growth appends to it and nothing else changes it."""
        return self._slots

    def run(self, begin: int, end: int) -> int | None:
        """The flat row (slot · block_size + row) of ``begin`` if the span is one run of rows.

        ``None`` where positions ``begin`` to ``end - 1``, at least one, lie in several runs.
        """
        first = begin // self.block_size - self._first
        last = (end - 1) // self.block_size - self._first
        assert 0 <= first <= last < len(self._slots)
        if self._breaks and bisect_right(self._breaks, first) != bisect_right(self._breaks, last):
            return None
        return self._slots[first] * self.block_size + begin % self.block_size

    def rows(self, begin: int, end: int) -> list[int]:
        """The flat row of each of the positions ``begin`` to ``end - 1``."""
        size, slots, first = self.block_size, self._slots, self._first
        assert begin >= self.start
        return [slots[p // size - first] * size + p % size for p in range(begin, end)]

    def missing(self, length: int) -> int:
        """How many blocks more it takes to have room for positions up to ``length``."""
        return max(0, -(-length // self.block_size) - self._first - len(self._slots))

    def reserve(self, length: int) -> None:
        """Take the blocks that positions up to ``length`` need; what is there stays.

        Raises ``PoolExhausted`` where the pool has too few.
        """
        if length > self.capacity:
            last = self._slots[-1] if self._slots else None
            self._extend(self.pool.take(self.missing(length), last))

    def trim(self, length: int) -> None:
        """Give back the blocks that positions below ``length`` do not need.

        Rows from ``length`` on may be rewritten later, so what reads saw is settled first.
        """
        self._settle(beyond=length)
        keep = max(0, -(-length // self.block_size) - self._first)
        if keep < len(self._slots):
            gone = self._slots[keep:]
            self._slots = self._slots[:keep]
            del self._breaks[bisect_left(self._breaks, keep) :]
            self.pool.release(gone)

    def release_before(self, position: int) -> int:
        """Give back the blocks that lie wholly before ``position``; gives how many."""
        count = min(position // self.block_size - self._first, len(self._slots))
        if count <= 0:
            return 0
        self._settle(beyond=0)
        gone, self._slots = self._slots[:count], self._slots[count:]
        self._first += count
        self._breaks = [index - count for index in self._breaks if index > count]
        self.pool.release(gone)
        return count

    def freed_before(self, position: int) -> int:
        """How many blocks ``release_before(position)`` would make free.

        None of those that a live read saw: it keeps them.
        """
        count = max(0, position // self.block_size - self._first)
        pin = self._live_pin()
        seen = 0 if pin is None else self._num_seen(pin)
        return sum(self.pool.is_free_without(slot) for slot in self._slots[seen:count])

    def is_writable(self, position: int) -> bool:
        """Whether rows from ``position`` to the end of its block may be written in place.

        That is so if no other table holds the block and no live read saw such a row.
        """
        pin = self._live_pin()
        if pin is not None and pin.end > position:
            return False
        size = self.block_size
        return self.pool.is_writable(self.slot(position // size), position % size)

    def rows_seen(self, index: int) -> int:
        """How many rows of logical block ``index`` live reads saw that nothing has pinned yet."""
        pin = self._live_pin()
        end = 0 if pin is None else pin.end
        return min(self.block_size, max(0, end - index * self.block_size))

    def replace(self, index: int) -> tuple[int, int]:
        """Exchange the block at logical ``index`` for one of its own: (old slot, new slot).

        The caller copies the rows. Raises ``PoolExhausted`` where no block is free.
        """
        at = self._at(index)
        old = self._slots[at]
        [new] = self.pool.take(1, self._slots[at - 1] if at else None)
        self._settle(beyond=0)
        slots = self._slots.copy()
        slots[at] = new
        self._slots, self._breaks = [], []
        self._extend(slots)
        self.pool.release([old])
        return old, new

    def fork(self, length: int) -> BlockTable:
        """A table that shares the blocks of the positions below ``length``."""
        other = BlockTable(self.pool, self.block_size)
        keep = max(0, -(-length // self.block_size) - self._first)
        shared = self._slots[:keep]
        self.pool.share(shared)
        other._first = self._first
        other._extend(shared)
        return other

    def pin(self, end: int) -> Pin:
        """What a read that sees the positions below ``end`` holds until it is done."""
        pin = self._pin() if self._pin is not None else None  # once per read: no more calls
        if pin is None:
            pin = Pin(self)
            self._pin = weakref.ref(pin)
        if end > pin.end:
            pin.end = end
        return pin

    def close(self) -> None:
        """Give back every block."""
        self.trim(0)
        self._first = 0

    def __copy__(self) -> BlockTable:
        return self.fork(self.capacity)  # the blocks have one holder more

    def __deepcopy__(self, memo: object) -> BlockTable:
        return self.fork(self.capacity)

    def __del__(self) -> None:
        slots = getattr(self, "_slots", None)  # __init__ may have refused its arguments
        if slots:
            self.pool.drop_holds(slots)

    def _extend(self, slots: Sequence[int]) -> None:
        last = self._slots[-1] if self._slots else None
        for index, slot in enumerate(slots, len(self._slots)):
            if last is not None and slot != last + 1:
                self._breaks.append(index)
            last = slot
        self._slots.extend(slots)

    def _settle(self, beyond: int) -> None:
        """Pin in the pool what live reads saw, if they saw positions from ``beyond`` on."""
        pin = self._live_pin()
        if pin is None or pin.end <= beyond:
            return
        size, rows = self.block_size, pin.end - self.start
        seen = self._slots[: self._num_seen(pin)]
        pin.settle(self.pool, seen, [min(size, rows - at * size) for at in range(len(seen))])
        self._pin = None

    def _live_pin(self) -> Pin | None:
        """What live reads hold that is not settled yet."""
        return None if self._pin is None else self._pin()

    def _num_seen(self, pin: Pin) -> int:
        """How many of the first blocks hold a position that ``pin`` saw."""
        return max(0, -(-pin.end // self.block_size) - self._first)

    def _at(self, index: int) -> int:
        """Where in the list logical block ``index`` is."""
        assert index >= self._first
        return index - self._first
