"""CompiledDecoder: a model's one-token step, recorded once and replayed over any caches."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx

from pagedkv_protocols import (
    COMPILED_DECODE,
    CompiledDecodeCache,
    DecodePhase,
    DecodeSlot,
    Unsupported,
    supports,
)

Key = tuple[tuple[DecodeSlot[mx.array], int], ...]
Recording = Callable[..., tuple[mx.array, list[tuple[mx.array, ...]]]]


class CompiledDecoder:
    """A model that records its one-token step with ``mx.compile`` and replays it.

    Called as the model is: ``decoder(tokens, cache=entries)``. Longer inputs, and caches
    without a compiled form, go to the model itself; the latter is said once.

    - A first append goes to the model too, for it fixes the dims.
    - One recording serves every later step, generation and cache of the same kind;
      ``num_traces`` counts how often the model was recorded.
    - A step that raises leaves every cache as it was.
    - On a CPU the logits are those of the eager step, bit for bit.

    ``phase`` asks every cache for one way; ``None`` leaves the choice to each.
    """

    def __init__(self, model: Callable[..., mx.array], phase: DecodePhase | None = None) -> None:
        self._model = model
        self._phase = phase
        self._recordings: dict[Key, Recording] = {}
        self._warned = False
        self.num_traces = 0

    @property
    def layers(self) -> Any:
        """The model's layers, for callers that count them."""
        return self._model.layers  # type: ignore[attr-defined]

    def __call__(self, tokens: mx.array, cache: Sequence[Any], **inputs: Any) -> mx.array:
        """Logits ``[1, L, vocabulary]`` of ``tokens [1, L]``, appended to every cache.

        Raises ``PoolExhausted`` with nothing changed, ``Unsupported`` for a direct cache.
        """
        caches = [getattr(entry, "cache", entry) for entry in cache]
        if tokens.shape != (1, 1) or inputs or any(map(is_fresh, caches)):
            return self._model(tokens, cache=cache, **inputs)
        try:
            return self.step(tokens, caches)
        except Unsupported as error:
            self._say_once(error)
            return self._model(tokens, cache=cache)

    def step(self, tokens: mx.array, caches: Sequence[CompiledDecodeCache[mx.array]]) -> mx.array:
        """One recorded step of ``tokens [1, 1]`` over ``caches``, one a layer.

        Gives logits ``[1, 1, vocabulary]``. Raises ``PoolExhausted`` with nothing changed, and
        ``Unsupported`` where a cache has no compiled form.
        """
        for cache in caches:
            if not supports(cache, COMPILED_DECODE):
                raise Unsupported(f"{type(cache).__name__} has no compiled form")
        if len({id(cache) for cache in caches}) != len(caches):
            raise Unsupported("a cache that two layers share has no compiled form")
        try:
            return self._step(tokens, caches)
        except BaseException:
            for cache in caches:
                cache.trim(0)  # gives back the room that was made
            raise

    def _step(self, tokens: mx.array, caches: Sequence[CompiledDecodeCache[mx.array]]) -> mx.array:
        plans = [(cache, cache.prepare_decode_step(self._phase)) for cache in caches]
        if len({plan[1:] for _, plan in plans if plan.bucket}) > 1:
            raise Unsupported("layers of unequal lengths or buckets cannot share a model's mask")
        lengths = list(dict.fromkeys(plan.length for _, plan in plans))
        key = tuple((cache.decode_slot(plan), lengths.index(plan.length)) for cache, plan in plans)
        recording = self._recordings.get(key)
        if recording is None:
            recording = self._recordings[key] = self._record(key)
        positions = [mx.array([length], mx.int32) for length in lengths]
        inputs = [cache.decode_inputs(plan) for cache, plan in plans]
        logits, rows = recording(tokens, positions, inputs)
        del inputs  # the planes may be rewritten in place once nobody else holds them
        for (cache, plan), outputs in zip(plans, rows, strict=True):
            cache.commit_decode_step(plan, outputs)
        return logits

    def _record(self, key: Key) -> Recording:
        def step(
            tokens: mx.array, positions: list[mx.array], inputs: list[tuple[mx.array, ...]]
        ) -> tuple[mx.array, list[tuple[mx.array, ...]]]:
            self.num_traces += 1
            traces = [
                slot.trace(arrays, positions[at])
                for (slot, at), arrays in zip(key, inputs, strict=True)
            ]
            logits = self._model(tokens, cache=traces)
            return logits, [trace.outputs() for trace in traces]

        shapeless = all(slot.phase is DecodePhase.CONCAT for slot, _ in key)
        return mx.compile(step, shapeless=shapeless)

    def _say_once(self, error: Unsupported) -> None:
        if not self._warned:
            self._warned = True
            warnings.warn(f"decoding eagerly: {error}", stacklevel=4)


def is_fresh(cache: Any) -> bool:
    """Whether ``cache`` counts positions and has none."""
    offset = getattr(cache, "offset", None)
    return isinstance(offset, int) and not offset
