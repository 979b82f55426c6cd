"""ArrayAdapter: how the kit makes arrays of a library that it does not import."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

ArrayT = TypeVar("ArrayT")


class ArrayAdapter(Protocol[ArrayT]):
    """Arrays of one library, made from numbers and looked into.

    A dtype goes by its name: ``bool``, ``int32``, and floats such as ``float16``, ``bfloat16``
    and ``float32``. Elements are in row-major order. Every method but ``make`` and ``spoil``
    leaves its arguments as they are.
    """

    def make(self, values: Sequence[float], shape: Sequence[int], dtype: str, /) -> ArrayT:
        """A new array of ``values``, each rounded to the nearest of ``dtype``, ties to even."""
        ...

    def shape(self, array: ArrayT, /) -> tuple[int, ...]:
        """The array's shape."""
        ...

    def dtype(self, array: ArrayT, /) -> str:
        """The name of the array's dtype."""
        ...

    def values(self, array: ArrayT, /) -> list[float]:
        """Every element, evaluated, exactly as a Python float."""
        ...

    def bits(self, array: ArrayT, /) -> bytes:
        """Every element's bytes, one after the other, evaluated."""
        ...

    def evaluate(self, arrays: Sequence[ArrayT], /) -> None:
        """Compute what is pending of ``arrays``; nothing to do where nothing is lazy."""
        ...

    def spoil(self, array: ArrayT, /) -> None:
        """Overwrite every element in place, as the array's owner may, if the library can."""
        ...
