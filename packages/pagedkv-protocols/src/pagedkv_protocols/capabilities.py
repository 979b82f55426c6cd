"""Which capabilities a cache has, asked at run time and known to the type checker."""

from __future__ import annotations

from typing import Any, Final, Generic, TypeVar, overload

from typing_extensions import TypeIs

from pagedkv_protocols.cache import (
    BidirectionalCache,
    BlockReadCache,
    Cache,
    CommittedCache,
    DonorCache,
    EncoderCache,
    ForkableCache,
)
from pagedkv_protocols.decode import CompiledDecodeCache

CacheT_co = TypeVar("CacheT_co", covariant=True)
CacheT = TypeVar("CacheT")
ArrayT = TypeVar("ArrayT")


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


@overload
def supports(
    cache: Cache[ArrayT], capability: Capability[CommittedCache[Any]]
) -> TypeIs[CommittedCache[ArrayT]]: ...
@overload
def supports(
    cache: Cache[ArrayT], capability: Capability[BidirectionalCache[Any]]
) -> TypeIs[BidirectionalCache[ArrayT]]: ...
@overload
def supports(
    cache: Cache[ArrayT], capability: Capability[EncoderCache[Any]]
) -> TypeIs[EncoderCache[ArrayT]]: ...
@overload
def supports(
    cache: Cache[ArrayT], capability: Capability[BlockReadCache[Any]]
) -> TypeIs[BlockReadCache[ArrayT]]: ...
@overload
def supports(
    cache: Cache[ArrayT], capability: Capability[DonorCache[Any]]
) -> TypeIs[DonorCache[ArrayT]]: ...
@overload
def supports(
    cache: Cache[ArrayT], capability: Capability[ForkableCache[Any]]
) -> TypeIs[ForkableCache[ArrayT]]: ...
@overload
def supports(
    cache: Cache[ArrayT], capability: Capability[CompiledDecodeCache[Any]]
) -> TypeIs[CompiledDecodeCache[ArrayT]]: ...
@overload
def supports(cache: object, capability: Capability[CacheT]) -> TypeIs[CacheT]: ...
def supports(cache: object, capability: Capability[Any]) -> bool:
    """Whether ``cache`` has every method of ``capability``; narrows its type where it does.

    >>> class Committed:
    ...     def append_committed(self, keys, values, /): ...
    >>> supports(Committed(), COMMITTED), supports(Committed(), FORK)
    (True, False)
    """
    return all(callable(getattr(cache, method, None)) for method in capability.methods)
