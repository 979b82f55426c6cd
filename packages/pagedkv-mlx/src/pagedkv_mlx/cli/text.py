"""Standard output: text that appears as its tokens come, and what follows it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO, Any, NoReturn

from rich.console import Console


class Output(Console):
    """A console that says that nobody reads it, where Rich would exit with code 1."""

    def on_broken_pipe(self) -> NoReturn:
        """As a write to the file itself does."""
        raise BrokenPipeError


@contextmanager
def streamed(tokenizer: Any, file: IO[str]) -> Iterator[Callable[[int], None]]:
    """What it gives shows each token that it is called with; leaving the block ends the line."""
    text = Streamed(tokenizer.detokenizer, file)
    try:
        yield text.add
    finally:
        text.end()


class Streamed:
    """A text as it grows, without the blank that it begins or ends with."""

    def __init__(self, detokenizer: Any, file: IO[str]) -> None:
        self._detokenizer = detokenizer
        self._detokenizer.reset()
        self._file = file
        self._blank = ""  # shown once something follows it
        self._begun = False

    def add(self, token: int) -> None:
        """Show what ``token`` completes."""
        self._detokenizer.add_token(token)
        self._show(self._detokenizer.last_segment)

    def end(self) -> None:
        """Show what is left, and end the line."""
        self._detokenizer.finalize()
        self._show(self._detokenizer.last_segment)
        self._file.write("\n" if self._begun else "(no text)\n")

    def _show(self, segment: str) -> None:
        text = self._blank + segment
        shown = text.rstrip()
        self._blank = text[len(shown) :] if self._begun or shown else ""
        if shown:
            self._file.write(shown if self._begun else shown.lstrip())
            self._file.flush()
            self._begun = True
