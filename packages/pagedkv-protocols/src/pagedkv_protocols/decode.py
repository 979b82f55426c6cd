"""Compiled decode: how a cache takes part in a one-token step that was recorded once."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import NamedTuple, Protocol, TypeVar

from pagedkv_protocols.cache import Cache

ArrayT = TypeVar("ArrayT")


class DecodePhase(enum.Enum):
    """How the fetch of the next recorded step will take its positions in."""

    CONCAT = "concat"
    """The stored positions are gathered outside the graph and joined by the new one in it."""

    BUCKET = "bucket"
    """The stored positions are zero-padded to a bucket, with their number as an array."""


class DecodePlan(NamedTuple):
    """What one step of one cache will do: its phase, and the positions before it."""

    phase: DecodePhase
    length: int
    bucket: int


class DecodeSlot(NamedTuple):
    """What a recorded step must agree on with a cache: plain data, equal or not.

    Caches with equal slots are served by one recording. ``signature`` is the cache's own;
    ``shapes`` and ``dtypes`` are those of ``decode_inputs``, with 0 for a free length.
    """

    phase: DecodePhase
    signature: str
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]


class DecodeTrace(Protocol[ArrayT]):
    """What a model meets in a cache's place while its step is recorded."""

    @property
    def rope_offset(self) -> ArrayT:
        """The new token's position, ``int32 [1]``, an input of the graph and no constant."""
        ...

    def update_and_fetch(self, keys: ArrayT, values: ArrayT, /) -> tuple[ArrayT, ArrayT]:
        """Pass the new row through the format and join it to the stored positions.

        ``keys [1, Hkv, 1, Dk]``, ``values [1, Hkv, 1, Dv]``; gives all S positions.
        """
        ...

    def outputs(self) -> tuple[ArrayT, ...]:
        """The encoded new row, for ``commit_decode_step``."""
        ...


class CompiledDecodeCache(Cache[ArrayT], Protocol[ArrayT]):
    """A cache whose decode step can be recorded once and replayed."""

    def prepare_decode_step(self) -> DecodePlan:
        """Make room for one position and say what the step will do. Idempotent."""
        ...

    def decode_phase(self) -> DecodePhase:
        """The phase that a plan made now would choose. Changes nothing."""
        ...

    def decode_slot(self, plan: DecodePlan, /) -> DecodeSlot:
        """What a recording must agree on to serve ``plan``."""
        ...

    def decode_inputs(self, plan: DecodePlan, /) -> tuple[ArrayT, ...]:
        """The arrays that the recorded step takes for this cache, outside the graph."""
        ...

    def commit_decode_step(
        self, slot: DecodeSlot, outputs: Sequence[ArrayT], /
    ) -> tuple[ArrayT, ...]:
        """Append the row that the step computed; gives the arrays to evaluate with it."""
        ...
