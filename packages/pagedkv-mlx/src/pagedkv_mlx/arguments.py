"""Arguments that every cache takes alike: counts to trim, windows, overlays, encoder masks."""

from __future__ import annotations

import operator
from typing import SupportsIndex

import mlx.core as mx

from pagedkv_protocols import DecodePlan, DtypeMismatch, InvalidArgument, InvalidType, ShapeMismatch


def check_integers(**values: object) -> None:
    """Refuse a value that is no integer, such as 2.0 or True. Raises ``InvalidType``.

    ``None`` stands for an option that was not asked for.

    >>> check_integers(block_size=256, window=None)
    """
    for name, value in values.items():
        if value is not None and (isinstance(value, bool) or not hasattr(value, "__index__")):
            raise InvalidType(f"{name} is {value!r}; it must be an integer")


def trim_count(n: SupportsIndex) -> int:
    """``n`` as a number of positions to drop.

    Raises ``InvalidType`` for a bool or what is no integer, ``InvalidArgument`` below 0.

    >>> trim_count(3)
    3
    """
    if isinstance(n, bool) or not hasattr(n, "__index__"):
        raise InvalidType(f"wanted to trim {n!r}; the number of positions is an integer")
    count = operator.index(n)
    if count < 0:
        raise InvalidArgument(f"wanted to trim {count} positions; at least 0 is legal")
    return count


def window_size(window: int | None, release_behind: bool) -> int | None:
    """``window`` if it is legal. Raises ``InvalidArgument``, ``InvalidType``."""
    check_integers(window=window)
    if window is not None and window < 1:
        raise InvalidArgument(f"window is {window}; at least 1 is legal, or None for all")
    if release_behind and window is None:
        raise InvalidArgument("release_behind=True needs a window: there is nothing behind none")
    return window


def own(array: mx.array) -> mx.array:
    """Another handle on the same numbers: who assigns into ``array`` does not change it."""
    return array[...]


def check_array(array: object) -> None:
    """Refuse what is no ``mx.array``, such as one of NumPy. Raises ``InvalidType``."""
    if not isinstance(array, mx.array):
        kind = f"{type(array).__module__}.{type(array).__qualname__}"
        raise InvalidType(f"rows and queries are mx.array, one was a {kind}; wrap it in mx.array()")


def is_floating(array: mx.array) -> bool:
    """Whether ``array`` holds floating-point numbers. Raises ``InvalidType`` as ``check_array``."""
    check_array(array)
    return mx.issubdtype(array.dtype, mx.floating)


def check_plan(plan: DecodePlan, offset: int, room_end: int) -> None:
    """Refuse to commit a step that was planned for another length, or whose room is gone.

    Raises ``InvalidArgument``.
    """
    if plan.length != offset or offset >= room_end:
        raise InvalidArgument(
            f"a step was planned at {plan.length} positions, the cache has {offset} and room "
            f"for {room_end}; prepare it again after an append, a trim or a fork"
        )


def check_overlay(overlay: mx.array, num_queries: int) -> None:
    """Refuse an overlay that is not bool or integer ``[num_queries]``.

    Raises ``ShapeMismatch`` or ``DtypeMismatch``.
    """
    if overlay.shape != (num_queries,):
        raise ShapeMismatch(
            f"an overlay has shape {overlay.shape}; one entry a position is ({num_queries},)"
        )
    if overlay.dtype != mx.bool_ and not mx.issubdtype(overlay.dtype, mx.integer):
        raise DtypeMismatch(f"an overlay is {overlay.dtype}; it must be bool or integer span ids")


def check_encoder_mask(mask: mx.array, num_queries: int) -> None:
    """Refuse a mask that is not bool and broadcastable to ``[1, 1, L, L]``.

    Raises ``ShapeMismatch`` or ``DtypeMismatch``.
    """
    full = (1, 1, num_queries, num_queries)
    if mask.ndim > 4 or any(
        have not in (1, want) for have, want in zip(mask.shape[::-1], full[::-1], strict=False)
    ):
        raise ShapeMismatch(f"an encoder mask has shape {mask.shape}; it broadcasts to {full}")
    if mask.dtype != mx.bool_:
        raise DtypeMismatch(f"an encoder mask is {mask.dtype}; it must be bool")
