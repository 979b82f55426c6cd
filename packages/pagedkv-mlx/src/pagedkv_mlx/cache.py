"""PagedKVCache: one sequence of one layer, in pages."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Literal, NoReturn, SupportsIndex, cast

import mlx.core as mx
from typing_extensions import Self

from pagedkv_formats import PagedQuantization, PagedTurboQuant
from pagedkv_mlx.arguments import (
    check_encoder_mask,
    check_integers,
    check_overlay,
    check_plan,
    own,
    trim_count,
    window_size,
)
from pagedkv_mlx.layout import RowLayout
from pagedkv_mlx.masks import AttentionMasks
from pagedkv_mlx.pages import DEFAULT_BLOCK_SIZE, LayerPages
from pagedkv_mlx.reads import GatheredRead, HeldRows, JoinedRows
from pagedkv_mlx.routing import attended_rotated, has_direct_read
from pagedkv_mlx.rules import ALL, Causal, Given, Overlaid, Rule
from pagedkv_mlx.sequence import PagedSequence, RoomMaker
from pagedkv_mlx.slots import PageSlot, bucket_for, default_phase, is_shapeless, padded
from pagedkv_pool import BlockPool
from pagedkv_protocols import (
    BidirectionalCache,
    BlockReadCache,
    Cache,
    CommittedCache,
    CompiledDecodeCache,
    DecodePhase,
    DecodePlan,
    Disposed,
    DonorCache,
    DonorRows,
    EncoderCache,
    ForkableCache,
    InvalidArgument,
    NotTrimmable,
    ShapeMismatch,
    Unsupported,
)


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
        turbo: PagedTurboQuant | None = None,
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

        Raises ``InvalidArgument`` for values that are never legal together, ``InvalidType``
        for sizes that are no integers.
        """
        if quantization is not None and turbo is not None:
            raise InvalidArgument("both quantization and turbo were given; a page has one format")
        check_integers(capacity=capacity, block_size=block_size)
        if capacity is not None and capacity < 1:
            raise InvalidArgument(f"capacity is {capacity}; at least 1 is legal, or None")
        self._window = window_size(window, release_behind)
        if not (isinstance(direct, bool) or direct == "auto"):
            raise InvalidArgument(f"direct is {direct!r}; legal are False, True and 'auto'")
        codec = quantization or turbo
        owns_pages = pages is None
        if pages is None:
            size = DEFAULT_BLOCK_SIZE if block_size is None else block_size
            pages = LayerPages(codec, block_size=size, capacity=capacity)
        elif block_size not in (None, pages.block_size) or codec not in (None, pages.codec):
            raise InvalidArgument(
                f"shared pages are {pages.signature()}; leave block_size and the format out"
            )
        else:
            pages.is_shared = True
        keep = window if release_behind else None
        self.sequence: PagedSequence = PagedSequence(pages, owns_pages=owns_pages, keep=keep)
        self.masks: AttentionMasks = AttentionMasks() if masks is None else masks
        self.capacity = capacity
        self.release_behind = release_behind
        self._direct: bool | Literal["auto"] = direct
        self._rule: Rule = Causal(window)
        self._turn = attended_rotated(pages.codec)
        self._slot: PageSlot | None = None
        self._disposed = False

    # What it is ---------------------------------------------------------------------------

    @property
    def offset(self) -> int:
        """How many positions the sequence has, those before ``start`` included."""
        return self.sequence.offset

    @property
    def start(self) -> int:
        """The first position still held, a multiple of ``block_size``."""
        return self.sequence.table.start

    @property
    def window(self) -> int | None:
        """How many positions a causal query sees, itself included; ``None`` is all."""
        return self._window

    @property
    def pages(self) -> LayerPages:
        """Where the rows lie; shared with forks and other caches of the layer."""
        return self.sequence.pages

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
        return self.sequence.table.blocks

    @property
    def quantization(self) -> PagedQuantization | None:
        """The affine, mx or nv format of the pages, if it is one."""
        return self.pages.codec if isinstance(self.pages.codec, PagedQuantization) else None

    @property
    def turbo(self) -> PagedTurboQuant | None:
        """The TurboQuant format of the pages, if it is one."""
        return self.pages.codec if isinstance(self.pages.codec, PagedTurboQuant) else None

    @property
    def direct(self) -> bool | Literal["auto"]:
        """Whether decode reads follow the block table; ``"auto"`` until the first append."""
        return self._direct

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
        return int(sum(block / self.pool.ref_cnt(slot) for slot in self.block_table))

    @property
    def num_rows(self) -> int:
        """How many positions are stored: ``offset - start``."""
        return self.sequence.num_rows

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
        return self._append_read(keys, values, self._rule, self._turn)

    def append_window(self, keys: mx.array, values: mx.array, /) -> GatheredRead:
        """Append L >= 1 positions, causal within the window (bottom-right aligned).

        ``keys [1, Hkv, L, Dk]``, ``values [1, Hkv, L, Dv]``: prefill chunks, tails, windows
        of proposals to verify. To append without attending, dispose the read: it gathers
        nothing until it is attended. Raises as ``append_decode`` does.
        """
        return self._append_read(keys, values, self._rule, self._turn)

    def append_committed(self, keys: mx.array, values: mx.array, /) -> GatheredRead:
        """Append L positions decided elsewhere; the window read over the same positions.

        Raises as ``append_window`` does.
        """
        return self._append_read(keys, values, self._rule, self._turn)

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
        return self._append_read(keys, values, Overlaid(bidirectional, self._window))

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
        return self._append_read(keys, values, ALL if mask is None else Given(mask))

    def append_rows(self, keys: mx.array, values: mx.array, /) -> tuple[mx.array, mx.array]:
        """Append L positions and give all stored rows, keys ``[1, Hkv, S, Dk]`` and values.

        For callers that attend by themselves, as mlx-lm's models do; the arrays are those of
        now and hold the planes until they are evaluated. Raises as ``append_window`` does.
        """
        self._append(keys, values)
        return self.sequence.gather()

    def read_block(self, keys: mx.array, values: mx.array, /) -> GatheredRead:
        """Each query sees all stored positions, then all L of the block, with no mask.

        Nothing is appended. The block's own rows are not passed through the page format,
        only cast to the pages' dtype. Raises as ``append_window`` does.
        """
        self._check_alive()
        layout = self.sequence.layout
        if layout is None:
            layout = RowLayout.of(keys, values)
            self.sequence.check_adoptable(layout)
            layout = self.pages.layout or layout
        length = layout.count(keys, values)
        rows: HeldRows | JoinedRows
        if self.num_rows:
            rows = JoinedRows(self.sequence.pinned(), layout.cast(keys), layout.cast(values))
        else:
            rows = HeldRows(layout.cast(keys), layout.cast(values))
        return GatheredRead(rows, layout, length, ALL, self.masks)

    def capture_donor_rows(self) -> DonorRows[mx.array]:
        """The stored positions in order, owned: copies that hold no page.

        Raises ``Unsupported`` before the first append, ``Disposed``.
        """
        exported = self.export()
        if exported is None:
            raise Unsupported("a cache without a first append has no rows to capture")
        return DonorRows(*exported, offset=self.offset, start=self.start, end=self.offset)

    # What is stored -----------------------------------------------------------------------

    def gather(self) -> tuple[mx.array, mx.array] | None:
        """The stored rows of now, keys ``[1, Hkv, S, Dk]`` and values; ``None`` before any.

        Slices of the pages where the blocks are one run. Raises ``Disposed``.
        """
        self._check_alive()
        layout = self.sequence.layout
        if layout is None:
            return None
        if not self.num_rows:
            shape = (1, layout.num_kv_heads, 0)
            return (
                mx.zeros((*shape, layout.key_dim), layout.dtype),
                mx.zeros((*shape, layout.value_dim), layout.dtype),
            )
        return self.sequence.gather()

    def page_rows(self) -> tuple[mx.array, ...]:
        """The stored rows as the pages hold them, one ``[1, Hkv, S, width]`` a plane.

        ``()`` before the first append. Raises ``Disposed``.
        """
        self._check_alive()
        if self.sequence.layout is None:
            return ()
        return tuple(self.pages.rows(self.sequence.span, self.num_rows))

    def restore_rows(self, layout: RowLayout, rows: Sequence[mx.array]) -> None:
        """Take rows that ``page_rows`` of a cache of this format gave, as they are.

        Raises ``ShapeMismatch`` and ``DtypeMismatch`` for rows that are not of the format's
        planes, ``InvalidArgument`` for page means of another block size, ``Unsupported``
        unless the cache is fresh, ``Disposed``.
        """
        self._check_first("restore_rows")
        self._check_direct()
        self.sequence.restore(layout, rows)
        self._direct = False

    def export(self) -> tuple[mx.array, mx.array] | None:
        """Live rows only, owned and contiguous, never a trimmed row; ``None`` before any.

        Keys ``[1, Hkv, S, Dk]`` and values ``[1, Hkv, S, Dv]``. Raises ``Disposed``.
        """
        rows = self.gather()
        return None if rows is None else (mx.contiguous(rows[0]), mx.contiguous(rows[1]))

    def state(self) -> tuple[mx.array, ...]:
        """The planes, uncopied, to be evaluated at prefill boundaries. Raises ``Disposed``."""
        self._check_alive()
        return tuple(map(own, self.pages.planes))

    def make_mask(
        self, n: int, window_size: int | None = None, return_array: bool = False
    ) -> mx.array | Literal["causal"] | None:
        """The mask for the next ``n`` positions by the policy of mlx-lm's ``KVCache``.

        ``None`` for one position and no window, else ``"causal"``, or where a window or an
        array is wanted ``bool [n, S + n]``. Call it before the append. Raises ``Disposed``.
        """
        self._check_alive()
        window = self._window if window_size is None else window_size
        if window is None and (n == 1 or not return_array):
            return None if n == 1 else "causal"
        num_keys = self.offset + n - self.sequence.start_after_release()
        return own(self.masks.lease(n, num_keys, window=window).array)

    # Going back, splitting, ending --------------------------------------------------------

    def is_trimmable(self, n: SupportsIndex = 0, /) -> bool:
        """Whether the last ``n`` positions could be dropped (all of them, if fewer).

        Raises ``InvalidType`` and ``InvalidArgument`` as ``trim`` does, ``Disposed``.
        """
        self._check_alive()
        target = self.offset - min(trim_count(n), self.offset)
        if self.start == 0:
            return True
        # The next query at ``target`` must still find its whole window.
        return max(0, target - (self._window or 1) + 1) >= self.start

    def trim(self, n: SupportsIndex, /) -> int:
        """Drop the last ``n`` positions, or all if fewer, and say how many were dropped.

        Blocks left empty go back to the pool. Raises ``InvalidArgument`` for ``n < 0``,
        ``InvalidType`` for a bool or what is no integer, ``NotTrimmable`` where the window
        of what remains was given back, ``Disposed``.
        """
        self._check_alive()
        count = min(trim_count(n), self.offset)
        if not self.is_trimmable(count):
            raise NotTrimmable(
                f"wanted to trim {count} of {self.offset} positions; those before "
                f"{self.start} were given back behind the window of {self._window}"
            )
        self.sequence.trim_to(self.offset - count)
        return count

    def fork(self) -> Self:
        """A cache with the same positions that shares all pages, in O(blocks).

        Whoever writes first into a block that both hold copies that block. Raises
        ``Disposed``.
        """
        self._check_alive()
        other = type(self).__new__(type(self))
        other.__dict__.update(self.__dict__)
        other.sequence = self.sequence.fork()
        return other

    def __copy__(self) -> Self:
        return self.fork()  # two caches of one sequence would move each other's offset

    def __deepcopy__(self, memo: object) -> Self:
        return self.fork()

    def dispose(self) -> None:
        """Give every block back; every later call but this one raises ``Disposed``."""
        if not self._disposed:
            self._disposed = True
            self.sequence.close()

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

    # Compiled decode ----------------------------------------------------------------------

    def decode_phase(self) -> DecodePhase:
        """How a recorded step would take the stored positions in. Changes nothing.

        On a CPU in the pages themselves where they are this cache's own and one run.
        """
        phase = default_phase()
        if phase is DecodePhase.CONCAT and self._why_not_concat():
            phase = DecodePhase.BUCKET
        if phase is DecodePhase.BUCKET and self.sequence.may_reside(self._bucket()):
            return DecodePhase.RESIDENT
        return phase

    def _bucket(self) -> int:
        return bucket_for(self.offset + 1, self.block_size)

    def prepare_decode_step(self, phase: DecodePhase | None = None, /) -> DecodePlan:
        """Make room for one position and say what the recorded step will do.

        Raises ``Unsupported`` before the first append, for direct reads, for positions given
        back behind a window, for page means, and where ``phase`` asks for what the pages do
        not allow; ``PoolExhausted``, ``Disposed``.
        """
        self._check_alive()
        self._check_compilable(phase)
        self.make_room(1)
        chosen = self.decode_phase() if phase is None else phase
        bucket = 0 if chosen is DecodePhase.CONCAT else self._bucket()
        if chosen is DecodePhase.RESIDENT:
            if not self.sequence.may_reside(bucket):
                raise Unsupported(
                    "a resident step needs pages of this cache alone, one run, in which no live "
                    "read keeps a trimmed row; use BUCKET"
                )
            bucket = self.sequence.reside(bucket)
        return DecodePlan(chosen, self.offset, bucket)

    def decode_slot(self, plan: DecodePlan, /) -> PageSlot:
        """What a recording must agree on to serve ``plan``: equal plans get equal slots."""
        row = (self.sequence.span.row or 0) if plan.phase is DecodePhase.RESIDENT else 0
        slot = self._slot
        if slot is None or (slot.phase, slot.bucket, slot.row) != (plan.phase, plan.bucket, row):
            layout = self.sequence.layout
            assert layout is not None
            codec = self.pages.codec
            slot = PageSlot(plan.phase, codec, layout, plan.bucket, row, self._window)
            self._slot = slot
        return slot

    def decode_inputs(self, plan: DecodePlan, /) -> tuple[mx.array, ...]:
        """The planes in the ``RESIDENT`` phase, else keys and values, padded to the bucket."""
        if plan.phase is DecodePhase.RESIDENT:
            return self.pages.planes
        rows = self.gather()
        assert rows is not None
        if not plan.bucket:
            return rows
        return padded(rows[0], plan.bucket), padded(rows[1], plan.bucket)

    def commit_decode_step(
        self, plan: DecodePlan, outputs: Sequence[mx.array], /
    ) -> tuple[mx.array, ...]:
        """Append the row that the step computed; gives the planes, to be evaluated with it.

        Raises ``InvalidArgument`` where the cache changed since the plan was made,
        ``Disposed``.
        """
        self._check_alive()
        check_plan(plan, self.offset, self.sequence.room_end)
        if plan.phase is DecodePhase.RESIDENT:
            self.pages.planes = tuple(outputs)
        else:
            self.pages.store(self.sequence.flat_rows(self.offset, self.offset + 1), outputs)
        self.sequence.offset += 1
        return self.pages.planes

    def _check_compilable(self, phase: DecodePhase | None) -> None:
        if self.sequence.layout is None:
            raise Unsupported("the first append fixes the dims; make it before a recorded step")
        if self.direct is True:
            raise Unsupported("direct reads follow the length in partitions: none is recorded")
        if self.release_behind:
            raise Unsupported("positions are given back behind the window: no step is recorded")
        if any(spec.per_block for spec in self.pages.specs):
            raise Unsupported("page means belong to a block's first write: no step is recorded")
        if phase is DecodePhase.CONCAT and (reason := self._why_not_concat()):
            raise Unsupported(f"{reason}; use BUCKET")

    def _why_not_concat(self) -> str | None:
        if self._window is not None:
            return "a window needs a mask, which CONCAT has not"
        layout = self.sequence.layout
        if layout is not None and not is_shapeless(self.pages.codec, layout):
            return f"rows of {self.pages.codec.signature()} cannot be recorded without shapes"
        return None

    # Groups -------------------------------------------------------------------------------

    def make_room(self, n: int) -> None:
        """Take the blocks that ``n`` more positions need; see ``CacheGroup.step``.

        Raises ``PoolExhausted`` with nothing changed, ``Disposed``.
        """
        self._check_alive()
        self.sequence.make_room(n)

    def join(self, group: weakref.ref[RoomMaker]) -> None:
        """Belong to a group: an append without room makes room in all of it.

        Raises ``InvalidArgument`` for a cache of another live group.
        """
        if self.sequence.group is not None and self.sequence.group() is not None:
            raise InvalidArgument("a cache belongs to one group; fork it for another")
        self.sequence.group = group

    # Checks and parts ---------------------------------------------------------------------

    def _append(self, keys: mx.array, values: mx.array) -> int:
        first = self.sequence.layout is None
        if first or self._disposed:
            self._check_alive()
            RowLayout.of(keys, values)
            self._check_direct()
        length = self.sequence.append(keys, values)
        if first:
            self._direct = False
        return length

    def _append_read(
        self, keys: mx.array, values: mx.array, rule: Rule, turn: PagedTurboQuant | None = None
    ) -> GatheredRead:
        length = self._append(keys, values)
        layout = self.sequence.layout
        assert layout is not None
        return GatheredRead(self.sequence.pinned(), layout, length, rule, self.masks, turn)

    def _check_direct(self) -> None:
        if self._direct is True and has_direct_read(self.pages.codec):
            raise Unsupported(
                f"direct=True was asked; {self.signature()} has no direct read on this machine: "
                "use direct=False or 'auto'"
            )

    def _check_first(self, name: str) -> None:
        self._check_alive()
        if self.offset:
            raise Unsupported(
                f"{name} takes the first window of a sequence; this one has {self.offset} positions"
            )

    def _check_alive(self) -> None:
        if self._disposed:
            self._refuse_disposed()

    def _refuse_disposed(self) -> NoReturn:
        raise Disposed("this cache was disposed; make another")


if TYPE_CHECKING:
    _: Cache[mx.array] = cast("PagedKVCache", None)
    _committed: CommittedCache[mx.array] = cast("PagedKVCache", None)
    _bidirectional: BidirectionalCache[mx.array] = cast("PagedKVCache", None)
    _encoder: EncoderCache[mx.array] = cast("PagedKVCache", None)
    _block: BlockReadCache[mx.array] = cast("PagedKVCache", None)
    _donor: DonorCache[mx.array] = cast("PagedKVCache", None)
    _fork: ForkableCache[mx.array] = cast("PagedKVCache", None)
    _compiled: CompiledDecodeCache[mx.array] = cast("PagedKVCache", None)
