"""Recorded rows: one row through a format by operations that MLX can record without shapes.

A shapeless recording works out the shape of every array in it anew, and on MLX 0.32.4 views,
slices, splits and pads cannot. One row can do without them, in other operations than serve
many rows best.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol, cast

import attrs
import mlx.core as mx

from pagedkv_formats.affine import PagedQuantization
from pagedkv_formats.turboquant import PagedTurboQuant
from pagedkv_formats.turboquant.recorded import RecordedTurboQuant
from pagedkv_formats.turboquant.scales import apart
from pagedkv_formats.words import joined, parted
from pagedkv_protocols import PageCodec

E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
"""The numbers of codes 0 to 7; those of 8 to 15 are their negatives."""


class RowCodec(Protocol):
    """How one row becomes page bytes and returns: two methods of a ``PageCodec``."""

    def encode(self, keys: mx.array, values: mx.array, /) -> tuple[mx.array, ...]:
        """A row ``[1, Hkv, 1, Dk]``, ``[1, Hkv, 1, Dv]`` to one ``[1, Hkv, 1, width]`` a plane."""
        ...

    def decode(
        self, rows: Sequence[mx.array], key_dim: int, value_dim: int, dtype: mx.Dtype, /
    ) -> tuple[mx.array, mx.array]:
        """A row of each plane back to keys ``[1, Hkv, 1, Dk]`` and values."""
        ...


def recordable(codec: PageCodec[mx.array, mx.Dtype]) -> RowCodec:
    """``codec`` for one row inside a recording: the same bytes and numbers, to the bit.

    A codec that can be recorded as it is, or not at all, is given back itself.

    >>> recordable(PagedQuantization(4))
    PagedQuantization(bits=4, group_size=64, mode='affine', value_bits=4)
    """
    if isinstance(codec, PagedTurboQuant) and not codec.page_mean:
        return RecordedTurboQuant(codec)
    # On a GPU each mode is a kernel, which can be recorded.
    if isinstance(codec, PagedQuantization) and mx.default_device() == mx.cpu:
        return codec if codec.mode == "affine" else RecordedModes(codec)
    return codec


@attrs.frozen
class RecordedModes:
    """The bytes and numbers of ``mxfp4``, ``mxfp8`` and ``nvfp4`` pages on a CPU.

    >>> codec, x = PagedQuantization(mode="mxfp8"), mx.random.normal((1, 2, 1, 64))
    >>> recorded = RecordedModes(codec)
    >>> all(map(mx.array_equal, recorded.encode(x, x), codec.encode(x, x)))
    True
    """

    codec: PagedQuantization

    def encode(self, keys: mx.array, values: mx.array, /) -> tuple[mx.array, ...]:
        """The row of every plane, as ``codec.encode`` gives it."""
        if self.codec.mode == "nvfp4":
            return self.codec.encode(keys, values)
        coded = mx_row(keys, self.codec.bits)
        return (*coded, *mx_row(values, self.codec.bits)) if values.shape[-1] else coded

    def decode(
        self, rows: Sequence[mx.array], key_dim: int, value_dim: int, dtype: mx.Dtype, /
    ) -> tuple[mx.array, mx.array]:
        """Keys and values, as ``codec.decode`` gives them."""
        keys = self._decode(rows[:2]).astype(dtype)
        if not value_dim:
            return keys, mx.zeros((*keys.shape[:-1], 0), dtype)
        return keys, self._decode(rows[2:]).astype(dtype)

    def _decode(self, coded: Sequence[mx.array]) -> mx.array:
        words, scales = coded
        bits, size = self.codec.bits, self.codec.group_size
        codes = mx.unflatten(parted(words, 32 // bits, bits), -1, (-1, size))
        places = codes + mx.expand_dims(scales.astype(mx.uint32) << bits, -1)
        return mx.flatten(mx.take(mode_table(self.codec.mode, bits, size), places), -2)


def mx_row(row: mx.array, bits: int) -> tuple[mx.array, mx.array]:
    """``mx.quantize`` of mode ``mxfp4`` or ``mxfp8``: the words and the scales.

    MLX 0.32.4's own operations on a CPU, in its order, without its view of codes as words. An
    exponent is the least whose power of 2 is not below the group's largest magnitude / 6, or
    / 448.
    """
    groups = mx.unflatten(row, -1, (-1, 32))
    largest = mx.array(6.0 if bits == 4 else 448.0, row.dtype)
    exponents = exponents_of(mx.max(mx.abs(groups), axis=-1, keepdims=True) / largest)
    numbers = groups / mx.power(mx.array(2.0, row.dtype), exponents)
    codes = fp4_codes(numbers) if bits == 4 else mx.to_fp8(numbers)
    scales = converted(exponents + mx.array(127, row.dtype), mx.uint8)
    return joined(mx.flatten(codes, -2), 32 // bits, bits, mx.uint32), mx.flatten(scales, -2)


def exponents_of(ratios: mx.array) -> mx.array:
    """The least whole numbers whose powers of 2 are not below ``ratios``, in their dtype."""
    near = converted(mx.round(mx.log2(ratios)), mx.int32)
    below = mx.power(mx.array(2.0), near.astype(mx.float32)) < ratios.astype(mx.float32)
    exponents = mx.where(below, near + 1, near).astype(ratios.dtype)
    return mx.where(ratios == 0, mx.array(0, ratios.dtype), exponents)


def fp4_codes(numbers: mx.array) -> mx.array:
    """The code of the nearest of the sixteen e2m1 numbers, the first of two."""
    table = mx.array(E2M1 + [-number for number in E2M1], numbers.dtype)
    return mx.argmin(mx.abs(mx.expand_dims(numbers, -1) - table), axis=-1)


def converted(numbers: mx.array, dtype: mx.Dtype) -> mx.array:
    """``numbers.astype(dtype)``, fused with nothing: fused, a NaN becomes another integer."""
    return apart(apart(numbers).astype(dtype))


@lru_cache(maxsize=3)
def mode_table(mode: str, bits: int, group_size: int) -> mx.array:
    """What ``mx.dequantize`` makes of code c and scale s, bf16, at ``s * 2**bits + c``.

    >>> mode_table("mxfp4", 4, 32)[127 * 16 : 128 * 16].tolist()[:8]  # a scale of 1
    [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
    """
    width = max(2**bits, group_size)
    row = mx.arange(width, dtype=mx.uint32) & (2**bits - 1)
    words = mx.broadcast_to(joined(row, 32 // bits, bits, mx.uint32), (256, width * bits // 32))
    scales = mx.repeat(mx.arange(256, dtype=mx.uint8)[:, None], width // group_size, axis=1)
    numbers = mx.dequantize(words, scales, None, group_size, bits, mode)
    table = mx.contiguous(numbers[:, : 2**bits]).reshape(-1)
    mx.eval(table)
    return table


if TYPE_CHECKING:
    _: RowCodec = cast("RecordedModes", None)
    _turbo: RowCodec = cast("RecordedTurboQuant", None)
