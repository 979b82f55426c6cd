"""Slots of compiled decode: what a recorded step knows of a cache, and its stand-in there."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Literal, cast

import attrs
import mlx.core as mx

from pagedkv_formats import recordable, run_rows
from pagedkv_mlx.layout import RowLayout
from pagedkv_protocols import DecodePhase, DecodeSlot, DecodeTrace, PageCodec


def bucket_for(length: int, block_size: int) -> int:
    """The smallest of ``256 * 2**k * {1, 5/4, 3/2, 7/4}``, in whole blocks, to hold ``length``.

    At most four a doubling, so that a recording for each is few.

    >>> [bucket_for(n, 256) for n in (1, 257, 513, 641, 900, 1025)]
    [256, 512, 768, 768, 1024, 1280]
    >>> bucket_for(300, 16), bucket_for(321, 16)
    (320, 384)
    """
    size = 256
    while size < length:
        size *= 2
    # A quarter of the doubling below: size / 2 * {5/4, 3/2, 7/4, 2}.
    quarter = size // 8
    while size > 256 and size - quarter >= length and size - quarter > 4 * quarter:
        size -= quarter
    return -(-size // block_size) * block_size


@attrs.frozen
class PageSlot:
    """What a recording must agree on with pages: equal slots are served by one recording.

    ``row`` is the flat row of the first position in the planes and ``bucket`` the number of
    rows attended; both are 0 in the ``CONCAT`` phase.
    """

    phase: DecodePhase
    codec: PageCodec[mx.array, mx.Dtype]
    layout: RowLayout
    bucket: int
    row: int
    window: int | None

    def trace(self, inputs: Sequence[mx.array], position: mx.array, /) -> PageTrace:
        """The cache's stand-in for one recording; ``position`` is ``int32 [1]``.

        ``inputs`` are the planes in the ``RESIDENT`` phase, else the stored keys
        ``[1, Hkv, S, Dk]`` and values, S being ``bucket`` or the number of positions.
        """
        return PageTrace(self, tuple(inputs), position)


class PageTrace:
    """A cache of one new position, as a model meets it while its step is recorded."""

    def __init__(self, slot: PageSlot, inputs: tuple[mx.array, ...], position: mx.array) -> None:
        self._slot = slot
        # What MLX records without shapes is slower, so that it is used there alone.
        self._codec = recordable(slot.codec) if slot.phase is DecodePhase.CONCAT else slot.codec
        self._inputs = inputs
        self._outputs: tuple[mx.array, ...] = ()
        self.offset = position
        self.rope_offset = position

    def update_and_fetch(self, keys: mx.array, values: mx.array, /) -> tuple[mx.array, mx.array]:
        """Pass the new row through the format as a page would store it, and join it.

        ``keys [1, Hkv, 1, Dk]``, ``values [1, Hkv, 1, Dv]``; gives the rows to attend.
        """
        slot, layout = self._slot, self._slot.layout
        rows = self._codec.encode(layout.cast(keys), layout.cast(values))
        if slot.phase is DecodePhase.RESIDENT:
            self._outputs = self._in_planes(rows)
            resident = [run_rows(plane, slot.row, slot.bucket) for plane in self._outputs]
            return self._decode(resident)
        self._outputs = rows
        new_keys, new_values = self._decode(rows)
        stored_keys, stored_values = self._inputs
        return self._join(stored_keys, new_keys), self._join(stored_values, new_values)

    def make_mask(
        self,
        N: int,  # noqa: N803 - mlx-lm's models may name it
        return_array: bool = False,
        window_size: int | None = None,
    ) -> mx.array | Literal["causal"] | None:
        """What the new position sees: ``bool [1, bucket]``, or ``None`` for all positions."""
        window = self._slot.window if window_size is None else window_size
        if not self._slot.bucket:
            assert window is None, "a window needs a bucket"
            return None
        place = mx.arange(self._slot.bucket)[None]
        seen = place <= self.offset
        return seen if window is None else seen & (place > self.offset - window)

    def outputs(self) -> tuple[mx.array, ...]:
        """The planes with the new row, or the encoded row itself."""
        return self._outputs

    def _in_planes(self, rows: Sequence[mx.array]) -> tuple[mx.array, ...]:
        start = self.offset + self._slot.row if self._slot.row else self.offset
        return tuple(
            mx.slice_update(plane, new, start, (2,))
            for plane, new in zip(self._inputs, rows, strict=True)
        )

    def _join(self, stored: mx.array, new: mx.array) -> mx.array:
        if self._slot.phase is DecodePhase.CONCAT:
            return mx.concatenate([stored, new], axis=2)
        return mx.slice_update(stored, new, self.offset, (2,))

    def _decode(self, rows: Sequence[mx.array]) -> tuple[mx.array, mx.array]:
        layout = self._slot.layout
        return self._codec.decode(rows, layout.key_dim, layout.value_dim, layout.dtype)


def padded(rows: mx.array, length: int) -> mx.array:
    """``rows [1, H, S, D]`` with zeros behind them: ``[1, H, length, D]``."""
    more = length - rows.shape[2]
    return mx.pad(rows, [(0, 0), (0, 0), (0, more), (0, 0)]) if more else rows


@lru_cache(maxsize=64)
def is_shapeless(codec: PageCodec[mx.array, mx.Dtype], layout: RowLayout) -> bool:
    """Whether a row can pass through ``codec`` in a graph that knows no lengths.

    MLX can record the rows of every format here. A codec from elsewhere may need what MLX
    cannot record: views, slices, splits or pads.
    """
    row = recordable(codec)

    def through(keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        coded = row.encode(keys, values)
        return row.decode(coded, layout.key_dim, layout.value_dim, layout.dtype)

    recorded = mx.compile(through, shapeless=True)
    heads, dims = layout.num_kv_heads, (layout.key_dim, layout.value_dim)
    try:
        recorded(*(mx.zeros((1, heads, 1, dim), layout.dtype) for dim in dims))
    except ValueError:
        return False
    return True


def default_phase() -> DecodePhase:
    """Gathered and joined where a shapeless graph is possible, by buckets where it is not.

    RoPE with an array offset cannot be shapeless on a CPU.
    """
    gpu = mx.default_device().type == mx.DeviceType.gpu
    return DecodePhase.CONCAT if gpu else DecodePhase.BUCKET


if TYPE_CHECKING:
    _: DecodeTrace[mx.array] = cast("PageTrace", None)
    _slot: DecodeSlot[mx.array] = cast("PageSlot", None)
