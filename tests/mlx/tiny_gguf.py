"""A tiny llama in a GGUF file: random weights, a vocabulary of bytes and a few words."""

from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

ByteLevel = pytest.importorskip("tokenizers.pre_tokenizers").ByteLevel

Metadata = dict[str, Any]
Arrays = dict[str, mx.array]

SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = ["h e", "l l", "he ll", "hell o", "Ġ hello", "1 9"]
TOKENS = [*SPECIALS, *sorted(ByteLevel.alphabet()), *(line.replace(" ", "") for line in MERGES)]
TURN = "<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>"
TEMPLATE = "{% for m in messages %}" + TURN + "{% endfor %}"
HIDDEN, MLP, NUM_LAYERS, HEAD_DIM = 32, 48, 2, 8
VOCABULARY = len(TOKENS)


def whole(number: int) -> mx.array:
    return mx.array(number, mx.uint32)


def metadata(num_heads: int = 4, num_kv_heads: int = 2) -> Metadata:
    return {
        "general.architecture": "llama",
        "llama.embedding_length": whole(HIDDEN),
        "llama.block_count": whole(NUM_LAYERS),
        "llama.feed_forward_length": whole(MLP),
        "llama.context_length": whole(256),
        "llama.attention.head_count": whole(num_heads),
        "llama.attention.head_count_kv": whole(num_kv_heads),
        "llama.attention.layer_norm_rms_epsilon": mx.array(1e-5),
        "llama.rope.freq_base": mx.array(5000.0),
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": TOKENS,
        "tokenizer.ggml.merges": MERGES,
        "tokenizer.ggml.token_type": mx.array([3] * 3 + [1] * (VOCABULARY - 3), mx.int32),
        "tokenizer.ggml.bos_token_id": whole(1),
        "tokenizer.ggml.eos_token_id": whole(2),
        "tokenizer.chat_template": TEMPLATE,
    }


def arrays(num_heads: int = 4, num_kv_heads: int = 2) -> Arrays:
    """Weights that bf16 holds exactly, so that a conversion may not change one bit of them."""
    mx.random.seed(7)
    q, kv = num_heads * HEAD_DIM, num_kv_heads * HEAD_DIM
    shapes = {"token_embd": (VOCABULARY, HIDDEN), "output_norm": (HIDDEN,)}
    for layer in range(NUM_LAYERS):
        rows = {"attn_q": q, "attn_k": kv, "attn_v": kv, "ffn_gate": MLP, "ffn_up": MLP}
        shapes |= {f"blk.{layer}.{name}": (count, HIDDEN) for name, count in rows.items()}
        shapes |= {f"blk.{layer}.attn_output": (HIDDEN, q), f"blk.{layer}.ffn_down": (HIDDEN, MLP)}
        shapes |= {f"blk.{layer}.{norm}": (HIDDEN,) for norm in ("attn_norm", "ffn_norm")}
    return {f"{name}.weight": in_bf16(*shape) for name, shape in shapes.items()}


def in_bf16(*shape: int) -> mx.array:
    return (0.3 * mx.random.normal(shape)).astype(mx.bfloat16).astype(mx.float32)


def write_gguf(path: Path, more: Metadata | None = None, weights: Arrays | None = None) -> Path:
    """A tiny llama; a value of None in ``more`` takes the key away."""
    wanted = metadata() | (more or {})
    kept = {key: value for key, value in wanted.items() if value is not None}
    mx.save_gguf(str(path), arrays() if weights is None else weights, kept)
    return path
