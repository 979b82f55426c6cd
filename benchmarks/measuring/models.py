"""Llama models of SmolLM2's heads with random weights, as small as a measurement wants them."""

from __future__ import annotations

import mlx.core as mx
from mlx_lm.models import llama


def random_llama(
    num_layers: int, *, seed: int, head_dim: int, intermediate_size: int, vocab_size: int
) -> llama.Model:
    """9 query and 3 KV heads of ``head_dim`` numbers, bf16, evaluated; one seed, one model."""
    mx.random.seed(seed)
    model = llama.Model(
        llama.ModelArgs(
            model_type="llama",
            hidden_size=9 * head_dim,
            num_hidden_layers=num_layers,
            intermediate_size=intermediate_size,
            num_attention_heads=9,
            num_key_value_heads=3,
            head_dim=head_dim,
            rms_norm_eps=1e-5,
            vocab_size=vocab_size,
        )
    )
    model.set_dtype(mx.bfloat16)
    mx.eval(model.parameters())
    return model
