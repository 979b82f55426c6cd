"""DensePages: pages in the dtype the rows came in, the reference for every other format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, cast

import attrs
import mlx.core as mx

from pagedkv_formats.parameters import check_parameters
from pagedkv_protocols import PageCodec, PlaneSpec


@attrs.frozen
class DensePages:
    """Rows as they are, in the dtype of the first keys (bf16, fp16 or fp32).

    A page of ``block_size`` positions of one head:

    ==========  ===================================
    plane       bytes
    ==========  ===================================
    ``keys``    ``block_size * Dk * itemsize``
    ``values``  ``block_size * Dv * itemsize``; no plane where ``Dv`` is 0
    ==========  ===================================

    >>> rows = mx.ones((1, 2, 3, 16)), mx.zeros((1, 2, 3, 8))
    >>> keys, values = DensePages().decode(DensePages().encode(*rows), 16, 8, mx.float32)
    >>> mx.array_equal(keys, rows[0]).item(), values.shape
    (True, (1, 2, 3, 8))
    """

    name: str = attrs.field(default="dense", init=False)

    def planes(
        self, key_dim: int, value_dim: int, dtype: mx.Dtype, /
    ) -> tuple[PlaneSpec[mx.Dtype], ...]:
        """One plane for keys and one for values, of ``dtype``; any dims are legal."""
        keys = PlaneSpec("keys", key_dim, dtype)
        return (keys, PlaneSpec("values", value_dim, dtype)) if value_dim else (keys,)

    def encode(self, keys: mx.array, values: mx.array, /) -> tuple[mx.array, ...]:
        """The rows themselves."""
        return (keys, values) if values.shape[-1] else (keys,)

    def decode(
        self, rows: Sequence[mx.array], key_dim: int, value_dim: int, dtype: mx.Dtype, /
    ) -> tuple[mx.array, mx.array]:
        """The rows themselves; values of width 0 are made anew."""
        keys = rows[0]
        return keys, rows[1] if value_dim else mx.zeros((*keys.shape[:-1], 0), dtype)

    def signature(self) -> str:
        """``dense``: the dtype belongs to the planes, not to the format."""
        return "dense"

    def to_dict(self) -> dict[str, int | str | bool | None]:
        """``{"format": "dense"}``."""
        return {"format": "dense"}

    @classmethod
    def from_dict(cls, data: Mapping[str, object], /) -> DensePages:
        """Raises ``IllegalFormat`` for another format or unknown parameters.

        >>> DensePages.from_dict({"format": "dense"})
        DensePages(name='dense')
        """
        check_parameters(data, {"format": "dense"})
        return cls()


if TYPE_CHECKING:
    _: PageCodec[mx.array, mx.Dtype] = cast("DensePages", None)
