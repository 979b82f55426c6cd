"""What a page format costs a real model: perplexity, KL and top-token agreement on SmolLM2.

Every format reads the same text, teacher-forced in chunks: each prediction attends pages of its
whole past and of itself, as decoding does. Beside each stands what 16-bit pages give. Aims:
TurboQuant K8V4 within +0.5 % of their perplexity, K4V4 with at least 95 % of their top tokens,
and TurboQuant below affine in KL where both store the same bits.
"""

from __future__ import annotations

import argparse
import math
import platform
from collections.abc import Callable, Iterator
from pydoc_data.topics import topics
from typing import Any

import attrs
import mlx.core as mx
import mlx_lm

from measuring.clock import progress_bar
from measuring.numbers import number
from measuring.report import Report, command_line
from pagedkv_mlx import PagedQuantization, PagedTurboQuant
from pagedkv_mlx.gguf import find_smollm2, model_folder
from pagedkv_mlx.mlx_lm import KeepDense, make_paged_prompt_cache

PROSE = ("objects", "types", "execmodel", "naming", "exceptions", "dynamic-features")
"""Chapters of Python's language reference, as the standard library ships them."""

WIDTHS = ((8, 8), (8, 4), (8, 3), (4, 4), (4, 3), (3, 3), (2, 2))
"""Key and value bits of the TurboQuant rows."""

AFFINE = (8, 6, 5, 4, 3, 2)
MODES = ("mxfp8", "mxfp4", "nvfp4")


@attrs.frozen
class Plan:
    """How much text: windows of ``context`` tokens, of which the first ``warm`` are not judged."""

    num_windows: int = 4
    context: int = 640
    warm: int = 128
    chunk: int = 64


@attrs.frozen
class Quality:
    """What one format gave, over ``num_tokens`` predictions.

    ``perplexity`` of the text; ``kl`` in nats, from 16-bit pages; ``agreement``: the part of
    predictions whose most likely token is theirs; ``bits`` stored a number of K or V.
    """

    perplexity: float
    kl: float
    agreement: float
    bits: float


def text_tokens(tokenizer: Any, plan: Plan) -> list[list[int]]:
    """The windows' tokens, each one longer than its context: the last is only predicted."""
    prose = "\n\n".join(topics[name] for name in PROSE if name in topics)
    size = plan.context + 1
    wanted = plan.num_windows * size
    tokens = tokenizer.encode(prose[: 8 * wanted])
    assert len(tokens) >= wanted, f"{len(tokens)} tokens of prose, {wanted} are needed"
    return [tokens[begin : begin + size] for begin in range(0, wanted, size)]


def predictions(
    model: Any, windows: list[list[int]], plan: Plan, make: Callable[[], list[Any]]
) -> Iterator[tuple[mx.array, mx.array, list[Any]]]:
    """For each judged chunk: log-probabilities ``[chunk, V]``, targets ``[chunk]``, caches."""
    for window in windows:
        caches = make()
        for begin in range(0, plan.context, plan.chunk):
            tokens = mx.array(window[begin : begin + plan.chunk])[None]
            logits = model(tokens, cache=caches)[0].astype(mx.float32)
            mx.eval(logits, [cache.state for cache in caches])
            if begin >= plan.warm:
                targets = mx.array(window[begin + 1 : begin + 1 + plan.chunk])
                yield logits - mx.logsumexp(logits, -1, keepdims=True), targets, caches


def stored_bits(caches: list[Any]) -> float:
    """Bits a number of keys and values, in whole blocks, over all layers."""
    layouts = [entry.cache.pages.layout for entry in caches]
    numbers = sum(layout.num_kv_heads * (layout.key_dim + layout.value_dim) for layout in layouts)
    stored: float = sum(entry.cache.bytes_per_token() for entry in caches)
    return 8 * stored / float(numbers)


def judge(
    model: Any,
    windows: list[list[int]],
    plan: Plan,
    options: dict[str, Any],
    reference: list[mx.array],
) -> Quality:
    """Read the text through pages made with ``options``.

    ``reference`` holds the 16-bit log-probabilities of each chunk; an empty one is filled.
    """
    first = not reference
    nll, kl, agree, count, bits = 0.0, 0.0, 0.0, 0, 0.0

    def make() -> list[Any]:
        return make_paged_prompt_cache(model, plan.context, **options)

    for index, (ours, targets, caches) in enumerate(predictions(model, windows, plan, make)):
        if first:
            reference.append(ours.astype(mx.float16))
            mx.eval(reference[-1])
        theirs = reference[index].astype(mx.float32)
        nll -= number(mx.take_along_axis(ours, targets[:, None], -1).sum())
        kl += number((mx.exp(theirs) * (theirs - ours)).sum())
        agree += number((mx.argmax(ours, -1) == mx.argmax(theirs, -1)).sum())
        count += targets.size
        bits = stored_bits(caches)
    return Quality(math.exp(nll / count), kl / count, agree / count, bits)


