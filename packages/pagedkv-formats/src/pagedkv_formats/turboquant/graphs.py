"""Graphs: rows of any number through a compiled function that was traced for few of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import mlx.core as mx

Graph = Callable[..., tuple[mx.array, ...]]


def in_graph(graph: Graph, rows: Sequence[mx.array]) -> tuple[mx.array, ...]:
    """``graph`` of rows ``[B, H, L, width]``, traced for few lengths: L is padded with zeros.

    A graph is traced and kept for each shape that it meets; were every L its own, a growing
    window would be traced at each step.
    """
    length = rows[0].shape[2]
    more = traced_length(length) - length
    if not more:
        return graph(*rows)
    padded = [mx.pad(plane, [(0, 0), (0, 0), (0, more), (0, 0)]) for plane in rows]
    return tuple(result[:, :, :length] for result in graph(*padded))


def traced_length(length: int) -> int:
    """The least length from ``length`` on that is traced: 1 to 16, then 8 an octave.

    >>> [traced_length(n) for n in (0, 1, 16, 17, 33, 512, 513)]
    [1, 1, 16, 18, 36, 512, 576]
    """
    step = 1 << max((length - 1).bit_length() - 4, 0)
    return max(-(-length // step) * step, 1)
