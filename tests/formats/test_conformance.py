"""Every format keeps the contract of a codec."""

import mlx.core as mx

from pagedkv_formats import DensePages, PagedQuantization
from pagedkv_protocols.conformance import CodecConformance
from tests.mlx_arrays import MLXArrays, mlx_dtype


class FormatConformance(CodecConformance[mx.array, mx.Dtype]):
    arrays = MLXArrays()
    dtypes = ("bfloat16", "float16", "float32")

    def dtype_named(self, name, /):
        return mlx_dtype(name)


class TestDensePages(FormatConformance):
    dims = ((16, 16), (80, 96), (64, 0))
    lossless = True

    def new_codec(self):
        return DensePages()


class TestAffine(FormatConformance):
    dims = ((64, 64), (128, 64))
    illegal_dims = ((80, 64), (64, 112))

    def new_codec(self):
        return PagedQuantization(bits=4, group_size=64)


class TestAffineOfTwoWidths(FormatConformance):
    dims = ((96, 32), (192, 128))
    illegal_dims = ((80, 64), (64, 72))

    def new_codec(self):
        return PagedQuantization(bits=3, group_size=32, value_bits=6)


class TestMXFP8(FormatConformance):
    dims = ((64, 32),)
    illegal_dims = ((72, 64),)

    def new_codec(self):
        return PagedQuantization(bits=8, group_size=32, mode="mxfp8")
