"""NumpyCache: keys and values of one sequence as two arrays that are replaced, never written."""

from __future__ import annotations

import operator
from types import TracebackType
from typing import TYPE_CHECKING, SupportsIndex, TypeAlias, cast

import numpy as np
import numpy.typing as npt
from typing_extensions import Self

from pagedkv_protocols import (
    BidirectionalCache,
    BlockReadCache,
    Cache,
    CommittedCache,
    Disposed,
    DonorCache,
    DonorRows,
    DtypeMismatch,
    EncoderCache,
    ForkableCache,
    InvalidArgument,
    InvalidType,
    ShapeMismatch,
    Unsupported,
)
from tests.numpy_cache.attention import Array, broadcasts
from tests.numpy_cache.read import NumpyRead

Visible: TypeAlias = npt.NDArray[np.bool_]


class NumpyCache:
    """Every position in one array of keys and one of values, copied by each append.

    True between any two calls: nobody writes an array that a read, a fork or a caller holds.
    """

    def __init__(self, window: int | None = None) -> None:
        if window is not None and window < 1:
            raise InvalidArgument(f"window is {window}; at least 1 is legal, or None")
        self._window = window
        self._rows: tuple[Array, Array] | None = None
        self._disposed = False

    @property
    def offset(self) -> int:
        return 0 if self._rows is None else self._rows[0].shape[2]

    @property
    def start(self) -> int:
        return 0

    @property
    def window(self) -> int | None:
        return self._window

    def append_decode(self, keys: Array, values: Array, /) -> NumpyRead:
        if keys.ndim == 4 and keys.shape[2] != 1:
            raise ShapeMismatch(f"keys are {keys.shape}; append_decode takes one position")
        return self.append_window(keys, values)

    def append_window(self, keys: Array, values: Array, /) -> NumpyRead:
        self._append(keys, values)
        return self._read(causal(keys.shape[2], self.offset, self._window))

    def append_committed(self, keys: Array, values: Array, /) -> NumpyRead:
        return self.append_window(keys, values)

    def append_bidirectional(
        self, keys: Array, values: Array, bidirectional: Array, /
    ) -> NumpyRead:
        self._check_first()
        spans = self._overlay(keys, bidirectional)
        self._append(keys, values)
        same = (spans[:, None] == spans[None]) & (spans[:, None] != 0)
        return self._read(causal(self.offset, self.offset, self._window) | same)

    def append_encoder(self, keys: Array, values: Array, mask: Array | None, /) -> NumpyRead:
        self._check_first()
        if mask is not None and keys.ndim == 4:
            length = keys.shape[2]
            if not broadcasts(mask.shape, (1, 1, length, length)):
                raise ShapeMismatch(f"the mask is {mask.shape} for {length} positions")
            if mask.dtype != np.bool_:
                raise DtypeMismatch(f"the mask is {mask.dtype}; it must be bool")
        self._append(keys, values)
        return self._read(None if mask is None else cast("Visible", mask.copy()))

    def read_block(self, keys: Array, values: Array, /) -> NumpyRead:
        return NumpyRead(*self._joined(keys, values), None)

    def capture_donor_rows(self) -> DonorRows[Array]:
        rows = self.export()
        if rows is None:
            raise Unsupported("no rows were appended yet; their dims are not known")
        return DonorRows(*rows, offset=self.offset, start=0, end=self.offset)

    def is_trimmable(self, n: SupportsIndex = 0, /) -> bool:
        self._check_alive()
        return trim_count(n) >= 0

    def trim(self, n: SupportsIndex, /) -> int:
        self._check_alive()
        count = min(trim_count(n), self.offset)
        if self._rows is not None:
            keys, values = self._rows
            keep = self.offset - count
            self._rows = keys[:, :, :keep], values[:, :, :keep]
        return count

    def state(self) -> tuple[Array, ...]:
        self._check_alive()
        return () if self._rows is None else self._rows

    def export(self) -> tuple[Array, Array] | None:
        self._check_alive()
        if self._rows is None:
            return None
        keys, values = self._rows
        return keys.copy(), values.copy()

    def signature(self) -> str:
        return f"numpy/window={self._window}"

    def fork(self) -> Self:
        self._check_alive()
        other = type(self)(self._window)
        other._rows = self._rows
        return other

    def dispose(self) -> None:
        self._rows, self._disposed = None, True

    def __enter__(self) -> Self:
        self._check_alive()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None:
        self.dispose()

    def _append(self, keys: Array, values: Array) -> None:
        self._rows = self._joined(keys, values)

    def _read(self, visible: Visible | None) -> NumpyRead:
        assert self._rows is not None
        return NumpyRead(*self._rows, visible)

    def _joined(self, keys: Array, values: Array) -> tuple[Array, Array]:
        """The stored rows, then these in the stored dtype; new arrays that nobody may write."""
        self._check_alive()
        check_rows(keys, values)
        stored = self._rows or tuple(rows[:, :, :0] for rows in (keys, values))
        joined: list[Array] = []
        for old, new in zip(stored, (keys, values), strict=True):
            if old.shape[1] != new.shape[1] or old.shape[3] != new.shape[3]:
                raise ShapeMismatch(f"rows are {new.shape}; the first append's were {old.shape}")
            joined.append(np.concatenate([old, new.astype(old.dtype)], axis=2))
            joined[-1].flags.writeable = False
        if self._rows is None and keys.dtype != values.dtype:
            raise DtypeMismatch(f"keys are {keys.dtype}, values {values.dtype}; one is stored")
        return joined[0], joined[1]

    def _overlay(self, keys: Array, overlay: Array) -> npt.NDArray[np.int64]:
        if keys.ndim == 4 and overlay.shape != (keys.shape[2],):
            raise ShapeMismatch(f"the overlay is {overlay.shape} for {keys.shape[2]} positions")
        if overlay.dtype != np.bool_ and not np.issubdtype(overlay.dtype, np.integer):
            raise DtypeMismatch(f"the overlay is {overlay.dtype}; legal are bool and integers")
        return overlay.astype(np.int64)

    def _check_first(self) -> None:
        self._check_alive()
        if self.offset:
            raise Unsupported(f"{self.offset} positions are stored; this is for the first window")

    def _check_alive(self) -> None:
        if self._disposed:
            raise Disposed("this cache was disposed; make another")


