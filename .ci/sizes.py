"""Prints how long functions and files are and how many names each package makes public."""

from __future__ import annotations

import ast
import pathlib
import statistics
from collections.abc import Iterator

PACKAGES = pathlib.Path(__file__).parents[1] / "packages"


def body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines from the first statement after the docstring to the last."""
    statements = function.body[ast.get_docstring(function) is not None :]
    return (statements[-1].end_lineno or 0) - statements[0].lineno + 1 if statements else 0


def functions(source: pathlib.Path) -> Iterator[tuple[int, str]]:
    """Each function's length and where it is."""
    for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            where = f"{source.relative_to(PACKAGES)}:{node.lineno} {node.name}"
            yield body_lines(node), where


def public_names(package: pathlib.Path) -> list[str]:
    """What `__all__` of the package lists."""
    tree = ast.parse(next(package.glob("src/*/__init__.py")).read_text(encoding="utf-8"))
    return [
        ast.literal_eval(element)
        for node in tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.List)
        for element in node.value.elts
    ]


def describe(package: pathlib.Path) -> None:
    """One package: a line of figures, then whatever deserves a second look."""
    sources = sorted(package.glob("src/**/*.py"))
    lengths = sorted(pair for source in sources for pair in functions(source))
    files = {s: s.read_text(encoding="utf-8").count("\n") for s in sources}
    bodies = [length for length, _ in lengths] or [0]
    print(
        f"{package.name}: {len(public_names(package))} public names; "
        f"{len(lengths)} functions, median {statistics.median(bodies):g} lines, "
        f"90th percentile {bodies[int(0.9 * (len(bodies) - 1))]}, longest {bodies[-1]}; "
        f"{len(files)} files, longest {max(files.values())}"
    )
    for length, where in reversed(lengths):
        if length >= 25:
            print(f"  {length:4} lines  {where}")
    for source, length in files.items():
        if length >= 300:
            print(f"  {length:4} lines  {source.relative_to(PACKAGES)}")


for folder in sorted(PACKAGES.iterdir()):
    if any(folder.glob("src/*/__init__.py")):
        describe(folder)
