"""Setting: the arrays, dims and dtype of one test, and the way from numbers to arrays."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from pagedkv_protocols.conformance.arrays import ArrayAdapter
from pagedkv_protocols.conformance.reference import Mask
from pagedkv_protocols.conformance.rows import Dims, Heads, Rows, flat, shaped

ArrayT = TypeVar("ArrayT")


@dataclass(frozen=True)
class Setting(Generic[ArrayT]):
    """What the author of a cache stated, for tests of rows of ``dims`` and ``dtype``."""

    arrays: ArrayAdapter[ArrayT]
    dims: Dims
    dtype: str
    tolerances: Mapping[str, float]
    as_stored: Callable[[ArrayT, ArrayT], tuple[ArrayT, ArrayT]]

    def array(self, heads: Heads, dim: int, dtype: str) -> ArrayT:
        """``heads [H][L][dim]`` as an array ``[1, H, L, dim]``."""
        return self.arrays.make(flat(heads), (1, len(heads), len(heads[0]), dim), dtype)

    def pair(self, rows: Rows, dtype: str | None = None) -> tuple[ArrayT, ArrayT]:
        """Rows as the keys and values that an append takes."""
        dtype = dtype or self.dtype
        return (
            self.array(rows.keys, self.dims.key_dim, dtype),
            self.array(rows.values, self.dims.value_dim, dtype),
        )

    def rows(self, keys: ArrayT, values: ArrayT) -> Rows:
        """The inverse of ``pair``."""
        return Rows(self._heads(keys), self._heads(values))

    def mask(self, mask: Mask) -> ArrayT:
        """A mask as an array."""
        return self.arrays.make(mask.values, mask.shape, mask.dtype)

    def blank(self, *shape: int, dtype: str | None = None) -> ArrayT:
        """Ones of any shape, for calls that are to be refused."""
        return self.arrays.make([1.0] * math.prod(shape), shape, dtype or self.dtype)

    def tolerance(self, *dtypes: str) -> float:
        """The largest difference from float64 where all of ``dtypes`` take part."""
        return max(self.tolerances[dtype] for dtype in dtypes)

    def _heads(self, array: ArrayT) -> Heads:
        _, num_heads, length, dim = self.arrays.shape(array)
        return shaped(self.arrays.values(array), num_heads, length, dim)
