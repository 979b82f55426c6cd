"""RowLayout: heads, dims and dtype, fixed by a cache's first rows and asked of all later ones."""

from __future__ import annotations

from typing import NoReturn

import attrs
import mlx.core as mx

from pagedkv_mlx.arguments import check_array, is_floating
from pagedkv_protocols import DtypeMismatch, ShapeMismatch

PAGE_DTYPES = (mx.bfloat16, mx.float16, mx.float32)


@attrs.frozen
class RowLayout:
    """The rows of a cache: keys ``[1, num_kv_heads, L, key_dim]``, values, of one dtype.

    >>> rows = mx.zeros((1, 2, 5, 16))
    >>> layout = RowLayout.of(rows, rows)
    >>> layout.num_kv_heads, layout.key_dim, layout.count(rows, rows)
    (2, 16, 5)
    """

    num_kv_heads: int
    key_dim: int
    value_dim: int
    dtype: mx.Dtype

    @classmethod
    def of(cls, keys: mx.array, values: mx.array) -> RowLayout:
        """The layout of a first append.

        Raises ``ShapeMismatch`` unless keys are ``[1, Hkv, L, Dk]`` and values
        ``[1, Hkv, L, Dv]`` with ``L >= 1``; ``DtypeMismatch`` unless both have the same
        dtype, one of bfloat16, float16 and float32.
        """
        for array in (keys, values):
            check_array(array)
        if keys.ndim != 4 or values.ndim != 4:
            raise ShapeMismatch(
                f"keys have shape {keys.shape} and values {values.shape}; "
                "both must be [1, heads, positions, dim]"
            )
        layout = cls(keys.shape[1], keys.shape[3], values.shape[3], keys.dtype)
        layout.count(keys, values)
        if 0 in keys.shape:
            raise ShapeMismatch(f"keys have shape {keys.shape}; no axis may be empty")
        if keys.dtype not in PAGE_DTYPES:
            raise DtypeMismatch(f"keys are {keys.dtype}; pages hold bfloat16, float16 or float32")
        if values.dtype != keys.dtype:
            raise DtypeMismatch(
                f"keys are {keys.dtype} and values {values.dtype}; the first rows of a cache "
                "fix one dtype for both"
            )
        return layout

    def count(self, keys: mx.array, values: mx.array) -> int:
        """How many positions the rows have; refused if they are not of this layout.

        Raises ``ShapeMismatch`` for another rank, batch, head count or dim, or no position;
        ``DtypeMismatch`` for rows that are not floating point.
        """
        return self.fit(keys, values)[0]

    def fit(self, keys: mx.array, values: mx.array) -> tuple[int, mx.array, mx.array]:
        """How many positions the rows have, and the rows in the pages' dtype.

        Raises as ``count`` does.
        """
        length = keys.shape[2] if keys.ndim == 4 else 0
        heads = self.num_kv_heads
        if (
            keys.shape != (1, heads, length, self.key_dim)
            or values.shape != (1, heads, length, self.value_dim)
            or not length
        ):
            self._refuse_shapes(keys, values)
        dtype = self.dtype
        if keys.dtype != dtype or values.dtype != dtype:
            for name, rows in (("keys", keys), ("values", values)):
                if not is_floating(rows):
                    raise DtypeMismatch(f"{name} are {rows.dtype}; rows are floating point")
            return length, self.cast(keys), self.cast(values)
        return length, keys, values

    def holds(self, other: RowLayout) -> bool:
        """Whether rows of ``other`` fit; another float dtype does, by rounding."""
        return (self.num_kv_heads, self.key_dim, self.value_dim) == (
            other.num_kv_heads,
            other.key_dim,
            other.value_dim,
        )

    def cast(self, rows: mx.array) -> mx.array:
        """``rows`` in the pages' dtype, rounded to nearest: pages keep their first dtype."""
        return rows if rows.dtype == self.dtype else rows.astype(self.dtype)

    def check_queries(self, queries: mx.array) -> None:
        """Refuse queries that are not ``[1, Hq, L, Dk]`` with ``Hq`` a multiple of ``Hkv``.

        Raises ``ShapeMismatch``, or ``DtypeMismatch`` for queries not floating point.
        """
        shape = queries.shape
        if (
            len(shape) != 4
            or shape[0] != 1
            or shape[3] != self.key_dim
            or not shape[1]
            or shape[1] % self.num_kv_heads
        ):
            raise ShapeMismatch(
                f"queries have shape {shape}; this cache is attended with [1, Hq, L, "
                f"{self.key_dim}], Hq a multiple of {self.num_kv_heads}"
            )
        if queries.dtype != self.dtype and not is_floating(queries):
            raise DtypeMismatch(f"queries are {queries.dtype}; they must be floating point")

    def _refuse_shapes(self, keys: mx.array, values: mx.array) -> NoReturn:
        hint = ""
        if keys.ndim == 4 and keys.shape[0] != 1:
            hint = "; a batch of sequences is a PagedKVRows"
        raise ShapeMismatch(
            f"keys have shape {keys.shape} and values {values.shape}; this cache takes "
            f"[1, {self.num_kv_heads}, L, {self.key_dim}] and "
            f"[1, {self.num_kv_heads}, L, {self.value_dim}] with L >= 1{hint}"
        )
