"""What the command is doing: a moving bar on a terminal, one line where there is none."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

Moved = Callable[[int], None]
"""Called with how much is done."""


@contextmanager
def phase(
    console: Console, what: str, total: int | None = None, unit: str = "tokens"
) -> Iterator[Moved]:
    """Show ``what`` until the block ends, with a bar to ``total`` where it is known."""
    if not console.is_terminal:
        line = what if total is None else f"{what}: {total} {unit}"
        console.print(line, highlight=False, markup=False, soft_wrap=True)
        yield nothing
    elif total is None:
        with console.status(what):
            yield nothing
    else:
        with Progress(*columns(), console=console, transient=True) as bars:
            task = bars.add_task(what, total=total)
            yield lambda done: bars.update(task, completed=done)


@contextmanager
def counted(console: Console, what: str, total: int) -> Iterator[Callable[[int], None]]:
    """A phase of ``total`` tokens; what it gives is called with each token."""
    with phase(console, what, total) as moved:
        count = itertools.count(1)
        yield lambda _: moved(next(count))


def columns() -> tuple[TextColumn, BarColumn, MofNCompleteColumn, TimeElapsedColumn]:
    """What, how far, how much, and for how long."""
    what = TextColumn("{task.description}", markup=False)
    return what, BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()


def nothing(done: int) -> None:
    """Shows nothing."""
