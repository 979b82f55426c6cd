"""Which way a read goes: from the pages where they lie, or gathered first."""

from __future__ import annotations

import mlx.core as mx

from pagedkv_formats import PagedQuantization, PagedTurboQuant
from pagedkv_protocols import PageCodec

DIRECT_BITS = (2, 4, 8)
"""Affine widths whose codes never straddle a byte, which direct reads can take apart."""


def has_direct_read(codec: PageCodec[mx.array, mx.Dtype]) -> bool:
    """Whether pages of this format can be attended where they lie, on a machine that can.

    16/32-bit pages and affine pages of 2, 4 and 8 bits can; affine 3, 5 and 6 bits, the mx
    and nv modes and TurboQuant are gathered whatever was asked.
    """
    if isinstance(codec, PagedQuantization):
        return codec.mode == "affine" and {codec.bits, codec.value_bits} <= set(DIRECT_BITS)
    return codec.name == "dense"


def attended_rotated(codec: PageCodec[mx.array, mx.Dtype]) -> PagedTurboQuant | None:
    """The format itself if its decode and window reads attend rotated rows with rotated queries."""
    if isinstance(codec, PagedTurboQuant) and codec.kernels == "rotated":
        return codec
    return None
