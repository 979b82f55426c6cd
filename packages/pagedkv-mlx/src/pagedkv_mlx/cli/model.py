"""Models by name: the packaged one, a GGUF file, or whatever mlx-lm opens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from pagedkv_protocols import InvalidArgument, ModelNotFound, UnsupportedModel

PACKAGED = "smollm2"


def load_model(name: str, console: Console) -> tuple[Any, Any]:
    """The model and tokenizer called ``name``, with progress on ``console``.

    Raises ``ModelNotFound`` for a name that is neither packaged, nor a path, nor opened by
    mlx-lm, ``UnsupportedModel`` for a file that is not understood.
    """
    import mlx_lm

    folder = model_path(name, console)
    with console.status(f"Loading {folder}"):
        try:
            loaded = mlx_lm.load(str(folder))
        except (OSError, ValueError, KeyError) as error:
            raise UnsupportedModel(f"mlx-lm cannot open {folder}: {first_line(error)}") from error
    return loaded[0], loaded[1]


def model_path(name: str, console: Console) -> str | Path:
    """What ``mlx_lm.load`` is given for ``name``: a GGUF file is converted once."""
    from pagedkv_mlx.gguf import find_smollm2, model_folder

    path = find_smollm2() if name == PACKAGED else Path(name).expanduser()
    if path.suffix == ".gguf":
        with Progress(*COLUMNS, console=console, transient=True) as bars:
            return model_folder(path, progress=Bars(bars))
    if path.exists() or (name.count("/") == 1 and not name.startswith((".", "/", "~"))):
        return path if path.exists() else name
    raise ModelNotFound(
        f"no model {name!r}: give '{PACKAGED}', a .gguf file, a folder or a hub name org/model"
    )


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
        raise InvalidArgument("the prompt is empty; give at least one token")
    return ids


def first_line(error: BaseException) -> str:
    """The first line of an error's text, or its kind."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


COLUMNS = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())


class Bars:
    """A progress callback ``(what, done, total)`` that draws a bar for each ``what``."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._tasks: dict[str, Any] = {}

    def __call__(self, what: str, done: int, total: int) -> None:
        """Move the bar of ``what`` to ``done`` of ``total``."""
        if what not in self._tasks:
            self._tasks[what] = self._progress.add_task(what, total=total)
        self._progress.update(self._tasks[what], completed=done, total=total)
