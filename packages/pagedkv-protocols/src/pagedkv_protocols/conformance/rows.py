"""Rows and Dims: keys and values as plain numbers that every float dtype holds exactly."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

Heads = Sequence[Sequence[Sequence[float]]]
"""Numbers as ``[H][L][D]``."""


class Dims(NamedTuple):
    """How many heads, and how wide; ``num_query_heads`` is a multiple of ``num_kv_heads``."""

    num_query_heads: int = 4
    num_kv_heads: int = 2
    key_dim: int = 4
    value_dim: int = 3


class Rows(NamedTuple):
    """Positions in order: ``keys [Hkv][L][Dk]`` and ``values [Hkv][L][Dv]``."""

    keys: Heads
    values: Heads

    @property
    def length(self) -> int:
        """How many positions."""
        return len(self.keys[0])

    def span(self, begin: int, end: int | None = None) -> Rows:
        """The positions ``begin`` to ``end - 1``."""
        keys, values = ([head[begin:end] for head in part] for part in self)
        return Rows(keys, values)

    def then(self, other: Rows) -> Rows:
        """These positions, followed by those of ``other``."""
        keys, values = (
            [[*head, *more] for head, more in zip(mine, theirs, strict=True)]
            for mine, theirs in zip(self, other, strict=True)
        )
        return Rows(keys, values)


def no_rows(num_kv_heads: int) -> Rows:
    """No positions at all."""
    return Rows([[] for _ in range(num_kv_heads)], [[] for _ in range(num_kv_heads)])


def draw(source: random.Random, num_heads: int, length: int, dim: int) -> Heads:
    """Numbers of the unit scale with few enough bits for bf16 to hold them exactly.

    >>> [[[number]]] = draw(random.Random(1), 1, 1, 1)
    >>> -1 <= number <= 1, (64 * number).is_integer()
    (True, True)
    """
    return [
        [[source.randint(-64, 64) / 64 for _ in range(dim)] for _ in range(length)]
        for _ in range(num_heads)
    ]


def draw_rows(source: random.Random, dims: Dims, length: int) -> Rows:
    """``length`` positions, the same whether drawn one by one or at once."""
    rows = no_rows(dims.num_kv_heads)
    for _ in range(length):
        keys = draw(source, dims.num_kv_heads, 1, dims.key_dim)
        rows = rows.then(Rows(keys, draw(source, dims.num_kv_heads, 1, dims.value_dim)))
    return rows


def flat(heads: Heads) -> list[float]:
    """The numbers in row-major order."""
    return list(chain.from_iterable(chain.from_iterable(heads)))


def shaped(values: Sequence[float], num_heads: int, length: int, dim: int) -> Heads:
    """The inverse of ``flat``."""
    return [
        [values[(head * length + i) * dim :][:dim] for i in range(length)]
        for head in range(num_heads)
    ]


def rounded(number: float, dtype: str) -> float:
    """``number`` rounded to the nearest of ``dtype``, ties to even.

    >>> rounded(0.1621, "bfloat16"), rounded(0.1, "float16"), rounded(1 / 3, "float64") == 1 / 3
    (0.162109375, 0.0999755859375, True)
    """
    if dtype == "bfloat16":
        [bits] = struct.unpack("<I", struct.pack("<f", number))
        bits = bits + 0x7FFF + (bits >> 16 & 1) & 0xFFFF0000
        return float(struct.unpack("<f", struct.pack("<I", bits))[0])
    code = {"float16": "<e", "float32": "<f", "float64": "<d"}[dtype]
    return float(struct.unpack(code, struct.pack(code, number))[0])
