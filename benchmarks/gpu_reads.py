"""Direct reads on a GPU, beside MLX's fused attention on contiguous rows and the gathered read.

Every figure is the time of one attention in a chain of many, each taking the last one's output
as its queries, so that none overlaps another and the cost of starting an evaluation is shared:
the median of 7 evaluations. Contexts that would fit the GPU's second-level cache take turns
among several pools. Bytes are those of the stored keys and values, scales and biases included.

``AIMS`` were written down before they were measured.
"""

from __future__ import annotations

import argparse
import math
import platform
import random
import statistics
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version

import attrs
import mlx.core as mx

from measuring.report import Report, command_line
from pagedkv_cuda import CudaBackend
from pagedkv_metal import DirectRead, PageShape, Rows

LENGTHS = (4_059, 32_731, 131_035)
TILE = 1_024
"""MLX's fused attention is fast where the length is a multiple of it."""
GROUP = 64
REPEATS = 7
ROTATED_BYTES = 200e6
"""Pools that take turns hold so many bytes together, more than the second-level cache."""


@attrs.frozen
class Case:
    """One kind of read: bf16 queries over scattered blocks."""

    length: int
    queries: int = 1
    bits: int = 0
    block: int = 256
    kv_heads: int = 8
    ratio: int = 4
    dim: int = 128
    batch: int = 1

    def __str__(self) -> str:
        words = [f"{self.length:,} positions"]
        words += [f"{self.queries} queries"] * (self.queries > 1)
        words += [f"{self.batch} rows"] * (self.batch > 1)
        words += [f"affine {self.bits}"] * bool(self.bits)
        words += [f"blocks of {self.block}"] * (self.block != 256)
        words += [f"D {self.dim}"] * (self.dim != 128)
        words += [f"{self.ratio} query heads a KV head, {self.kv_heads} KV heads"] * (
            (self.ratio, self.kv_heads) != (4, 8)
        )
        return ", ".join(words)

    @property
    def num_bytes(self) -> float:
        """Bytes of keys and values that an answer needs."""
        width = self.bits / 8 + 4 / GROUP if self.bits else 2
        return 2 * width * self.batch * self.length * self.kv_heads * self.dim

    @property
    def num_pools(self) -> int:
        """How many pools take turns."""
        return max(1, min(12, math.ceil(ROTATED_BYTES / self.num_bytes)))

    @property
    def chain(self) -> int:
        """How many attentions one evaluation holds."""
        return 96 if self.num_bytes < 300e6 else 48

    def at(self, length: int) -> Case:
        """The same of another length."""
        return attrs.evolve(self, length=length)


BASE = tuple(map(Case, LENGTHS))
SHORT, MIDDLE, FAR = BASE
WINDOW, MANY = Case(32_731, queries=8), Case(4_000, batch=64)
AFFINE_4, AFFINE_8 = Case(131_035, bits=4), Case(131_035, bits=8)
SMALL_BLOCKS = Case(131_035, block=16)
OTHERS = (
    Case(32_731, queries=2),
    Case(32_731, queries=4),
    Case(131_035, dim=64),
    Case(131_035, dim=256, kv_heads=4),
    Case(131_035, ratio=1),
    Case(131_035, ratio=8, kv_heads=4),
    Case(131_035, bits=2),
    Case(32_731, bits=4),
)
CASES = (*BASE, WINDOW, MANY, AFFINE_4, AFFINE_8, SMALL_BLOCKS, *OTHERS)


@attrs.frozen
class Times:
    """Microseconds of one read by each way; ``None`` where it was not taken."""

    direct: float
    contiguous: float | None
    rounded: float | None
    gathered: float | None


