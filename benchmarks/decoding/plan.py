"""Plan: how much ``cpu_decode.py`` measures."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from measuring.stacks import SMOLLM2, TINY, WIDE, Shape


@attrs.frozen
class Plan:
    """Shapes, ``depth`` layers, stored ``positions``, and how often.

    ``steps`` whole steps and ``rounds`` of building alone are timed. ``appends`` are made to
    a sequence that has as many positions already, in a pool just large enough and in one
    ``times_larger``, ``burst`` of them a turn.
    """

    shapes: Sequence[Shape]
    depth: int
    positions: Sequence[int]
    steps: int
    rounds: int
    appends: int
    burst: int
    times_larger: int


FULL = Plan([SMOLLM2, WIDE], 30, [2048, 8192], 12, 40, 500, 25, 100)
QUICK = Plan([TINY], 2, [64], 2, 2, 8, 4, 10)
