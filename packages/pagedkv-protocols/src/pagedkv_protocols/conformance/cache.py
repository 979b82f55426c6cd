"""CacheConformance: the whole contract of a cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from pagedkv_protocols.capabilities import Capability
from pagedkv_protocols.conformance.bidirectional import BidirectionalConformance
from pagedkv_protocols.conformance.block_read import BlockReadConformance
from pagedkv_protocols.conformance.committed import CommittedConformance
from pagedkv_protocols.conformance.donor import DonorConformance
from pagedkv_protocols.conformance.dtypes import DtypeTests
from pagedkv_protocols.conformance.empty import EmptyTests
from pagedkv_protocols.conformance.encoder import EncoderConformance
from pagedkv_protocols.conformance.ends import EndTests
from pagedkv_protocols.conformance.fork import ForkConformance
from pagedkv_protocols.conformance.late import LateTests
from pagedkv_protocols.conformance.machine import MachineTests
from pagedkv_protocols.conformance.masks import MaskTests
from pagedkv_protocols.conformance.options import OptionTests
from pagedkv_protocols.conformance.owned import OwnershipTests
from pagedkv_protocols.conformance.reads import ReadTests
from pagedkv_protocols.conformance.refusals import RefusalTests
from pagedkv_protocols.conformance.trims import TrimTests

ArrayT = TypeVar("ArrayT")


class CacheConformance(
    ReadTests[ArrayT],
    MaskTests[ArrayT],
    OptionTests[ArrayT],
    TrimTests[ArrayT],
    LateTests[ArrayT],
    EndTests[ArrayT],
    OwnershipTests[ArrayT],
    DtypeTests[ArrayT],
    RefusalTests[ArrayT],
    EmptyTests[ArrayT],
    CommittedConformance[ArrayT],
    BidirectionalConformance[ArrayT],
    EncoderConformance[ArrayT],
    BlockReadConformance[ArrayT],
    DonorConformance[ArrayT],
    ForkConformance[ArrayT],
    MachineTests[ArrayT],
):
    """``Cache``, and every capability that ``supports`` finds or that ``claims`` names.

    Subclass it in a test module, under a name that pytest collects::

        class TestMyCache(CacheConformance[np.ndarray]):
            arrays = MyArrays()
            claims = (COMMITTED, FORK)

            def new_cache(self, *, window=None):
                return MyCache()
    """

    claims: Sequence[Capability[Any]] = ()

    def test_the_cache_has_every_capability_that_it_claims(self) -> None:
        """Before the first append, too."""
        for capability in self.claims:
            self.having(self.new_cache(), capability)
