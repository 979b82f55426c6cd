"""The kernels of ``pagedkv_metal``, compiled from the same source for NVIDIA GPUs.

``CudaBackend`` is a ``KernelBackend``: hand it to ``pagedkv_metal.DirectRead``.
"""

from pagedkv_cuda.backend import CudaBackend

__all__ = ["CudaBackend"]
