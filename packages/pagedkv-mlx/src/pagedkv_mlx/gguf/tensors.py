"""The tensors of a llama GGUF file as the bf16 weights of an mlx-lm model."""

import json
import math
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import mlx.core as mx
from attrs import frozen

from pagedkv_mlx.gguf.config import LlamaConfig
from pagedkv_mlx.gguf.errors import writing
from pagedkv_mlx.gguf.header import Header
from pagedkv_protocols import UnsupportedModel

GROUP_SIZE = 32
"""Weights to a scale in every quantized type that ``mx.load`` leaves quantized."""

SHARD_BYTES = 2**30
"""A file of weights grows to this, or to one tensor; it is also what is held in bf16 at once."""

Progress = Callable[[str, int, int], None]


@frozen
class Tensor:
    """One weight: its name in the file, its name in the model, its shape, and its RoPE heads.

    ``num_heads`` is 0 for a weight whose rows RoPE does not turn.
    """

    source: str
    target: str
    shape: tuple[int, ...]
    num_heads: int = 0


def plan_tensors(header: Header, config: LlamaConfig) -> list[Tensor]:
    """Every weight of the model, each with the tensor it is made from.

    Raises ``UnsupportedModel`` for a tensor that is missing, has another shape, or has no place
    in the model. Only a bias may be missing where its family has others: it is zero.
    """
    plan: list[Tensor] = []
    for tensor in _tensors(config):
        plan.append(tensor)
        shape = header.shapes.get(tensor.source)
        if shape is None and not tensor.source.endswith(".bias"):
            raise UnsupportedModel(f"{header.name}: there is no tensor {tensor.source}")
        if shape not in {None, tensor.shape}:
            wanted = f"is {shape}, the metadata wants {tensor.shape}"
            raise UnsupportedModel(f"{header.name}: {tensor.source} {wanted}")
    strange = header.shapes.keys() - {tensor.source for tensor in plan} - {"rope_freqs.weight"}
    if strange:
        raise UnsupportedModel(f"{header.name}: a llama model has no tensor {min(strange)}")
    return plan


def _tensors(config: LlamaConfig) -> Iterator[Tensor]:
    table = (config.vocab_size, config.hidden_size)
    yield Tensor("token_embd.weight", "model.embed_tokens.weight", table)
    for layer in range(config.num_hidden_layers):
        yield from _layer(config, f"blk.{layer}.", f"model.layers.{layer}.")
    yield Tensor("output_norm.weight", "model.norm.weight", table[1:])
    if not config.tie_word_embeddings:
        yield Tensor("output.weight", "lm_head.weight", table)


def _layer(config: LlamaConfig, source: str, target: str) -> Iterator[Tensor]:
    hidden, mlp = config.hidden_size, config.intermediate_size
    num_q, num_kv = config.num_attention_heads, config.num_key_value_heads
    q, kv = num_q * config.head_dim, num_kv * config.head_dim
    yield Tensor(f"{source}attn_norm.weight", f"{target}input_layernorm.weight", (hidden,))
    yield Tensor(f"{source}ffn_norm.weight", f"{target}post_attention_layernorm.weight", (hidden,))
    for short, name, shape, num_heads in (
        ("attn_q", "self_attn.q_proj", (q, hidden), num_q),
        ("attn_k", "self_attn.k_proj", (kv, hidden), num_kv),
        ("attn_v", "self_attn.v_proj", (kv, hidden), 0),
        ("attn_output", "self_attn.o_proj", (hidden, q), 0),
        ("ffn_gate", "mlp.gate_proj", (mlp, hidden), 0),
        ("ffn_up", "mlp.up_proj", (mlp, hidden), 0),
        ("ffn_down", "mlp.down_proj", (hidden, mlp), 0),
    ):
        yield Tensor(f"{source}{short}.weight", f"{target}{name}.weight", shape, num_heads)
        if config.attention_bias if name.startswith("self") else config.mlp_bias:
            yield Tensor(f"{source}{short}.bias", f"{target}{name}.bias", shape[:1], num_heads)


