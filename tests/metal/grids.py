"""The cases of the direct reads: every pair of what may vary, or all that a case names."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import mlx.core as mx

from pagedkv_metal import MaskKind, can_read_directly
from tests.metal.reads import Case

HEADS = [(4, 4), (6, 1), (7, 1), (8, 2), (10, 2), (12, 2), (24, 4), (28, 4), (71, 1)]
DIMS = [(16, 16), (32, 32), (48, 48), (64, 64), (72, 72), (80, 80), (96, 96), (128, 128),
        (192, 128), (128, 192), (256, 256), (512, 512), (576, 512)]  # fmt: skip
DTYPES = [mx.float32, mx.float16, mx.bfloat16]
BLOCKS = [1, 3, 16, 48, 256]
SHORT = [(1, 37), (15, 16, 17), (255, 256, 257), (300, 5, 48)]
LONG = [*SHORT, (2000, 1), (2047, 2048, 2049), (3001,)]
OPTIONS: list[dict[str, object]] = [
    {},
    {"sinks": True},
    {"softcap": 2.0},
    {"window": 20},
    {"sinks": True, "softcap": 5.0, "window": 1},
    {"mask": MaskKind.NONE},
]
DENSE: dict[str, Sequence[object]] = {
    "dtype": DTYPES,
    "dims": [dims for dims in DIMS if max(dims) <= 256],
    "heads": HEADS,
    "block": BLOCKS,
    "queries": range(1, 9),
    "lengths": SHORT,
    "option": OPTIONS,
}
CODED: dict[str, Sequence[object]] = {
    "dtype": DTYPES,
    "bits": [(2, 2), (4, 4), (8, 8), (8, 4), (2, 8)],
    "group": [32, 64, 128],
    "dims": [(128, 128), (256, 128), (128, 256)],
    "heads": [(4, 4), (8, 2), (7, 1)],
    "block": BLOCKS,
    "queries": [1, 2, 5, 8],
    "lengths": SHORT,
    "option": OPTIONS,
}
NARROW = [((32, 32), 32), ((96, 96), 32), ((64, 64), 64), ((192, 64), 64)]
"""Dims that only some groups divide."""


def case_of(values: Mapping[str, object]) -> Case:
    """A case of one value a factor; its windows fit the shortest row."""
    words: dict[str, Any] = dict(values)
    option = words.pop("option", {})
    case = Case()._replace(**words)._replace(**option)
    return case._replace(lengths=tuple(max(n, case.queries) for n in case.lengths))


def r07() -> Iterator[Case]:
    """The recorded case: every ratio by every pair of dims, L 1 and 4, 37 positions."""
    for heads, dims, queries in itertools.product(HEADS, DIMS, (1, 4)):
        yield Case(heads=heads, dims=dims, queries=queries)


def is_admitted(case: Case) -> bool:
    """Whether the kernels take it."""
    return can_read_directly(case.pages, case.heads[0], case.queries, case.dtype, case.mask)


def covering(factors: Mapping[str, Sequence[object]], strength: int, seed: int = 7) -> list[Case]:
    """Few cases that hold every ``strength`` values of different factors together.

    >>> len(covering({"queries": [1, 2], "block": [1, 3]}, 2))
    4
    """
    names, picked = list(factors), random.Random(seed)
    sets = list(itertools.combinations(range(len(names)), strength))
    missing = {
        (where, chosen)
        for where in sets
        for chosen in itertools.product(*(range(len(factors[names[i]])) for i in where))
    }
    cases = []
    while missing:
        best = max(
            (_candidate(factors, next(iter(sorted(missing))), picked) for _ in range(40)),
            key=lambda row: len(_held(row, sets) & missing),
        )
        missing -= _held(best, sets)
        cases.append(case_of({name: factors[name][i] for name, i in zip(names, best, strict=True)}))
    return cases


Held = set[tuple[tuple[int, ...], tuple[int, ...]]]


def _candidate(
    factors: Mapping[str, Sequence[object]],
    wanted: tuple[tuple[int, ...], tuple[int, ...]],
    picked: random.Random,
) -> list[int]:
    row = [picked.randrange(len(values)) for values in factors.values()]
    for index, value in zip(*wanted, strict=True):
        row[index] = value
    return row


def _held(row: Sequence[int], sets: Sequence[tuple[int, ...]]) -> Held:
    return {(where, tuple(row[i] for i in where)) for where in sets}
