"""TurboQuant keeps the contract of a codec."""

from pagedkv_formats import PagedTurboQuant
from tests.formats.test_conformance import FormatConformance


class TestTurboQuant(FormatConformance):
    dims = ((64, 64), (80, 0))
    illegal_dims = ((8, 64), (64, 600))

    def new_codec(self):
        return PagedTurboQuant()


class TestTurboQuantOfOneWidth(FormatConformance):
    dims = ((72, 72),)
    illegal_dims = ((577, 64),)

    def new_codec(self):
        return PagedTurboQuant(3, 3, seed=5, kernels="plain")
