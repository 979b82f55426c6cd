"""The command ``pagedkv``: what it prints, what it compares, what it refuses."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx
import pytest

pytest.importorskip("mlx_lm")
pytest.importorskip("rich")

from pagedkv_mlx import LayerPages
from pagedkv_mlx import mlx_lm as ours
from pagedkv_mlx.cli import main
from pagedkv_mlx.cli.text import Output, Streamed
from pagedkv_mlx.mlx_lm import PagedPromptCache
from tests.mlx.tiny_gguf import whole, write_gguf

ROOT = Path(__file__).parents[2]
HARBOUR = "examples/prompts/harbour.txt"


class Ran(NamedTuple):
    code: int
    out: str
    err: str

    def row(self, label: str) -> list[str]:
        """The cells of a line of the table."""
        line = next(line for line in self.out.splitlines() if f"│ {label} " in line)
        return [cell.strip() for cell in line.strip("│").split("│")][1:]


@pytest.fixture
def pagedkv(capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    def run(*words: object) -> Ran:
        try:
            code = main([str(word) for word in words])
        except SystemExit as exited:
            code = int(str(exited.code))
        return Ran(code, *capsys.readouterr())

    return run


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PAGEDKV_CACHE", str(tmp_path / "cache"))
    return write_gguf(tmp_path / "tiny.gguf")


class Damaged(PagedPromptCache):
    """An entry that damages the value at ``position`` once that is written."""

    position: int

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> Any:
        begin = self.offset
        super().update_and_fetch(keys, values)
        if begin <= self.position < self.offset:
            block, row = divmod(self.position, self.cache.block_size)
            slot = self.cache.block_table[block]
            flip_sign_of_largest(self.cache.pages, slot * self.cache.block_size + row)
        return self.keys_and_values()


def flip_sign_of_largest(pages: LayerPages, row: int) -> None:
    """Flip one bit of the values: the sign of the largest component in flat row ``row``."""
    keys, values = pages.planes
    dim = values.shape[-1]
    largest: Any = mx.argmax(mx.abs(values[0, :, row])).item()
    head, component = divmod(largest, dim)
    bits = values.view(mx.uint16)
    bits[0, head, row, component] = bits[0, head, row, component] ^ 0x8000
    pages.planes = keys, bits.view(values.dtype)


@pytest.fixture
def damage(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Called with ``--max-tokens``: damages layer 0 at the last position of every prompt."""
    make = ours.make_paged_prompt_cache

    def from_now_on(max_tokens: int) -> None:
        def damaged(model: Any, capacity: int, **options: Any) -> list[Any]:
            caches = make(model, capacity, **options)
            caches[0] = Damaged(caches[0].cache, caches[0].group)
            caches[0].position = capacity - max_tokens - 1
            return caches

        monkeypatch.setattr(ours, "make_paged_prompt_cache", damaged)

    return from_now_on


# What it prints


@pytest.mark.parametrize(("block_size", "chunk"), [(1, 512), (3, 1), (16, 7), (256, 512)])
def test_a_comparison_finds_every_token_and_logit_identical(
    pagedkv: Callable[..., Ran], tiny: Path, block_size: int, chunk: int
) -> None:
    ran = pagedkv(
        *("generate", "--model", tiny, "--prompt", "hello hello 1984", "--compare"),
        *("--max-tokens", 12, "--block-size", block_size, "--prefill-step-size", chunk),
    )
    assert ran.code == 0
    assert "\nidentical: all tokens (12) and all logits (12 × 265), bit for bit\n" in ran.out
    assert ran.row("new tokens") == ["12", "12"]
    assert float(ran.row("mean log-probability")[0]) < 0
    for label in ("prefill", "decode"):
        assert all(cell.endswith(" tokens/s") for cell in ran.row(label))
    for label in ("KV bytes used", "KV bytes reserved"):
        assert all(cell.endswith(" MiB") for cell in ran.row(label))
    used, there = map(int, ran.row("blocks, all layers")[0].split(" of "))
    assert 2 <= used <= there
    assert used % 2 == 0


