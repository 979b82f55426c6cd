"""Formats by name: the codec that a saved description means."""

from __future__ import annotations

from collections.abc import Mapping

import mlx.core as mx

from pagedkv_formats.affine import PagedQuantization
from pagedkv_formats.dense import DensePages
from pagedkv_formats.turboquant import PagedTurboQuant
from pagedkv_protocols import IllegalFormat, PageCodec

FORMATS: dict[str, type[PageCodec[mx.array, mx.Dtype]]] = {
    "dense": DensePages,
    "affine": PagedQuantization,
    "mxfp4": PagedQuantization,
    "mxfp8": PagedQuantization,
    "nvfp4": PagedQuantization,
    "turboquant": PagedTurboQuant,
}


def codec_from_dict(data: Mapping[str, object]) -> PageCodec[mx.array, mx.Dtype]:
    """The codec whose ``to_dict`` gave ``data``.

    Raises ``IllegalFormat`` for a format that is not known, or a parameter that is missing,
    unknown or illegal.

    >>> codec_from_dict(PagedQuantization(8).to_dict())
    PagedQuantization(bits=8, group_size=64, mode='affine', value_bits=8)
    """
    name = data.get("format")
    if not isinstance(name, str) or name not in FORMATS:
        raise IllegalFormat(f"a page format is called {name!r}; known are {sorted(FORMATS)}")
    return FORMATS[name].from_dict(data)