def load_arrays(gguf: Path, scratch: Path) -> dict[str, mx.array]:
    """What ``mx.load`` makes of the file: dense arrays, or triples of weight, scales, biases.

    MLX opens the file for writing. One that may only be read is copied into ``scratch`` first.
    """
    if os.access(gguf, os.W_OK):
        return _arrays(gguf)
    copied = scratch / "source.gguf"
    try:
        with writing(copied):
            shutil.copyfile(gguf, copied)
        return _arrays(copied)
    finally:
        copied.unlink(missing_ok=True)


def _arrays(gguf: Path) -> dict[str, mx.array]:
    try:
        loaded = mx.load(str(gguf), format="gguf")
    except (RuntimeError, ValueError) as error:
        raise UnsupportedModel(f"MLX does not read {gguf}: {error}") from error
    assert isinstance(loaded, dict)
    return loaded


def write_weights(
    arrays: dict[str, mx.array],
    plan: list[Tensor],
    folder: Path,
    progress: Progress,
    shard_bytes: int = SHARD_BYTES,
) -> None:
    """Writes ``model.safetensors``, or shards with an index, and empties ``arrays`` on the way."""
    shards = _shards(plan, shard_bytes)
    names = _shard_names(len(shards))
    done = 0
    for name, shard in zip(names, shards, strict=True):
        weights: dict[str, mx.array] = {}
        for tensor in shard:
            weights[tensor.target] = _bf16(arrays, tensor)
            done += 1
            progress("weights", done, len(plan))
        with writing(folder):
            mx.save_safetensors(str(folder / name), weights, {"format": "mlx"})
    if len(shards) > 1:
        _write_index(folder, dict(zip(names, shards, strict=True)))


def _shards(plan: list[Tensor], shard_bytes: int) -> list[list[Tensor]]:
    shards: list[list[Tensor]] = [[]]
    held = 0
    for tensor in plan:
        if shards[-1] and held + _num_bytes(tensor) > shard_bytes:
            shards.append([])
            held = 0
        shards[-1].append(tensor)
        held += _num_bytes(tensor)
    return shards


def _num_bytes(tensor: Tensor) -> int:
    return 2 * math.prod(tensor.shape)


def _shard_names(count: int) -> list[str]:
    if count == 1:
        return ["model.safetensors"]
    return [f"model-{n:05}-of-{count:05}.safetensors" for n in range(1, count + 1)]


def _write_index(folder: Path, shards: dict[str, list[Tensor]]) -> None:
    total = sum(_num_bytes(tensor) for shard in shards.values() for tensor in shard)
    where = {tensor.target: name for name, shard in shards.items() for tensor in shard}
    index = {"metadata": {"total_size": total}, "weight_map": where}
    with writing(folder):
        (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))


def _bf16(arrays: dict[str, mx.array], tensor: Tensor) -> mx.array:
    """The weight in bf16, rounded once, rows in mlx-lm's order; taken out of ``arrays``."""
    if tensor.source not in arrays:
        return mx.zeros(tensor.shape, mx.bfloat16)
    dense = _dense(arrays, tensor.source).astype(mx.bfloat16)
    ordered = _halves(dense, tensor.num_heads) if tensor.num_heads else dense
    mx.eval(ordered)
    return ordered


def _dense(arrays: dict[str, mx.array], name: str) -> mx.array:
    weight = arrays.pop(name)
    stem = name.removesuffix("weight")
    scales = arrays.pop(stem + "scales", None)
    if scales is None:
        return weight
    biases = arrays.pop(stem + "biases").astype(mx.float32)
    bits = weight.shape[-1] * 32 // (scales.shape[-1] * GROUP_SIZE)
    return mx.dequantize(weight, scales.astype(mx.float32), biases, GROUP_SIZE, bits)


def _halves(rows: mx.array, num_heads: int) -> mx.array:
    """Rows ``[num_heads * head_dim, ...]`` from pairs side by side to two halves.

    llama.cpp stores a head's rows so that RoPE turns rows 2i and 2i + 1 together; mlx-lm's
    llama, like the checkpoints it reads, turns rows i and i + head_dim / 2.

    >>> _halves(mx.array([0, 1, 2, 3, 10, 11, 12, 13]), num_heads=2).tolist()
    [0, 2, 1, 3, 10, 12, 11, 13]
    """
    pairs = rows.reshape(num_heads, -1, 2, *rows.shape[1:])
    return pairs.swapaxes(1, 2).reshape(rows.shape)
