"""NumpyArrays: what the conformance kit needs to know about NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import numpy as np

from pagedkv_protocols.conformance import ArrayAdapter
from tests.numpy_cache.attention import Array


class NumpyArrays:
    """Arrays from numbers and back; the name of a dtype is NumPy's."""

    def make(self, values: Sequence[float], shape: Sequence[int], dtype: str, /) -> Array:
        return cast("Array", np.array(values).astype(dtype).reshape(shape))

    def shape(self, array: Array, /) -> tuple[int, ...]:
        return array.shape

    def dtype(self, array: Array, /) -> str:
        return str(array.dtype)

    def values(self, array: Array, /) -> list[float]:
        return [float(number) for number in array.flat]

    def bits(self, array: Array, /) -> bytes:
        return array.tobytes()

    def evaluate(self, arrays: Sequence[Array], /) -> None:
        """Nothing is ever pending."""

    def spoil(self, array: Array, /) -> None:
        array[...] = 0


if TYPE_CHECKING:
    _: ArrayAdapter[Array] = cast("NumpyArrays", None)
