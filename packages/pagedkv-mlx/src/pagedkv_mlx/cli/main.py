"""main: the arguments of every subcommand, and one line with exit code 2 for what is refused."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from rich.console import Console

from pagedkv_mlx.cli import generate
from pagedkv_protocols import PagedKVError

SUBCOMMANDS = (generate,)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line ``arguments`` (those of the process by default).

    Gives the exit code: 0 done, 1 a comparison found a difference, 2 refused.
    """
    options = parser().parse_args(arguments)
    try:
        code: int = options.run(options)
    except (PagedKVError, OSError) as error:
        Console(stderr=True, soft_wrap=True).print(
            f"pagedkv: {error}", style="red", markup=False, highlight=False
        )
        return 2
    except KeyboardInterrupt:
        return 130
    return code


def parser() -> argparse.ArgumentParser:
    """The command's arguments."""
    top = argparse.ArgumentParser(
        prog="pagedkv", description="Language models on MLX with paged key/value caches."
    )
    subparsers = top.add_subparsers(title="subcommands", required=True, metavar="SUBCOMMAND")
    for subcommand in SUBCOMMANDS:
        subcommand.add_parser(subparsers)
    return top
