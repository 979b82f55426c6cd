"""The table at the end of a generation, and where two generations differ."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeGuard

import mlx.core as mx
from rich.console import Console
from rich.table import Table

from pagedkv_mlx.cli.run import Run

if TYPE_CHECKING:
    from pagedkv_mlx.mlx_lm import PagedPromptCache


def first_difference(paged: Run, plain: Run) -> str | None:
    """Where the runs first differ, in words; ``None`` where every token and logit is equal."""
    for step, (left, right) in enumerate(zip(paged.logits, plain.logits, strict=False)):
        where = f"new token {step + 1} on (position {paged.num_prompt_tokens + step})"
        if not same_bits(left, right):
            largest = mx.abs(left.astype(mx.float32) - right.astype(mx.float32)).max().item()
            return f"{where}: its logits differ by up to {largest:.3g}"
        if paged.tokens[step] != plain.tokens[step]:
            return f"{where}: {paged.tokens[step]} against {plain.tokens[step]}"
    if len(paged.tokens) != len(plain.tokens):
        return f"the end: {len(paged.tokens)} new tokens against {len(plain.tokens)}"
    return None


def same_bits(left: mx.array, right: mx.array) -> bool:
    """Whether two arrays have one dtype and the same bytes: −0 is not 0, a NaN equals itself."""
    return left.dtype == right.dtype and bool(
        mx.array_equal(left.view(mx.uint8), right.view(mx.uint8)).item()
    )


def print_report(console: Console, paged: Run, plain: Run | None) -> None:
    """Print the figures of one run, or of two beside each other, and the comparison."""
    runs = [paged] if plain is None else [paged, plain]
    device = "GPU" if mx.default_device() == mx.gpu else "CPU"
    table = Table(title=f"{paged.num_prompt_tokens} prompt tokens, on the {device}")
    table.add_column("")
    for run in runs:
        table.add_column(f"{run.name} caches", justify="right")
    for label, figure in FIGURES:
        table.add_row(label, *(figure(run) for run in runs))
    console.print()
    console.print(table)
    if plain is not None:
        print_comparison(console, paged, plain)


def print_comparison(console: Console, paged: Run, plain: Run) -> None:
    """Say whether all tokens and all logits were the same bits."""
    difference = first_difference(paged, plain)
    count = len(paged.tokens)
    if difference is None:
        logits = f"{count} × {paged.logits[0].shape[-1]}"
        line = f"identical: all tokens ({count}) and all logits ({logits}), bit for bit"
        console.print(line, style="green", highlight=False, soft_wrap=True)
    else:
        line = f"different from {difference}; everything before is the same bits"
        console.print(line, style="red", highlight=False, soft_wrap=True)


def is_paged(entry: Any) -> TypeGuard[PagedPromptCache]:
    """Whether a prompt cache's entry is one of ours."""
    from pagedkv_mlx.mlx_lm import PagedPromptCache

    return isinstance(entry, PagedPromptCache)


def bytes_used(caches: Sequence[Any]) -> int:
    """Bytes of keys and values that belong to stored positions' blocks."""
    return sum(entry.nbytes for entry in caches)


def bytes_reserved(caches: Sequence[Any]) -> int:
    """Bytes of the arrays that hold them."""
    return sum(entry.cache.pages.nbytes if is_paged(entry) else entry.nbytes for entry in caches)


def blocks(caches: Sequence[Any]) -> str:
    """Blocks in use of those there are, over all layers."""
    pools = [entry.cache.pool for entry in caches if is_paged(entry)]
    if not pools:
        return "–"
    used, there = sum(pool.num_used for pool in pools), sum(pool.num_blocks for pool in pools)
    return f"{used} of {there}"


def speed(tokens_per_second: float | None) -> str:
    """As the table shows it."""
    return "–" if tokens_per_second is None else f"{tokens_per_second:.1f} tokens/s"


def mebibytes(count: int) -> str:
    """As the table shows them."""
    return f"{count / 2**20:.2f} MiB"


FIGURES: tuple[tuple[str, Callable[[Run], str]], ...] = (
    ("new tokens", lambda run: f"{len(run.tokens)}"),
    ("prefill", lambda run: speed(run.num_prompt_tokens / run.prefill_seconds)),
    ("decode", lambda run: speed(run.tokens_per_second)),
    ("KV bytes used", lambda run: mebibytes(bytes_used(run.caches))),
    ("KV bytes reserved", lambda run: mebibytes(bytes_reserved(run.caches))),
    ("blocks, all layers", lambda run: blocks(run.caches)),
    ("mean log-probability", lambda run: f"{run.log_probability:.3f}"),
)
