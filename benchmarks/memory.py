"""Peak memory of a prefill into 4-bit pages, beside mlx-lm's caches in the same run.

What is expected, written down before it is measured: the peak is at most 1.25 × the sum of

- the final pages, whose capacity is given, so that nothing grows by copying;
- one chunk: what MLX's attention of a chunk over as many plain rows takes by itself;
- one gathered layer: its keys and values decoded to 16 bits.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import attrs
import mlx.core as mx
from mlx_lm.models.cache import KVCache, QuantizedKVCache

from measuring.clock import progress_bar, wall_seconds
from measuring.report import Report, command_line
from measuring.stacks import (
    SMOLLM2,
    TINY,
    Shape,
    Step,
    append_rows,
    entries,
    fetch_step,
    named_step,
    paged_caches,
    stored_arrays,
)
from pagedkv_mlx import PagedQuantization

AIM = 1.25
MIB = 2**20
GROUP_SIZE, BITS = 64, 4


@attrs.frozen
class Plan:
    """A prefill of ``depth`` layers; every ``attended``-th chunk is attended, the last included."""

    shape: Shape
    depth: int
    positions: int
    chunk: int
    attended: int

    def chunks(self) -> Iterator[tuple[int, bool]]:
        """The first position of each chunk, and whether the chunk is attended."""
        for begin in range(0, self.positions, self.chunk):
            yield begin, (begin // self.chunk + 1) % self.attended == 0


FULL = Plan(SMOLLM2, 8, 8192, 256, 16)
QUICK = Plan(TINY, 2, 256, 32, 4)


@attrs.frozen
class Peaks:
    """Bytes besides what was there before the caches; seconds of the last chunk."""

    stored: int
    appending: int
    attending: int
    seconds: float


def main() -> None:
    """Measure, print, and keep the table if asked."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--save", action="store_true", help="write results/memory.md as well")
    parser.add_argument("--quick", action="store_true", help="tiny shapes: does it run?")
    options = parser.parse_args()
    plan = QUICK if options.quick else FULL
    report = Report("Peak memory of a prefill")
    report.facts["command"] = command_line()
    report.facts["layers"] = f"{plan.depth}, bf16; {plan.shape}"
    report_peaks(report, plan)
    report.publish("memory", save=options.save)


