"""main: the arguments of every subcommand, and one line with exit code 2 for what is refused."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from importlib.metadata import version
from typing import NoReturn

from rich.console import Console

from pagedkv_mlx.cli import generate
from pagedkv_protocols import PagedKVError

SUBCOMMANDS = (generate,)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line ``arguments`` (those of the process by default).

    Gives the exit code: 0 done, 1 a comparison found a difference, 2 refused, 130 stopped,
    141 nobody reads the output any more.
    """
    options = parser().parse_args(arguments)
    try:
        code: int = options.run(options)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # takes what Python writes as it ends
        return 128 + 13  # as of a process that SIGPIPE ended
    except (PagedKVError, OSError) as error:
        complain(" ".join(str(error).split()))
        return 2
    except KeyboardInterrupt:
        complain("stopped")
        return 130
    return code


def complain(line: str) -> None:
    """One line on standard error."""
    console = Console(stderr=True, soft_wrap=True)
    console.print(f"pagedkv: {line}", style="red", markup=False, highlight=False)


class OneLine(argparse.ArgumentParser):
    """A parser that refuses in one line, as the rest of the command does."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong and where help is; exit with 2."""
        complain(f"{message}; see {self.prog} --help")
        self.exit(2)


def parser() -> argparse.ArgumentParser:
    """The command's arguments."""
    top = OneLine(prog="pagedkv", description="Language models on MLX with paged key/value caches.")
    top.add_argument("--version", action="version", version=f"pagedkv {version('pagedkv-mlx')}")
    subparsers = top.add_subparsers(title="subcommands", required=True, metavar="SUBCOMMAND")
    for subcommand in SUBCOMMANDS:
        subcommand.add_parser(subparsers)
    return top