def causal(num_queries: int, num_keys: int, window: int | None) -> Visible:
    """``[num_queries, num_keys]``, the last query at the last key."""
    behind = np.arange(num_keys - num_queries, num_keys)[:, None] - np.arange(num_keys)
    return (behind >= 0) & (behind < (num_keys if window is None else window))


def check_rows(keys: Array, values: Array) -> None:
    """Raises ``ShapeMismatch`` or ``DtypeMismatch`` for rows that no cache takes."""
    for rows in (keys, values):
        if rows.ndim != 4 or rows.shape[0] != 1 or not rows.shape[2]:
            raise ShapeMismatch(f"rows are {rows.shape}; legal is [1, Hkv, L, D] with L >= 1")
        if not np.issubdtype(rows.dtype, np.floating):
            raise DtypeMismatch(f"rows are {rows.dtype}; they must be floating point")
    if keys.shape[:3] != values.shape[:3]:
        raise ShapeMismatch(f"keys are {keys.shape}, values {values.shape}; they differ before D")


def trim_count(n: SupportsIndex) -> int:
    """``n`` as a number of positions. Raises ``InvalidType`` or ``InvalidArgument``."""
    if isinstance(n, bool) or not hasattr(n, "__index__"):
        raise InvalidType(f"trim({n!r}); the number of positions is an integer")
    if operator.index(n) < 0:
        raise InvalidArgument(f"trim({n!r}); at least 0 is legal")
    return operator.index(n)


if TYPE_CHECKING:
    _: Cache[Array] = cast("NumpyCache", None)
    _committed: CommittedCache[Array] = cast("NumpyCache", None)
    _bidirectional: BidirectionalCache[Array] = cast("NumpyCache", None)
    _encoder: EncoderCache[Array] = cast("NumpyCache", None)
    _block: BlockReadCache[Array] = cast("NumpyCache", None)
    _donor: DonorCache[Array] = cast("NumpyCache", None)
    _fork: ForkableCache[Array] = cast("NumpyCache", None)