def test_a_recorded_step_is_compared_with_the_plain_one(
    pagedkv: Callable[..., Ran], tiny: Path
) -> None:
    words = ("--prompt", "hello", "--max-tokens", 30, "--block-size", 4, "--compiled", "--compare")
    ran = pagedkv("generate", "--model", tiny, *words)
    assert ran.code == 0
    assert "\nidentical: all tokens (30) and all logits (30 × 265), bit for bit\n" in ran.out


def test_a_damaged_bit_is_found_and_told(
    pagedkv: Callable[..., Ran], tiny: Path, damage: Callable[[int], None]
) -> None:
    damage(6)
    ran = pagedkv("generate", "--model", tiny, "--max-tokens", 6, "--compare")
    assert ran.code == 1
    prompt = int(re.findall(r"(\d+) prompt tokens", ran.out)[0])
    assert f"\ndifferent from new token 1 on (position {prompt}): its logits differ" in ran.out
    assert "identical" not in ran.out


def test_without_a_comparison_there_is_one_column_and_no_verdict(
    pagedkv: Callable[..., Ran], tiny: Path
) -> None:
    ran = pagedkv("generate", "--model", tiny, "--max-tokens", 3)
    assert ran.code == 0
    assert len(ran.row("new tokens")) == 1
    assert "identical" not in ran.out


def test_where_no_terminal_is_each_phase_is_one_line_of_standard_error(
    pagedkv: Callable[..., Ran], tiny: Path
) -> None:
    words = ("generate", "--model", tiny, "--prompt", "hello", "--max-tokens", 3, "--compare")
    ran = pagedkv(*words)
    prompt = re.findall(r"(\d+) prompt tokens", ran.out)[0]
    phases = [
        f"Loading {tiny}",
        f"Prefill, paged caches: {prompt} tokens",
        f"Prefill, plain caches: {prompt} tokens",
        "Decode, plain caches: 3 tokens",
    ]
    assert ran.err.splitlines() == ["Converting tiny.gguf, once: 20 weights", *phases]
    assert pagedkv(*words).err.splitlines() == phases
    assert "\x1b" not in ran.out + ran.err


