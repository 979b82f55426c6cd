"""The contracts as pytest classes: subclass one, give it a factory, and run it.

Needs the extra: ``pip install "pagedkv-protocols[conformance]"``. Nothing here imports an
array library; an ``ArrayAdapter`` of some twenty lines says how to make arrays of yours.
"""

from pagedkv_protocols.conformance.arrays import ArrayAdapter
from pagedkv_protocols.conformance.bidirectional import BidirectionalConformance
from pagedkv_protocols.conformance.block_read import BlockReadConformance
from pagedkv_protocols.conformance.cache import CacheConformance
from pagedkv_protocols.conformance.clauses import Clause
from pagedkv_protocols.conformance.codec import CodecConformance
from pagedkv_protocols.conformance.committed import CommittedConformance
from pagedkv_protocols.conformance.donor import DonorConformance
from pagedkv_protocols.conformance.encoder import EncoderConformance
from pagedkv_protocols.conformance.fork import ForkConformance
from pagedkv_protocols.conformance.kernels import KernelBackendConformance
from pagedkv_protocols.conformance.pool import Pool, PoolConformance
from pagedkv_protocols.conformance.rows import Dims

__all__ = [
    "ArrayAdapter",
    "BidirectionalConformance",
    "BlockReadConformance",
    "CacheConformance",
    "Clause",
    "CodecConformance",
    "CommittedConformance",
    "Dims",
    "DonorConformance",
    "EncoderConformance",
    "ForkConformance",
    "KernelBackendConformance",
    "Pool",
    "PoolConformance",
]
