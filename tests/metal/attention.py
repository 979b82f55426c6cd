"""Attention over scattered blocks by two sample kernels, and by plain MLX."""

from __future__ import annotations

from typing import NamedTuple

import mlx.core as mx

from pagedkv_metal import EmulatorBackend
from tests.metal.emulated import Kernel, Template, launched, sample

PARTITION = 64
SPLIT = sample("split_attention")
MERGE = sample("merge")


class Case(NamedTuple):
    """One query a head over ``length`` positions in scattered blocks."""

    dtype: mx.Dtype = mx.float32
    heads: int = 2
    dim: int = 64
    block: int = 16
    length: int = 100

    @property
    def partitions(self) -> int:
        return -(-self.length // PARTITION)

    def inputs(self) -> dict[str, mx.array]:
        """Positions that nobody wrote hold NaN; the table ends with its last block."""
        blocks = -(-self.length // self.block)
        slots = blocks + 2
        mx.random.seed(self.length)
        table = mx.random.permutation(slots)[:blocks].astype(mx.uint32)
        padding = mx.full((max(8 - blocks, 0),), table[-1].item(), mx.uint32)
        return {
            "queries": mx.random.normal((self.heads, self.dim)).astype(self.dtype),
            "keys": self._pages(slots, table),
            "values": self._pages(slots, table),
            "table": mx.concatenate([table, padding]),
            "length": mx.array([self.length] + [0] * 7, mx.uint32),
        }

    def _pages(self, slots: int, table: mx.array) -> mx.array:
        written = mx.zeros((slots, self.block), mx.bool_)
        order = mx.arange(table.size * self.block).reshape(-1, self.block) < self.length
        written[table] = order
        rows = mx.random.normal((slots, self.block, self.heads, self.dim))
        return mx.where(written[..., None, None], rows, mx.nan).astype(self.dtype)


def attended(
    case: Case, backend: EmulatorBackend | None = None, split: Kernel = SPLIT
) -> tuple[mx.array, mx.array]:
    """The two kernels' answer and the right one, in float32, ``[heads, dim]``."""
    inputs = case.inputs()
    return emulated(case, inputs, backend, split), reference(case, inputs)


def emulated(
    case: Case,
    inputs: dict[str, mx.array],
    backend: EmulatorBackend | None = None,
    split: Kernel = SPLIT,
) -> mx.array:
    """Both kernels, one after the other."""
    heads, dim, partitions = case.heads, case.dim, case.partitions
    common: Template = [("T", case.dtype), ("D", dim)]
    partial, sums = launched(
        split,
        inputs,
        {
            "partial": ((heads, partitions, dim), mx.float32),
            "sums": ((heads, partitions, 2), mx.float32),
        },
        grid=(64, heads, partitions),
        threadgroup=(64, 1, 1),
        template=[*common, ("BLOCK", case.block), ("PARTITION", PARTITION)],
        backend=backend,
    )
    count = mx.array([partitions] + [0] * 7, mx.uint32)
    [out] = launched(
        MERGE,
        {"partial": partial, "sums": sums, "partitions": count},
        {"out": ((heads, dim), case.dtype)},
        grid=(dim, heads, 1),
        threadgroup=(dim, 1, 1),
        template=common,
        backend=backend,
    )
    return out.astype(mx.float32)


def reference(case: Case, inputs: dict[str, mx.array]) -> mx.array:
    """Softmax with base 2, in float32."""

    def rows(plane: mx.array) -> mx.array:
        blocks = plane[inputs["table"]].reshape(-1, case.heads, case.dim)
        return blocks[: case.length].astype(mx.float32)

    scores = mx.einsum("hd,lhd->hl", inputs["queries"].astype(mx.float32), rows(inputs["keys"]))
    weights = mx.softmax(scores * 0.6931471805599453, axis=-1, precise=True)
    return mx.einsum("hl,lhd->hd", weights, rows(inputs["values"]))
