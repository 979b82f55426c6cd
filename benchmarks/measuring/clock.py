"""Times of things that are compared, taken by turns so that a busy machine harms them alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import attrs
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


@attrs.frozen
class Times:
    """Seconds of each case, one a round; what is compared was measured in the same round.

    >>> times = Times({"old": [2.0, 4.0, 2.0], "new": [1.0, 1.0, 3.0]})
    >>> times.median("new"), times.ratio("new", "old")
    (1.0, 0.5)
    """

    seconds: Mapping[str, Sequence[float]]

    def median(self, case: str) -> float:
        """The median over the rounds, in seconds."""
        return statistics.median(self.seconds[case])

    def ratio(self, case: str, base: str) -> float:
        """The median over the rounds of ``case`` divided by ``base`` of the same round."""
        pairs = zip(self.seconds[case], self.seconds[base], strict=True)
        return statistics.median(ours / theirs for ours, theirs in pairs)


def by_turns(
    cases: Mapping[str, Callable[[], float]], rounds: int, advance: Callable[[], None]
) -> Times:
    """Run every case in every round, each round in the reverse order of the last.

    A case gives the seconds that it took; ``advance`` is told of every finished round.
    """
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for index in range(rounds):
        names = list(cases) if index % 2 == 0 else list(cases)[::-1]
        for name in names:
            seconds[name].append(cases[name]())
        advance()
    return Times(seconds)


def wall_seconds(work: Callable[[], object]) -> float:
    """How long ``work`` took by the clock on the wall."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def thread_seconds(work: Callable[[], object]) -> float:
    """How long this thread computed during ``work``; time given to other programs is left out."""
    began = time.thread_time()
    work()
    return time.thread_time() - began


@contextmanager
def progress_bar(what: str, total: int) -> Iterator[Callable[[], None]]:
    """A bar on stderr; gives what moves it one on."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    console = Console(stderr=True)
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bars:
        task = bars.add_task(what, total=total)
        yield lambda: bars.advance(task)
