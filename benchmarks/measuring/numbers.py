"""Numbers out of arrays."""

from __future__ import annotations

from typing import cast

import mlx.core as mx


def number(array: mx.array) -> float:
    """The one real number of ``array``, evaluated.

    >>> number(mx.array(3))
    3.0
    """
    return float(cast("float", array.item()))
