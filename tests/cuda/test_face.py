"""What ``pagedkv_cuda`` offers, and what it says where there is no GPU."""

import mlx.core as mx
import pytest

import pagedkv_cuda
from pagedkv_protocols import Unsupported
from pagedkv_protocols.conformance import KernelBackendConformance
from tests.mlx_arrays import MLXArrays, mlx_dtype


class TestContract(KernelBackendConformance[mx.array, mx.Dtype]):
    """What any kernel backend promises; skipped where MLX has no NVIDIA GPU."""

    arrays = MLXArrays()

    def new_backend(self):
        return pagedkv_cuda.CudaBackend()

    def dtype_named(self, name):
        return mlx_dtype(name)


def test_the_package_imports_without_a_gpu_and_offers_its_backend():
    assert pagedkv_cuda.__all__ == ["CudaBackend"]


@pytest.mark.skipif(mx.cuda.is_available(), reason="MLX has an NVIDIA GPU here")
def test_a_kernel_is_refused_where_there_is_no_gpu():
    with pytest.raises(Unsupported, match="needs an NVIDIA GPU"):
        pagedkv_cuda.CudaBackend().compile("kernel", "", ["x"], ["y"])
