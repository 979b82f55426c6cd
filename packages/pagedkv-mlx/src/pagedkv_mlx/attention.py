"""Attention over rows: MLX's fused kernel, and explicit arithmetic where it has no option."""

from __future__ import annotations

import math
from typing import Literal

import mlx.core as mx

from pagedkv_protocols import DtypeMismatch, InvalidArgument, InvalidType, ShapeMismatch


def attend_rows(
    queries: mx.array,
    keys: mx.array,
    values: mx.array,
    scale: float,
    mask: mx.array | Literal["causal"] | None,
    sinks: mx.array | None = None,
    softcap: float | None = None,
) -> mx.array:
    """Softmax attention of ``queries [B, Hq, L, Dk]`` over S rows: ``[B, Hq, L, Dv]``.

    ``keys [B, Hkv, S, Dk]``, ``values [B, Hkv, S, Dv]``. ``mask`` is ``"causal"``
    (bottom-right aligned), ``None``, or an array broadcastable to ``[B, Hq, L, S]``, bool or
    additive; an additive one is cast to the dtype of ``queries``. The result has that dtype.

    Without ``softcap`` this is ``mx.fast.scaled_dot_product_attention`` and nothing else.

    Raises ``ShapeMismatch``, ``DtypeMismatch``, ``InvalidType`` or ``InvalidArgument`` for a
    mask, sinks or a softcap that do not fit.
    """
    if isinstance(mask, mx.array):
        mask = _fitting_mask(mask, queries, keys.shape[2])
    elif mask is not None:
        _check_word(mask)
    if sinks is not None:
        sinks = _fitting_sinks(sinks, queries)
    if softcap is not None:
        output = _softcapped(queries, keys, values, scale, mask, sinks, softcap)
    elif sinks is None:
        output = mx.fast.scaled_dot_product_attention(queries, keys, values, scale=scale, mask=mask)
    else:
        output = mx.fast.scaled_dot_product_attention(
            queries, keys, values, scale=scale, mask=mask, sinks=sinks
        )
    return output if output.dtype == queries.dtype else output.astype(queries.dtype)


def _fitting_mask(mask: mx.array, queries: mx.array, num_keys: int) -> mx.array:
    batch, heads, length, _ = queries.shape
    full = (batch, heads, length, num_keys)
    if mask.ndim > 4 or any(
        have not in (1, want) for have, want in zip(mask.shape[::-1], full[::-1], strict=False)
    ):
        raise ShapeMismatch(f"a mask has shape {mask.shape}; it must broadcast to {full}")
    if mask.dtype == mx.bool_:
        return mask
    if not mx.issubdtype(mask.dtype, mx.floating):
        raise DtypeMismatch(f"a mask is {mask.dtype}; it must be bool or floating point")
    return mask.astype(queries.dtype)


def _check_word(mask: object) -> None:
    if not (isinstance(mask, str) and mask == "causal"):
        raise InvalidType(f"a mask is {mask!r}; legal are PHASE, None and an mx.array")


def _fitting_sinks(sinks: mx.array, queries: mx.array) -> mx.array:
    if sinks.shape != (queries.shape[1],):
        raise ShapeMismatch(
            f"sinks have shape {sinks.shape}; one number a query head is ({queries.shape[1]},)"
        )
    if not mx.issubdtype(sinks.dtype, mx.floating):
        raise DtypeMismatch(f"sinks are {sinks.dtype}; they must be floating point")
    return sinks.astype(queries.dtype)


def _softcapped(
    queries: mx.array,
    keys: mx.array,
    values: mx.array,
    scale: float,
    mask: mx.array | Literal["causal"] | None,
    sinks: mx.array | None,
    softcap: float,
) -> mx.array:
    """``softmax(softcap * tanh(scale * q k^T / softcap) + mask) v`` in fp32.

    The form is that of Gemma 2 (arXiv 2408.00118, section 2).
    """
    if not 0 < softcap < math.inf:
        raise InvalidArgument(f"softcap is {softcap}; it must be above 0 and finite, or None")
    batch, heads, length, _ = queries.shape
    group = heads // keys.shape[1]
    grouped = (queries.astype(mx.float32) * scale).reshape(
        batch, -1, group, length, queries.shape[3]
    )
    scores = grouped @ keys.astype(mx.float32)[:, :, None].swapaxes(-1, -2)
    scores = (softcap * mx.tanh(scores / softcap)).reshape(batch, heads, length, -1)
    scores = _masked(scores, mask)
    if sinks is not None:
        sink = mx.broadcast_to(
            sinks.astype(mx.float32).reshape(1, -1, 1, 1), (batch, heads, length, 1)
        )
        weights = mx.softmax(mx.concatenate([scores, sink], axis=-1), axis=-1)[..., :-1]
    else:
        weights = mx.softmax(scores, axis=-1)
    weights = weights.reshape(batch, -1, group, length, keys.shape[2])
    output = weights @ values.astype(mx.float32)[:, :, None]
    return output.reshape(batch, heads, length, -1).astype(queries.dtype)


def _masked(scores: mx.array, mask: mx.array | Literal["causal"] | None) -> mx.array:
    if mask is None:
        return scores
    if isinstance(mask, str):
        length, num_keys = scores.shape[-2:]
        mask = mx.arange(num_keys - length, num_keys)[:, None] >= mx.arange(num_keys)[None]
    if mask.dtype == mx.bool_:  # the least finite number, so that a row of none is uniform
        return mx.where(mask, scores, mx.finfo(mx.float32).min)
    return scores + mask.astype(mx.float32)
