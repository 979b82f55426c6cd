r"""Solve the Lloyd-Max levels of the unit normal and print them as ``turboquant/tables.py``.

    python packages/pagedkv-formats/scripts/make_turboquant_tables.py > \
        packages/pagedkv-formats/src/pagedkv_formats/turboquant/tables.py

Lloyd (1982) and Max (1960): each level is the mean of its cell, each cell ends halfway to the
next level. By symmetry only the positive half is solved, by Newton's method on the gaps
``level - mean of its cell``: the Jacobian is tridiagonal. A cell's mean is taken by
Gauss-Legendre quadrature about the level, for a difference of normal densities over a
difference of error functions loses four digits in the narrow cells of 8 bits.
"""  # noqa: INP001

from __future__ import annotations

import math
import sys
from itertools import pairwise

TOLERANCE = 1e-13
"""Newton stops when no level moves by more; 12 decimals are printed."""

DECIMALS = 12
WIDTHS = range(1, 9)
NODES = 24


def density(x: float) -> float:
    """The unit normal's density."""
    return math.exp(-x * x / 2) / math.sqrt(2 * math.pi)


def legendre_rule(count: int) -> list[tuple[float, float]]:
    """Nodes and weights of Gauss and Legendre on −1 to 1."""
    rule = []
    for i in range(count):
        x = math.cos(math.pi * (i + 0.75) / (count + 0.5))
        for _ in range(100):
            before, now = 1.0, x
            for n in range(2, count + 1):
                before, now = now, ((2 * n - 1) * x * now - (n - 1) * before) / n
            slope = count * (x * now - before) / (x * x - 1)
            x -= now / slope
        rule.append((x, 2 / ((1 - x * x) * slope * slope)))
    return rule


RULE = legendre_rule(NODES)


def cell(level: float, low: float, high: float) -> tuple[float, float]:
    """The mass of a cell, and its mean less ``level``; ``high`` may be infinite."""
    if math.isinf(high):
        mass = math.erfc(low / math.sqrt(2)) / 2
        return mass, density(low) / mass - level
    middle, half = (low + high) / 2, (high - low) / 2
    weighed = [(middle + half * x, half * w * density(middle + half * x)) for x, w in RULE]
    mass = sum(w for _, w in weighed)
    return mass, sum((x - level) * w for x, w in weighed) / mass


def edges_of(levels: list[float]) -> list[float]:
    """Where the cells of the positive levels begin and end."""
    return [0.0, *((a + b) / 2 for a, b in pairwise(levels)), math.inf]


def newton_step(levels: list[float]) -> list[float]:
    """By how much each level should move."""
    edges = edges_of(levels)
    lower, main, upper, gaps = [], [], [], []
    for i, level in enumerate(levels):
        low, high = edges[i : i + 2]
        mass, gap = cell(level, low, high)
        mean = level + gap
        by_low = density(low) * (mean - low) / mass if i else 0.0
        by_high = 0.0 if math.isinf(high) else density(high) * (high - mean) / mass
        gaps.append(gap)
        lower.append(-by_low / 2)
        main.append(1 - by_low / 2 - by_high / 2)
        upper.append(-by_high / 2)
    return solve_tridiagonal(lower, main, upper, gaps)


def solve_tridiagonal(
    lower: list[float], main: list[float], upper: list[float], right: list[float]
) -> list[float]:
    """Thomas's elimination."""
    main, right = main[:], right[:]
    for i in range(1, len(main)):
        factor = lower[i] / main[i - 1]
        main[i] -= factor * upper[i - 1]
        right[i] -= factor * right[i - 1]
    solution = [0.0] * len(main)
    for i in reversed(range(len(main))):
        after = upper[i] * solution[i + 1] if i + 1 < len(main) else 0.0
        solution[i] = (right[i] - after) / main[i]
    return solution


def first_guess(count: int) -> list[float]:
    """Panter and Dite: levels are about as dense as the cube root of the density."""
    spread, step = math.sqrt(3), 1e-4
    wanted = [(i + 0.5) / count for i in range(count)]
    levels: list[float] = []
    x = 0.0
    while len(levels) < count:
        total = math.erf(x / spread / math.sqrt(2))
        if total >= wanted[len(levels)]:
            levels.append(x)
        x += step
    return levels


def positive_levels(bits: int) -> list[float]:
    """The levels above 0 of the best quantizer of ``2**bits`` levels, ascending.

    >>> positive_levels(1) == [round(math.sqrt(2 / math.pi), 12)]
    True
    """
    levels = first_guess(2 ** (bits - 1))
    for _ in range(100):
        step = newton_step(levels)
        levels = [level + move for level, move in zip(levels, step, strict=True)]
        if max(map(abs, step)) < TOLERANCE:
            return [round(level, DECIMALS) for level in levels]
    raise ArithmeticError(f"Newton did not settle at {bits} bits")


def module() -> str:
    """The text of ``tables.py``."""
    lines = [
        '"""Lloyd-Max levels of the unit normal: made by make_turboquant_tables.py."""',
        "",
        "from __future__ import annotations",
        "",
        "POSITIVE_LEVELS: dict[int, tuple[float, ...]] = {",
    ]
    for bits in WIDTHS:
        levels = positive_levels(bits)
        if len(levels) == 1:
            lines.append(f"    {bits}: {tuple(levels)!r},")
        else:
            lines += [f"    {bits}: (", *(f"        {level!r}," for level in levels), "    ),"]
    lines += [
        "}",
        '"""By bits, ascending; the other half is their negatives. Solved to 1e-12."""',
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.stdout.write(module())
