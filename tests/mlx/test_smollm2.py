"""SmolLM2 through paged caches has the bits of mlx-lm's plain caches, whatever the schedule.

A *life* is one generation by mlx-lm's own loop, in prefill chunks of one size; on the way, just
before the last prompt token, its caches are copied for what else can happen from there. The
default run has a life for each block size and each chunk; ``-m long`` has all pairs of them, each
over 600 prompt tokens.
"""

from __future__ import annotations

import copy
import dataclasses
import importlib.metadata
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import attrs
import mlx.core as mx
import pytest

from pagedkv_formats import PagedQuantization

pytest.importorskip("mlx_lm")

from mlx_lm.generate import generate_step, speculative_generate_step
from mlx_lm.models.cache import KVCache, make_prompt_cache, trim_prompt_cache

from pagedkv_mlx.mlx_lm import (
    STATE_IS_WHOLE,
    PagedPromptCache,
    make_paged_prompt_cache,
    use_paged_caches,
)

HARBOUR = Path(__file__).parents[2] / "examples" / "prompts" / "harbour.txt"
DRAFT_LAYERS = 26
DETOUR = 40


class Schedule(NamedTuple):
    """A prompt's first ``length`` tokens in forwards of ``chunk``, then ``new`` tokens."""

    chunk: int
    length: int
    new: int

    @property
    def last_chunk(self) -> int:
        """Tokens of the last prefill forward: mlx-lm keeps one prompt token for the next."""
        return (self.length - 1) % self.chunk or self.chunk


QUICK = [(256, Schedule(7, 270, 12)), (100, Schedule(512, 520, 12)), (16, Schedule(1, 40, 12))]
WHOLE = [(size, Schedule(chunk, 600, 32)) for chunk in (512, 7, 1) for size in (16, 100, 256)]
lives = pytest.mark.parametrize(
    ("block_size", "schedule"),
    [*QUICK, *(pytest.param(*each, marks=pytest.mark.long) for each in WHOLE)],
    ids=lambda each: "-".join(map(str, each)) if isinstance(each, Schedule) else str(each),
)


@attrs.frozen
class Life:
    """What a generation gave, and its caches as they were before the last prompt token."""

    tokens: list[int]
    logits: list[mx.array]
    before_last: list[Any]


@attrs.frozen
class Drafted:
    """What a speculative generation gave, and the part of the proposed tokens that were kept."""

    tokens: list[int]
    from_draft: list[bool]
    log_probabilities: list[mx.array]
    acceptance: float


class World:
    """SmolLM2, its first layers as a draft, and every life that was lived over plain caches."""

    def __init__(self, model: Any, tokenizer: Any) -> None:
        self.model = model
        self.draft, self.draft_calls = first_layers(model, DRAFT_LAYERS)
        self.tokens: list[int] = tokenizer.encode(HARBOUR.read_text(encoding="utf-8"))
        self.plain_life = cache(lambda schedule: self.live(make_prompt_cache(model), schedule))
        self.paged_life = cache(
            lambda size, schedule: self.live(self.paged(size, schedule), schedule)
        )
        self.plain_draft = cache(
            lambda schedule: self.speculate(self.plain_life(schedule), schedule)
        )

    def paged(self, block_size: int, schedule: Schedule) -> list[Any]:
        capacity = schedule.length + schedule.new
        return make_paged_prompt_cache(self.model, capacity, block_size=block_size)

    def live(self, caches: list[Any], schedule: Schedule) -> Life:
        copied: list[Any] = []

        def progress(done: int, total: int) -> None:
            if done == total - 1:
                copied.extend(copy.deepcopy(caches))

        prompt = self.tokens[: schedule.length]
        return Life(*self.generate(prompt, caches, schedule, progress), copied)

    def generate(
        self,
        prompt: list[int],
        caches: list[Any] | None,
        schedule: Schedule,
        progress: Callable[[int, int], None] | None = None,
        **options: Any,
    ) -> tuple[list[int], list[mx.array]]:
        """New tokens, and the logits of every step: one more, for mlx-lm's loop runs ahead."""
        logits: list[mx.array] = []

        def keep(_: mx.array, each: mx.array) -> mx.array:
            logits.append(each)
            return each

        steps = generate_step(
            mx.array(prompt),
            self.model,
            max_tokens=schedule.new,
            logits_processors=[keep],
            prompt_cache=caches,
            prefill_step_size=schedule.chunk,
            prompt_progress_callback=progress,
            **options,
        )
        return [token for token, _ in steps], logits

    def speculate(self, life: Life, schedule: Schedule) -> Drafted:
        """Goes on from before the last prompt token.

        The draft's layers are the model's first ones: so are their keys and values.
        """
        caches = copy.deepcopy(life.before_last)
        caches += copy.deepcopy(life.before_last[:DRAFT_LAYERS])
        del self.draft_calls[:]
        steps = speculative_generate_step(
            mx.array(self.tokens[schedule.length - 1 : schedule.length]),
            self.model,
            self.draft,
            max_tokens=schedule.new,
            prompt_cache=caches,
        )
        tokens, log_probabilities, from_draft = map(list, zip(*steps, strict=True))
        acceptance = sum(from_draft) / len(self.draft_calls)
        return Drafted(tokens, from_draft, log_probabilities, acceptance)