def formats(quick: bool) -> dict[str, dict[str, Any]]:
    """Every row of the table: its name, and the options of its pages."""
    if quick:
        return {"affine 4, group 64": {"quantization": PagedQuantization(4)}}
    rows: dict[str, dict[str, Any]] = {}
    for bits in AFFINE:
        for group in (32, 64):
            rows[f"affine {bits}, group {group}"] = {"quantization": PagedQuantization(bits, group)}
    for mode in MODES:
        rows[mode] = {"quantization": PagedQuantization(mode=mode)}
    for keys, values in WIDTHS:
        name = f"TurboQuant K{keys}V{values}"
        turbo = PagedTurboQuant(keys, values)
        rows[name] = {"turbo": turbo}
        rows[f"{name}, page mean"] = {"turbo": attrs.evolve(turbo, page_mean=True)}
        rows[f"{name}, first and last 16-bit"] = {"turbo": turbo, "policy": KeepDense(1, 1)}
        rows[f"affine K{keys}V{values}, group 64"] = {
            "quantization": PagedQuantization(keys, 64, value_bits=values)
        }
    return rows


def aims(found: dict[str, Quality], base: Quality) -> str:
    """Which aims were held, by how much; each is met or missed by the figures in the table."""
    above = 100 * (found["TurboQuant K8V4"].perplexity / base.perplexity - 1)
    agreement = 100 * found["TurboQuant K4V4"].agreement
    higher = [
        f"K{keys}V{values}"
        for keys, values in WIDTHS
        if found[f"TurboQuant K{keys}V{values}"].kl
        >= found[f"affine K{keys}V{values}, group 64"].kl
    ]
    lines = (
        (above <= 0.5, f"TurboQuant K8V4 perplexity at most +0.5 %: {above:+.2f} %"),
        (agreement >= 95, f"TurboQuant K4V4 keeps 95 % of the top tokens: {agreement:.1f} %"),
        (
            not higher,
            "TurboQuant's KL below that of affine, group 64, which stores a quarter of a bit more: "
            + (f"not at {', '.join(higher)}" if higher else "at every width"),
        ),
    )
    return "\n".join(f"- Aim, {'met' if met else 'missed'}: {aim}." for met, aim in lines)


def row(name: str, quality: Quality, base: Quality) -> list[str]:
    """One line of the table."""
    return [
        name,
        f"{quality.bits:.2f}",
        f"{quality.perplexity:.3f}",
        f"{100 * (quality.perplexity / base.perplexity - 1):+.2f} %",
        f"{quality.kl:.5f}",
        f"{100 * quality.agreement:.1f} %",
    ]


def main() -> None:
    """Measure, print, and keep the table if asked."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--save", action="store_true", help="write results/quality.md as well")
    parser.add_argument("--quick", action="store_true", help="one short window: does it run?")
    options = parser.parse_args()
    plan = Plan(num_windows=1, context=64, warm=16, chunk=16) if options.quick else Plan()
    loaded = mlx_lm.load(str(model_folder(find_smollm2())))
    model, tokenizer = loaded[0], loaded[1]
    windows = text_tokens(tokenizer, plan)
    reference: list[mx.array] = []
    chosen = formats(options.quick)
    with progress_bar("Formats", 1 + len(chosen)) as advance:
        base = judge(model, windows, plan, {}, reference)
        advance()
        found = {}
        for name, made in chosen.items():
            found[name] = judge(model, windows, plan, made, reference)
            advance()
    judged = plan.num_windows * (plan.context - plan.warm)
    report = Report("Quality of page formats on SmolLM2-135M-Instruct")
    report.facts["command"] = command_line()
    report.facts["text"] = (
        f"chapters of Python {platform.python_version()}'s language reference (pydoc_data.topics); "
        f"{judged} tokens judged in {plan.num_windows} windows of {plan.context}, "
        f"the first {plan.warm} of each not judged, forwards of {plan.chunk}"
    )
    report.table(
        ["pages", "bits a number", "perplexity", "against 16-bit", "KL, nats", "same top token"],
        [row(name, quality, base) for name, quality in {"16-bit": base, **found}.items()],
    )
    if not options.quick:
        report.remark(aims(found, base))
    report.publish("quality", save=options.save)


if __name__ == "__main__":
    main()
