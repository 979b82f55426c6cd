"""Small random models of mlx-lm's own classes."""

from __future__ import annotations

import mlx.core as mx
import pytest
from mlx.nn.layers.base import Module
from mlx.utils import tree_map_with_path

pytest.importorskip("mlx_lm")

from mlx_lm.models import gemma3_text, llama

VOCABULARY = 61
HEAD_DIM = 32
SLIDING_WINDOW = 8


def tiny_llama(num_layers: int = 3) -> Module:
    """Full attention in every layer."""
    return randomized(
        llama.Model(
            llama.ModelArgs(
                model_type="llama",
                hidden_size=32,
                num_hidden_layers=num_layers,
                intermediate_size=48,
                num_attention_heads=4,
                num_key_value_heads=2,
                head_dim=HEAD_DIM,
                rms_norm_eps=1e-5,
                vocab_size=VOCABULARY,
            )
        )
    )


def tiny_gemma3(window: int = SLIDING_WINDOW) -> Module:
    """Two sliding layers and a full one, twice."""
    return randomized(
        gemma3_text.Model(
            gemma3_text.ModelArgs(
                model_type="gemma3_text",
                hidden_size=32,
                num_hidden_layers=6,
                intermediate_size=48,
                num_attention_heads=4,
                num_key_value_heads=2,
                head_dim=HEAD_DIM,
                query_pre_attn_scalar=HEAD_DIM,
                vocab_size=VOCABULARY,
                sliding_window=window,
                sliding_window_pattern=3,
            )
        )
    )


def randomized(model: Module) -> Module:
    """The same weights in every run, in bf16, large enough for attention to matter."""

    def drawn(path: str, weight: mx.array) -> mx.array:
        if weight.ndim < 2:
            return weight.astype(mx.bfloat16)
        key = mx.random.key(sum(map(ord, path)))
        scale = weight.shape[-1] ** -0.5
        numbers: mx.array = mx.random.normal(weight.shape, key=key) * scale
        return numbers.astype(mx.bfloat16)

    model.update(tree_map_with_path(drawn, model.parameters()))
    mx.eval(model.parameters())
    return model
