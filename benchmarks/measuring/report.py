"""Report: the tables a script prints and, when asked, keeps under results/."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import attrs

from measuring.machine import facts

RESULTS = Path(__file__).resolve().parents[1] / "results"


@attrs.define
class Report:
    """Markdown in the making: a title, the facts of the machine, then tables and remarks.

    >>> print(Report("Reads", {"device": "none"}).table(["a", "b"], [["1", "2"]]).text())
    # Reads
    <BLANKLINE>
    - device: none
    <BLANKLINE>
    | a | b |
    |---|--:|
    | 1 | 2 |
    <BLANKLINE>
    """

    title: str
    facts: dict[str, str] = attrs.field(factory=facts)
    _parts: list[str] = attrs.field(factory=list, init=False)

    def heading(self, text: str) -> Report:
        """Begin a section."""
        self._parts.append(f"## {text}")
        return self

    def remark(self, text: str) -> Report:
        """Add a paragraph."""
        self._parts.append(text)
        return self

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Report:
        """Add a table; every column but the first is set to the right."""
        widths = [max(map(len, cells)) for cells in zip(columns, *rows, strict=True)]
        dashes = "|".join("-" * (w + 1) + ("-" if i == 0 else ":") for i, w in enumerate(widths))
        lines = [aligned(columns, widths), f"|{dashes}|", *(aligned(row, widths) for row in rows)]
        self._parts.append("\n".join(lines))
        return self

    def text(self) -> str:
        """All of it."""
        listed = "\n".join(f"- {name}: {value}" for name, value in self.facts.items())
        return "\n\n".join([f"# {self.title}", listed, *self._parts]) + "\n"

    def publish(self, name: str, *, save: bool) -> None:
        """Print it; with ``save`` also write it to ``results/<name>.md``."""
        print(self.text())
        if save:
            RESULTS.mkdir(exist_ok=True)
            (RESULTS / f"{name}.md").write_text(self.text())


def aligned(cells: Sequence[str], widths: Sequence[int]) -> str:
    """One line of a table."""
    padded = (
        cell.ljust(width) if index == 0 else cell.rjust(width)
        for index, (cell, width) in enumerate(zip(cells, widths, strict=True))
    )
    return f"| {' | '.join(padded)} |"


def command_line() -> str:
    """The command that runs this script again."""
    script = Path(sys.argv[0]).resolve()
    words = [word for word in sys.argv[1:] if word != "--save"]
    return shlex.join(["python", f"benchmarks/{script.name}", *words])
