"""Why keys mind rounding more than values: how much of each is the same at every position.

Of each head's rows of SmolLM2 over one window of text: the part of their energy that is their
mean (it moves every score alike and says nothing about where to look, but is rounded in
proportion), and the part in the largest channel.
"""

from __future__ import annotations

import argparse
import statistics

import mlx.core as mx
import mlx_lm

from measuring.numbers import number
from measuring.report import Report, command_line
from pagedkv_mlx.gguf import find_smollm2, model_folder
from pagedkv_mlx.mlx_lm import make_paged_prompt_cache
from quality import Plan, text_tokens


def shares(rows: mx.array) -> tuple[float, float]:
    """Parts of the energy of ``rows [1, H, S, D]`` in their mean and in the largest channel."""
    rows = rows.astype(mx.float32)
    energy = mx.square(rows).mean(axis=2)
    constant = (mx.square(rows.mean(axis=2)).sum(-1) / energy.sum(-1)).mean()
    channel = (energy.max(-1) / energy.sum(-1)).mean()
    return number(constant), number(channel)


def main() -> None:
    """Measure, print, and keep the table if asked."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--save", action="store_true", help="write results/ as well")
    parser.add_argument("--quick", action="store_true", help="few tokens: does it run?")
    options = parser.parse_args()
    plan = Plan(num_windows=1, context=32 if options.quick else 256)
    loaded = mlx_lm.load(str(model_folder(find_smollm2())))
    [window] = text_tokens(loaded[1], plan)
    caches = make_paged_prompt_cache(loaded[0])
    mx.eval(loaded[0](mx.array(window[: plan.context])[None], cache=caches))
    layers = [[shares(rows) for rows in entry.cache.export()] for entry in caches]
    report = Report("Structure of SmolLM2's keys and values")
    report.facts["command"] = command_line()
    report.facts["text"] = (
        f"{plan.context} tokens; medians, least and most over {len(caches)} layers"
    )
    lines = []
    for name, which in (("keys", 0), ("values", 1)):
        for label, part in (("in their mean", 0), ("in the largest channel", 1)):
            found = [100 * layer[which][part] for layer in layers]
            middle = statistics.median(found)
            lines.append(
                [
                    f"{name}, {label}",
                    f"{middle:.0f} %",
                    f"{min(found):.0f} %",
                    f"{max(found):.0f} %",
                ]
            )
    report.table(["energy of", "median", "least", "most"], lines)
    report.publish("key_structure", save=options.save)


if __name__ == "__main__":
    main()
