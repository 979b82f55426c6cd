"""Compiled decode: how a cache takes part in a one-token step that was recorded once."""

from __future__ import annotations

import enum
from collections.abc import Hashable, Sequence
from typing import Protocol, TypeVar

from typing_extensions import NamedTuple

from pagedkv_protocols.cache import Cache

ArrayT = TypeVar("ArrayT")


class DecodePhase(enum.Enum):
    """How a recorded step takes the stored positions in."""

    CONCAT = "concat"
    """Gathered outside the graph and joined by the new one inside it: any length, no mask."""

    BUCKET = "bucket"
    """Gathered outside the graph and zero-padded to a bucket, under a mask."""

    RESIDENT = "resident"
    """The stored arrays themselves: the graph writes the new row and reads a bucket of them."""


class DecodePlan(NamedTuple):
    """What one step of one cache will do.

    ``length`` positions come before the new one; ``bucket`` positions are attended, the
    last of them under the mask (0 in the ``CONCAT`` phase, where there is none).
    """

    phase: DecodePhase
    length: int
    bucket: int


class DecodeTrace(Protocol[ArrayT]):
    """What a model meets in a cache's place while its step is recorded."""

    @property
    def rope_offset(self) -> ArrayT:
        """The new token's position, ``int32 [1]``, an input of the graph and no constant."""
        ...

    def update_and_fetch(self, keys: ArrayT, values: ArrayT, /) -> tuple[ArrayT, ArrayT]:
        """Pass the new row through the format and join it to the stored positions.

        ``keys [1, Hkv, 1, Dk]``, ``values [1, Hkv, 1, Dv]``; gives keys ``[1, Hkv, S, Dk]``
        and values, S being the plan's bucket or all positions.
        """
        ...

    def outputs(self) -> tuple[ArrayT, ...]:
        """What ``commit_decode_step`` needs of this step."""
        ...


class DecodeSlot(Hashable, Protocol[ArrayT]):
    """What a recorded step must agree on with a cache: plain data, equal or not.

    Caches with equal slots are served by one recording, in every later step.
    """

    @property
    def phase(self) -> DecodePhase:
        """How the recorded step takes the stored positions in."""
        ...

    def trace(self, inputs: Sequence[ArrayT], position: ArrayT, /) -> DecodeTrace[ArrayT]:
        """The adapter for one recording, from ``decode_inputs`` and ``int32 [1]``."""
        ...


class CompiledDecodeCache(Cache[ArrayT], Protocol[ArrayT]):
    """A cache whose decode step can be recorded once and replayed."""

    def prepare_decode_step(self, phase: DecodePhase | None = None, /) -> DecodePlan:
        """Make room for one position and say what the step will do.

        ``phase`` asks for a way; ``None`` leaves the choice to the cache. Asking twice takes
        nothing twice; ``trim(0)`` gives the room back. Raises ``PoolExhausted``,
        ``Unsupported`` for a cache that has no compiled form or not this one, ``Disposed``.
        """
        ...

    def decode_phase(self) -> DecodePhase:
        """The phase that a plan made now would choose. Changes nothing."""
        ...

    def decode_slot(self, plan: DecodePlan, /) -> DecodeSlot[ArrayT]:
        """What a recording must agree on to serve ``plan``."""
        ...

    def decode_inputs(self, plan: DecodePlan, /) -> tuple[ArrayT, ...]:
        """The arrays that the recorded step takes for this cache, beside the position."""
        ...

    def commit_decode_step(
        self, plan: DecodePlan, outputs: Sequence[ArrayT], /
    ) -> tuple[ArrayT, ...]:
        """Append the row that the step computed; gives the arrays to evaluate with it.

        Raises ``InvalidArgument`` where the cache changed since the plan was made,
        ``Disposed``.
        """
        ...
