"""Many appends to a pool just large enough, and to a far larger one that nothing should copy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeAlias

import attrs
import mlx.core as mx
from mlx_lm.models.cache import KVCache

from decoding.plan import Plan
from measuring.clock import Times, by_turns, progress_bar, wall_seconds
from measuring.report import Report
from measuring.stacks import Step, fetch_step, fill, named_step, paged_caches

AIM = 1.05
"""An append updates its plane in place, so its size does not matter: neither to a step's time
nor, by as much as a block, to the memory that it takes besides the planes."""

SHALLOW = 2
schedule: Callable[..., None] = mx.async_eval

Way: TypeAlias = Callable[[Step, mx.array, int], None]
"""How so many steps of a stack are evaluated from the given inputs on."""


def one_by_one(step: Step, inputs: mx.array, count: int) -> None:
    """Each step is evaluated before the next is built."""
    for _ in range(count):
        inputs = step(inputs)
        mx.eval(inputs)


def next_queued(step: Step, inputs: mx.array, count: int) -> None:
    """The next step is given to ``mx.async_eval`` before the last is awaited."""
    inputs = step(inputs)
    schedule(inputs)
    for _ in range(count - 1):
        outputs = step(inputs)
        schedule(outputs)
        mx.eval(inputs)
        inputs = outputs
    mx.eval(inputs)


WAYS = {"step by step": one_by_one, "next step queued": next_queued}


@attrs.define
class Burst:
    """Some steps of one stack at a time, and the most memory that any time took besides."""

    step: Step
    inputs: mx.array
    count: int
    way: Way
    extra: int = 0

    def __call__(self) -> float:
        """Run ``count`` steps; gives the seconds they took."""
        before = mx.get_active_memory()
        mx.reset_peak_memory()
        seconds = wall_seconds(partial(self.way, self.step, self.inputs, self.count))
        self.extra = max(self.extra, mx.get_peak_memory() - before)
        return seconds


def report_pools(report: Report, plan: Plan) -> None:
    """A table of depths, ways to evaluate, and pools."""
    rows: list[list[str]] = []
    for depth in (plan.depth, SHALLOW):
        for way in WAYS:
            rows += pool_rows(plan, depth, way)
    shape, turns = plan.shapes[0], plan.appends // plan.burst
    block = 256 * shape.bytes_per_token / 1024
    report.heading(f"{plan.appends} appends, and the size of the pool")
    report.remark(
        f"{shape.name}'s heads, {plan.appends} positions stored at first, {turns} turns of "
        f"{plan.burst} steps: the median ms a step, and the most memory that a turn took besides "
        f"what it began with. A block of one layer is {block:.0f} KiB, of {plan.depth} layers "
        f"{block * plan.depth:.0f} KiB. Queued: the next step is given to `mx.async_eval` before "
        "the last is awaited, as mlx-lm's loop does. `KVCache` grows every 256 positions, a whole "
        f"copy. Aim at {plan.depth} layers: the larger pool's step takes ≤ {AIM} × the smaller's, "
        f"and its memory is less than a block more; {SHALLOW} layers are for the record."
    )
    columns = [
        "layers, evaluation, cache",
        "reserved MiB",
        "ms a step",
        "× small pool",
        "extra KiB",
    ]
    report.table(columns, rows)


def pool_rows(plan: Plan, depth: int, way: str) -> list[list[str]]:
    """The rows of one depth and one way to evaluate."""
    label = f"{depth}, {way}"
    stacks = make_stacks(plan, depth)
    inputs = plan.shapes[0].inputs(1)
    bursts = {
        name: Burst(step, inputs, plan.burst, WAYS[way]) for name, (step, _) in stacks.items()
    }
    times = measure(plan, bursts, label)
    small = next(name for name in stacks if name.startswith("small"))
    return [
        [
            f"{label}, {name}",
            f"{stacks[name][1] / 2**20:.1f}",
            f"{times.median(name) / plan.burst * 1e3:.3f}",
            f"{times.ratio(name, small):.3f}",
            f"{burst.extra / 1024:.0f}",
        ]
        for name, burst in bursts.items()
    ]


def measure(plan: Plan, bursts: Mapping[str, Burst], label: str) -> Times:
    """All bursts by turns, until each made its appends."""
    for burst in bursts.values():
        mx.eval(burst.step(burst.inputs))
    turns = plan.appends // plan.burst
    with progress_bar(f"Appends, {label}", turns) as advance:
        return by_turns(bursts, turns, advance)


def make_stacks(plan: Plan, depth: int) -> dict[str, tuple[Step, int]]:
    """Stacks over a plain cache and two pools, each with the bytes that it reserves."""
    shape, stored = plan.shapes[0], plan.appends
    needed = stored + plan.appends + 1
    plain = [KVCache() for _ in range(depth)]
    fill(shape, plain, stored)
    stacks = {"KVCache": (fetch_step(shape, plain), sum(cache.nbytes for cache in plain))}
    for name, capacity in (
        ("small pool", needed),
        (f"pool of {plan.times_larger} ×", needed * plan.times_larger),
    ):
        group = paged_caches(depth, capacity)
        fill(shape, group.caches, stored)
        reserved = sum(cache.pages.nbytes for cache in group.caches)
        stacks[name] = (named_step(shape, group.caches), reserved)
    return stacks
