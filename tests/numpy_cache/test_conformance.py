"""The NumPy cache keeps the whole contract, with pagedkv-protocols and NumPy alone."""

import sys

from pagedkv_protocols import BIDIRECTIONAL, BLOCK_READ, COMMITTED, DONOR, ENCODER, FORK
from pagedkv_protocols.conformance import CacheConformance
from tests.numpy_cache.arrays import NumpyArrays
from tests.numpy_cache.attention import Array
from tests.numpy_cache.cache import NumpyCache


class TestNumpyCache(CacheConformance[Array]):
    arrays = NumpyArrays()
    dtypes = ("float32", "float16", "float64")
    offers_windows = True
    claims = (COMMITTED, BIDIRECTIONAL, ENCODER, BLOCK_READ, DONOR, FORK)

    def new_cache(self, *, window=None):
        return NumpyCache(window)


def test_the_numpy_cache_stands_on_the_protocols_alone():
    ours = {name.partition(".")[0] for name in sys.modules if name.startswith("pagedkv_")}
    if ours == {"pagedkv_protocols"}:
        assert "mlx" not in sys.modules
