"""Which way a read goes: from the pages where they lie, or gathered first."""

from __future__ import annotations

import mlx.core as mx

from pagedkv_formats import PagedQuantization
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