def first_layers(model: Any, count: int) -> tuple[Any, list[int]]:
    """A model of ``model``'s first layers, which it shares, and a list that each call lengthens."""
    calls: list[int] = []

    class Draft(type(model)):  # type: ignore[misc]
        def __call__(self, inputs: mx.array, *args: Any, **kwargs: Any) -> mx.array:
            calls.append(inputs.size)
            logits: mx.array = super().__call__(inputs, *args, **kwargs)
            return logits

    args = dataclasses.replace(model.args, num_hidden_layers=count, layer_types=None)
    draft = Draft(args)
    draft.model.layers = model.model.layers[:count]
    draft.model.embed_tokens, draft.model.norm = model.model.embed_tokens, model.model.norm
    return draft, calls


def same(ours: list[mx.array], theirs: list[mx.array]) -> bool:
    """Whether all arrays have the same bits."""
    pairs = zip(ours, theirs, strict=True)
    return all(mx.array_equal(left, right).item() for left, right in pairs)


@pytest.fixture(scope="module")
def world(smollm2_opened: tuple[Any, Any]) -> World:
    return World(*smollm2_opened)


@lives
def test_generate_step_has_the_bits_of_plain_caches(
    world: World, block_size: int, schedule: Schedule
) -> None:
    plain, paged = world.plain_life(schedule), world.paged_life(block_size, schedule)
    assert paged.tokens == plain.tokens
    assert len(paged.tokens) == schedule.new
    assert same(paged.logits, plain.logits)
    assert all(isinstance(entry, PagedPromptCache) for entry in paged.before_last)
    blocks = -(-(schedule.length - 1) // block_size)
    assert {len(entry.cache.block_table) for entry in paged.before_last} == {blocks}


@lives
def test_speculative_generate_step_has_the_bits_of_plain_caches(
    world: World, block_size: int, schedule: Schedule, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = world.plain_draft(schedule)
    paged = world.speculate(world.paged_life(block_size, schedule), schedule)
    with capsys.disabled():
        print(f"\n{DRAFT_LAYERS} of 30 layers as draft: {paged.acceptance:.0%} accepted ", end="")
    low, high = (0.1, 0.9) if schedule.length >= 600 else (0.0, 1.0)  # few tokens say little
    assert low < paged.acceptance < high  # some are kept, some are taken back
    assert (paged.tokens, paged.from_draft) == (plain.tokens, plain.from_draft)
    assert same(paged.log_probabilities, plain.log_probabilities)


@lives
def test_what_was_trimmed_was_never_there(
    world: World, block_size: int, schedule: Schedule
) -> None:
    """Neither a window that the prompt does not have, nor the last prefill forward of its own."""
    life = world.paged_life(block_size, schedule)
    caches = copy.deepcopy(life.before_last)
    elsewhere = mx.array(world.tokens[-DETOUR:])
    mx.eval(world.model(elsewhere[None], cache=caches))
    assert trim_prompt_cache(caches, DETOUR + schedule.last_chunk) == DETOUR + schedule.last_chunk
    again = world.tokens[schedule.length - 1 - schedule.last_chunk : schedule.length]
    few = schedule._replace(new=min(schedule.new, 8))
    tokens, logits = world.generate(again, caches, few)
    plain = world.plain_life(schedule)
    assert tokens == plain.tokens[: few.new]
    assert same(logits, plain.logits[: few.new + 1])


def test_a_speculative_generation_prefills_both_models_itself(world: World) -> None:
    """One call from the whole prompt, beside those that go on from copied caches."""
    schedule = Schedule(32, 50, 6)
    prompt = mx.array(world.tokens[: schedule.length])
    paged = [world.paged(16, schedule), make_paged_prompt_cache(world.draft, block_size=16)]
    plain = [make_prompt_cache(world.model), make_prompt_cache(world.draft)]
    ours, theirs = (
        list(
            speculative_generate_step(
                prompt,
                world.model,
                world.draft,
                max_tokens=schedule.new,
                prompt_cache=caches,
                prefill_step_size=schedule.chunk,
            )
        )
        for caches in ([*paged[0], *paged[1]], [*plain[0], *plain[1]])
    )
    assert [step[0] for step in ours] == [step[0] for step in theirs]
    assert same([step[1] for step in ours], [step[1] for step in theirs])


def test_entries_made_again_from_their_state_go_on_with_the_same_bits(world: World) -> None:
    """By the cache protocol of the mlx-lm that is installed."""
    installed = tuple(map(int, importlib.metadata.version("mlx-lm").split(".")[:3]))
    assert (installed >= (0, 32, 2)) == STATE_IS_WHOLE
    _, schedule = QUICK[-1]
    life = world.paged_life(16, schedule)
    entries = copy.deepcopy(life.before_last)
    if STATE_IS_WHOLE:
        again = [type(entry).from_state(entry.state) for entry in entries]
    else:
        again = [type(entry).from_state(entry.state, entry.meta_state) for entry in entries]
    few = schedule._replace(new=4)
    last = world.tokens[schedule.length - 1 : schedule.length]
    tokens, logits = world.generate(last, again, few)
    assert tokens == life.tokens[: few.new]
    assert same(logits, life.logits[: few.new + 1])


class Rounded(KVCache):
    """mlx-lm's plain cache; once quantized, of what affine codes of 4 bits in groups of 32 say."""

    is_rounded = False
    keys: mx.array
    values: mx.array

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> Any:
        rows = map(rounded, (keys, values)) if self.is_rounded else (keys, values)
        return super().update_and_fetch(*rows)

    def to_quantized(self, **options: int) -> Rounded:
        assert options == {"bits": 4, "group_size": 32}
        if not self.is_rounded:
            self.is_rounded = True
            self.keys, self.values = rounded(self.keys), rounded(self.values)
        return self


def rounded(rows: mx.array) -> mx.array:
    return mx.dequantize(*mx.quantize(rows, group_size=32, bits=4), group_size=32, bits=4)


def test_kv_bits_reach_affine_pages(world: World) -> None:
    """mlx-lm's own option; its own call for caches; pages that hold what the codes say."""
    schedule = Schedule(32, 50, 6)
    prompt = world.tokens[: schedule.length]
    options: dict[str, Any] = {"kv_bits": 4, "kv_group_size": 32, "quantized_kv_start": 0}
    plain = [Rounded() for _ in world.model.layers]
    expected = world.generate(prompt, plain, schedule, **options)
    with use_paged_caches(world.model, block_size=16):
        caches = make_prompt_cache(world.model)
        tokens, logits = world.generate(prompt, caches, schedule, **options)
    assert {entry.cache.quantization for entry in caches} == {PagedQuantization(4, 32)}
    assert tokens == expected[0]
    assert same(logits, expected[1])
