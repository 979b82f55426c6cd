"""PagedSequence: where the rows of one sequence lie, and how more of them get there."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Sequence
from typing import Protocol

import mlx.core as mx
from typing_extensions import Self

from pagedkv_mlx.layout import RowLayout
from pagedkv_mlx.pages import BlockSpan, LayerPages
from pagedkv_mlx.reads import PagedRows
from pagedkv_pool import BlockTable
from pagedkv_protocols import ShapeMismatch


class RoomMaker(Protocol):
    """A group that makes room in all of its caches at once."""

    def make_room(self, n: int, begin: int | None = None) -> None:
        """Make room for ``n`` more positions from ``begin`` on, or raise with nothing changed."""
        ...


class PagedSequence:
    """The rows of one sequence of one layer, in blocks of ``pages``.

    True between any two calls:

    - positions ``table.start`` to ``offset - 1`` are stored, in the blocks of ``table``;
    - positions below ``room_end`` have a block that may be written in place from ``offset``
      on, so that an append within it asks the pool nothing;
    - ``span`` is what ``table`` holds.
    """

    def __init__(self, pages: LayerPages, *, owns_pages: bool, keep: int | None) -> None:
        """``keep``: how many positions a later query sees, if those behind are given back."""
        self.pages = pages
        self.table: BlockTable = BlockTable(pages.pool, pages.block_size)
        self.span: BlockSpan = BlockSpan(self.table)
        self.layout: RowLayout | None = None
        self.offset: int = 0
        self.room_end: int = 0
        # What a recorded step would read behind the last position of its run of rows:
        self.stale_end: int = 0  # below this position, rows that were trimmed
        self.clean_end: int = sys.maxsize  # from there on to this position, zeros,
        self.clean_row: int | None = 0  # as long as the run begins at this flat row
        self.step_begin: int | None = None  # where a group's step may have to go back to
        self.owns_pages: bool = owns_pages
        self.group: weakref.ref[RoomMaker] | None = None
        self._keep = keep

    @property
    def num_rows(self) -> int:
        """How many positions are stored."""
        return self.offset - self.table.start

    # Appending ----------------------------------------------------------------------------

    def append(self, keys: mx.array, values: mx.array) -> int:
        """Write rows ``[1, Hkv, L, D]`` behind the last and move ``offset``; gives L.

        Raises as ``PagedKVCache.append_window`` does, with nothing changed.
        """
        layout = self.layout
        if layout is None:
            layout = self.adopt(RowLayout.of(keys, values), keys.shape[2])
        length, keys, values = layout.fit(keys, values)
        begin = self.offset
        end = begin + length
        if end > self.room_end:
            self.find_room(length)
        elif self._keep is not None:
            self.release_behind()
        span, pages = self.span, self.pages
        if pages.keeps_means:
            pages.write_blocks(self.table, begin, keys, values)
        else:
            row = self.flat_rows(begin, end) if span.row is None else span.row + begin - span.start
            pages.write(row, keys, values)
        self.offset = end
        return length

    def adopt(self, layout: RowLayout, length: int) -> RowLayout:
        """Take the layout of a first append of ``length`` rows.

        Raises ``IllegalFormat``, ``ShapeMismatch`` where shared pages have other dims,
        ``PoolExhausted`` where there is no room for the rows.
        """
        self.check_adoptable(layout)
        if length > self.room_end:
            self.find_room(length)  # what is refused here has fixed no layout
        if self.pages.layout is None:
            self.pages.adopt(layout, length)
        assert self.pages.layout is not None
        self.layout = self.pages.layout
        return self.layout

    def check_adoptable(self, layout: RowLayout) -> None:
        """Refuse rows that the pages cannot hold, as ``adopt`` does."""
        pages = self.pages.layout
        if pages is None:
            self.pages.codec.planes(layout.key_dim, layout.value_dim, layout.dtype)
        elif not pages.holds(layout):
            raise ShapeMismatch(
                f"rows have {layout.num_kv_heads} heads and dims {layout.key_dim}/"
                f"{layout.value_dim}; the shared pages have {pages.num_kv_heads} and "
                f"{pages.key_dim}/{pages.value_dim}"
            )

    def restore(self, layout: RowLayout, rows: Sequence[mx.array]) -> None:
        """Take a fresh sequence's rows as ``page_rows`` of another gave them.

        Raises ``ShapeMismatch`` and ``DtypeMismatch`` for rows that are not of the planes.
        """
        length = self.pages.check_page_rows(layout, rows)
        self.adopt(layout, length)
        if length:
            if length > self.room_end:
                self.find_room(length)
            self.pages.restore(self.table, rows)
            self.offset = length

    def flat_rows(self, begin: int, end: int) -> int | list[int]:
        """The flat rows of a span: its first where they are one run, else each."""
        row = self.table.run(begin, end)
        return self.table.rows(begin, end) if row is None else row

    # Room ---------------------------------------------------------------------------------

    def find_room(self, length: int) -> None:
        """Room for ``length`` more positions, in all of the group where there is one."""
        group = self.group() if self.group is not None else None
        if group is None:
            self.make_room(length)
        else:
            group.make_room(length, self.offset)

    def blocks_needed(self, n: int) -> tuple[int, int | None]:
        """What room for ``n`` more positions takes: new blocks, and a shared tail to copy."""
        table, tail = self.table, None
        if n and self.offset < table.capacity and not table.is_writable(self.offset):
            tail = table.slot(self.offset // table.block_size)
        return table.missing(self.offset + n), tail

    def tail_rows_seen(self) -> int:
        """How many rows of the block of the next position live reads saw."""
        return self.table.rows_seen(self.offset // self.table.block_size)

    def make_room(self, n: int) -> None:
        """Take the blocks that ``n`` more positions need, a shared tail's copy among them.

        Room counts as used until it is written or trimmed; asking twice takes nothing twice.
        What no later query sees is given back. Nothing happens before pages with a limit in
        bytes know how many blocks that is. Raises ``PoolExhausted`` with nothing changed.
        """
        if not self.pages.is_sized:
            return
        missing, tail = self.blocks_needed(n)
        wanted = missing + (tail is not None) - self.blocks_behind()
        pool = self.pages.pool
        if wanted > pool.num_free:
            self.pages.grow_by(wanted - pool.num_free)
            pool.check_free(wanted)
        self.release_behind()
        if tail is not None:
            old, new = self.table.replace(self.offset // self.table.block_size)
            self.pages.copy_block(old, new)
        self.table.reserve(self.offset + n)
        self.room_end = self.table.capacity
        self.span = BlockSpan(self.table)
        if self.span.row != self.clean_row:  # it moved, or rows lie elsewhere in between
            self.clean_row = None

    def start_after_release(self) -> int:
        """Where the stored positions begin once the next append gave back what lies behind."""
        start = self.table.start
        if self._keep is None:
            return start
        query = self.offset if self.step_begin is None else min(self.offset, self.step_begin)
        behind = max(0, query - self._keep + 1)
        return max(start, behind // self.table.block_size * self.table.block_size)

    def blocks_behind(self) -> int:
        """How many blocks ``release_behind`` would free."""
        return self.table.freed_before(self.start_after_release())

    def release_behind(self) -> None:
        """Give back what no later query sees."""
        if self.table.release_before(self.start_after_release()):
            self.span = BlockSpan(self.table)

    # Reading ------------------------------------------------------------------------------

    def pinned(self) -> PagedRows:
        """The rows of now, for a read: they stay as they are while it holds them."""
        span, end = self.span, self.offset
        return PagedRows(self.pages, span, end - span.start, self.table.pin(end))

    def gather(self) -> tuple[mx.array, mx.array]:
        """The rows of now, for a caller that attends by itself: keys, values."""
        span = self.span
        return self.pages.gather(span, self.offset - span.start)

    # Recorded steps -----------------------------------------------------------------------

    def may_reside(self, bucket: int) -> bool:
        """Whether a recorded step may read ``bucket`` rows of the pages as they lie.

        They are one run of this sequence's own, and no live read keeps a row to be cleared.
        """
        row, size, pool = self.span.row, self.table.block_size, self.pages.pool
        owned = self.owns_pages and not self.pages.is_shared and self.table.is_run
        if not owned or row is None:
            return owned
        first, end = row // size + self.span.count, -(-(row + self._to_clear(bucket)) // size)
        return not any(pool.pinned_rows(slot) for slot in range(first, min(end, pool.num_blocks)))

    def reside(self, bucket: int) -> int:
        """Clear what such a step would meet of trimmed rows; gives how many rows it may read."""
        bucket = self.pages.reside(self.span, self.offset, self._to_clear(bucket), bucket)
        if self.span.row != self.clean_row or bucket > self.clean_end:
            self.clean_row, self.clean_end = self.span.row, bucket
        self.stale_end = 0
        return bucket

    def _to_clear(self, bucket: int) -> int:
        """One past the last position whose row may hold something else than zeros."""
        clean = self.span.row == self.clean_row and bucket <= self.clean_end
        return max(self.offset, self.stale_end if clean else bucket)

    # Going back, splitting, ending --------------------------------------------------------

    def trim_to(self, offset: int) -> None:
        """Forget the positions from ``offset`` on, and give back blocks and room behind it."""
        self.stale_end = max(self.stale_end, self.offset)
        self.offset = offset
        self.table.trim(offset)
        self.room_end = offset
        self.span = BlockSpan(self.table)

    def fork(self) -> Self:
        """A sequence that shares all blocks; whoever writes into one first copies it."""
        self.room_end = self.offset  # the tail has two holders now
        self.owns_pages = False
        other = type(self)(self.pages, owns_pages=False, keep=self._keep)
        other.table = self.table.fork(self.offset)
        other.layout, other.offset, other.room_end = self.layout, self.offset, self.offset
        other.span = BlockSpan(other.table)
        return other

    def close(self) -> None:
        """Give every block back, and the pages of this sequence alone where no read needs them."""
        self.table.close()
        if self.owns_pages and not self.pages.pool.num_used:
            self.pages.clear()
