"""The kit takes any codec, pool and kernel backend that keep the contract."""

from pagedkv_protocols.conformance import (
    CodecConformance,
    KernelBackendConformance,
    PoolConformance,
)
from tests.protocols.toy import Tensor, Tensors, ToyBackend, ToyCodec, ToyPool


class CodecKit(CodecConformance[Tensor, str]):
    arrays = Tensors()
    dims = ((4, 4), (6, 2))
    illegal_dims = ((3, 4), (4, 5))
    codec = ToyCodec

    def new_codec(self):
        return self.codec()

    def dtype_named(self, name, /):
        return name


class PoolKit(PoolConformance):
    pool = ToyPool

    def new_pool(self, num_blocks):
        return self.pool(num_blocks)


class BackendKit(KernelBackendConformance[Tensor, str]):
    arrays = Tensors()
    backend = ToyBackend

    def new_backend(self):
        return self.backend()

    def dtype_named(self, name, /):
        return name


class TestToyCodec(CodecKit):
    """As it is."""


class TestToyPool(PoolKit):
    """As it is."""


class TestToyBackend(BackendKit):
    """As it is."""
