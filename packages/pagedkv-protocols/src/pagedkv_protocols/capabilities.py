"""Which capabilities a cache has, asked at run time and known to the type checker."""

from __future__ import annotations

from typing import Any, Final, Generic, TypeVar

from typing_extensions import TypeIs

from pagedkv_protocols.cache import (
    BidirectionalCache,
    BlockReadCache,
    CommittedCache,
    DonorCache,
    EncoderCache,
    ForkableCache,
)
from pagedkv_protocols.decode import CompiledDecodeCache

CacheT_co = TypeVar("CacheT_co", covariant=True)
CacheT = TypeVar("CacheT")


class Capability(Generic[CacheT_co]):
    """A name for the methods that one protocol adds to ``Cache``."""

    def __init__(self, name: str, *methods: str) -> None:
        self.name: Final = name
        self.methods: Final = methods

    def __repr__(self) -> str:
        return f"<capability {self.name}: {', '.join(self.methods)}>"


COMMITTED: Final[Capability[CommittedCache[Any]]] = Capability("committed", "append_committed")
BIDIRECTIONAL: Final[Capability[BidirectionalCache[Any]]] = Capability(
    "bidirectional", "append_bidirectional"
)
ENCODER: Final[Capability[EncoderCache[Any]]] = Capability("encoder", "append_encoder")
BLOCK_READ: Final[Capability[BlockReadCache[Any]]] = Capability("block read", "read_block")
DONOR: Final[Capability[DonorCache[Any]]] = Capability("donor", "capture_donor_rows")
FORK: Final[Capability[ForkableCache[Any]]] = Capability("fork", "fork")
COMPILED_DECODE: Final[Capability[CompiledDecodeCache[Any]]] = Capability(
    "compiled decode",
    "prepare_decode_step",
    "decode_phase",
    "decode_slot",
    "decode_inputs",
    "commit_decode_step",
)


def supports(cache: object, capability: Capability[CacheT]) -> TypeIs[CacheT]:
    """Whether ``cache`` has every method of ``capability``; narrows its type where it does.

    >>> class Committed:
    ...     def append_committed(self, keys, values, /): ...
    >>> supports(Committed(), COMMITTED), supports(Committed(), FORK)
    (True, False)
    """
    return all(callable(getattr(cache, method, None)) for method in capability.methods)
