"""Direct reads of scattered pages beside attention over the same rows in float32."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple, cast

import mlx.core as mx

from pagedkv_metal import DirectRead, EmulatorBackend, MaskKind, PageShape, Rows
from pagedkv_protocols import KernelBackend

TOLERANCE = {mx.float32: 1e-5, mx.float16: 2e-3, mx.bfloat16: 1.6e-2}
"""Largest absolute distance from the reference, on unit-scale data."""


class Case(NamedTuple):
    """A batch of rows in scattered blocks, and what is asked of them."""

    dtype: mx.Dtype = mx.float32
    heads: tuple[int, int] = (8, 2)
    dims: tuple[int, int] = (64, 64)
    block: int = 16
    lengths: tuple[int, ...] = (37,)
    queries: int = 1
    bits: tuple[int, int] = (0, 0)
    group: int = 32
    window: int | None = None
    starts: tuple[int, ...] | None = None
    sinks: bool = False
    softcap: float | None = None
    mask: MaskKind = MaskKind.CAUSAL

    @property
    def firsts(self) -> tuple[int, ...]:
        return self.starts or (0,) * len(self.lengths)

    @property
    def pages(self) -> PageShape:
        return PageShape(self.heads[1], *self.dims, self.dtype, self.block, *self.bits, self.group)


class Data(NamedTuple):
    """What a case is made of: pages with NaN wherever nothing was written, and the true rows."""

    queries: mx.array
    planes: list[mx.array]
    tables: list[list[int]]
    num_slots: int
    keys: list[mx.array]
    values: list[mx.array]
    sinks: mx.array | None


def made(case: Case, seed: int = 0) -> Data:
    """Rows at random places, three slots to spare; unused rows, scales and biases are spoiled."""
    mx.random.seed(seed)
    held = [n - first for n, first in zip(case.lengths, case.firsts, strict=True)]
    tables, num_slots = scattered([-(-n // case.block) for n in held], seed)
    places = [
        [table[i // case.block] * case.block + i % case.block for i in range(n)]
        for table, n in zip(tables, held, strict=True)
    ]
    written = mx.zeros((num_slots * case.block,), mx.bool_)
    for row in places:
        if row:
            written[mx.array(row)] = True
    keys, true_keys = side(case, written, 0)
    values, true_values = side(case, written, 1)
    shape = (len(case.lengths), case.heads[0], case.queries, case.dims[0])
    return Data(
        mx.random.normal(shape).astype(case.dtype),
        [*keys, *values],
        tables,
        num_slots,
        [true_keys[0][:, mx.array(row, mx.int32)] for row in places],
        [true_values[0][:, mx.array(row, mx.int32)] for row in places],
        mx.random.normal((case.heads[0],)) if case.sinks else None,
    )


def scattered(counts: Sequence[int], seed: int) -> tuple[list[list[int]], int]:
    """A table of so many slots a row, no two alike, and how many slots there are."""
    num_slots = sum(counts) + 3
    order = random.Random(seed).sample(range(num_slots), num_slots)
    tables = []
    for count in counts:
        tables.append(order[:count])
        order = order[count:]
    return tables, num_slots


def side(case: Case, written: mx.array, which: int) -> tuple[list[mx.array], mx.array]:
    """The planes of keys (0) or values (1), and what they mean."""
    bits, dim = case.bits[which], case.dims[which]
    rows = mx.random.normal((1, case.heads[1], written.size, dim)).astype(case.dtype)
    if not bits:
        return [spoiled(rows, written, mx.nan)], rows
    codes, scales, biases = mx.quantize(rows, group_size=case.group, bits=bits)
    means = mx.dequantize(
        codes, scales.astype(mx.float32), biases.astype(mx.float32), case.group, bits
    )
    return [codes, spoiled(scales, written, mx.inf), spoiled(biases, written, mx.nan)], means


def spoiled(rows: mx.array, written: mx.array, what: float) -> mx.array:
    """``what`` in every row that was not written."""
    return mx.where(written[:, None], rows, mx.array(what, rows.dtype))


def attend(
    case: Case, data: Data, backend: KernelBackend[mx.array, mx.Dtype] | None = None
) -> mx.array:
    """The kernels' answer."""
    rows = Rows.of(
        data.tables, case.lengths, case.starts, block_size=case.block, num_slots=data.num_slots
    )
    read = DirectRead(backend or EmulatorBackend(), case.pages)
    return read.attend(
        data.queries,
        data.planes,
        rows,
        case.dims[0] ** -0.5,
        mask=case.mask,
        window=case.window,
        sinks=data.sinks,
        softcap=case.softcap,
    )


def reference(case: Case, data: Data) -> mx.array:
    """Softmax attention over the true rows, in float32, which a GPU's products would round."""
    with mx.stream(mx.cpu):
        return mx.stack([reference_row(case, data, row) for row in range(len(case.lengths))])


def reference_row(case: Case, data: Data, row: int) -> mx.array:
    length, first, count = case.lengths[row], case.firsts[row], case.queries
    ratio = case.heads[0] // case.heads[1]
    keys = mx.repeat(data.keys[row].astype(mx.float32), ratio, axis=0)
    values = mx.repeat(data.values[row].astype(mx.float32), ratio, axis=0)
    scores = data.queries[row].astype(mx.float32) @ keys.swapaxes(1, 2) * case.dims[0] ** -0.5
    if case.softcap is not None:
        scores = case.softcap * mx.tanh(scores / case.softcap)
    position = mx.arange(first, length)[None]
    last = mx.arange(length - count, length)[:, None]
    at = last if case.mask is MaskKind.CAUSAL else mx.full((count, 1), length - 1)
    seen = position <= at
    if case.window is not None:
        seen = seen & (position > at - case.window)
    scores = mx.where(seen[None], scores, -mx.inf)
    if data.sinks is not None:
        sinks = mx.broadcast_to(data.sinks[:, None, None], (case.heads[0], count, 1))
        scores = mx.concatenate([scores, sinks], axis=-1)
    weights = mx.softmax(scores, axis=-1, precise=True)
    return weights[..., : length - first] @ values


def distance(
    case: Case, seed: int = 0, backend: KernelBackend[mx.array, mx.Dtype] | None = None
) -> float:
    """The largest distance between both; infinite where either is NaN."""
    data = made(case, seed)
    apart = mx.abs(attend(case, data, backend).astype(mx.float32) - reference(case, data))
    return float("inf") if mx.any(mx.isnan(apart)).item() else cast("float", apart.max().item())
