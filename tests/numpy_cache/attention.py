"""Softmax attention over NumPy arrays, with the masks, sinks and softcap of ``Read.attend``."""

from __future__ import annotations

from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from pagedkv_protocols import DtypeMismatch, ShapeMismatch

Array: TypeAlias = npt.NDArray[np.float32]
"""What the cache is typed for; rows of other floats, and masks, pass through it as well."""

Scores: TypeAlias = npt.NDArray[np.float64]

LOWEST = np.finfo(np.float64).min
"""What a bool mask adds: finite, so that a row with nothing left is the mean of all values."""


def attend(
    queries: Array,
    keys: Array,
    values: Array,
    scale: float,
    mask: Array | None,
    sinks: Array | None,
    softcap: float | None,
) -> Array:
    """``queries [1, Hq, L, Dk]`` over ``keys [1, Hkv, S, Dk]``: ``[1, Hq, L, Dv]``."""
    gqa_factor = queries.shape[1] // keys.shape[1]
    wide = [np.repeat(rows, gqa_factor, axis=1).astype(np.float64) for rows in (keys, values)]
    scores = scale * np.einsum("bhld,bhsd->bhls", queries.astype(np.float64), wide[0])
    if softcap is not None:
        scores = softcap * np.tanh(scores / softcap)
    if mask is not None:
        scores = scores + added(mask, scores.shape, queries.dtype)
    weights = softmax(scores, sinks)
    output = np.einsum("bhls,bhsd->bhld", weights, wide[1])
    return cast("Array", output.astype(queries.dtype))


def added(mask: Array, shape: tuple[int, ...], dtype: Any) -> Scores:
    """What ``mask`` adds to scores of ``shape``; a float one is rounded to ``dtype`` first.

    Raises ``ShapeMismatch`` where it does not broadcast, ``DtypeMismatch`` for integers.
    """
    if not broadcasts(mask.shape, shape):
        raise ShapeMismatch(f"the mask is {mask.shape}; it must broadcast to {shape}")
    if mask.dtype == np.bool_:
        return np.where(mask, 0.0, LOWEST)
    if not np.issubdtype(mask.dtype, np.floating):
        raise DtypeMismatch(f"the mask is {mask.dtype}; it must be bool or floating point")
    return mask.astype(dtype).astype(np.float64)


def broadcasts(shape: tuple[int, ...], to: tuple[int, ...]) -> bool:
    """Whether an array of ``shape`` broadcasts to ``to``."""
    pairs = zip(shape[::-1], to[::-1], strict=False)
    return len(shape) <= len(to) and all(have in (1, want) for have, want in pairs)


def softmax(scores: Scores, sinks: Array | None) -> Scores:
    """The weights of ``scores [B, Hq, L, S]``; ``sinks [Hq]`` take a share and give nothing."""
    num_keys = scores.shape[-1]
    if sinks is not None:
        column = np.empty((*scores.shape[:3], 1))
        column[...] = sinks[None, :, None, None]
        scores = np.concatenate([scores, column], axis=-1)
    with np.errstate(invalid="ignore"):  # a row of -inf is NaN, as the contract says
        weights: Scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
    return weights[..., :num_keys]
