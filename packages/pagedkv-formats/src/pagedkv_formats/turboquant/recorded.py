"""RecordedTurboQuant: one row through TurboQuant by operations that MLX can record."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import mlx.core as mx

from pagedkv_formats.turboquant.codec import PagedTurboQuant, cast_rows
from pagedkv_formats.turboquant.levels import (
    COMPARED_BITS,
    codes_and_levels,
    level_table,
    levels_of,
)
from pagedkv_formats.turboquant.packing import packed_bytes, packed_dtype
from pagedkv_formats.turboquant.rotation import rotation
from pagedkv_formats.turboquant.scales import apart, key_scales, unit_rows, value_scales
from pagedkv_formats.words import joined, parted


@attrs.frozen
class RecordedTurboQuant:
    """The bytes and numbers of ``codec``, which keeps no means, without a view or a slice.

    Keys and values go apart, codes are packed by shifts and sums, and levels are looked up one
    by one. That is slower than the codec's own way, which is why only recordings take it.

    >>> codec, x = PagedTurboQuant(3, 5), mx.random.normal((1, 2, 1, 80))
    >>> recorded = RecordedTurboQuant(codec)
    >>> all(map(mx.array_equal, recorded.encode(x, x), codec.encode(x, x)))
    True
    """

    codec: PagedTurboQuant

    def encode(self, keys: mx.array, values: mx.array, /) -> tuple[mx.array, ...]:
        """The row of every plane, as ``codec.encode`` gives it."""
        unit, squares = unit_rows(keys, rotation(self.codec.seed, keys.shape[-1]))
        codes, levels = codes_and_levels(unit, self.codec.key_bits)
        coded = (packed(codes, self.codec.key_bits), key_scales(unit, levels, squares))
        if not values.shape[-1]:
            return coded
        unit, squares = unit_rows(values, rotation(self.codec.seed, values.shape[-1]))
        codes, levels = codes_and_levels(unit, self.codec.value_bits)
        return (
            *coded,
            packed(codes, self.codec.value_bits),
            value_scales(unit, levels, squares),
        )

    def decode(
        self, rows: Sequence[mx.array], key_dim: int, value_dim: int, dtype: mx.Dtype, /
    ) -> tuple[mx.array, mx.array]:
        """Keys and values, as ``codec.decode`` gives them."""
        keys = self._decode(rows[:2], key_dim, self.codec.key_bits, dtype)
        if not value_dim:
            return keys, mx.zeros((*keys.shape[:-1], 0), dtype)
        return keys, self._decode(rows[2:], value_dim, self.codec.value_bits, dtype)

    def _decode(self, coded: Sequence[mx.array], dim: int, bits: int, dtype: mx.Dtype) -> mx.array:
        codes, scales = coded
        levels = levels_one_by_one(unpacked(codes, dim, bits), bits)
        rows = apart(apart(levels) * apart(scales.astype(mx.float32)))
        return cast_rows(rotation(self.codec.seed, dim).revert(rows), dtype)


def packed(codes: mx.array, bits: int) -> mx.array:
    """``packing.pack``: codes uint8 ``[..., D]`` to ``packed_dtype`` ``[..., width]``.

    >>> packed(mx.array([1, 2, 3, 4, 5, 6, 7, 0], mx.uint8), 3).tolist()
    [209, 88, 31]
    """
    dim = codes.shape[-1]
    octets, dtype = codes, packed_dtype(dim, bits)
    if bits < 8:
        words = joined(with_zeros(codes, -dim % 8), 8, bits, mx.uint64)
        octets = first(parted(words, bits, 8), packed_bytes(dim, bits))
    return joined(octets, dtype.size, 8, mx.uint32).astype(dtype)


def unpacked(words: mx.array, dim: int, bits: int) -> mx.array:
    """``packing.unpack``: what ``packed`` made, to codes uint8 ``[..., D]``.

    >>> unpacked(mx.array([209, 88, 31], mx.uint8), 8, 3).tolist()
    [1, 2, 3, 4, 5, 6, 7, 0]
    """
    octets = parted(words.astype(mx.uint32), words.dtype.size, 8)
    if bits == 8:
        return octets.astype(mx.uint8)
    groups = with_zeros(octets, -octets.shape[-1] % bits)
    codes = parted(joined(groups, bits, 8, mx.uint64), 8, bits)
    return first(codes, dim).astype(mx.uint8)


def levels_one_by_one(codes: mx.array, bits: int) -> mx.array:
    """``levels.levels_of``, which from 5 bits on looks pairs up."""
    return levels_of(codes, bits) if bits <= COMPARED_BITS else mx.take(level_table(bits), codes)


def with_zeros(row: mx.array, count: int) -> mx.array:
    """``row [..., n]`` and ``count`` zeros behind it: ``mx.pad`` cannot be recorded."""
    if not count:
        return row
    return mx.concatenate([row, mx.zeros((*row.shape[:-1], count), row.dtype)], axis=-1)


def first(row: mx.array, count: int) -> mx.array:
    """The first ``count`` of ``row [..., n]``: a slice cannot be recorded."""
    return row if row.shape[-1] == count else mx.take(row, mx.arange(count), axis=-1)
