"""Rows of a plane in logical order: one slice where the blocks are a run, one take elsewhere."""

from __future__ import annotations

import mlx.core as mx


def run_rows(plane: mx.array, row: int, count: int) -> mx.array:
    """``count`` rows of ``plane [1, H, N, width]`` from flat ``row`` on, sharing its bytes.

    >>> plane = mx.arange(8).reshape(1, 1, 8, 1)
    >>> run_rows(plane, 3, 2).flatten().tolist()
    [3, 4]
    """
    _, heads, rows, width = plane.shape
    # The same view as a slice, at half the cost to build; a plane is always row-contiguous.
    head = rows * width
    return mx.as_strided(
        plane, [1, heads, count, width], [heads * head, head, width, 1], row * width
    )


def block_rows(plane: mx.array, slots: mx.array, block_size: int, count: int) -> mx.array:
    """The first ``count`` rows of the blocks ``slots [n]``, one after the other, copied once.

    ``plane [1, H, N, width]`` holds ``N // block_size`` slots; every slot must be one of
    them, for a take out of range gives zeros and says nothing.

    >>> plane = mx.arange(8).reshape(1, 1, 8, 1)
    >>> block_rows(plane, mx.array([3, 0]), 2, 3).flatten().tolist()
    [6, 7, 0]
    """
    _, heads, rows, width = plane.shape
    by_slot = plane.reshape(heads, rows // block_size, block_size, width)
    taken = mx.take(by_slot, slots, axis=1).reshape(1, heads, -1, width)
    return taken if taken.shape[2] == count else taken[:, :, :count]
