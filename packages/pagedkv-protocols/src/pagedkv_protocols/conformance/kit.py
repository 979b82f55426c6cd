"""CacheKit: what the author of a cache states, and how the tests begin."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar

import pytest

from pagedkv_protocols.cache import Cache
from pagedkv_protocols.capabilities import Capability, supports
from pagedkv_protocols.conformance.arrays import ArrayAdapter
from pagedkv_protocols.conformance.clauses import Clause, broken
from pagedkv_protocols.conformance.rows import Dims
from pagedkv_protocols.conformance.seen import Seen
from pagedkv_protocols.conformance.setting import Setting
from pagedkv_protocols.conformance.subject import Subject

ArrayT = TypeVar("ArrayT")
CacheT = TypeVar("CacheT")

TOLERANCES = {"float64": 1e-12, "float32": 1e-5, "float16": 2e-3, "bfloat16": 1.6e-2}
"""The largest difference from float64, on the unit scale, by dtype."""


class CacheKit(abc.ABC, Generic[ArrayT]):
    """What the author of a cache states; every test class of a cache inherits it.

    - ``arrays``: how to make the cache's arrays and look into them;
    - ``dtypes``: the floats that it stores;
    - ``dims``: the heads and widths tried; small ones that its format can hold;
    - ``block_size``: lengths around its multiples are tried;
    - ``offers_windows``: ``new_cache`` takes a sliding window; 1, 3, block and block + 1
      are tried;
    - ``claims``: capabilities that the cache must have; any other is tried where
      ``supports`` finds it and skipped where not;
    - ``tolerances``: the largest difference from float64, on the unit scale, by dtype.
    """

    arrays: ArrayAdapter[ArrayT]
    dtypes: Sequence[str] = ("float32",)
    dims: Dims = Dims()
    block_size: int = 4
    offers_windows: bool = False
    claims: Sequence[Capability[Any]] = ()
    tolerances: Mapping[str, float] = TOLERANCES

    @abc.abstractmethod
    def new_cache(self, *, window: int | None = None) -> Cache[ArrayT]:
        """A fresh cache with room for ``64 + 8 * block_size`` positions."""

    def reference_cache(self, *, window: int | None = None) -> Cache[ArrayT] | None:
        """A cache of the same arrays that must give the same bits, if there is one."""
        return None

    def as_stored(self, keys: ArrayT, values: ArrayT, /) -> tuple[ArrayT, ArrayT]:
        """What a read attends of these rows; a format that loses something says so here."""
        return keys, values

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Each ``dtype`` that is stated, each ``window`` that is offered."""
        if "dtype" in metafunc.fixturenames:
            metafunc.parametrize("dtype", self.dtypes)
        if "window" in metafunc.fixturenames:
            windows = self.windows()
            metafunc.parametrize("window", windows, ids=[f"window={w}" for w in windows])

    def windows(self) -> list[int | None]:
        """The windows that are tried; ``None`` is none."""
        if not self.offers_windows:
            return [None]
        return list(dict.fromkeys([None, 1, 3, self.block_size, self.block_size + 1]))

    def subject(
        self,
        dtype: str | None = None,
        *,
        window: int | None = None,
        dims: Dims | None = None,
        having: Capability[Any] | None = None,
    ) -> Subject[ArrayT]:
        """A fresh cache with its model and its reference, always fed the same rows.

        Where it is not ``having`` the capability, the test is skipped, or fails if claimed.
        """
        __tracebackhide__ = True
        cache = self.new_cache(window=window)
        if having is not None:
            self.having(cache, having)
        dtype = dtype or self.dtypes[0]
        setting = Setting(self.arrays, dims or self.dims, dtype, self.tolerances, self.as_stored)
        history = [f"new {dtype} cache, window {window}"]
        return Subject(setting, cache, self.reference_cache(window=window), history)

    def having(self, cache: Cache[ArrayT], capability: Capability[CacheT]) -> CacheT:
        """``cache`` as one that has the capability; else skip, or fail where it is claimed."""
        __tracebackhide__ = True
        if supports(cache, capability):
            return cache
        if capability in self.claims:
            broken(Clause.CAPABILITY, f"{type(cache).__name__} claims {capability}", "not there")
        pytest.skip(f"no {capability.name}")

    def reads_of_each_kind(self, dtype: str, window: int | None = None) -> Sequence[Seen[ArrayT]]:
        """A decode, a short window and a longer one, on a history of a block or two."""
        subject = self.subject(dtype, window=window)
        subject.window(self.block_size + 2)
        return subject.decode(), subject.window(3), subject.window(12)
