"""Argument types that subcommands share."""

from __future__ import annotations

import argparse


def positive(text: str) -> int:
    """A whole number of at least 1.

    >>> positive("16")
    16
    """
    try:
        number = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number") from None
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is below 1")
    return number
