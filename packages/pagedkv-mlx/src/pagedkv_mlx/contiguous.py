"""ContiguousKVCache: one growing buffer, the reference for every read."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Literal, SupportsIndex, cast

import mlx.core as mx
from typing_extensions import Self

from pagedkv_formats import DensePages
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
from pagedkv_mlx.pages import DEFAULT_BLOCK_SIZE, start_index
from pagedkv_mlx.reads import GatheredRead, HeldRows, JoinedRows
from pagedkv_mlx.rules import ALL, Causal, Given, Overlaid, Rule
from pagedkv_mlx.slots import PageSlot, bucket_for, default_phase, padded
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


class ContiguousKVCache:
    """The keys and values of one sequence in one layer, in one buffer that grows by steps.

    What ``PagedKVCache`` is compared with: the same appends and reads, no blocks. With
    ``release_behind`` it drops rows behind the window by whole steps of ``block_size``, as
    pages of that size do.

    >>> rows = mx.ones((1, 2, 3, 16))
    >>> cache = ContiguousKVCache()
    >>> read = cache.append_window(rows, rows)
    >>> read.attend(mx.ones((1, 4, 3, 16)), scale=0.25).shape, cache.offset
    ((1, 4, 3, 16), 3)
    """

    def __init__(
        self,
        *,
        block_size: int = DEFAULT_BLOCK_SIZE,
        masks: AttentionMasks | None = None,
        window: int | None = None,
        release_behind: bool = False,
    ) -> None:
        """An empty cache. Raises ``InvalidArgument`` and ``InvalidType`` for sizes."""
        check_integers(block_size=block_size)
        if block_size < 1:
            raise InvalidArgument(f"block_size is {block_size}; at least 1 is legal")
        self.block_size = block_size
        self.masks: AttentionMasks = AttentionMasks() if masks is None else masks
        self.release_behind = release_behind
        self._window = window_size(window, release_behind)
        self._rule: Rule = Causal(window)
        self._layout: RowLayout | None = None
        self._buffers: tuple[mx.array, ...] = ()
        self._offset = 0
        self._start = 0
        self._stale_end = 0  # positions below it may hold trimmed rows
        self._disposed = False

    @property
    def offset(self) -> int:
        """How many positions the sequence has, those before ``start`` included."""
        return self._offset

    @property
    def start(self) -> int:
        """The first position still held, a multiple of ``block_size``."""
        return self._start

    @property
    def window(self) -> int | None:
        """How many positions a causal query sees, itself included; ``None`` is all."""
        return self._window

    @property
    def nbytes(self) -> int:
        """Bytes of the buffer as it is reserved."""
        return sum(buffer.nbytes for buffer in self._buffers)

    def signature(self) -> str:
        """``contiguous``."""
        return "contiguous"

    def append_decode(self, keys: mx.array, values: mx.array, /) -> GatheredRead:
        """As ``PagedKVCache.append_decode``."""
        if keys.ndim == 4 and keys.shape[2] != 1:
            raise ShapeMismatch(f"keys have shape {keys.shape}; append_decode takes one position")
        return self._read(self._append(keys, values), self._rule)

    def append_window(self, keys: mx.array, values: mx.array, /) -> GatheredRead:
        """As ``PagedKVCache.append_window``."""
        return self._read(self._append(keys, values), self._rule)

    def append_committed(self, keys: mx.array, values: mx.array, /) -> GatheredRead:
        """As ``PagedKVCache.append_committed``."""
        return self._read(self._append(keys, values), self._rule)

    def append_bidirectional(
        self, keys: mx.array, values: mx.array, bidirectional: mx.array, /
    ) -> GatheredRead:
        """As ``PagedKVCache.append_bidirectional``."""
        self._check_first("append_bidirectional")
        if keys.ndim == 4:
            check_overlay(bidirectional, keys.shape[2])
        return self._read(self._append(keys, values), Overlaid(bidirectional, self._window))

    def append_encoder(
        self, keys: mx.array, values: mx.array, mask: mx.array | None, /
    ) -> GatheredRead:
        """As ``PagedKVCache.append_encoder``."""
        self._check_first("append_encoder")
        if mask is not None and keys.ndim == 4:
            check_encoder_mask(mask, keys.shape[2])
        return self._read(self._append(keys, values), ALL if mask is None else Given(mask))

    def read_block(self, keys: mx.array, values: mx.array, /) -> GatheredRead:
        """As ``PagedKVCache.read_block``."""
        self._check_alive()
        layout = self._layout or RowLayout.of(keys, values)
        length = layout.count(keys, values)
        rows: HeldRows | JoinedRows = HeldRows(layout.cast(keys), layout.cast(values))
        if self._offset > self._start:
            rows = JoinedRows(HeldRows(*self._rows()), layout.cast(keys), layout.cast(values))
        return GatheredRead(rows, layout, length, ALL, self.masks)

    def capture_donor_rows(self) -> DonorRows[mx.array]:
        """As ``PagedKVCache.capture_donor_rows``."""
        exported = self.export()
        if exported is None:
            raise Unsupported("a cache without a first append has no rows to capture")
        return DonorRows(*exported, offset=self._offset, start=self._start, end=self._offset)

    def export(self) -> tuple[mx.array, mx.array] | None:
        """Live rows only, owned and contiguous; ``None`` before any. Raises ``Disposed``."""
        self._check_alive()
        if self._layout is None:
            return None
        keys, values = self._rows()
        return mx.contiguous(keys), mx.contiguous(values)

    def state(self) -> tuple[mx.array, ...]:
        """The buffers, to be evaluated. Raises ``Disposed``."""
        self._check_alive()
        return tuple(map(own, self._buffers))

    def make_mask(
        self, n: int, window_size: int | None = None, return_array: bool = False
    ) -> mx.array | Literal["causal"] | None:
        """As ``PagedKVCache.make_mask``."""
        self._check_alive()
        window = self._window if window_size is None else window_size
        if window is None and (n == 1 or not return_array):
            return None if n == 1 else "causal"
        num_keys = self._offset + n - self._start_after_release()
        return own(self.masks.lease(n, num_keys, window=window).array)

    def is_trimmable(self, n: SupportsIndex = 0, /) -> bool:
        """As ``PagedKVCache.is_trimmable``."""
        self._check_alive()
        target = self._offset - min(trim_count(n), self._offset)
        return not self._start or max(0, target - (self._window or 1) + 1) >= self._start

    def trim(self, n: SupportsIndex, /) -> int:
        """As ``PagedKVCache.trim``."""
        self._check_alive()
        count = min(trim_count(n), self._offset)
        if not self.is_trimmable(count):
            raise NotTrimmable(
                f"wanted to trim {count} of {self._offset} positions; those before "
                f"{self._start} were given back behind the window of {self._window}"
            )
        self._stale_end = max(self._stale_end, self._offset)
        self._offset -= count
        return count

    def fork(self) -> Self:
        """A cache with the same positions; the buffer is copied when either one writes."""
        self._check_alive()
        other = type(self).__new__(type(self))
        other.__dict__.update(self.__dict__)
        return other

    def __deepcopy__(self, memo: object) -> Self:
        return self.fork()

    def decode_phase(self) -> DecodePhase:
        """As ``PagedKVCache.decode_phase``."""
        phase = default_phase()
        bucket = phase is DecodePhase.BUCKET or self._window is not None
        return DecodePhase.RESIDENT if bucket else phase

    def prepare_decode_step(self, phase: DecodePhase | None = None, /) -> DecodePlan:
        """As ``PagedKVCache.prepare_decode_step``."""
        self._check_alive()
        if self._layout is None or self.release_behind:
            raise Unsupported("a recorded step needs a first append, and release_behind=False")
        chosen = self.decode_phase() if phase is None else phase
        if chosen is DecodePhase.CONCAT:
            if self._window is not None:
                raise Unsupported("a window needs a mask, which CONCAT has not; use BUCKET")
            return DecodePlan(chosen, self._offset, 0)
        bucket = bucket_for(self._offset + 1, DEFAULT_BLOCK_SIZE)
        if chosen is DecodePhase.RESIDENT:
            self._grow(self._layout, bucket)
            self._clear_stale(self._layout)
        return DecodePlan(chosen, self._offset, bucket)

    def decode_slot(self, plan: DecodePlan, /) -> PageSlot:
        """As ``PagedKVCache.decode_slot``."""
        assert self._layout is not None
        return PageSlot(plan.phase, DensePages(), self._layout, plan.bucket, 0, self._window)

    def decode_inputs(self, plan: DecodePlan, /) -> tuple[mx.array, ...]:
        """As ``PagedKVCache.decode_inputs``."""
        if plan.phase is DecodePhase.RESIDENT:
            return self._planes()
        keys, values = self._rows()
        if not plan.bucket:
            return keys, values
        return padded(keys, plan.bucket), padded(values, plan.bucket)

    def commit_decode_step(
        self, plan: DecodePlan, outputs: Sequence[mx.array], /
    ) -> tuple[mx.array, ...]:
        """As ``PagedKVCache.commit_decode_step``."""
        self._check_alive()
        check_plan(plan, self._offset, self._offset + 1)
        assert self._layout is not None
        if plan.phase is DecodePhase.RESIDENT:
            self._buffers = (*outputs, *self._buffers[len(outputs) :])
        else:
            self._grow(self._layout, self._offset + 1)
            start = start_index(self._offset)
            self._buffers = (
                *(
                    mx.slice_update(buffer, rows, start, (2,))
                    for buffer, rows in zip(self._buffers, outputs, strict=False)
                ),
                *self._buffers[len(outputs) :],
            )
        self._offset += 1
        return self._buffers

    def dispose(self) -> None:
        """Let go of the buffer; every later call but this one raises ``Disposed``."""
        self._disposed = True
        self._buffers = ()

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

    def _append(self, keys: mx.array, values: mx.array) -> int:
        self._check_alive()
        layout = self._layout or RowLayout.of(keys, values)
        length = layout.count(keys, values)
        self._layout = layout
        self._release_behind()
        row = self._offset - self._start
        self._grow(layout, row + length)
        new = (layout.cast(keys), layout.cast(values))
        self._buffers = tuple(
            mx.slice_update(buffer, rows, start_index(row), (2,))
            for buffer, rows in zip(self._buffers, new, strict=True)
        )
        self._offset += length
        return length

    def _grow(self, layout: RowLayout, rows: int) -> None:
        have = self._buffers[0].shape[2] if self._buffers else 0
        more = -(-max(0, rows - have) // DEFAULT_BLOCK_SIZE) * DEFAULT_BLOCK_SIZE
        if more:
            shape = (1, layout.num_kv_heads, more)
            zeros = tuple(
                mx.zeros((*shape, dim), layout.dtype) for dim in (layout.key_dim, layout.value_dim)
            )
            pairs = zip(self._buffers, zeros, strict=False)
            joined = tuple(mx.concatenate([old, new], axis=2) for old, new in pairs)
            self._buffers = joined or zeros

    def _planes(self) -> tuple[mx.array, ...]:
        assert self._layout is not None
        return self._buffers if self._layout.value_dim else self._buffers[:1]

    def _clear_stale(self, layout: RowLayout) -> None:
        """Clear trimmed rows: a weight of zero does not hide a NaN."""
        count = self._stale_end - self._offset
        if count > 0:
            shape = (1, layout.num_kv_heads, count)
            self._buffers = tuple(
                mx.slice_update(
                    buffer,
                    mx.zeros((*shape, buffer.shape[3]), layout.dtype),
                    start_index(self._offset),
                    (2,),
                )
                for buffer in self._buffers
            )
        self._stale_end = 0

    def _start_after_release(self) -> int:
        if not self.release_behind or self._window is None:
            return self._start
        behind = max(0, self._offset - self._window + 1)
        return max(self._start, behind // self.block_size * self.block_size)

    def _release_behind(self) -> None:
        start = self._start_after_release()
        self._buffers = tuple(buffer[:, :, start - self._start :] for buffer in self._buffers)
        self._start = start

    def _rows(self) -> tuple[mx.array, mx.array]:
        keys, values = self._buffers
        count = self._offset - self._start
        return keys[:, :, :count], values[:, :, :count]

    def _read(self, length: int, rule: Rule) -> GatheredRead:
        layout = self._layout
        assert layout is not None
        return GatheredRead(HeldRows(*self._rows()), layout, length, rule, self.masks)

    def _check_first(self, name: str) -> None:
        self._check_alive()
        if self._offset:
            raise Unsupported(f"{name} takes the first window; there are {self._offset} positions")

    def _check_alive(self) -> None:
        if self._disposed:
            raise Disposed("this cache was disposed; make another")


if TYPE_CHECKING:
    _: Cache[mx.array] = cast("ContiguousKVCache", None)
    _committed: CommittedCache[mx.array] = cast("ContiguousKVCache", None)
    _bidirectional: BidirectionalCache[mx.array] = cast("ContiguousKVCache", None)
    _encoder: EncoderCache[mx.array] = cast("ContiguousKVCache", None)
    _block: BlockReadCache[mx.array] = cast("ContiguousKVCache", None)
    _donor: DonorCache[mx.array] = cast("ContiguousKVCache", None)
    _fork: ForkableCache[mx.array] = cast("ContiguousKVCache", None)
    _compiled: CompiledDecodeCache[mx.array] = cast("ContiguousKVCache", None)
