"""Models by name: the packaged one, a GGUF file, or whatever mlx-lm opens."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.console import Console

from pagedkv_mlx.cli.progress import Moved, phase
from pagedkv_protocols import InvalidArgument, ModelNotFound, UnsupportedModel

PACKAGED = "smollm2"


def load_model(name: str, progress: Console) -> tuple[Any, Any]:
    """The model and tokenizer called ``name``.

    Raises ``ModelNotFound`` for a name that is neither packaged, nor a path, nor found on the
    hub, ``UnsupportedModel`` for what is not understood.
    """
    path = find_path(name)
    if path is None:
        return load_from_hub(name, progress)
    if path.is_file() or path.suffix == ".gguf":
        path = converted(path, progress)
    with phase(progress, f"Loading {name}"):
        return load_folder(path)


def find_path(name: str) -> Path | None:
    """The file or folder that ``name`` means; ``None`` for a name on the hub."""
    from pagedkv_mlx.gguf import find_smollm2

    path = find_smollm2() if name == PACKAGED else Path(name).expanduser()
    if path.exists() or path.suffix == ".gguf":
        return path
    if name.count("/") == 1 and not name.startswith((".", "/", "~")):
        return None
    raise ModelNotFound(
        f"no model {name!r}: give {PACKAGED!r}, a .gguf file, a folder, or a hub name org/model"
    )


def converted(gguf: Path, progress: Console) -> Path:
    """The folder made from a GGUF file, with progress if it has to be made."""
    from pagedkv_mlx.gguf import model_folder

    with ExitStack() as stack:
        moved: list[Moved] = []

        def show(what: str, done: int, total: int) -> None:
            if not moved:
                shown = phase(progress, f"Converting {gguf.name}, once", total, what)
                moved.append(stack.enter_context(shown))
            moved[0](done)

        return model_folder(gguf, progress=show)


def load_folder(folder: Path) -> tuple[Any, Any]:
    """What mlx-lm opens from a folder. Raises ``UnsupportedModel``."""
    import mlx_lm

    try:
        model, tokenizer = mlx_lm.load(str(folder))[:2]
    except REFUSALS as error:
        raise UnsupportedModel(f"mlx-lm cannot open {folder}: {first_line(error)}") from error
    return model, tokenizer


def load_from_hub(name: str, progress: Console) -> tuple[Any, Any]:
    """What mlx-lm fetches and opens; the hub's own bars show how far it is, on a terminal.

    Raises ``ModelNotFound``.
    """
    if not progress.is_terminal:
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    import mlx_lm

    progress.print(f"Loading {name}", highlight=False, markup=False)
    try:
        model, tokenizer = mlx_lm.load(name)[:2]
    except REFUSALS as error:
        raise ModelNotFound(
            f"no folder {name!r} is here, and mlx-lm cannot open the hub's: {first_line(error)}"
        ) from error
    return model, tokenizer


def prompt_tokens(tokenizer: Any, text: str, *, raw: bool) -> list[int]:
    """The ids of ``text``, as a user's message where the tokenizer has a chat template.

    Raises ``InvalidArgument`` for a prompt without a token.
    """
    if raw or not getattr(tokenizer, "chat_template", None):
        ids = list(tokenizer.encode(text))
    else:
        message = [{"role": "user", "content": text}]
        ids = list(
            tokenizer.apply_chat_template(
                message, add_generation_prompt=True, tokenize=True, return_dict=False
            )
        )
    if not ids:
        raise InvalidArgument("the prompt has no token; give a longer one")
    return ids


def first_line(error: BaseException) -> str:
    """The first line of an error's text, or its kind."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


REFUSALS = (OSError, ValueError, LookupError, TypeError, RuntimeError, ImportError)
"""What mlx-lm raises for a model that is not there, is damaged, or is of a kind it lacks."""
