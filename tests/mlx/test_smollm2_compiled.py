"""SmolLM2's recorded decode step has the logits of the eager one, bit for bit, in every format.

The default run decodes 24 tokens a format; ``-m long`` decodes 200, through four buckets.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import pytest

pytest.importorskip("mlx_lm")

from pagedkv_mlx import PagedQuantization, PagedTurboQuant
from pagedkv_mlx.decode import CompiledDecoder
from pagedkv_mlx.mlx_lm import make_paged_prompt_cache
from pagedkv_mlx.slots import bucket_for

FORMATS: dict[str, dict[str, Any]] = {
    "dense": {},
    "affine 4": {"quantization": PagedQuantization(4)},
    "turboquant": {"turbo": PagedTurboQuant()},
}
BLOCK = 16


@pytest.mark.parametrize("options", FORMATS.values(), ids=FORMATS.keys())
@pytest.mark.parametrize(
    ("prompt", "new"), [(250, 24), pytest.param(210, 200, marks=pytest.mark.long)]
)
def test_recorded_logits_are_the_eager_ones(
    smollm2_opened: tuple[Any, Any], options: dict[str, Any], prompt: int, new: int
) -> None:
    model, _ = smollm2_opened
    tokens = (mx.arange(prompt) * 37 % 1000 + 200)[None]
    eager, recorded = (make_paged_prompt_cache(model, block_size=BLOCK, **options) for _ in "ab")
    token = mx.argmax(model(tokens, cache=eager)[:, -1:], axis=-1)
    mx.eval(token, model(tokens, cache=recorded))
    compiled = CompiledDecoder(model)
    for step in range(new):
        expected = model(token, cache=eager)
        logits = compiled(token, cache=recorded)
        mx.eval(expected, logits, [entry.state for entry in (*eager, *recorded)])
        assert mx.array_equal(logits, expected), f"step {step}"
        token = mx.argmax(expected, axis=-1)
    buckets = {bucket_for(length + 1, BLOCK) for length in range(prompt, prompt + new)}
    assert compiled.num_traces <= len(buckets)
