"""Plan: how much ``cpu_decode.py`` measures."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from measuring.stacks import SMOLLM2, TINY, WIDE, Shape


@attrs.frozen
class Plan:
    """Shapes, ``depth`` layers, stored ``positions``, and how often.

    ``steps`` whole steps (of the wide shape a quarter of them) and ``rounds`` of building
    alone are timed. ``appends`` are made to a sequence that has as many positions already, in
    a pool just large enough and in one ``times_larger``, ``burst`` of them a turn.
    """

    shapes: Sequence[Shape]
    depth: int
    positions: Sequence[int]
    steps: int
    rounds: int
    appends: int
    burst: int
    times_larger: int

    def num_steps(self, shape: Shape) -> int:
        """How many steps of ``shape`` are timed: fewer where each takes seconds."""
        return max(2, self.steps // 4) if shape == WIDE else self.steps


FULL = Plan([SMOLLM2, WIDE], 30, [2048, 8192], 40, 40, 500, 25, 100)
QUICK = Plan([TINY], 2, [64], 2, 2, 8, 4, 10)
