"""Whole decode steps: append and attention of all layers, evaluated one at a time."""

from __future__ import annotations

from functools import partial

import mlx.core as mx
from mlx_lm.models.cache import KVCache

from decoding.plan import Plan
from measuring.clock import Times, by_turns, progress_bar, wall_seconds
from measuring.report import Report
from measuring.stacks import (
    Shape,
    Step,
    entries,
    fetch_step,
    fill,
    named_step,
    paged_caches,
    scattered_caches,
)

AIM = 1.03
"""For consecutive blocks: they are read where they lie, as ``KVCache`` is. A scattered table
copies what it reads first and has no aim."""


def report_steps(report: Report, plan: Plan) -> None:
    """A table of every shape and length."""
    rows = [
        row for shape in plan.shapes for n in plan.positions for row in step_rows(shape, plan, n)
    ]
    report.heading("Whole step: append and attention of all layers, evaluated")
    report.remark(
        f"Median of {plan.steps} steps taken by turns, of the wider shape a quarter of them; × is "
        "the median of the ratios to the `KVCache` step of the same turn. Blocks are of 256 "
        "positions where nothing is said."
    )
    report.table(["shape, positions stored, cache", "ms", "× KVCache", "aim"], rows)


def step_rows(shape: Shape, plan: Plan, positions: int) -> list[list[str]]:
    """The rows of one shape and length."""
    times = measure_steps(shape, plan, positions)
    return [
        [
            f"{shape.name}, {positions}, {case}",
            f"{times.median(case) * 1e3:.2f}",
            f"{times.ratio(case, 'KVCache'):.3f}",
            f"≤ {AIM}" if case.startswith("consecutive") else "–",
        ]
        for case in times.seconds
    ]


def measure_steps(shape: Shape, plan: Plan, positions: int) -> Times:
    """One step of every kind of cache a round, ``positions`` rows being stored at first."""
    rounds, depth = plan.num_steps(shape), plan.depth
    capacity = positions + rounds + 1
    plain = [KVCache() for _ in range(depth)]
    groups = {
        "consecutive": paged_caches(depth, capacity),
        "consecutive, update_and_fetch": paged_caches(depth, capacity),
        "scattered": scattered_caches(depth, capacity, 256),
        "scattered, blocks of 16": scattered_caches(depth, capacity, 16),
    }
    for caches in (plain, *(group.caches for group in groups.values())):
        fill(shape, caches, positions)
    steps = {"KVCache": fetch_step(shape, plain)}
    for name, group in groups.items():
        by_fetch = name.endswith("update_and_fetch")
        steps[name] = (
            fetch_step(shape, entries(group)) if by_fetch else named_step(shape, group.caches)
        )
    inputs = shape.inputs(1)
    for step in steps.values():
        evaluate(step, inputs)  # the plain cache grows here and not again within 256 steps
    cases = {name: partial(step_seconds, step, inputs) for name, step in steps.items()}
    with progress_bar(f"Steps, {shape.name}, {positions} positions", rounds) as advance:
        return by_turns(cases, rounds, advance)


def step_seconds(step: Step, inputs: mx.array) -> float:
    """How long one step took, to its end."""
    return wall_seconds(partial(evaluate, step, inputs))


def evaluate(step: Step, inputs: mx.array) -> None:
    """One step, to its end."""
    mx.eval(step(inputs))
