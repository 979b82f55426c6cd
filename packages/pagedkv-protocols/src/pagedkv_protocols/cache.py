"""What a cache can be asked: the core that every cache answers, and its capabilities."""

from __future__ import annotations

from types import TracebackType
from typing import Protocol, SupportsIndex, TypeVar

from typing_extensions import Self

from pagedkv_protocols.read import DonorRows, Read

ArrayT = TypeVar("ArrayT")


class Cache(Protocol[ArrayT]):
    """The keys and values of one sequence in one layer, written in order and read as of a write.

    Shapes: keys ``[1, Hkv, L, Dk]``, values ``[1, Hkv, L, Dv]``; keys already carry their
    positional encoding. The first append fixes ``Hkv``, ``Dk``, ``Dv`` and the stored dtype.

    True between any two calls:

    - ``offset`` is the number of positions appended and not trimmed;
    - a read sees the positions as of the append that made it, whatever follows;
    - a call that raises a ``PagedKVError`` changed nothing.
    """

    @property
    def offset(self) -> int:
        """How many positions the sequence has, those before ``start`` included."""
        ...

    @property
    def start(self) -> int:
        """The first position still held; 0 unless positions behind a window are given back."""
        ...

    @property
    def window(self) -> int | None:
        """How many positions a causal query sees, itself included; ``None`` is all."""
        ...

    def append_decode(self, keys: ArrayT, values: ArrayT, /) -> Read[ArrayT]:
        """Append one position; its query sees every stored one up to itself, in the window.

        Raises ``ShapeMismatch`` for ``L != 1``, a batch other than 1, or heads and dims that
        differ from the first append's; ``DtypeMismatch`` for rows that are not floating
        point, and at the first append for keys and values of two dtypes; ``PoolExhausted``
        where no room is left; ``Disposed``.
        """
        ...

    def append_window(self, keys: ArrayT, values: ArrayT, /) -> Read[ArrayT]:
        """Append L >= 1 positions, causal among themselves (bottom-right aligned).

        Raises as ``append_decode`` does, and ``ShapeMismatch`` for ``L == 0``.
        """
        ...

    def is_trimmable(self, n: SupportsIndex = 0, /) -> bool:
        """Whether the last ``n`` positions could be dropped (all of them, if fewer).

        Raises ``InvalidArgument`` and ``InvalidType`` as ``trim`` does.
        """
        ...

    def trim(self, n: SupportsIndex, /) -> int:
        """Drop the last ``n`` positions, or all if fewer, and say how many were dropped.

        Raises ``InvalidArgument`` for ``n < 0``, ``InvalidType`` for a bool or a number that
        is no integer, ``NotTrimmable`` where what remains would need positions given back.
        """
        ...

    def state(self) -> tuple[ArrayT, ...]:
        """The arrays that hold the sequence, uncopied, to be evaluated; ``()`` before any."""
        ...

    def export(self) -> tuple[ArrayT, ArrayT] | None:
        """Live rows from ``start`` on, owned: keys ``[1, Hkv, S, Dk]``, values.

        ``None`` before the first append; S is 0 after a trim to nothing.
        """
        ...

    def signature(self) -> str:
        """The storage kind and its parameters; equal signatures store rows alike."""
        ...

    def dispose(self) -> None:
        """Give everything back; later calls raise ``Disposed``. Twice is once."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None: ...


class CommittedCache(Cache[ArrayT], Protocol[ArrayT]):
    """A cache that takes positions already decided elsewhere."""

    def append_committed(self, keys: ArrayT, values: ArrayT, /) -> Read[ArrayT]:
        """Append L decided positions; the read is the window read over the same positions.

        Raises as ``append_window`` does.
        """
        ...


class BidirectionalCache(Cache[ArrayT], Protocol[ArrayT]):
    """A cache whose first window may hold spans that see each other both ways."""

    def append_bidirectional(
        self, keys: ArrayT, values: ArrayT, bidirectional: ArrayT, /
    ) -> Read[ArrayT]:
        """Append the first window, causal (in the window), OR'd with an overlay.

        ``bidirectional`` is ``bool [L]``, where two flagged positions see each other, or
        integer ``[L]``, where equal non-zero span ids see each other; neither is clamped by
        the window. Raises as ``append_window`` does, ``Unsupported`` unless ``offset`` is 0,
        ``ShapeMismatch`` for an overlay of another length, ``DtypeMismatch`` for one of
        another kind.
        """
        ...


class EncoderCache(Cache[ArrayT], Protocol[ArrayT]):
    """A cache whose first window may come from an encoder, with the encoder's own mask."""

    def append_encoder(self, keys: ArrayT, values: ArrayT, mask: ArrayT | None, /) -> Read[ArrayT]:
        """Append the first window under ``mask``, no causality implied.

        ``mask`` is bool, broadcastable to ``[B, 1, L, L]``, or ``None`` for all-to-all; the
        window clamps neither. Raises as ``append_window`` does, ``Unsupported`` unless
        ``offset`` is 0, ``ShapeMismatch`` and ``DtypeMismatch`` for a mask that does not fit.
        """
        ...


class BlockReadCache(Cache[ArrayT], Protocol[ArrayT]):
    """A cache that can be read beside a block of rows that is not stored."""

    def read_block(self, keys: ArrayT, values: ArrayT, /) -> Read[ArrayT]:
        """Each query sees all stored positions, then all L of the block, with no mask.

        Nothing is appended and ``offset`` stays; the block's own rows are attended as given,
        cast to the stored dtype; the window clamps nothing. Raises as ``append_window`` does.
        """
        ...


class DonorCache(Cache[ArrayT], Protocol[ArrayT]):
    """A cache that hands out its rows to other layers or machines."""

    def capture_donor_rows(self) -> DonorRows[ArrayT]:
        """The stored positions in order, owned by the caller; none after a trim to nothing.

        Raises ``Unsupported`` before the first append, when no dims are known; ``Disposed``.
        """
        ...


class ForkableCache(Cache[ArrayT], Protocol[ArrayT]):
    """A cache whose sequence can go on in two ways."""

    def fork(self) -> Self:
        """An independent cache with the same positions; neither sees what the other does."""
        ...