def main() -> None:
    """Measure, print, and keep the tables if asked."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--save", action="store_true", help="write results/gpu_reads.md as well")
    parser.add_argument("--commit", default="none", help="what is checked out, for the report")
    options = parser.parse_args()
    if not mx.cuda.is_available():
        print(f"nothing measured: it needs an NVIDIA GPU, and MLX has {mx.default_device()}")
        return
    random.seed(0)
    times = {case: measured(case) for case in CASES}
    report = Report("Direct reads on a GPU", facts_of(options.commit))
    report.table(
        ["case", "direct µs", "TB/s", "MLX, contiguous", "rounded up", "gathered", "× gathered"],
        [row(case, taken) for case, taken in times.items()],
    )
    report.heading("Aims").table(["aim", "measured", "met"], aims(times))
    report.publish("gpu_reads", save=options.save)


def facts_of(commit: str) -> dict[str, str]:
    """Device, versions, commit and shapes, as the report begins with them."""
    info = mx.device_info()
    return {
        "device": str(info.get("device_name", mx.default_device())),
        "versions": f"mlx {version('mlx')}, Python {platform.python_version()}",
        "commit": commit,
        "command": command_line(),
        "unless said otherwise": "bf16, scattered blocks of 256, 1 query, 8 KV heads with 4 "
        "query heads each, D 128, groups of 64",
    }


def measured(case: Case) -> Times:
    """Every way of reading ``case``."""
    pools, num_slots, tables = scattered(case)
    gathered = chained(case, gather(case, pools, tables[0])) if case.batch == 1 else None
    direct = chained(case, read(case, pools, num_slots, tables))
    del pools
    if case.bits:
        return Times(direct, None, None, gathered)
    rounded = case.at(math.ceil(case.length / TILE) * TILE)
    return Times(direct, plain_time(case), plain_time(rounded), gathered)


Step = Callable[[mx.array, int], mx.array]
Planes = list[mx.array]


def chained(case: Case, step: Step) -> float:
    """Microseconds of one step, the median over evaluations of a chain."""
    shape = (case.batch, case.kv_heads * case.ratio, case.queries, case.dim)
    queries = mx.random.normal(shape).astype(mx.bfloat16)
    mx.eval(queries)
    seconds = []
    for _ in range(REPEATS + 2):
        last = queries
        for index in range(case.chain):
            last = step(last, index)
        began = time.perf_counter()
        mx.eval(last)
        seconds.append((time.perf_counter() - began) / case.chain)
    return statistics.median(seconds[2:]) * 1e6


def scattered(case: Case) -> tuple[list[Planes], int, list[list[int]]]:
    """Pools with an eighth of their slots to spare, and a table a row."""
    columns = math.ceil(case.length / case.block)
    num_slots = columns * case.batch * 9 // 8 + 1
    order = random.sample(range(num_slots), columns * case.batch)
    tables = [order[begin : begin + columns] for begin in range(0, len(order), columns)]
    pools = [planes(case, num_slots) for _ in range(case.num_pools)]
    return pools, num_slots, tables


def planes(case: Case, num_slots: int) -> Planes:
    """Keys and values of every slot."""
    shape = (1, case.kv_heads, num_slots * case.block, case.dim)
    sides: Planes = []
    for _ in range(2):
        rows = mx.random.normal(shape).astype(mx.bfloat16)
        sides += mx.quantize(rows, GROUP, case.bits) if case.bits else [rows]
        mx.eval(sides)
    return sides


def read(case: Case, pools: Sequence[Planes], num_slots: int, tables: list[list[int]]) -> Step:
    """The direct read."""
    rows = Rows.of(tables, [case.length] * case.batch, block_size=case.block, num_slots=num_slots)
    shape = PageShape(
        case.kv_heads, case.dim, case.dim, mx.bfloat16, case.block, case.bits, case.bits, GROUP
    )
    direct = DirectRead(CudaBackend(), shape)
    return lambda queries, index: direct.attend(
        queries, pools[index % len(pools)], rows, case.dim**-0.5
    )


def gather(case: Case, pools: Sequence[Planes], table: Sequence[int]) -> Step:
    """Blocks collected in order, decoded where they are codes, then MLX's fused attention."""
    slots = mx.array(list(table), mx.int32)

    def rows(plane: mx.array) -> mx.array:
        blocks = plane.reshape(case.kv_heads, -1, case.block, plane.shape[3])
        found = mx.take(blocks, slots, axis=1).reshape(1, case.kv_heads, -1, plane.shape[3])
        return found[:, :, : case.length]

    def step(queries: mx.array, index: int) -> mx.array:
        sides = [rows(plane) for plane in pools[index % len(pools)]]
        if case.bits:
            sides = [decoded(sides[:3], case.bits), decoded(sides[3:], case.bits)]
        return attend(case, queries, sides[0], sides[1])

    return step