def report_peaks(report: Report, plan: Plan) -> None:
    """The sum that is allowed, then every cache beside it."""
    chunk, gathered = attention_bytes(plan), plan.positions * plan.shape.bytes_per_token
    rows = []
    with progress_bar("Prefills", len(CACHES) * 2 * plan.positions // plan.chunk) as advance:
        for name, make in CACHES.items():
            free = prefill(plan, *make(plan), advance)
            limit = free.stored + chunk + gathered
            with memory_limit(limit):
                held = prefill(plan, *make(plan), advance)
            rows.append(peak_row(name, free, held, limit))
    report.remark(
        f"{plan.positions} positions in chunks of {plan.chunk}, capacity given. One chunk is "
        f"{chunk / MIB:.1f} MiB (mostly the scores, which MLX's attention on a CPU keeps), one "
        f"gathered layer {gathered / MIB:.1f} MiB. Every chunk is appended; every "
        f"{plan.attended}th is attended, the last included, where most is held. MLX evaluates a "
        "forward ahead of its CPU threads, so that two layers' scores may be there at once, in "
        "whatever cache; `mx.set_memory_limit` makes it wait. The sum is that limit, and the aim "
        "is for the peak under it; the peak without it is for the record."
    )
    columns = ["cache", "stored", "sum", "appends", "peak", "× sum", "aim", "peak, no limit", "s"]
    report.table(columns, rows)
    report.remark("All but × and s in MiB; s is the time of the last chunk.")


def peak_row(name: str, free: Peaks, held: Peaks, limit: int) -> list[str]:
    """One line of the table."""
    sizes = [free.stored, limit, held.appending, held.attending]
    return [
        name,
        *(f"{size / MIB:.2f}" for size in sizes),
        f"{held.attending / limit:.2f}",
        f"≤ {AIM}" if name.startswith("pages, 4 bits") else "–",
        f"{free.attending / MIB:.2f}",
        f"{free.seconds:.1f}",
    ]


# The caches ---------------------------------------------------------------------------------

Stack = tuple[Sequence[Any], Step]


def plain(plan: Plan) -> Stack:
    """mlx-lm's cache of 16-bit rows."""
    caches = [KVCache() for _ in range(plan.depth)]
    return caches, fetch_step(plan.shape, caches)


def quantized(plan: Plan) -> Stack:
    """mlx-lm's quantized cache, attended by its quantized products."""
    caches = [QuantizedKVCache(GROUP_SIZE, BITS) for _ in range(plan.depth)]
    return caches, fetch_step(plan.shape, caches)


def paged(plan: Plan, bits: int | None, *, by_fetch: bool = False) -> Stack:
    """Pages of 16 bits or fewer, through the cache's own reads or as mlx-lm's models do."""
    codec = None if bits is None else PagedQuantization(bits, GROUP_SIZE)
    group = paged_caches(plan.depth, plan.positions, quantization=codec)
    if by_fetch:
        return entries(group), fetch_step(plan.shape, entries(group))
    return group.caches, named_step(plan.shape, group.caches)


CACHES: dict[str, Callable[[Plan], Stack]] = {
    "pages, 4 bits": partial(paged, bits=4),
    "pages, 4 bits, update_and_fetch": partial(paged, bits=4, by_fetch=True),
    "pages, 16 bits": partial(paged, bits=None),
    "QuantizedKVCache, 4 bits": quantized,
    "KVCache, 16 bits": plain,
}


# What they hold -----------------------------------------------------------------------------


def prefill(plan: Plan, caches: Sequence[Any], step: Step, advance: Callable[[], None]) -> Peaks:
    """Append all chunks, attend some; the caches and their step are this call's alone."""
    inputs = plan.shape.inputs(plan.chunk)
    before = mx.get_active_memory()
    appending = attending = 0
    seconds = 0.0
    for _, attended in plan.chunks():
        mx.reset_peak_memory()
        if attended:
            seconds = wall_seconds(partial(attend, step, inputs, caches))
            attending = max(attending, mx.get_peak_memory() - before)
        else:
            append(plan, inputs, caches)
            appending = max(appending, mx.get_peak_memory() - before)
        advance()
    stored = sum(array.nbytes for array in stored_arrays(caches))
    return Peaks(stored, appending, attending, seconds)


def attend(step: Step, inputs: mx.array, caches: Sequence[Any]) -> None:
    """One chunk through all layers, evaluated as a whole, as mlx-lm evaluates it."""
    outputs = step(inputs)
    mx.eval(outputs, stored_arrays(caches))


def append(plan: Plan, inputs: mx.array, caches: Sequence[Any]) -> None:
    """One chunk stored in all layers."""
    rows = inputs[:, : plan.shape.num_kv_heads]
    for cache in caches:
        append_rows(cache, rows)
    mx.eval(stored_arrays(caches))


def attention_bytes(plan: Plan) -> int:
    """What MLX's attention of the last chunk over plain rows takes, its result included."""
    queries = plan.shape.inputs(plan.chunk)
    rows = mx.contiguous(plan.shape.inputs(plan.positions)[:, : plan.shape.num_kv_heads])
    mx.eval(rows)
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    mx.eval(
        mx.fast.scaled_dot_product_attention(
            queries, rows, rows, scale=plan.shape.scale, mask="causal"
        )
    )
    return mx.get_peak_memory() - before


@contextmanager
def memory_limit(num_bytes: int) -> Iterator[None]:
    """MLX waits for its threads rather than hold more than ``num_bytes`` besides what is there."""
    before = mx.set_memory_limit(mx.get_active_memory() + num_bytes)
    try:
        yield
    finally:
        mx.set_memory_limit(before)


if __name__ == "__main__":
    main()
