"""MetalBackend: the contract on a Mac, a refusal everywhere else."""

import mlx.core as mx
import pytest

from pagedkv_metal import MetalBackend
from pagedkv_protocols import Unsupported
from pagedkv_protocols.conformance import KernelBackendConformance
from tests.mlx_arrays import MLXArrays, mlx_dtype


class TestContract(KernelBackendConformance[mx.array, mx.Dtype]):
    """What any kernel backend promises; skipped where MLX has no Metal."""

    arrays = MLXArrays()

    def new_backend(self):
        return MetalBackend()

    def dtype_named(self, name):
        return mlx_dtype(name)


@pytest.mark.skipif(mx.metal.is_available(), reason="this machine has Metal")
def test_metal_is_refused_where_there_is_none():
    with pytest.raises(Unsupported, match="needs Metal"):
        MetalBackend().compile("kernel", "", ["x"], ["y"])