def decoded(side: Planes, bits: int) -> mx.array:
    """The rows that codes stand for."""
    codes, scales, biases = side
    return mx.dequantize(codes, scales, biases, group_size=GROUP, bits=bits)


def attend(case: Case, queries: mx.array, keys: mx.array, values: mx.array) -> mx.array:
    """MLX's fused attention."""
    mask = "causal" if case.queries > 1 else None
    return mx.fast.scaled_dot_product_attention(
        queries, keys, values, scale=case.dim**-0.5, mask=mask
    )


def plain_time(case: Case) -> float:
    """MLX's fused attention on contiguous rows."""
    shape = (case.batch, case.kv_heads, case.length, case.dim)
    pools = [
        [mx.random.normal(shape).astype(mx.bfloat16) for _ in range(2)]
        for _ in range(case.num_pools)
    ]
    mx.eval(pools)
    return chained(case, lambda queries, index: attend(case, queries, *pools[index % len(pools)]))


def rate(case: Case, microseconds: float) -> float:
    """Terabytes a second."""
    return case.num_bytes / microseconds / 1e6


def row(case: Case, taken: Times) -> list[str]:
    """A line of the first table."""
    others = (taken.contiguous, taken.rounded, taken.gathered)
    return [
        str(case),
        f"{taken.direct:.1f}",
        f"{rate(case, taken.direct):.2f}",
        *("" if time is None else f"{time:.1f}" for time in others),
        "" if taken.gathered is None else f"{taken.gathered / taken.direct:.1f}",
    ]


def aims(times: dict[Case, Times]) -> list[list[str]]:
    """What was aimed at, what came out, and whether that is met."""
    took = {case: taken.direct for case, taken in times.items()}
    plain_short, plain_window = times[SHORT].contiguous, times[WINDOW].contiguous
    gathered = times[MIDDLE].gathered
    assert plain_short is not None
    assert plain_window is not None
    assert gathered is not None
    return [
        at_least("131,035: TB/s", rate(FAR, took[FAR]), 3.4),
        at_least("32,731: TB/s", rate(MIDDLE, took[MIDDLE]), 2.3),
        at_most("4,059: × MLX's contiguous time", took[SHORT] / plain_short, 1.2),
        at_least("32,731: × faster than gathered", gathered / took[MIDDLE], 8),
        at_most("8 queries: × the time of one", took[WINDOW] / took[MIDDLE], 2),
        at_most("8 queries: × MLX's causal window", took[WINDOW] / plain_window, 1),
        at_least("64 rows of 4,000: TB/s", rate(MANY, took[MANY]), 3.2),
        at_least("affine 4: × faster than 16-bit", took[FAR] / took[AFFINE_4], 1.5),
        at_least("affine 8: × faster than 16-bit", took[FAR] / took[AFFINE_8], 1.3),
        at_most("blocks of 16: × the time of 256", took[SMALL_BLOCKS] / took[FAR], 1.1),
    ]


def at_least(what: str, value: float, aim: float) -> list[str]:
    """A line whose value is to reach ``aim``."""
    return [f"{what}, at least {aim}", f"{value:.2f}", "yes" if value >= aim else "no"]


def at_most(what: str, value: float, aim: float) -> list[str]:
    """A line whose value is to stay within ``aim``."""
    return [f"{what}, at most {aim}", f"{value:.2f}", "yes" if value <= aim else "no"]


if __name__ == "__main__":
    main()
