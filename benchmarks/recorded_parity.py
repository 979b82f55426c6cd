"""Recorded decode against recorded plain and against eager: traces, equal bits, differences.

A llama model of SmolLM2's shape with random bf16 weights decodes the same tokens through
recorded steps over pages and over one contiguous buffer, and eagerly over both. On a CPU all
four have the same logits; on a GPU, where recording fuses arithmetic, the recorded ones have
each other's, and how far they are from the eager ones is printed.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
from mlx_lm.models import llama

from decode_overhead import ContiguousEntry
from measuring.clock import progress_bar
from measuring.models import random_llama
from measuring.numbers import number
from measuring.report import Report, command_line
from pagedkv_mlx import PagedQuantization, PagedTurboQuant
from pagedkv_mlx.decode import CompiledDecoder
from pagedkv_mlx.mlx_lm import make_paged_prompt_cache
from pagedkv_protocols import DecodePhase

FORMATS: dict[str, dict[str, Any]] = {
    "16-bit": {},
    "affine 4": {"quantization": PagedQuantization(4)},
    "turboquant": {"turbo": PagedTurboQuant()},
}


def smollm2_sized(num_layers: int) -> llama.Model:
    """SmolLM2-135M's widths."""
    return random_llama(num_layers, seed=3, head_dim=64, intermediate_size=1536, vocab_size=49152)


def largest(left: Sequence[mx.array], right: Sequence[mx.array]) -> float:
    """The largest difference of any two logits."""
    pairs = zip(left, right, strict=True)
    return max(number(mx.abs(a.astype(mx.float32) - b.astype(mx.float32)).max()) for a, b in pairs)


def same(left: Sequence[mx.array], right: Sequence[mx.array]) -> str:
    """How many of the steps have the same bits."""
    equal = sum(bool(mx.array_equal(a, b)) for a, b in zip(left, right, strict=True))
    return f"{equal} of {len(left)}"


def decode(call: Any, model: Any, entries: list[Any], tokens: list[int]) -> list[mx.array]:
    """The logits of ``tokens``, one step each, after a prompt."""
    mx.eval(model(mx.arange(50)[None] * 7, cache=entries))
    logits = []
    for token in tokens:
        logits.append(call(mx.array([[token]]), cache=entries))
        mx.eval(logits[-1])
    return logits


def main() -> None:
    """Measure, print, and keep the table if asked."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--save", action="store_true", help="write results/ as well")
    parser.add_argument("--quick", action="store_true", help="few layers and steps: does it run?")
    options = parser.parse_args()
    layers, count = (2, 8) if options.quick else (30, 100)
    gpu = mx.default_device().type == mx.DeviceType.gpu
    phases = [DecodePhase.BUCKET, DecodePhase.RESIDENT] + [DecodePhase.CONCAT] * gpu
    model, tokens = smollm2_sized(layers), [(31 * i + 5) % 49152 for i in range(count)]
    rows = []
    with progress_bar("Generations", 1 + len(phases) * (1 + len(FORMATS))) as advance:
        eager = decode(model, model, [ContiguousEntry() for _ in model.layers], tokens)
        advance()
        for phase in phases:
            recorder = CompiledDecoder(model, phase)
            plain = decode(recorder, model, [ContiguousEntry() for _ in model.layers], tokens)
            advance()
            for name, chosen in FORMATS.items():
                if phase is DecodePhase.CONCAT and name == "turboquant":
                    continue
                paged = CompiledDecoder(model, phase)
                logits = decode(paged, model, make_paged_prompt_cache(model, **chosen), tokens)
                eager_paged = decode(model, model, make_paged_prompt_cache(model, **chosen), tokens)
                advance()
                rows.append(
                    [
                        f"{phase.value}, {name}",
                        str(paged.num_traces),
                        same(logits, plain) if not chosen else "–",
                        same(logits, eager_paged),
                        f"{largest(logits, eager_paged):.3g}",
                        f"{largest(plain, eager):.3g}",
                    ]
                )
    report = Report("Recorded decode beside eager decode")
    report.facts["command"] = command_line()
    report.facts["model"] = f"{layers} layers of SmolLM2-135M's widths, random weights, bf16"
    report.table(
        ["recorded step", "traces", "as recorded plain", "as eager", "max diff", "plain's"], rows
    )
    report.remark(
        "`as recorded plain`, `as eager`: steps whose logits have the same bits; `max diff`: the "
        "largest difference of recorded to eager logits over pages, then of the plain cache."
    )
    report.publish(f"recorded_parity_{'gpu' if gpu else 'cpu'}", save=options.save)


if __name__ == "__main__":
    main()
