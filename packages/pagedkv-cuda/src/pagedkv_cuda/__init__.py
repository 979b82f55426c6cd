"""The kernels of ``pagedkv_metal``, compiled from the same source for NVIDIA GPUs.

There is no kernel to compile yet, and no public name: both arrive with the direct reads.
"""

__all__: list[str] = []
