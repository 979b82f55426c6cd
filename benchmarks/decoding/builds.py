"""Building alone: what Python and MLX take to record a layer, with nothing evaluated in it."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import attrs
import mlx.core as mx
from mlx_lm.models.base import scaled_dot_product_attention
from mlx_lm.models.cache import KVCache

from decoding.plan import Plan
from measuring.clock import Times, by_turns, progress_bar, thread_seconds
from measuring.report import Report
from measuring.stacks import Shape, entries, fill, paged_caches, stored_arrays

AIM = 0.9
"""Flat planes with one start array a step, read as strided views, are cheaper to record than
``KVCache``'s slices; MLX's own attention is recorded in the same way by both."""

STEPS = 8
"""Steps in one warm measurement."""


@attrs.frozen
class Layer:
    """One layer's cache, and a decode step's queries and rows for it."""

    cache: Any
    queries: mx.array
    rows: mx.array
    scale: float


def fetch(layer: Layer) -> None:
    """``update_and_fetch`` alone."""
    layer.cache.update_and_fetch(layer.rows, layer.rows)


def fetch_and_attend(layer: Layer) -> None:
    """``update_and_fetch``, then attention as mlx-lm's models call it."""
    keys, values = layer.cache.update_and_fetch(layer.rows, layer.rows)
    scaled_dot_product_attention(
        layer.queries, keys, values, cache=layer.cache, scale=layer.scale, mask=None
    )


def append_and_attend(layer: Layer) -> None:
    """The cache's own read."""
    with layer.cache.append_decode(layer.rows, layer.rows) as read:
        read.attend(layer.queries, layer.scale)


PLAIN, ENTRY, NAMED = "KVCache", "PagedPromptCache", "PagedKVCache"

CASES: dict[str, tuple[str, Callable[[Layer], None], str | None]] = {
    "KVCache.update_and_fetch": (PLAIN, fetch, None),
    "PagedPromptCache.update_and_fetch": (ENTRY, fetch, "KVCache.update_and_fetch"),
    "KVCache.update_and_fetch, attention": (PLAIN, fetch_and_attend, None),
    "PagedPromptCache.update_and_fetch, attention": (
        ENTRY,
        fetch_and_attend,
        "KVCache.update_and_fetch, attention",
    ),
    "PagedKVCache.append_decode, attend": (
        NAMED,
        append_and_attend,
        "KVCache.update_and_fetch, attention",
    ),
}
"""What is built, over which cache, and beside which other case it is set."""


def report_builds(report: Report, plan: Plan) -> None:
    """A table of microseconds a layer."""
    times = measure_builds(plan)
    report.heading("Building one layer's append and read, unevaluated")
    report.remark(
        f"Time that this thread computed, median of {plan.rounds} turns; {plan.shapes[0].name}'s "
        f"heads. Nothing is attended; what a step stored is evaluated before the next is built. "
        f"Warm: {STEPS} steps at once. Cold: one step after 64 MiB went through the processor's "
        "caches, as a model's weights do; fetching Python's own code is then most of it, and no "
        "aim was set."
    )
    rows = [row for case in CASES for row in build_rows(times, case, plan.depth)]
    report.table(["a layer", "µs", "× KVCache", "aim"], rows)


def build_rows(times: Times, case: str, depth: int) -> Iterator[list[str]]:
    """The rows of one case, warm and cold."""
    base = CASES[case][2]
    for state, layers in (("warm", STEPS * depth), ("cold", depth)):
        ratio = f"{times.ratio(f'{case}, {state}', f'{base or case}, {state}'):.2f}"
        aim = f"≤ {AIM}" if base and state == "warm" else "–"
        median = times.median(f"{case}, {state}") / layers * 1e6
        yield [f"{case}, {state}", f"{median:.2f}", ratio, aim]


def measure_builds(plan: Plan) -> Times:
    """Every case, warm and cold, by turns."""
    shape, stored = plan.shapes[0], plan.positions[0] // 2
    capacity = stored + (STEPS + 1) * plan.rounds
    scrub = mx.zeros((16, 1024, 1024), mx.float32)
    cases = {}
    for name, (kind, build, _) in CASES.items():
        layers = make_layers(kind, shape, plan.depth, capacity, stored)
        cases[f"{name}, warm"] = partial(warm_seconds, layers, build)
        cases[f"{name}, cold"] = partial(cold_seconds, layers, build, scrub)
    with no_collection(), progress_bar("Building", plan.rounds) as advance:
        return by_turns(cases, plan.rounds, advance)


def make_layers(kind: str, shape: Shape, depth: int, capacity: int, stored: int) -> list[Layer]:
    """``depth`` layers over caches of ``kind`` with ``stored`` positions each."""
    caches: list[Any] = [KVCache() for _ in range(depth)]
    if kind != PLAIN:
        group = paged_caches(depth, capacity)
        caches = entries(group) if kind == ENTRY else list(group.caches)
    fill(shape, caches, stored)
    inputs = [shape.inputs(1) for _ in range(depth)]
    return [
        Layer(cache, queries, mx.contiguous(queries[:, : shape.num_kv_heads]), shape.scale)
        for cache, queries in zip(caches, inputs, strict=True)
    ]


def warm_seconds(layers: Sequence[Layer], build: Callable[[Layer], None]) -> float:
    """The building of several steps, each after what the last one stored was evaluated."""
    seconds = 0.0
    for _ in range(STEPS):
        seconds += thread_seconds(partial(build_step, layers, build))
        evaluate(layers)
    return seconds


def cold_seconds(layers: Sequence[Layer], build: Callable[[Layer], None], scrub: mx.array) -> float:
    """The building of one step after other work went through the processor's caches."""
    mx.eval(scrub + 1)
    seconds = thread_seconds(partial(build_step, layers, build))
    evaluate(layers)
    return seconds


def build_step(layers: Sequence[Layer], build: Callable[[Layer], None]) -> None:
    """Record one step of all layers."""
    for layer in layers:
        build(layer)


def evaluate(layers: Sequence[Layer]) -> None:
    """Evaluate what the layers store."""
    mx.eval(stored_arrays([layer.cache for layer in layers]))


@contextmanager
def no_collection() -> Iterator[None]:
    """Python's cycle collector waits: it would fall on whichever case is at turn."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
