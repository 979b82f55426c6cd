"""NumpyRead: attention over the rows that an append left visible."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, cast

import numpy as np
import numpy.typing as npt
from typing_extensions import Self

from pagedkv_protocols import (
    PHASE,
    Disposed,
    DtypeMismatch,
    InvalidArgument,
    Phase,
    Read,
    ShapeMismatch,
)
from tests.numpy_cache.attention import Array, attend


class NumpyRead:
    """``keys`` and ``values`` of the moment, which nobody writes, under the rule ``visible``.

    ``visible`` is bool, ``[L, S]`` or narrower; ``None`` is every position.
    """

    def __init__(self, keys: Array, values: Array, visible: npt.NDArray[np.bool_] | None) -> None:
        self._rows: tuple[Array, Array] | None = (keys, values)
        self._visible = visible

    def attend(
        self,
        queries: Array,
        scale: float,
        *,
        mask: Phase | Array | None = PHASE,
        sinks: Array | None = None,
        softcap: float | None = None,
    ) -> Array:
        """As ``pagedkv_protocols.Read.attend`` states."""
        keys, values = self._held()
        check_queries(queries, keys)
        if sinks is not None and sinks.shape != queries.shape[1:2]:
            raise ShapeMismatch(f"sinks are {sinks.shape}; there are {queries.shape[1]} heads")
        if softcap is not None and not softcap > 0:
            raise InvalidArgument(f"softcap is {softcap}; it must be above 0")
        return attend(queries, keys, values, scale, self._mask(mask), sinks, softcap)

    def dispose(self) -> None:
        """Let go of the rows."""
        self._rows = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None:
        self.dispose()

    def _held(self) -> tuple[Array, Array]:
        if self._rows is None:
            raise Disposed("this read was disposed; append again, or attend before dispose()")
        return self._rows

    def _mask(self, mask: Phase | Array | None) -> Array | None:
        return cast("Array | None", self._visible) if isinstance(mask, Phase) else mask


def check_queries(queries: Array, keys: Array) -> None:
    """Raises ``ShapeMismatch`` or ``DtypeMismatch`` for queries that ``keys`` do not fit."""
    if queries.ndim != 4 or queries.shape[0] != 1 or queries.shape[3] != keys.shape[3]:
        raise ShapeMismatch(f"queries are {queries.shape}; legal is [1, Hq, L, {keys.shape[3]}]")
    if queries.shape[1] % keys.shape[1]:
        raise ShapeMismatch(f"{queries.shape[1]} query heads for {keys.shape[1]} of keys")
    if not np.issubdtype(queries.dtype, np.floating):
        raise DtypeMismatch(f"queries are {queries.dtype}; they must be floating point")


if TYPE_CHECKING:
    _: Read[Array] = cast("NumpyRead", None)
