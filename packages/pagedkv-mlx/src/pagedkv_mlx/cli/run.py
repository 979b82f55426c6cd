"""run_model: one greedy generation, with every token and every logit kept for comparison."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import Any

import attrs
import mlx.core as mx
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


@attrs.define
class Run:
    """What one generation did.

    ``tokens [n]``; ``logits``: n arrays ``[1, vocabulary]``; ``log_probability``: the mean of
    the new tokens' own; seconds are wall time.
    """

    name: str
    num_prompt_tokens: int
    caches: Sequence[Any]
    tokens: list[int] = attrs.Factory(list)
    logits: list[mx.array] = attrs.Factory(list)
    log_probabilities: list[float] = attrs.Factory(list)
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0

    @property
    def log_probability(self) -> float:
        """The mean log-probability of the new tokens, in nats."""
        return sum(self.log_probabilities) / len(self.log_probabilities)

    @property
    def tokens_per_second(self) -> float:
        """New tokens after the first, over the time that they took."""
        return (len(self.tokens) - 1) / self.decode_seconds if self.decode_seconds else 0.0


def run_model(
    name: str,
    model: Any,
    tokenizer: Any,
    tokens: list[int],
    caches: list[Any],
    options: argparse.Namespace,
    console: Console,
    *,
    stream: bool,
) -> Run:
    """Generate greedily with mlx-lm's own loop over ``caches``; stream the text if asked."""
    from mlx_lm.generate import generate_step

    run = Run(name, len(tokens), caches)
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
    )
    prefill = progress.add_task(f"Prefill, {name} caches", total=len(tokens))
    steps = generate_step(
        mx.array(tokens),
        model,
        max_tokens=options.max_tokens,
        logits_processors=[lambda _, logits: keep(run.logits, logits)],
        prompt_cache=caches,
        prefill_step_size=options.prefill_step_size,
        prompt_progress_callback=lambda done, total: progress.update(
            prefill, completed=done, total=total
        ),
    )
    began = time.perf_counter()
    with progress:
        first = next(steps)
    run.prefill_seconds = time.perf_counter() - began
    text = Streamed(tokenizer, console) if stream else None
    decode = progress.add_task(f"Decode, {name} caches", total=options.max_tokens)
    began = time.perf_counter()
    if text is None:
        progress.start()
    for token, log_probabilities in chain_first(first, steps):
        run.tokens.append(token)
        run.log_probabilities.append(log_probabilities[token].item())
        progress.update(decode, advance=1)
        if token in tokenizer.eos_token_ids:
            break
        if text is not None:
            text.add(token)
    progress.stop()
    if text is not None:
        text.end()
    run.decode_seconds = time.perf_counter() - began
    del run.logits[len(run.tokens) :]  # the loop runs one step ahead
    return run


def chain_first(first: Any, rest: Any) -> Any:
    """``first``, then ``rest``."""
    yield first
    yield from rest


def keep(kept: list[mx.array], logits: mx.array) -> mx.array:
    """Note ``logits [1, vocabulary]`` and pass them on as they are."""
    kept.append(logits)
    return logits


class Streamed:
    """Text that appears as its tokens come."""

    def __init__(self, tokenizer: Any, console: Console) -> None:
        self._detokenizer = tokenizer.detokenizer
        self._detokenizer.reset()
        self._console = console

    def add(self, token: int) -> None:
        """Show what ``token`` completes."""
        self._detokenizer.add_token(token)
        self._show(self._detokenizer.last_segment)

    def end(self) -> None:
        """Show what is left, and end the line."""
        self._detokenizer.finalize()
        self._show(self._detokenizer.last_segment + "\n")

    def _show(self, text: str) -> None:
        self._console.print(text, end="", markup=False, highlight=False, soft_wrap=True)
