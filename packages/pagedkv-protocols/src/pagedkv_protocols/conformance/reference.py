"""The reference: softmax attention in float64, in plain loops over plain numbers."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from operator import mul
from typing import NamedTuple

from pagedkv_protocols.conformance.rows import Heads, Rows

Rule = Callable[[int, int, int], float]
"""What is added to the score of (query head, query, seen position); ``-inf`` hides it."""

HIDDEN = -math.inf


def attention(
    queries: Heads,
    rows: Rows,
    scale: float,
    rule: Rule,
    sinks: Sequence[float] | None = None,
    softcap: float | None = None,
) -> Heads:
    """``[Hq][L][Dv]`` for ``queries [Hq][L][Dk]`` over ``rows``: softmax(scale * q . k) . v.

    >>> rows = Rows(keys=[[[1.0], [1.0]]], values=[[[2.0], [4.0]]])
    >>> attention([[[1.0]]], rows, 1.0, all_positions)
    [[[3.0]]]
    """
    gqa_factor = len(queries) // len(rows.keys)

    def attend(head: int, i: int, query: Sequence[float]) -> list[float]:
        keys, values = (part[head // gqa_factor] for part in rows)
        scores = [
            capped(scale * sum(map(mul, query, key)), softcap) + rule(head, i, j)
            for j, key in enumerate(keys)
        ]
        weights = softmax(scores, None if sinks is None else sinks[head])
        return [sum(map(mul, weights, column)) for column in zip(*values, strict=True)]

    return [[attend(h, i, q) for i, q in enumerate(head)] for h, head in enumerate(queries)]


def capped(score: float, softcap: float | None) -> float:
    """``softcap * tanh(score / softcap)``."""
    return score if softcap is None else softcap * math.tanh(score / softcap)


def softmax(scores: Sequence[float], sink: float | None) -> list[float]:
    """The weights of ``scores``; ``sink`` takes a share and gives nothing.

    >>> softmax([0.0, 0.0], sink=0.0) == [1 / 3, 1 / 3]
    True
    """
    top = max(scores) if sink is None else max(*scores, sink)
    if top == HIDDEN:
        return [math.nan for _ in scores]
    weights = [math.exp(score - top) for score in scores]
    total = math.fsum(weights) + (0.0 if sink is None else math.exp(sink - top))
    return [weight / total for weight in weights]


def all_positions(_head: int, _i: int, _j: int) -> float:
    """The rule under which every query sees every position."""
    return 0.0


def causal(before: int, window: int | None) -> Rule:
    """Query i, at position ``before + i``, sees that and the ``window - 1`` before it.

    >>> [causal(2, 2)(0, 0, j) for j in range(4)]
    [-inf, 0.0, 0.0, -inf]
    """
    reach = math.inf if window is None else window
    return lambda _head, i, j: 0.0 if 0 <= before + i - j < reach else HIDDEN


def overlaid(spans: Sequence[int], window: int | None) -> Rule:
    """Causal, or of one span: equal numbers of ``spans``, unless they are 0."""
    below = causal(0, window)
    return lambda head, i, j: 0.0 if spans[i] == spans[j] != 0 else below(head, i, j)


class Mask(NamedTuple):
    """A mask of ``dtype`` as plain numbers, broadcastable to ``[1, Hq, L, S]``."""

    shape: tuple[int, ...]
    values: tuple[float, ...]
    dtype: str

    @property
    def rule(self) -> Rule:
        """What the mask adds to each score."""
        shape = (1,) * (4 - len(self.shape)) + self.shape
        _, heads, lines, columns = shape

        def added(head: int, i: int, j: int) -> float:
            at = (min(head, heads - 1) * lines + min(i, lines - 1)) * columns
            value = self.values[at + min(j, columns - 1)]
            return value if self.dtype != "bool" else 0.0 if value else HIDDEN

        return added


def draw_mask(source: random.Random, shape: tuple[int, ...], dtype: str) -> Mask:
    """A mask that hides about a third of the positions and never the first of a row.

    >>> draw_mask(random.Random(1), (1, 3), "bool").rule(0, 0, 0)
    0.0
    """
    adds = [0.0, 1.0] if dtype == "bool" else [HIDDEN, -1.25, 0.5]
    values = [
        adds[1] if index % shape[-1] == 0 else source.choice([adds[0], *adds[1:] * 2])
        for index in range(math.prod(shape))
    ]
    return Mask(shape, tuple(values), dtype)
