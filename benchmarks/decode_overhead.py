"""A decode step where Python and graph building dominate: eager and recorded, plain and paged.

A model of SmolLM2's shape (30 layers, 9 query and 3 KV heads) with tiny widths decodes beside
itself over four kinds of caches, by turns in one run. Expected before it was measured:

- recorded over pages at most 0.6 × the time of mlx-lm's eager plain decode on a CPU, 0.5 × on a
  GPU;
- no plane is copied: the peak extra memory of a step is less than one plane.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import mlx.core as mx
from mlx_lm.models import llama
from mlx_lm.models.cache import make_prompt_cache

from measuring.clock import by_turns, progress_bar, wall_seconds
from measuring.models import random_llama
from measuring.report import Report, command_line
from pagedkv_mlx import ContiguousKVCache
from pagedkv_mlx.decode import CompiledDecoder
from pagedkv_mlx.mlx_lm import PagedPromptCache, make_paged_prompt_cache
from pagedkv_protocols import DecodePhase

AIM = {"cpu": 0.6, "gpu": 0.5}
BASE = "eager, mlx-lm's KVCache"
Step = Callable[[], object]


class ContiguousEntry:
    """``ContiguousKVCache`` as a model meets it."""

    def __init__(self) -> None:
        self.cache = ContiguousKVCache()

    @property
    def offset(self) -> int:
        """How many positions there are."""
        return self.cache.offset

    def make_mask(self, n: int, **options: Any) -> Any:
        """The mask for the next ``n`` positions."""
        return self.cache.make_mask(n, **options)

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Append, and give all stored rows."""
        with self.cache.append_window(keys, values) as read:
            return read.gather()


def tiny_model(num_layers: int) -> llama.Model:
    """SmolLM2's heads and layers, eight numbers a head."""
    return random_llama(num_layers, seed=0, head_dim=8, intermediate_size=192, vocab_size=256)


def cases(model: llama.Model, prompt: int, capacity: int) -> dict[str, tuple[Any, list[Any]]]:
    """What is compared: what is called, and over which prefilled entries."""
    concat = mx.default_device().type == mx.DeviceType.gpu
    phases = [DecodePhase.BUCKET, DecodePhase.RESIDENT] + [DecodePhase.CONCAT] * concat
    plain = [ContiguousEntry() for _ in model.layers]
    made: dict[str, tuple[Any, list[Any]]] = {
        BASE: (model, make_prompt_cache(model)),
        "eager, paged": (model, make_paged_prompt_cache(model, capacity)),
        "recorded, plain (ContiguousKVCache)": (CompiledDecoder(model), plain),
    }
    for phase in phases:
        entries = make_paged_prompt_cache(model, capacity)
        made[f"recorded, paged, {phase.value}"] = (CompiledDecoder(model, phase), entries)
    tokens = mx.arange(prompt)[None] % 256
    for _, entries in made.values():
        mx.eval(model(tokens, cache=entries))
    return made


def step_of(call: Any, entries: list[Any]) -> Callable[[], object]:
    """One decode step, evaluated as mlx-lm's loop does."""
    token = mx.array([[7]])
    return lambda: mx.eval(call(token, cache=entries))


def build_share(call: Any, entries: list[Any]) -> float:
    """The part of a step's time in which its graph is built, before any of it is evaluated."""
    token, built, whole = mx.array([[7]]), 0.0, 0.0
    for _ in range(20):
        began = time.perf_counter()
        logits = call(token, cache=entries)
        built += time.perf_counter() - began
        mx.eval(logits)
        whole += time.perf_counter() - began
    return built / whole


def peak_extra(step: Step) -> int:
    """Bytes that ten steps need beside what was there before."""
    step()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    for _ in range(10):
        step()
    return mx.get_peak_memory() - before


def largest_plane(entries: list[Any]) -> int:
    """Bytes of one plane of the paged entries; 0 for others."""
    entry = entries[0]
    return entry.cache.pages.planes[0].nbytes if isinstance(entry, PagedPromptCache) else 0


def main() -> None:
    """Measure, print, and keep the table if asked."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--save", action="store_true", help="write results/ as well")
    parser.add_argument("--quick", action="store_true", help="few layers and steps: does it run?")
    options = parser.parse_args()
    layers, prompt, rounds = (3, 20, 3) if options.quick else (30, 400, 100)
    model = tiny_model(layers)
    made = cases(model, prompt, capacity=512)
    steps = {name: step_of(*case) for name, case in made.items()}
    for step in steps.values():
        step()  # records and compiles
    with progress_bar("Rounds", rounds) as advance:
        timed = {name: lambda step=step: wall_seconds(step) for name, step in steps.items()}
        times = by_turns(timed, rounds, advance)
    device = "gpu" if mx.default_device().type == mx.DeviceType.gpu else "cpu"
    report = Report("Overhead of a decode step")
    report.facts["command"] = command_line()
    report.facts["model"] = f"{layers} layers, 9 query and 3 KV heads, D 8, bf16, from {prompt}"
    report.table(
        ["step", "ms", f"× {BASE}", "of it building", "extra MiB", "one plane MiB", "traces"],
        [
            [
                name,
                f"{1e3 * times.median(name):.2f}",
                f"{times.ratio(name, BASE):.2f}",
                f"{100 * build_share(call, entries):.0f} %",
                f"{peak_extra(steps[name]) / 2**20:.2f}",
                f"{largest_plane(entries) / 2**20:.2f}",
                str(getattr(call, "num_traces", "–")),
            ]
            for name, (call, entries) in made.items()
        ],
    )
    report.remark(f"Aim: recorded over pages at most {AIM[device]} × {BASE}.")
    report.publish(f"decode_overhead_{device}", save=options.save)


if __name__ == "__main__":
    main()
