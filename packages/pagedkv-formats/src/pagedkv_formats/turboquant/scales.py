"""Scales: one fp16 number a vector, fitted after its numbers are coded.

With x a vector of D numbers, u = √D·R x/|x| its rotated form of unit variance and c the levels
that u was coded as, the decoded vector is ``scale`` times c, rotated back:

- a value's scale is |x|/√D·⟨u,c⟩/⟨c,c⟩, the least squares;
- a key's is |x|·√D/⟨u,c⟩, by which the decoded key's part along x is x itself, so that inner
  products have no bias.

Both are stored in fp16 whatever the pages' dtype is, and end at 65,504: a vector whose root
mean square is larger decodes to one that is as long as that. Below 6e-5 a scale has fewer
bits, and below 3e-8 it is 0.
"""

from __future__ import annotations

from functools import lru_cache

import mlx.core as mx

from pagedkv_formats.turboquant.rotation import Rotation

LARGEST = 65504.0
"""The largest fp16 number."""

LEAST_SQUARE = 2.0**-100
"""A vector whose squares add up to no more is zeros: its scale would be 0 in fp16."""


def unit_rows(
    rows: mx.array, turn: Rotation, means: mx.array | None = None
) -> tuple[mx.array, mx.array]:
    """Rows ``[..., D]`` to rotated rows of unit variance, fp32, and their squares' sums.

    ``means`` are rotated already and are taken off the rotated rows. A row of zeros comes
    out as NaN, whose codes are 0.
    """
    rows, root = rows.astype(mx.float32), turn.dim**0.5
    if means is None:
        squares = total(rows * rows)
        return turn.apply(rows * mx.rsqrt(squares), scale=root), squares
    rest = turn.apply(rows) - means.astype(mx.float32)
    squares = total(rest * rest)
    return apart(rest * (mx.rsqrt(squares) * root)), squares


def key_scales(unit: mx.array, levels: mx.array, squares: mx.array) -> mx.array:
    """fp16 ``[..., 1]``: without bias in inner products."""
    return stored(unit.shape[-1] ** 0.5 / total(unit * levels), squares)


def value_scales(unit: mx.array, levels: mx.array, squares: mx.array) -> mx.array:
    """fp16 ``[..., 1]``: of least squared error."""
    root = unit.shape[-1] ** 0.5
    return stored(total(unit * levels) / (root * total(levels * levels)), squares)


def key_and_value_scales(unit: mx.array, levels: mx.array, squares: mx.array) -> mx.array:
    """fp16 ``[B, H, L, 1]``: those of keys in the first half of the heads, then of values."""
    root, along = unit.shape[-1] ** 0.5, total(unit * levels)
    by_value = along / (root * total(levels * levels))
    return stored(mx.where(first_half(unit.shape[1]), root / along, by_value), squares)


def stored(scales: mx.array, squares: mx.array) -> mx.array:
    """``scales`` of vectors of length 1 as those of their own lengths, in fp16."""
    ends = mx.minimum(scales * mx.sqrt(squares), LARGEST)
    return mx.where(squares <= LEAST_SQUARE, 0.0, ends).astype(mx.float16)


def total(rows: mx.array) -> mx.array:
    """The sum of each row, ``[..., 1]``."""
    return mx.sum(rows, axis=-1, keepdims=True)


def apart(rows: mx.array) -> mx.array:
    """``rows``, kept from being fused with what follows.

    A fused operation with a broadcast in it takes four times as long for each number.
    """
    return rows.reshape(-1).reshape(rows.shape)


@lru_cache(maxsize=64)
def first_half(heads: int) -> mx.array:
    """Whether a head is in the first half of ``heads``, ``[heads, 1, 1]``."""
    half = heads // 2
    return mx.array([[[True]]] * half + [[[False]]] * half)
