"""Levels: each number of a unit-variance row to the nearest Lloyd-Max level, and back.

Two ways, by what was quickest on a CPU:

- up to 4 bits, a code is how many midpoints lie below the number, and a level is the odd
  polynomial of its code that passes through all of them, within 3e-7: no table is looked up;
- from 5 bits on, one table of 65,536 cells gives both, so that a number within 8e-5 of a
  midpoint may take either neighbour (at 8 bits, 5e-5 more distortion than the optimum has).
"""

from __future__ import annotations

import bisect
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise

import mlx.core as mx

from pagedkv_formats.turboquant.tables import POSITIVE_LEVELS

COMPARED_BITS = 4
CELLS = 65536
CELLS_PER_UNIT = CELLS / 10
"""The cells part −5 to 5; what lies beyond is in the outermost."""

LEVEL_STEP = 2.0**-20
"""A table keeps a level as a 24-bit integer of such steps from −8 on, its code above it."""


@lru_cache(maxsize=8)
def all_levels(bits: int) -> tuple[float, ...]:
    """The ``2**bits`` levels, ascending, symmetric to the last bit.

    >>> all_levels(1)
    (-0.797884560803, 0.797884560803)
    """
    half = POSITIVE_LEVELS[bits]
    return (*(-level for level in reversed(half)), *half)


@lru_cache(maxsize=8)
def midpoints(bits: int) -> tuple[float, ...]:
    """Where one level's numbers end and the next one's begin.

    >>> midpoints(1)
    (0.0,)
    """
    levels = all_levels(bits)
    return tuple((a + b) / 2 for a, b in pairwise(levels))


def codes_and_levels(unit: mx.array, bits: int) -> tuple[mx.array, mx.array]:
    """The nearest level of each number: its code, uint8, and itself, fp32. NaN is code 0.

    >>> codes, levels = codes_and_levels(mx.array([-9.0, 0.1, 0.5, float("nan")]), 2)
    >>> codes.tolist(), [round(level, 4) for level in levels.tolist()]
    ([0, 2, 2, 0], [-1.5104, 0.4528, 0.4528, -1.5104])
    """
    if bits <= COMPARED_BITS:
        codes = compared(unit, bits)
        return codes, odd_levels(codes, bits)
    return from_entries(mx.take(cell_table(bits), cell_of(unit)))


def levels_of(codes: mx.array, bits: int) -> mx.array:
    """The level of each code, fp32: codes uint8 ``[..., D]``.

    >>> [round(level, 4) for level in levels_of(mx.array([0, 7], mx.uint8), 3).tolist()]
    [-2.1519, 2.1519]
    """
    if bits <= COMPARED_BITS:
        return odd_levels(codes, bits)
    if codes.shape[-1] % 2:
        return mx.take(level_table(bits), codes)
    pairs = mx.take(pair_table(bits), mx.view(codes, mx.uint16))
    return mx.view(pairs, mx.float32)


def compared(unit: mx.array, bits: int) -> mx.array:
    """The code of each number, by comparing its magnitude with the midpoints above 0.

    With k of them below it the code is ``half + k``, or ``half - 1 - k`` where the number is
    not above 0, which is k with the bits of ``half``, or of ``half - 1``, inverted. Summed by
    halves: of operations that follow on one another MLX fuses no more than eleven.
    """
    half, size = 2 ** (bits - 1), mx.abs(unit)
    inverted = (unit > 0).astype(mx.uint8) * half + (unit <= 0).astype(mx.uint8) * (half - 1)
    below = [(size > end).astype(mx.uint8) for end in midpoints(bits)[half:]]
    while len(below) > 1:
        rest = below[2 * (len(below) // 2) :]
        below = [below[i] + below[i + 1] for i in range(0, len(below) - 1, 2)] + rest
    codes: mx.array = below[0] ^ inverted if below else inverted
    return codes


def odd_levels(codes: mx.array, bits: int) -> mx.array:
    """The levels by Estrin's scheme, in the square of how far a code is from the middle."""
    x = codes.astype(mx.float32) - (2 ** (bits - 1) - 0.5)
    terms: list[mx.array] = [mx.array(number) for number in odd_polynomial(POSITIVE_LEVELS[bits])]
    power = x * x
    while len(terms) > 1:
        terms = [a + power * b for a, b in zip(terms[::2], terms[1::2], strict=True)]
        power = power * power
    levels: mx.array = x * terms[0]
    return levels


@lru_cache(maxsize=8)
def odd_polynomial(levels: tuple[float, ...]) -> list[float]:
    """Coefficients of x, x³, x⁵ … so that x = i + 1/2 gives ``levels[i]``.

    Newton's divided differences in x², in exact fractions, multiplied out.

    >>> odd_polynomial((0.5, 4.5))
    [0.75, 1.0]
    """
    squares = [Fraction(2 * i + 1, 2) ** 2 for i in range(len(levels))]
    slopes = [Fraction(level) / Fraction(2 * i + 1, 2) for i, level in enumerate(levels)]
    for order in range(1, len(slopes)):
        for i in reversed(range(order, len(slopes))):
            slopes[i] = (slopes[i] - slopes[i - 1]) / (squares[i] - squares[i - order])
    result = [Fraction(0)] * len(slopes)
    for slope, square in zip(reversed(slopes), reversed(squares), strict=True):
        shifted = [Fraction(0), *result[:-1]]
        result = [a - square * b for a, b in zip(shifted, result, strict=True)]
        result[0] += slope
    return [float(coefficient) for coefficient in result]


def cell_of(unit: mx.array) -> mx.array:
    """The cell, uint16, in which each number lies; NaN in the first."""
    cells = (unit * CELLS_PER_UNIT + CELLS / 2).astype(mx.int32)
    return mx.clip(cells, 0, CELLS - 1).astype(mx.uint16)


@lru_cache(maxsize=4)
def cell_table(bits: int) -> mx.array:
    """For each cell its code, in the highest byte, and its level in steps, int32."""
    levels, ends = all_levels(bits), midpoints(bits)
    middles = ((cell + 0.5 - CELLS / 2) / CELLS_PER_UNIT for cell in range(CELLS))
    entries = [(code << 24) | round((level + 8) / LEVEL_STEP) for code, level in enumerate(levels)]
    table = mx.array([entries[bisect.bisect_left(ends, x)] for x in middles], mx.uint32)
    signed = mx.view(table, mx.int32)  # whose conversion to fp32 is the faster
    mx.eval(signed)
    return signed


def from_entries(entries: mx.array) -> tuple[mx.array, mx.array]:
    """Code and level of each entry of a cell table."""
    levels = (entries & 0xFFFFFF).astype(mx.float32) * LEVEL_STEP - 8
    return (entries >> 24).astype(mx.uint8), levels  # the sign is shifted in and cut off


@lru_cache(maxsize=8)
def level_table(bits: int) -> mx.array:
    """The levels, fp32 ``[2**bits]``."""
    return mx.array(all_levels(bits), mx.float32)


@lru_cache(maxsize=4)
def pair_table(bits: int) -> mx.array:
    """For each two codes, the first in the lower byte, their levels side by side, uint64."""
    codes = mx.arange(65536)
    table = level_table(bits)
    pairs = mx.stack([mx.take(table, codes & 255), mx.take(table, codes >> 8)], axis=-1)
    words = mx.view(pairs, mx.uint64).reshape(-1)
    mx.eval(words)
    return words
