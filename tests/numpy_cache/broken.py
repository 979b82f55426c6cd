"""Four caches that break the contract, each in one way; the kit must say which.

``test_broken.py`` runs the classes beneath, whose names say what is wrong.
"""

from __future__ import annotations

from typing import SupportsIndex, cast

import numpy as np
from hypothesis import Phase as Stage
from hypothesis import settings

from pagedkv_protocols import BIDIRECTIONAL, BLOCK_READ, COMMITTED, DONOR, ENCODER, FORK, Phase
from pagedkv_protocols.conformance import CacheConformance
from tests.numpy_cache.arrays import NumpyArrays
from tests.numpy_cache.attention import Array
from tests.numpy_cache.cache import NumpyCache, Visible, trim_count
from tests.numpy_cache.read import NumpyRead


class TopLeft(NumpyCache):
    """The causal triangle begins at the first key, whatever was stored before."""

    def append_window(self, keys: Array, values: Array, /) -> NumpyRead:
        self._append(keys, values)
        below = np.tri(keys.shape[2], self.offset, dtype=np.bool_)
        return self._read(below if keys.shape[2] > 1 else None)


class StaleRead(NumpyRead):
    """It looks at the cache when it is attended."""

    cache: NumpyCache
    length: int

    def _held(self) -> tuple[Array, Array]:
        held = super()._held()
        now = self.cache._rows or held
        return now[0][:, :, : self.length], now[1][:, :, : self.length]


class StaleView(NumpyCache):
    """A read is a number of positions, and whatever lies there by now."""

    def _read(self, visible: Visible | None) -> NumpyRead:
        rows = self._rows
        assert rows is not None
        read = StaleRead(*rows, visible)
        read.cache, read.length = self, self.offset
        return read


class TrimKeepsRows(NumpyCache):
    """A trim moves the offset; the next append goes behind what the arrays hold."""

    _trimmed = 0

    @property
    def offset(self) -> int:
        return super().offset - self._trimmed

    def trim(self, n: SupportsIndex, /) -> int:
        rows, before = self._rows, self.offset
        count = super().trim(n) if not self._trimmed else min(trim_count(n), before)
        self._rows, self._trimmed = rows, self._trimmed + count
        return count

    def append_window(self, keys: Array, values: Array, /) -> NumpyRead:
        read = super().append_window(keys, values)
        self._trimmed = 0
        return read


class DroppingRead(NumpyRead):
    """It has no use for a mask."""

    def _mask(self, mask: Phase | Array | None) -> Array | None:
        return cast("Array | None", self._visible)


class MaskDropped(NumpyCache):
    """A mask is taken, and not applied."""

    def _read(self, visible: Visible | None) -> NumpyRead:
        assert self._rows is not None
        return DroppingRead(*self._rows, visible)


class BrokenCacheKit(CacheConformance[Array]):
    """The whole kit; the machine reports the first failure that it finds."""

    arrays = NumpyArrays()
    claims = (COMMITTED, BIDIRECTIONAL, ENCODER, BLOCK_READ, DONOR, FORK)
    machine_settings = settings(derandomize=True, database=None, phases=[Stage.generate])
    broken = NumpyCache

    def new_cache(self, *, window: int | None = None) -> NumpyCache:
        return self.broken(window)


class TestTopLeft(BrokenCacheKit):
    broken = TopLeft


class TestStaleView(BrokenCacheKit):
    broken = StaleView


class TestTrimKeepsRows(BrokenCacheKit):
    broken = TrimKeepsRows


class TestMaskDropped(BrokenCacheKit):
    broken = MaskDropped