def test_a_terminal_gets_bars_and_its_cursor_back(
    pagedkv: Callable[..., Ran], tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    ran = pagedkv("generate", "--model", tiny, "--max-tokens", 3, "--compare")
    for words in ("Converting", "Loading", "Prefill, paged", "Prefill, plain", "Decode, plain"):
        assert words in ran.err
    assert ran.err.count("\x1b[?25l") == ran.err.count("\x1b[?25h") > 0


def test_whoever_stops_it_gets_a_line_and_the_cursor_back(
    pagedkv: Callable[..., Ran], tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")

    def stop(_: object, token: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Streamed, "add", stop)
    ran = pagedkv("generate", "--model", tiny)
    assert ran.code == 130
    assert "pagedkv: stopped" in ran.err.splitlines()[-1]
    assert ran.err.count("\x1b[?25l") == ran.err.count("\x1b[?25h") > 0


def test_a_model_without_a_chat_template_continues_the_text(
    pagedkv: Callable[..., Ran], tiny: Path
) -> None:
    plain = write_gguf(tiny.with_name("plain.gguf"), {"tokenizer.chat_template": None})
    words = ("--prompt", "hello hello", "--max-tokens", 4)
    without = pagedkv("generate", "--model", plain, *words)
    raw = pagedkv("generate", "--model", tiny, "--raw", *words)
    assert (without.code, raw.code) == (0, 0)
    assert "2 prompt tokens" in without.out
    assert without.out.splitlines()[0] == raw.out.splitlines()[0]


def test_a_text_that_ends_at_once_is_told_and_counted(
    pagedkv: Callable[..., Ran], tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens: list[int] = []
    monkeypatch.setattr(Streamed, "add", lambda _, token: tokens.append(token))
    words = ("--raw", "--prompt", "hello", "--compare")
    pagedkv("generate", "--model", tiny, "--max-tokens", 1, *words)
    end = {"tokenizer.ggml.eos_token_id": whole(tokens[0])}
    ran = pagedkv("generate", "--model", write_gguf(tiny.with_name("ends.gguf"), end), *words)
    assert ran.code == 0
    assert ran.out.startswith("(no text)\n")
    assert ran.row("new tokens") == ["1", "1"]
    assert ran.row("decode") == ["–", "–"]
    assert "identical: all tokens (1)" in ran.out


@pytest.mark.parametrize(
    ("segments", "shown"),
    [
        (["\n\n", "", "\nHello", " there", "\n", "\n"], "Hello there\n"),
        (["One.", "\n\n", "Two.", "\n"], "One.\n\nTwo.\n"),
        (["", " \n"], "(no text)\n"),
        ([":smile: [red]", "\tx" * 60], ":smile: [red]" + "\tx" * 60 + "\n"),
    ],
)
def test_text_is_shown_as_it_is_but_for_blank_around_it(segments: list[str], shown: str) -> None:
    class Segments:
        last_segment = ""

        def reset(self) -> None: ...

        def add_token(self, token: int) -> None:
            self.last_segment = segments[token]

        def finalize(self) -> None:
            self.last_segment = ""

    file = io.StringIO()
    text = Streamed(Segments(), file)
    for token in range(len(segments)):
        text.add(token)
    text.end()
    assert file.getvalue() == shown


# What it says about itself


DEFAULTS = {
    "--model": "smollm2",
    "--prompt": "'What is a page of memory?'",
    "--prompt-file": "--prompt",
    "--raw": "off",
    "--max-tokens": "100",
    "--block-size": "256",
    "--prefill-step-size": "512",
    "--compiled": "off",
    "--compare": "off",
}


def test_help_names_every_option_with_its_default(pagedkv: Callable[..., Ran]) -> None:
    top = pagedkv("--help")
    assert top.code == 0
    assert re.search(r"^ +generate +continue a prompt", top.out, re.MULTILINE)
    ran = pagedkv("generate", "--help")
    assert ran.code == 0
    usage, _, text = ran.out.partition("options:")
    entries = [" ".join(entry.split()) for entry in re.split(r"\n\n|\n  (?=-)", text)]
    told = [re.fullmatch(r"(--[a-z-]+) .*\(default: (.*)\)", entry) for entry in entries]
    assert {match[1]: match[2] for match in told if match} == DEFAULTS
    assert set(re.findall(r"--[a-z-]+", usage)) == DEFAULTS.keys()


def test_the_command_and_the_module_are_one() -> None:
    command = Path(sys.executable).with_name("pagedkv")
    for words in ([command], [sys.executable, "-m", "pagedkv_mlx.cli"]):
        done = subprocess.run([*words, "--version"], capture_output=True, text=True, check=True)
        assert re.fullmatch(r"pagedkv \d+\.\d+\.\d+\n", done.stdout)


def test_output_that_nobody_reads_ends_it_quietly(tiny: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "pagedkv_mlx.cli", "generate", "--model", str(tiny)]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert done.returncode == 141
    assert done.stderr.splitlines()[-1].startswith("Prefill, paged caches")


def test_a_table_that_nobody_reads_is_no_difference_found() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with pytest.raises(BrokenPipeError), os.fdopen(writer, "w") as file:
        Output(file=file).print("a table")


# What it refuses


REFUSED: dict[str, tuple[list[str], str]] = {
    "no such path": (["--model", "/nowhere/model"], "no model '/nowhere/model'"),
    "no such name": (["--model", "smallm2"], "give 'smollm2', a .gguf file, a folder, or a hub"),
    "no such file": (["--model", "{tmp}/none.gguf"], "no GGUF file can be read at"),
    "no GGUF": (["--model", "{tmp}/text.gguf"], "does not begin with 'GGUF'"),
    "no GGUF by its name": (["--model", "{tmp}/text.txt"], "does not begin with 'GGUF'"),
    "no model in it": (["--model", "{tmp}"], "mlx-lm cannot open"),
    "no prompt": (["--prompt-file", "{tmp}/none.txt"], "none.txt: No such file"),
    "a folder as prompt": (["--prompt-file", "{tmp}"], "Is a directory"),
    "no UTF-8": (["--prompt-file", "{tmp}/bytes.txt"], "is no UTF-8 text"),
    "an empty file": (["--prompt-file", "{tmp}/empty.txt"], "empty.txt is empty"),
    "an empty prompt": (["--prompt", ""], "the prompt of --prompt is empty"),
    "a blank prompt": (["--prompt", " \n"], "the prompt of --prompt is empty"),
    "two prompts": (["--prompt", "a", "--prompt-file", "b"], "not allowed with"),
    "no token": (["--max-tokens", "0"], "--max-tokens: 0 is below 1"),
    "tokens below 0": (["--max-tokens=-3"], "--max-tokens: -3 is below 1"),
    "half a token": (["--max-tokens", "1.5"], "--max-tokens: '1.5' is no whole number"),
    "no block": (["--block-size", "0"], "--block-size: 0 is below 1"),
    "no step": (["--prefill-step-size", "0"], "--prefill-step-size: 0 is below 1"),
    "no such option": (["--blocksize", "1"], "unrecognized arguments: --blocksize"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_is_one_line_and_exit_code_2(
    pagedkv: Callable[..., Ran], tiny: Path, tmp_path: Path, name: str
) -> None:
    for file, content in {
        "text.gguf": b"hello",
        "text.txt": b"hello",
        "bytes.txt": b"\xff\xfe\xfd",
        "empty.txt": b"\n",
    }.items():
        (tmp_path / file).write_bytes(content)
    words, reason = REFUSED[name]
    words = [word.format(tmp=tmp_path) for word in words]
    if "--model" not in words:
        words = ["--model", str(tiny), *words]
    ran = pagedkv("generate", *words)
    assert ran.code == 2
    assert ran.out == ""
    refusal = [line for line in ran.err.splitlines() if not line.startswith("Loading ")]
    assert len(refusal) == 1
    assert refusal[0].startswith("pagedkv: ")
    assert reason in refusal[0]


def test_a_model_that_is_neither_here_nor_on_the_hub_is_refused(
    pagedkv: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(name: str) -> None:
        raise OSError(f"Repository Not Found: {name}\nPlease check the name.")

    monkeypatch.setattr("mlx_lm.load", absent)
    ran = pagedkv("generate", "--model", "nobody/nothing")
    assert ran.code == 2
    began, refusal = ran.err.splitlines()
    assert began == "Loading nobody/nothing"
    assert refusal.startswith("pagedkv: no folder 'nobody/nothing' is here, and mlx-lm cannot")
    assert refusal.endswith(": Repository Not Found: nobody/nothing")


# The real model


def test_smollm2_answers_a_long_prompt_in_english_with_identical_bits(
    pagedkv: Callable[..., Ran], smollm2: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PAGEDKV_CACHE", str(smollm2.parent))
    monkeypatch.chdir(ROOT)
    words = ("--prompt-file", HARBOUR, "--max-tokens", 64, "--compare")
    ran = pagedkv("generate", "--model", "smollm2", *words)
    assert ran.code == 0
    assert int(re.findall(r"(\d+) prompt tokens", ran.out)[0]) >= 600
    assert ran.row("new tokens") == ["64", "64"]
    assert all(float(cell) > -1.5 for cell in ran.row("mean log-probability"))
    assert "\nidentical: all tokens (64) and all logits (64 × 49152), bit for bit\n" in ran.out
    text = ran.out.partition("prompt tokens")[0]
    assert len({"the", "of", "and", "a"} & set(text.lower().split())) >= 3


def test_smollm2_with_one_damaged_bit_differs_from_the_first_new_token_on(
    pagedkv: Callable[..., Ran],
    smollm2: Path,
    damage: Callable[[int], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PAGEDKV_CACHE", str(smollm2.parent))
    damage(4)
    ran = pagedkv("generate", "--model", "smollm2", "--max-tokens", 4, "--compare")
    assert ran.code == 1
    assert "\ndifferent from new token 1 on (position " in ran.out
