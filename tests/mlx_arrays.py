"""MLXArrays: what the conformance kit needs to know about MLX."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import mlx.core as mx

from pagedkv_protocols.conformance import ArrayAdapter


class MLXArrays:
    """Arrays from numbers and back; a dtype is called as in ``mlx.core``, and ``bool``."""

    def make(self, values: Sequence[float], shape: Sequence[int], dtype: str, /) -> mx.array:
        return mx.array(list(values), mx.float32).astype(mlx_dtype(dtype)).reshape(tuple(shape))

    def shape(self, array: mx.array, /) -> tuple[int, ...]:
        return tuple(array.shape)

    def dtype(self, array: mx.array, /) -> str:
        return str(array.dtype).removeprefix("mlx.core.").removesuffix("_")

    def values(self, array: mx.array, /) -> list[float]:
        return [float(number) for number in cast("list[float]", array.flatten().tolist())]

    def bits(self, array: mx.array, /) -> bytes:
        return bytes(mx.contiguous(array.flatten()).view(mx.uint8)) if array.size else b""

    def evaluate(self, arrays: Sequence[mx.array], /) -> None:
        mx.eval(*arrays)

    def spoil(self, array: mx.array, /) -> None:
        array[...] = mx.zeros_like(array)


def mlx_dtype(name: str) -> mx.Dtype:
    """The dtype that ``MLXArrays.dtype`` calls ``name``."""
    return cast("mx.Dtype", getattr(mx, "bool_" if name == "bool" else name))


if TYPE_CHECKING:
    _: ArrayAdapter[mx.array] = cast("MLXArrays", None)
