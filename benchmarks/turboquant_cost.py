"""What TurboQuant's encode and decode cost, beside mx.quantize and mx.dequantize in one run.

What was expected, written down before the codec was put together, from trials of its single
operations on the CPU:

- one token, keys and values of one layer at 4 bits: 3.0 to 3.5 × two ``mx.quantize`` (aim 3.5):
  an evaluated operation costs 1 to 2 µs, ``mx.quantize`` is one and the encode is 16 of them;
- keys at 8 bits and values at 4, the default: 4 to 5 ×, for what differs in width cannot share
  its operations; 512 tokens: 3 to 4 ×, a third of it the rotation;
- a window of 4,096 decoded in the rotated domain: 0.5 to 1.2 × ``mx.dequantize`` (aim 1.2),
  levels up to 4 bits being a polynomial and above them a table of pairs; in the values' own
  domain, rotated back, up to twice as much.

What one token costs is operations, not arithmetic: of 50 µs at K4V4, 8 heads of 128, some 30 are
spent on recording and starting 15 of them, 6 in the Hadamard transform, 5 in the comparisons.
Tried and no better: gathers for the levels (of one, two or four codes), products by matrix
multiplication in place of sums, one sum of both products, levels summed beside the codes.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import attrs
import mlx.core as mx

from measuring.clock import Times, by_turns, progress_bar
from measuring.report import Report, command_line
from pagedkv_formats import PagedTurboQuant

ENCODE_AIM, DECODE_AIM = 3.5, 1.2
GROUP_SIZE = 64
BITS = ((4, 4), (8, 4), (8, 8), (8, 3), (3, 3), (2, 2))
AFFINE = "affine, 4 bits"


@attrs.frozen
class Plan:
    """How much is measured."""

    shapes: Sequence[tuple[int, int]]
    """KV heads and dim; affine has a group for each."""
    tokens: int
    window: int
    rounds: int
    calls: int
    """Of one token, in one measurement."""


FULL = Plan([(8, 128), (3, 64)], 512, 4096, 30, 50)
QUICK = Plan([(2, 64)], 20, 40, 2, 2)


def main() -> None:
    """Measure, print, and keep the tables if asked."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--save", action="store_true", help="write results/turboquant_cost.md")
    parser.add_argument("--quick", action="store_true", help="tiny shapes: does it run?")
    options = parser.parse_args()
    plan = QUICK if options.quick else FULL
    report = Report("Cost of TurboQuant beside affine")
    report.facts["command"] = command_line()
    report.facts["rows"] = f"bf16, batch 1, affine at 4 bits in groups of {GROUP_SIZE}"
    for heads, dim in plan.shapes:
        report.heading(f"{heads} KV heads, dim {dim}, keys and values of one layer")
        report.remark(
            f"Time that this process computed, medians of {plan.rounds} turns; × is the median of "
            "the ratios to affine of the same turn. One token: the best of 5 means of "
            f"{plan.calls} calls, each evaluated."
        )
        report.table(["what", "µs", "× affine", "aim"], measured_rows(plan, heads, dim))
    report.publish("turboquant_cost", save=options.save)


def measured_rows(plan: Plan, heads: int, dim: int) -> list[list[str]]:
    """A line for each work and width."""
    encode, decode = partial(encode_cases, heads, dim), partial(decode_cases, heads, dim)
    works = [
        ("encode 1", measure(plan, encode(1), plan.calls), ENCODE_AIM),
        (f"encode {plan.tokens}", measure(plan, encode(plan.tokens), 1), None),
        (f"decode {plan.window}", measure(plan, decode(plan.window), 1), DECODE_AIM),
    ]
    return [line(work, times, case, aim) for work, times, aim in works for case in times.seconds]


def line(work: str, times: Times, case: str, aim: float | None) -> list[str]:
    """One line: only what is attended in the rotated domain has the aim of a decode."""
    aimed = aim is not None and case != AFFINE and "plain" not in case
    micros = f"{times.median(case) * 1e6:.1f}"
    return [
        f"{work}, {case}",
        micros,
        f"{times.ratio(case, AFFINE):.2f}",
        f"≤ {aim}" if aimed else "–",
    ]


def measure(plan: Plan, works: dict[str, Callable[[], Any]], calls: int) -> Times:
    """Every work by turns, warm, each call evaluated."""

    def seconds(work: Callable[[], Any]) -> float:
        """Of one call: the best of five runs where a call is too short to be timed alone."""
        runs = 5 if calls > 1 else 1
        return min(computed_seconds(work, calls) for _ in range(runs)) / calls

    for work in works.values():
        mx.eval(work())
        mx.eval(work())
    with progress_bar("Turns", plan.rounds) as advance:
        return by_turns(
            {name: partial(seconds, work) for name, work in works.items()}, plan.rounds, advance
        )


def computed_seconds(work: Callable[[], Any], calls: int) -> float:
    """How long this process computed: what other programs took meanwhile is left out."""
    began = time.process_time()
    for _ in range(calls):
        mx.eval(work())
    return time.process_time() - began


def encode_cases(heads: int, dim: int, tokens: int) -> dict[str, Callable[[], Any]]:
    """Affine, then TurboQuant at every pair of widths."""
    keys, values = drawn(0, heads, tokens, dim), drawn(1, heads, tokens, dim)
    cases: dict[str, Callable[[], Any]] = {AFFINE: lambda: [quantized(keys), quantized(values)]}
    for bits in BITS:
        cases[named(bits)] = partial(PagedTurboQuant(*bits).encode, keys, values)
    return cases


def decode_cases(heads: int, dim: int, window: int) -> dict[str, Callable[[], Any]]:
    """The same, of rows in the middle of planes that hold more."""
    keys, values = drawn(0, heads, window + 256, dim), drawn(1, heads, window + 256, dim)
    affine = [rows_of(quantized(keys), window), rows_of(quantized(values), window)]
    cases: dict[str, Callable[[], Any]] = {AFFINE: lambda: [dequantized(rows) for rows in affine]}
    for bits in BITS:
        codec = PagedTurboQuant(*bits)
        rows = rows_of(codec.encode(keys, values), window)
        cases[named(bits)] = partial(codec.decode_rotated, rows, dim, dim, mx.bfloat16)
        cases[f"{named(bits)}, plain"] = partial(codec.decode, rows, dim, dim, mx.bfloat16)
    return cases


def drawn(seed: int, heads: int, rows: int, dim: int) -> mx.array:
    """Normal rows, bf16, evaluated."""
    array = mx.random.normal((1, heads, rows, dim), key=mx.random.key(seed)).astype(mx.bfloat16)
    mx.eval(array)
    return array


def quantized(rows: mx.array) -> tuple[mx.array, mx.array, mx.array]:
    """Affine, 4 bits."""
    codes, scales, biases = mx.quantize(rows, GROUP_SIZE, 4)
    return codes, scales, biases


def dequantized(rows: Sequence[mx.array]) -> mx.array:
    """What ``quantized`` made, as bf16."""
    codes, scales, biases = rows
    return mx.dequantize(codes, scales, biases, GROUP_SIZE, 4)


def rows_of(planes: Sequence[mx.array], window: int) -> list[mx.array]:
    """The first ``window`` rows, as slices of evaluated planes."""
    mx.eval(*planes)
    return [plane[:, :, :window] for plane in planes]


def named(bits: tuple[int, int]) -> str:
    """K8V4."""
    return f"K{bits[0]}V{bits[1]}"


if __name__ == "__main__":
    main()
