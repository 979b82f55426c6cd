"""run_model: one greedy generation by mlx-lm's own loop, over caches of either kind."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from itertools import chain
from typing import Any

import attrs
import mlx.core as mx
from rich.console import Console

from pagedkv_mlx.cli.progress import Moved, phase

Step = tuple[int, Any]
"""A new token, and the array of log-probabilities ``[vocabulary]`` that it was taken by."""


@attrs.frozen(kw_only=True)
class Job:
    """What is generated: by which model, after which tokens, how many at most.

    ``keep_logits`` for a comparison: they take ``vocabulary`` numbers a new token.
    """

    model: Any
    tokenizer: Any
    tokens: list[int]
    max_tokens: int
    prefill_step_size: int
    keep_logits: bool


@attrs.define
class Run:
    """What one generation did.

    ``tokens [n]``; ``logits``: n arrays ``[1, vocabulary]`` where they were kept;
    ``log_probabilities``: the new tokens' own, in nats; seconds are wall time.
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
    def tokens_per_second(self) -> float | None:
        """New tokens after the first, over the time that they took; ``None`` without one."""
        after_first = len(self.tokens) - 1
        return after_first / self.decode_seconds if after_first and self.decode_seconds else None


def run_model(
    job: Job,
    name: str,
    caches: list[Any],
    progress: Console,
    shown: AbstractContextManager[Callable[[int], None]],
) -> Run:
    """Do ``job`` over ``caches``: prefill with its progress, then every token to ``shown``."""
    run = Run(name, len(job.tokens), caches)
    began = time.perf_counter()
    with phase(progress, f"Prefill, {name} caches", len(job.tokens)) as moved:
        steps = begin(job, run, moved)
        first = next(steps)
    run.prefill_seconds = time.perf_counter() - began
    began = time.perf_counter()
    with shown as show:
        follow(run, chain([first], steps), job.tokenizer.eos_token_ids, show)
    run.decode_seconds = time.perf_counter() - began
    del run.logits[len(run.tokens) :]  # the loop runs one step ahead
    return run


def begin(job: Job, run: Run, moved: Moved) -> Iterator[Step]:
    """Mlx-lm's loop over ``run``'s caches; the prompt is read when the first step is asked."""
    from mlx_lm.generate import generate_step

    def keep(_: mx.array, logits: mx.array) -> mx.array:
        run.logits.append(logits)
        return logits

    steps: Iterator[Step] = generate_step(
        mx.array(job.tokens),
        job.model,
        max_tokens=job.max_tokens,
        logits_processors=[keep] if job.keep_logits else None,
        prompt_cache=run.caches,
        prefill_step_size=job.prefill_step_size,
        prompt_progress_callback=lambda done, _: moved(done),
    )
    return steps


def follow(run: Run, steps: Iterator[Step], ends: set[int], show: Callable[[int], None]) -> None:
    """Note every step, and show its token unless the text ends with it."""
    for token, log_probabilities in steps:
        run.tokens.append(token)
        run.log_probabilities.append(log_probabilities[token].item())
        if token in ends:
            break
        show(token)
