"""Reads: attention over the positions as of one append, and the masks they attend under."""

from __future__ import annotations

import enum
from types import TracebackType
from typing import Final, Generic, Protocol, TypeVar

from typing_extensions import NamedTuple, Self

ArrayT = TypeVar("ArrayT")
ArrayT_co = TypeVar("ArrayT_co", covariant=True)


class Phase(enum.Enum):
    """The type of ``PHASE``, which stands for a read's own rule."""

    PHASE = "phase"

    def __repr__(self) -> str:
        return "PHASE"


PHASE: Final = Phase.PHASE
"""``Read.attend(..., mask=PHASE)``: attend under the rule of the append that made the read."""


class Read(Protocol[ArrayT]):
    """The positions that one append left visible, attended as often as wanted.

    True until ``dispose()``:

    - later appends, trims, forks, growth, and the end of the cache change no answer,
      whenever it is asked for or evaluated;
    - an option that this read cannot honour is refused, never dropped.
    """

    def attend(
        self,
        queries: ArrayT,
        scale: float,
        *,
        mask: Phase | ArrayT | None = PHASE,
        sinks: ArrayT | None = None,
        softcap: float | None = None,
    ) -> ArrayT:
        """Softmax attention of ``queries [B, Hq, L, Dk]`` over S positions: ``[B, Hq, L, Dv]``.

        The result has the dtype of ``queries``; ``Hq`` is a multiple of ``Hkv``.

        The S positions are those from the cache's ``start``, as of the append, to its end.
        ``mask`` is ``PHASE`` (the rule of the append), ``None`` (every position), or an array
        broadcastable to ``[B, Hq, L, S]``: bool, true where a query may look, or float, rounded
        to the dtype of ``queries`` and added to the scores. A row that a bool mask leaves
        nothing is finite; one that is all ``-inf`` is NaN; no other row feels either. ``sinks
        [Hq]`` join each softmax as one more score with no value. ``softcap`` replaces each
        scaled score ``s`` by ``softcap * tanh(s / softcap)`` before the mask.

        Raises ``Disposed`` after ``dispose()``; ``ShapeMismatch`` and ``DtypeMismatch`` for
        arrays that do not fit; ``InvalidType`` for a mask that is no array; ``InvalidArgument``
        for a softcap that is not above 0 and finite; ``Unsupported`` for an option this read
        cannot honour.
        """
        ...

    def dispose(self) -> None:
        """Let go of the positions; attending is refused from now on. Twice is once."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None: ...


class DonorRows(NamedTuple, Generic[ArrayT]):
    """The stored positions of one sequence, owned by whoever captured them.

    ``keys [1, Hkv, S, Dk]`` and ``values [1, Hkv, S, Dv]`` hold positions ``start`` to
    ``end - 1`` in order; ``offset`` is the sequence's length when they were captured.
    """

    keys: ArrayT
    values: ArrayT
    offset: int
    start: int
    end: int


class MaskLease(Protocol[ArrayT_co]):
    """One reader's claim on a shared mask, which lives until its last lease is released."""

    @property
    def array(self) -> ArrayT_co:
        """The mask, bool, broadcastable to ``[B, Hq, L, S]``; true where a query may look."""
        ...

    def release(self) -> None:
        """Give the claim back. Twice is once."""
        ...


class Masks(Protocol[ArrayT_co]):
    """Masks that all layers of a model share, so that each is built once a forward."""

    @property
    def builds(self) -> int:
        """How many masks were built so far."""
        ...

    def lease(
        self, num_queries: int, num_keys: int, /, window: int | None = None
    ) -> MaskLease[ArrayT_co]:
        """The causal mask ``[num_queries, num_keys]``, last query at the last key.

        A query at key position p may look at ``p - window + 1`` to p (from the first where
        ``window`` is ``None``). Raises ``InvalidArgument`` for counts or a window below 1.
        """
        ...
