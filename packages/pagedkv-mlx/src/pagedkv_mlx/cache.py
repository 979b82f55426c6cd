"""PagedKVCache: one sequence of one layer, in pages."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Literal, NoReturn, SupportsIndex, cast

import mlx.core as mx
from typing_extensions import Self

from pagedkv_formats import PagedQuantization
from pagedkv_mlx.arguments import check_encoder_mask, check_overlay, trim_count, window_size
from pagedkv_mlx.layout import RowLayout
from pagedkv_mlx.masks import AttentionMasks
from pagedkv_mlx.pages import DEFAULT_BLOCK_SIZE, BlockSpan, LayerPages
from pagedkv_mlx.reads import GatheredRead, HeldRows, JoinedRows, PagedRows
from pagedkv_mlx.routing import has_direct_read
from pagedkv_mlx.rules import ALL, Causal, Given, Overlaid, Rule
from pagedkv_pool import BlockPool, BlockTable
from pagedkv_protocols import (
    BidirectionalCache,
    BlockReadCache,
    Cache,
    CommittedCache,
    Disposed,
    DonorCache,
    DonorRows,
    EncoderCache,
    ForkableCache,
    InvalidArgument,
    NotTrimmable,
    PageCodec,
    ShapeMismatch,
    Unsupported,
)

if TYPE_CHECKING:
    from pagedkv_mlx.group import CacheGroup


class PagedKVCache:
    """The keys and values of one sequence in one layer, in blocks drawn from a pool.

    True between any two calls:

    - 16- and 32-bit pages are read bit for bit like a plain ``KVCache`` of the same rows;
    - a read sees the positions as of its append, whatever follows it;
    - with no live read, ``ceil((offset - start) / block_size)`` blocks are in use, those
      besides that ``CacheGroup.step`` made room for;
    - a call that raises a ``PagedKVError`` changed nothing.

    >>> rows = mx.ones((1, 2, 3, 16))
    >>> with PagedKVCache(block_size=2) as cache:
    ...     with cache.append_window(rows, rows) as read:
    ...         output = read.attend(mx.ones((1, 4, 3, 16)), scale=0.25)
    ...     print(cache.offset, cache.block_table, output.shape)
    3 (0, 1) (1, 4, 3, 16)
    """

    rope_offset: mx.array | None = None
    """Set by the adapters that record a compiled step; a real cache has ``offset``."""

    def __init__(
        self,
        capacity: int | None = None,
        *,
        block_size: int | None = None,
        quantization: PagedQuantization | None = None,
        turbo: PageCodec[mx.array, mx.Dtype] | None = None,
        direct: bool | Literal["auto"] = False,
        masks: AttentionMasks | None = None,
        pages: LayerPages | None = None,
        window: int | None = None,
        release_behind: bool = False,
    ) -> None:
        """A cache with pages of its own, or over ``pages`` that it shares.

        ``capacity``: positions that a pool of its own reserves at the first append; it grows
        past them. ``block_size``: positions a block, 256 by default. ``quantization``,
        ``turbo``: the page format; neither is pages in the dtype of the first keys.
        ``direct``: attend decode reads where the pages lie; ``True`` is refused at the first
        append where that is impossible, ``"auto"`` chooses then. ``masks``: shared by a
        model's caches. ``window``: causal queries see that many positions, themselves
        included; ``release_behind`` gives back blocks that no later query can see.

        Raises ``InvalidArgument`` for values that are never legal together.
        """
        if quantization is not None and turbo is not None:
            raise InvalidArgument("both quantization and turbo were given; a page has one format")
        if capacity is not None and capacity < 1:
            raise InvalidArgument(f"capacity is {capacity}; at least 1 is legal, or None")
        self._window = window_size(window, release_behind)
        if direct not in (False, True, "auto"):
            raise InvalidArgument(f"direct is {direct!r}; legal are False, True and 'auto'")
        codec = quantization or turbo
        if pages is None:
            size = DEFAULT_BLOCK_SIZE if block_size is None else block_size
            pages = LayerPages(codec, block_size=size, capacity=capacity)
        elif block_size not in (None, pages.block_size) or codec not in (None, pages.codec):
            raise InvalidArgument(
                f"shared pages are {pages.signature()}; leave block_size and the format out"
            )
        self.pages = pages
        self.masks = AttentionMasks() if masks is None else masks
        self.capacity = capacity
        self.release_behind = release_behind
        self._asked_direct: bool | Literal["auto"] = direct
        self._table = BlockTable(pages.pool, pages.block_size)
        self._span = BlockSpan(self._table)
        self._offset = 0
        self._room_end = 0  # positions below it have a block that may be written in place
        self._rule: Rule = Causal(window)
        self._layout: RowLayout | None = None
        self._disposed = False
        self._group: weakref.ref[CacheGroup] | None = None

    # What it is ---------------------------------------------------------------------------

    @property
    def offset(self) -> int:
        """How many positions the sequence has, those before ``start`` included."""
        return self._offset

    @property
    def start(self) -> int:
        """The first position still held, a multiple of ``block_size``."""
        return self._table.start

    @property
    def window(self) -> int | None:
        """How many positions a causal query sees, itself included; ``None`` is all."""
        return self._window

    @property
    def pool(self) -> BlockPool:
        """Who holds which block of ``pages``."""
        return self.pages.pool

    @property
    def block_size(self) -> int:
        """Positions a block."""
        return self.pages.block_size

    @property
    def block_table(self) -> tuple[int, ...]:
        """The slots of the blocks in logical order, from ``start`` on."""
        return self._table.blocks

    @property
    def quantization(self) -> PagedQuantization | None:
        """The affine, mx or nv format of the pages, if it is one."""
        return self.pages.codec if isinstance(self.pages.codec, PagedQuantization) else None

    @property
    def turbo(self) -> PageCodec[mx.array, mx.Dtype] | None:
        """The TurboQuant format of the pages, if it is one."""
        return self.pages.codec if self.pages.codec.name == "turboquant" else None

    @property
    def direct(self) -> bool | Literal["auto"]:
        """Whether decode reads follow the block table; ``"auto"`` until the first append."""
        return self._asked_direct

    def signature(self) -> str:
        """The storage kind and its parameters, such as ``paged/256/dense``."""
        return self.pages.signature()

    def bytes_per_token(self) -> float:
        """Bytes that a position takes in whole blocks; 0 before the first append."""
        return self.pages.bytes_per_block / self.block_size

    @property
    def nbytes(self) -> int:
        """Bytes of the blocks that only this cache holds, and its part of those it shares."""
        block = self.pages.bytes_per_block
        return int(sum(block / self.pool.ref_cnt(slot) for slot in self._table.blocks))

    @property
    def num_rows(self) -> int:
        """How many positions are stored: ``offset - start``."""
        return self._offset - self._table.start

    # Appends ------------------------------------------------------------------------------

    def append_decode(self, keys: mx.array, values: mx.array, /) -> GatheredRead:
        """Append one position; its query sees every stored one up to itself, in the window.

        ``keys [1, Hkv, 1, Dk]``, ``values [1, Hkv, 1, Dv]``. Rows of another float dtype
        than the pages' are rounded to it.

        Raises ``ShapeMismatch`` for ``L != 1``, another batch, other heads or dims;
        ``DtypeMismatch`` for integer rows, and at the first append for keys and values of
        different dtypes; ``PoolExhausted``; ``Disposed``.
        """
        if keys.ndim == 4 and keys.shape[2] != 1:
            raise ShapeMismatch(
                f"keys have shape {keys.shape}; append_decode takes one position, "
                "append_window any number"
            )
        return self._read(self._append(keys, values), self._rule)

    def append_window(self, keys: mx.array, values: mx.array, /) -> GatheredRead:
        """Append L >= 1 positions, causal within the window (bottom-right aligned).

        ``keys [1, Hkv, L, Dk]``, ``values [1, Hkv, L, Dv]``: prefill chunks, tails, windows
        of proposals to verify. To append without attending, dispose the read: it gathers
        nothing until it is attended. Raises as ``append_decode`` does.
        """
        return self._read(self._append(keys, values), self._rule)

    def append_committed(self, keys: mx.array, values: mx.array, /) -> GatheredRead:
        """Append L positions decided elsewhere; the window read over the same positions.

        Raises as ``append_window`` does.
        """
        return self._read(self._append(keys, values), self._rule)

    def append_bidirectional(
        self, keys: mx.array, values: mx.array, bidirectional: mx.array, /
    ) -> GatheredRead:
        """Append the first window, causal in the window, OR'd with an overlay.

        ``bidirectional`` is ``bool [L]`` (two flagged positions see each other) or integer
        ``[L]`` (equal non-zero span ids see each other); the window clamps neither. A span
        cannot be split: its first rows need its last.

        Raises ``Unsupported`` unless ``offset`` is 0, ``ShapeMismatch`` or
        ``DtypeMismatch`` for an overlay that does not fit, and as ``append_window`` does.
        """
        self._check_first("append_bidirectional")
        if keys.ndim == 4:
            check_overlay(bidirectional, keys.shape[2])
        length = self._append(keys, values)
        return self._read(length, Overlaid(bidirectional, self._window))

    def append_encoder(
        self, keys: mx.array, values: mx.array, mask: mx.array | None, /
    ) -> GatheredRead:
        """Append the first window under an encoder's own mask, no causality implied.

        ``mask`` is bool, broadcastable to ``[1, 1, L, L]``, or ``None`` for all-to-all.
        Raises as ``append_bidirectional`` does.
        """
        self._check_first("append_encoder")
        if mask is not None and keys.ndim == 4:
            check_encoder_mask(mask, keys.shape[2])
        length = self._append(keys, values)
        return self._read(length, ALL if mask is None else Given(mask))

    def append_rows(self, keys: mx.array, values: mx.array, /) -> tuple[mx.array, mx.array]:
        """Append L positions and give all stored rows, keys ``[1, Hkv, S, Dk]`` and values.

        For callers that attend by themselves, as mlx-lm's models do; the arrays are those of
        now and hold the planes until they are evaluated. Raises as ``append_window`` does.
        """
        self._append(keys, values)
        span = self._span
        return self.pages.gather(span, self._offset - span.start)

    def read_block(self, keys: mx.array, values: mx.array, /) -> GatheredRead:
        """Each query sees all stored positions, then all L of the block, with no mask.

        Nothing is appended. The block's own rows are not passed through the page format,
        only cast to the pages' dtype. Raises as ``append_window`` does.
        """
        self._check_alive()
        layout = self._layout
        if layout is None:
            layout = RowLayout.of(keys, values)
            self._check_adoptable(layout)
        length = layout.count(keys, values)
        rows: HeldRows | JoinedRows
        if self.num_rows:
            rows = JoinedRows(self._stored(), layout.cast(keys), layout.cast(values))
        else:
            rows = HeldRows(keys, values)
        return GatheredRead(rows, layout, length, ALL, self.masks)

    def capture_donor_rows(self) -> DonorRows[mx.array]:
        """The stored positions in order, owned: copies that hold no page.

        Raises ``Unsupported`` before the first append, ``Disposed``.
        """
        exported = self.export()
        if exported is None:
            raise Unsupported("a cache without a first append has no rows to capture")
        return DonorRows(*exported, offset=self._offset, start=self.start, end=self._offset)

    # What is stored -----------------------------------------------------------------------

    def gather(self) -> tuple[mx.array, mx.array] | None:
        """The stored rows of now, keys ``[1, Hkv, S, Dk]`` and values; ``None`` before any.

        Slices of the pages where the blocks are one run. Raises ``Disposed``.
        """
        self._check_alive()
        layout = self._layout
        if layout is None:
            return None
        if not self.num_rows:
            shape = (1, layout.num_kv_heads, 0)
            return (
                mx.zeros((*shape, layout.key_dim), layout.dtype),
                mx.zeros((*shape, layout.value_dim), layout.dtype),
            )
        return self.pages.gather(self._span, self.num_rows)

    def page_rows(self) -> tuple[mx.array, ...]:
        """The stored rows as the pages hold them, one ``[1, Hkv, S, width]`` a plane.

        ``()`` before the first append. Raises ``Disposed``.
        """
        self._check_alive()
        if self._layout is None:
            return ()
        return tuple(self.pages.rows(self._span, self.num_rows))

    def restore_rows(self, layout: RowLayout, rows: Sequence[mx.array]) -> None:
        """Take rows that ``page_rows`` of a cache of this format gave, as they are.

        Raises ``ShapeMismatch`` and ``DtypeMismatch`` for rows that are not of the format's
        planes, ``Unsupported`` unless the cache is fresh, ``Disposed``.
        """
        self._check_first("restore_rows")
        length = self.pages.check_page_rows(layout, rows)
        self._check_adoptable(layout)
        self._take_layout(layout, length)
        if length:
            self._find_room(length)
            self.pages.store(self._rows(0, length), rows)
            self._offset = length

    def export(self) -> tuple[mx.array, mx.array] | None:
        """Live rows only, owned and contiguous, never a trimmed row; ``None`` before any.

        Keys ``[1, Hkv, S, Dk]`` and values ``[1, Hkv, S, Dv]``. Raises ``Disposed``.
        """
        rows = self.gather()
        return None if rows is None else (mx.contiguous(rows[0]), mx.contiguous(rows[1]))

    def state(self) -> tuple[mx.array, ...]:
        """The planes, uncopied, to be evaluated at prefill boundaries. Raises ``Disposed``."""
        self._check_alive()
        return self.pages.planes

    def make_mask(
        self, n: int, window_size: int | None = None, return_array: bool = False
    ) -> mx.array | Literal["causal"] | None:
        """The mask for the next ``n`` positions by the policy of mlx-lm's ``KVCache``.

        ``None`` for one position and no window, else ``"causal"``, or where a window or an
        array is wanted ``bool [n, S + n]``. Call it before the append. Raises ``Disposed``.
        """
        self._check_alive()
        window = self._window if window_size is None else window_size
        if window is None and not return_array:
            return None if n == 1 else "causal"
        if window is None and n == 1:
            return None
        num_keys = self._offset + n - self._start_after_release()
        return self.masks.lease(n, num_keys, window=window).array

    # Going back, splitting, ending --------------------------------------------------------

    def is_trimmable(self, n: SupportsIndex = 0, /) -> bool:
        """Whether the last ``n`` positions could be dropped (all of them, if fewer).

        Raises ``InvalidType`` and ``InvalidArgument`` as ``trim`` does.
        """
        target = self._offset - min(trim_count(n), self._offset)
        if self._table.start == 0:
            return True
        # The next query at ``target`` must still find its whole window.
        return max(0, target - (self._window or 1) + 1) >= self._table.start

    def trim(self, n: SupportsIndex, /) -> int:
        """Drop the last ``n`` positions, or all if fewer, and say how many were dropped.

        Blocks left empty go back to the pool. Raises ``InvalidArgument`` for ``n < 0``,
        ``InvalidType`` for a bool or what is no integer, ``NotTrimmable`` where the window
        of what remains was given back, ``Disposed``.
        """
        self._check_alive()
        count = min(trim_count(n), self._offset)
        if not self.is_trimmable(count):
            raise NotTrimmable(
                f"wanted to trim {count} of {self._offset} positions; those before "
                f"{self.start} were given back behind the window of {self._window}"
            )
        self._offset -= count
        self._table.trim(self._offset)
        self._room_end = self._offset
        self._follow_table()
        return count

    def fork(self) -> Self:
        """A cache with the same positions that shares all pages, in O(blocks).

        Whoever writes first into a block that both hold copies that block. Raises
        ``Disposed``.
        """
        self._check_alive()
        self._room_end = self._offset  # the tail has two holders now
        other = type(self).__new__(type(self))
        other.__dict__.update(self.__dict__)
        other._table = self._table.fork(self._offset)
        other._group = None
        other._follow_table()
        return other

    def __deepcopy__(self, memo: object) -> Self:
        return self.fork()

    def dispose(self) -> None:
        """Give every block back; every later call but this one raises ``Disposed``."""
        if not self._disposed:
            self._disposed = True
            self._table.close()

    def __enter__(self) -> Self:
        self._check_alive()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None:
        self.dispose()

    # Room, for groups ---------------------------------------------------------------------

    def blocks_needed(self, n: int) -> tuple[int, int | None]:
        """What room for ``n`` more positions takes: new blocks, and a shared tail to copy."""
        tail = None
        if n and self._offset < self._table.capacity and not self._table.is_writable(self._offset):
            tail = self._table.slot(self._offset // self.block_size)
        return self._table.missing(self._offset + n), tail

    def make_room(self, n: int) -> None:
        """Take the blocks that ``n`` more positions need, a shared tail's copy among them.

        Room counts as used until it is written or trimmed; asking twice takes nothing twice.
        Raises ``PoolExhausted``, ``Disposed``.
        """
        self._check_alive()
        missing, tail = self.blocks_needed(n)
        wanted = missing + (tail is not None)
        if wanted > self.pool.num_free:
            self.pages.grow_by(wanted - self.pool.num_free)
            self.pool.check_free(wanted)
        if tail is not None:
            self._own_tail()
        self._table.reserve(self._offset + n)
        self._follow_table()
        self._room_end = self._table.capacity

    def join(self, group: weakref.ref[CacheGroup]) -> None:
        """Belong to a group: an append without room makes room in all of it.

        Raises ``InvalidArgument`` for a cache of another live group.
        """
        if self._group is not None and self._group() is not None:
            raise InvalidArgument("a cache belongs to one group; fork it for another")
        self._group = group

    # The parts of an append ---------------------------------------------------------------

    def _append(self, keys: mx.array, values: mx.array) -> int:
        """Write rows behind the last and move the offset; gives how many."""
        if self._disposed:
            self._check_alive()
        layout = self._layout
        if layout is None:
            layout = self._adopt(keys, values)
        length = layout.count(keys, values)
        if keys.dtype != layout.dtype or values.dtype != layout.dtype:
            keys, values = layout.cast(keys), layout.cast(values)
        begin = self._offset
        end = begin + length
        if self.release_behind:
            self._release_behind(length)
        if end > self._room_end:
            self._find_room(length)
        span = self._span
        row = self._rows(begin, end) if span.row is None else span.row + begin - span.start
        self.pages.write(row, keys, values)
        self._offset = end
        return length

    def _rows(self, begin: int, end: int) -> int | list[int]:
        """The flat rows of a span, by its first where they are one run."""
        row = self._table.run(begin, end)
        return self._table.rows(begin, end) if row is None else row

    def _release_behind(self, length: int) -> None:
        """Give back what no later query sees, unless the append will be refused all the same."""
        table, start = self._table, self._start_after_release()
        if start > table.start:
            missing, tail = self.blocks_needed(length)
            wanted = missing + (tail is not None)
            if wanted > self.pool.num_free + table.freed_before(start):
                self.pages.grow_by(wanted)
                self.pool.check_free(wanted)
            table.release_before(start)
            self._follow_table()

    def _find_room(self, length: int) -> None:
        group = self._group() if self._group is not None else None
        if group is None:
            self.make_room(length)
        else:
            group.make_room(length)

    def _own_tail(self) -> None:
        index = self._offset // self.block_size
        old, new = self._table.replace(index)
        self.pages.copy_block(old, new)

    def _start_after_release(self) -> int:
        """Where the stored positions begin once the next append gave back what lies behind."""
        start = self._table.start
        if not self.release_behind or self._window is None:
            return start
        behind = max(0, self._offset - self._window + 1)
        return max(start, behind // self.block_size * self.block_size)

    def _adopt(self, keys: mx.array, values: mx.array) -> RowLayout:
        layout = RowLayout.of(keys, values)
        self._check_adoptable(layout)
        self._take_layout(layout, keys.shape[2])
        return layout

    def _take_layout(self, layout: RowLayout, length: int) -> None:
        if self._asked_direct is True and has_direct_read(self.pages.codec):
            raise Unsupported(
                f"direct=True was asked; {self.signature()} has no direct read on this machine: "
                "use direct=False or 'auto'"
            )
        if self.pages.layout is None:
            self.pages.adopt(layout, length)
        self._asked_direct = False
        self._layout = layout

    def _check_adoptable(self, layout: RowLayout) -> None:
        pages = self.pages.layout
        if pages is None:
            self.pages.codec.planes(layout.key_dim, layout.value_dim, layout.dtype)
        elif not pages.holds(layout):
            raise ShapeMismatch(
                f"rows have {layout.num_kv_heads} heads and dims {layout.key_dim}/"
                f"{layout.value_dim}; the shared pages have {pages.num_kv_heads} and "
                f"{pages.key_dim}/{pages.value_dim}"
            )

    def _check_first(self, name: str) -> None:
        self._check_alive()
        if self._offset:
            raise Unsupported(
                f"{name} takes the first window of a sequence; this one has {self._offset} "
                "positions"
            )

    def _check_alive(self) -> None:
        if self._disposed:
            self._refuse_disposed()

    def _refuse_disposed(self) -> NoReturn:
        raise Disposed("this cache was disposed; make another")

    # The parts of a read ------------------------------------------------------------------

    def _read(self, length: int, rule: Rule) -> GatheredRead:
        layout = self._layout
        assert layout is not None
        return GatheredRead(self._stored(), layout, length, rule, self.masks)

    def _stored(self) -> PagedRows:
        span, end = self._span, self._offset
        return PagedRows(self.pages, span, end - span.start, self._table.pin(end))

    def _follow_table(self) -> None:
        """See the table as it is, after it changed other than by growing in place."""
        self._span = BlockSpan(self._table)


if TYPE_CHECKING:
    _: Cache[mx.array] = cast("PagedKVCache", None)
    _committed: CommittedCache[mx.array] = cast("PagedKVCache", None)
    _bidirectional: BidirectionalCache[mx.array] = cast("PagedKVCache", None)
    _encoder: EncoderCache[mx.array] = cast("PagedKVCache", None)
    _block: BlockReadCache[mx.array] = cast("PagedKVCache", None)
    _donor: DonorCache[mx.array] = cast("PagedKVCache", None)
    _fork: ForkableCache[mx.array] = cast("PagedKVCache", None)
