"""Codecs, pools and backends that break the contract, each in one way.

``test_broken.py`` runs the classes beneath, whose names say what is wrong.
"""

from hypothesis import Phase as Stage
from hypothesis import settings

from pagedkv_protocols import Unsupported
from tests.protocols.test_conformance import BackendKit, CodecKit, PoolKit
from tests.protocols.toy import Tensor, ToyBackend, ToyCodec, ToyPool

QUICK = settings(derandomize=True, database=None, phases=[Stage.generate])


class ScaledByTheCall(ToyCodec):
    """The largest number of the call is its unit."""

    def _codes(self, rows):
        unit = max(map(abs, rows.numbers), default=1.0) or 1.0
        return Tensor(rows.shape, "int8", [round(100 * x / unit) / 1.0 for x in rows.numbers])


class WiderThanStated(ToyCodec):
    """It packs nothing, whatever its planes say."""

    def planes(self, key_dim, value_dim, dtype, /):
        return tuple(
            spec._replace(width=spec.width // 2)
            for spec in super().planes(key_dim, value_dim, dtype)
        )


class Forgetful(ToyCodec):
    """It describes itself without its parameter."""

    def to_dict(self):
        return {"format": "toy"}

    @classmethod
    def from_dict(cls, data, /):
        return cls(32)


class FreesTwice(ToyPool):
    """It frees a block that is listed twice without counting its holders."""

    def _check(self, blocks, needed):
        super()._check(blocks, dict.fromkeys(blocks, 1))

    def release(self, blocks, /):
        super().release(blocks)
        for block in blocks:
            self.holders[block] = max(self.holders[block], 0)


class SharesInPart(ToyPool):
    """A refused list is carried out up to the block that is refused."""

    def share(self, blocks, /):
        for block in blocks:
            super().share([block])


class Rounds(ToyBackend):
    """It computes in integers."""

    def compile(self, *arguments):
        launch = super().compile(*arguments)

        def rounding(**options):
            outputs = launch(**options)
            for output in outputs:
                output.numbers = [float(round(number)) for number in output.numbers]
            return outputs

        return rounding


class Reuses(ToyBackend):
    """It gives the same outputs again, overwritten."""

    def compile(self, *arguments):
        launch = super().compile(*arguments)
        kept: list[Tensor] = []

        def reusing(**options):
            outputs = launch(**options)
            for old, new in zip(kept, outputs, strict=False):
                old.numbers = new.numbers
            kept[:] = kept or outputs
            return kept

        return reusing


class Absent(ToyBackend):
    """There is no such machine."""

    def compile(self, *arguments):
        raise Unsupported("no such machine here")


class TestScaledByTheCall(CodecKit):
    codec = ScaledByTheCall


class TestWiderThanStated(CodecKit):
    codec = WiderThanStated


class TestForgetful(CodecKit):
    codec = Forgetful


class TestFreesTwice(PoolKit):
    pool = FreesTwice
    machine_settings = QUICK


class TestSharesInPart(PoolKit):
    pool = SharesInPart
    machine_settings = QUICK


class TestRounds(BackendKit):
    backend = Rounds


class TestReuses(BackendKit):
    backend = Reuses


class TestAbsent(BackendKit):
    backend = Absent
