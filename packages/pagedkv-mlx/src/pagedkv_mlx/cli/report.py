"""The table at the end of a generation, and where two generations differ."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
from rich.console import Console
from rich.table import Table

from pagedkv_mlx.cli.run import Run
from pagedkv_mlx.mlx_lm import PagedPromptCache


def first_difference(paged: Run, plain: Run) -> str | None:
    """Where the runs first differ, in words; ``None`` where every token and logit is equal."""
    for step, (left, right) in enumerate(zip(paged.logits, plain.logits, strict=False)):
        if not mx.array_equal(left, right).item():
            largest = mx.abs(left.astype(mx.float32) - right.astype(mx.float32)).max().item()
            return f"new token {step + 1}: logits differ by up to {largest:.3g}"
        if paged.tokens[step] != plain.tokens[step]:
            return f"new token {step + 1}: {paged.tokens[step]} against {plain.tokens[step]}"
    if len(paged.tokens) != len(plain.tokens):
        return f"{len(paged.tokens)} new tokens against {len(plain.tokens)}"
    return None


def print_report(console: Console, paged: Run, plain: Run | None) -> None:
    """Print the figures of one run, or of two beside each other, and the comparison."""
    runs = [paged] if plain is None else [paged, plain]
    table = Table(title=f"{mx.default_device()}, {paged.num_prompt_tokens} prompt tokens")
    table.add_column("")
    for run in runs:
        table.add_column(f"{run.name} caches", justify="right")
    for label, figure in FIGURES:
        table.add_row(label, *(figure(run) for run in runs))
    console.print(table)
    if plain is not None:
        print_comparison(console, paged, plain)


def print_comparison(console: Console, paged: Run, plain: Run) -> None:
    """Say whether all tokens and all logits were the same bits."""
    difference = first_difference(paged, plain)
    count = len(paged.tokens)
    if difference is None:
        line = f"identical: all {count} tokens and all {count} logits, bit for bit"
        console.print(line, style="green", highlight=False)
    else:
        line = f"different from {difference}; everything before it is the same bits"
        console.print(line, style="red", highlight=False)


def bytes_used(caches: Sequence[Any]) -> int:
    """Bytes of keys and values that belong to stored positions' blocks."""
    return sum(entry.nbytes for entry in caches)


def bytes_reserved(caches: Sequence[Any]) -> int:
    """Bytes of the arrays that hold them."""
    return sum(
        entry.cache.pages.nbytes if isinstance(entry, PagedPromptCache) else entry.nbytes
        for entry in caches
    )


def blocks(caches: Sequence[Any]) -> str:
    """Blocks in use of those there are, over all layers."""
    pools = [entry.cache.pool for entry in caches if isinstance(entry, PagedPromptCache)]
    if not pools:
        return "–"
    used, there = sum(pool.num_used for pool in pools), sum(pool.num_blocks for pool in pools)
    return f"{used} of {there}"


FIGURES: tuple[tuple[str, Callable[[Run], str]], ...] = (
    ("new tokens", lambda run: f"{len(run.tokens)}"),
    ("prefill", lambda run: f"{run.num_prompt_tokens / run.prefill_seconds:.1f} tokens/s"),
    ("decode", lambda run: f"{run.tokens_per_second:.1f} tokens/s"),
    ("KV bytes used", lambda run: f"{bytes_used(run.caches) / 2**20:.2f} MiB"),
    ("KV bytes reserved", lambda run: f"{bytes_reserved(run.caches) / 2**20:.2f} MiB"),
    ("blocks, all layers", lambda run: blocks(run.caches)),
    ("mean log-probability", lambda run: f"{run.log_probability:.3f}"),
)
