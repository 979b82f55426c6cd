"""What mlx-lm's llama model must know, read from a GGUF file's metadata."""

import math
from typing import cast

import mlx.core as mx
from attrs import asdict, frozen

from pagedkv_mlx.gguf.header import Header
from pagedkv_protocols import UnsupportedModel

RopeScaling = dict[str, float | str]


@frozen
class LlamaConfig:
    """The fields of a llama ``config.json``, under its names; ``eos_token_id`` lists every end."""

    hidden_size: int
    num_hidden_layers: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None
    tie_word_embeddings: bool
    attention_bias: bool
    mlp_bias: bool
    bos_token_id: int | None
    eos_token_id: list[int]

    def to_dict(self) -> dict[str, object]:
        """The whole ``config.json``; the weights beside it are bf16."""
        fixed = {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}
        return {**fixed, "hidden_act": "silu", "torch_dtype": "bfloat16", **asdict(self)}


def read_config(header: Header) -> LlamaConfig:
    """The configuration of a plain llama model: dense layers, one RoPE over whole heads.

    Raises ``UnsupportedModel`` for another architecture, a missing key, experts, layers that
    differ in heads, a partial RoPE, or a RoPE scaling other than none, linear and Llama 3's.
    """
    architecture = header.one("general.architecture", str)
    if architecture != "llama":
        raise UnsupportedModel(f"{header.name}: architecture {architecture!r}, known is 'llama'")
    _refuse_what_llama_lacks(header)
    num_heads, num_kv_heads = _heads(header)
    hidden = header.one("llama.embedding_length", int)
    return LlamaConfig(
        hidden_size=hidden,
        num_hidden_layers=header.one("llama.block_count", int),
        intermediate_size=header.one("llama.feed_forward_length", int),
        num_attention_heads=num_heads,
        num_key_value_heads=num_kv_heads,
        head_dim=_head_dim(header, hidden, num_heads),
        vocab_size=len(header.many("tokenizer.ggml.tokens", str)),
        max_position_embeddings=header.one("llama.context_length", int),
        rms_norm_eps=header.one("llama.attention.layer_norm_rms_epsilon", float),
        rope_theta=header.maybe("llama.rope.freq_base", float) or 10000.0,
        rope_scaling=_rope_scaling(header),
        tie_word_embeddings="output.weight" not in header.shapes,
        attention_bias=_has_bias(header, "attn_q", "attn_k", "attn_v", "attn_output"),
        mlp_bias=_has_bias(header, "ffn_gate", "ffn_up", "ffn_down"),
        bos_token_id=header.maybe("tokenizer.ggml.bos_token_id", int),
        eos_token_id=_ends(header),
    )


def _refuse_what_llama_lacks(header: Header) -> None:
    """Settings that other families put into files of this architecture."""
    if header.maybe("llama.expert_count", int):
        raise UnsupportedModel(f"{header.name}: a mixture of experts, known are dense layers")
    for key in ("llama.attention.scale", "llama.attention.clamp_kqv", "llama.logit_scale"):
        if key in header.metadata:
            raise UnsupportedModel(f"{header.name}: {key}, which mlx-lm's llama does not have")


def _heads(header: Header) -> tuple[int, int]:
    num_heads = header.one("llama.attention.head_count", int)
    num_kv_heads = header.maybe("llama.attention.head_count_kv", int) or num_heads
    if num_heads > 0 and num_heads % num_kv_heads == 0:
        return num_heads, num_kv_heads
    counts = f"{num_heads} query heads over {num_kv_heads} KV heads"
    raise UnsupportedModel(f"{header.name}: {counts}, wanted is a multiple")


def _head_dim(header: Header, hidden: int, num_heads: int) -> int:
    dim = header.maybe("llama.attention.key_length", int) or hidden // num_heads
    value_dim = header.maybe("llama.attention.value_length", int) or dim
    rotated = header.maybe("llama.rope.dimension_count", int) or dim
    if dim == value_dim == rotated and dim > 0 and dim % 2 == 0:
        return dim
    dims = f"keys of {dim}, values of {value_dim}, of which RoPE turns {rotated}"
    raise UnsupportedModel(f"{header.name}: {dims}; known is one even dim for all three")


def _has_bias(header: Header, *names: str) -> bool:
    return any(f"blk.0.{name}.bias" in header.shapes for name in names)


def _ends(header: Header) -> list[int]:
    """The ids that end a text, a turn or a message, each once."""
    names = ("eos_token_id", "eot_token_id", "eom_token_id")
    ids = [header.maybe(f"tokenizer.ggml.{name}", int) for name in names]
    return list(dict.fromkeys(each for each in ids if each is not None))


def _rope_scaling(header: Header) -> RopeScaling | None:
    """As llama.cpp reads it: a factor without a type is linear, under an older key too."""
    kind = header.maybe("llama.rope.scaling.type", str) or "linear"
    keys = ("llama.rope.scaling.factor", "llama.rope.scale_linear")
    factor = header.maybe(keys[0], float) or header.maybe(keys[1], float) or 1.0
    if kind not in {"none", "linear"}:
        known = "known are 'none' and 'linear'"
        raise UnsupportedModel(f"{header.name}: RoPE scaling {kind!r}, {known}")
    if kind == "none" or factor == 1.0:
        return None
    if "rope_freqs.weight" in header.shapes:
        raise UnsupportedModel(f"{header.name}: rope_freqs.weight and linear RoPE scaling at once")
    return {"rope_type": "linear", "factor": factor}


def llama3_scaling(name: str, divisors: mx.array, theta: float) -> RopeScaling:
    """Llama 3's RoPE scaling, recognized by ``divisors`` ``[head_dim / 2]`` of its frequencies.

    The file keeps only the result, ``rope_freqs.weight``. The rule has four settings, of which
    every published model shares three; the fourth is the largest divisor. Divisors that the rule
    does not give back raise ``UnsupportedModel``. The rule: Llama 3.1's reference code,
    ``apply_scaling``.
    """
    given = cast("list[float]", divisors.tolist())
    factor, low, high, original = max(given), 1.0, 4.0, 8192
    for index, divisor in enumerate(given):
        wavelength = 2 * math.pi * theta ** (index / len(given))
        smooth = min(max((original / wavelength - low) / (high - low), 0.0), 1.0)
        if not math.isclose(divisor, 1 / ((1 - smooth) / factor + smooth), rel_tol=1e-3):
            raise UnsupportedModel(f"{name}: rope_freqs.weight follows no known RoPE scaling")
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": low,
        "high_freq_factor": high,
        "original_max_position_embeddings": original,
    }
