"""Reads over rows: gathered from pages when attended, or held as they are."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Literal, NoReturn, cast

import mlx.core as mx
from typing_extensions import Self

from pagedkv_formats import PagedTurboQuant
from pagedkv_mlx.arguments import own
from pagedkv_mlx.attention import attend_rows
from pagedkv_mlx.layout import RowLayout
from pagedkv_mlx.masks import AttentionMasks, Lease
from pagedkv_mlx.pages import BlockSpan, LayerPages
from pagedkv_mlx.rules import Rule
from pagedkv_pool import Pin
from pagedkv_protocols import PHASE, Disposed, Phase, Read, ShapeMismatch


class PagedRows:
    """The stored rows that a read sees, collected from the pages each time it is attended.

    The pin keeps the blocks from reuse; no plane is held.
    """

    __slots__ = ("_length", "_pages", "_pin", "_span")

    def __init__(self, pages: LayerPages, span: BlockSpan, length: int, pin: Pin) -> None:
        self._pages = pages
        self._span = span
        self._length = length
        self._pin = pin

    def __call__(self) -> tuple[mx.array, mx.array]:
        """Keys ``[1, Hkv, S, Dk]`` and values ``[1, Hkv, S, Dv]``."""
        return self._pages.gather(self._span, self._length)

    def rotated(self) -> tuple[mx.array, mx.array]:
        """The same of TurboQuant pages, before they are rotated back."""
        return self._pages.gather_rotated(self._span, self._length)


class GatheredRead:
    """Attention over rows in logical order, through MLX's fused kernel.

    Bit for bit what a plain cache of the same rows gives: the rows, the mask and the kernel
    are the same.
    """

    __slots__ = ("_layout", "_lease", "_masks", "_num_queries", "_rows", "_rule", "_turn")

    def __init__(
        self,
        rows: RowSource,
        layout: RowLayout,
        num_queries: int,
        rule: Rule,
        masks: AttentionMasks,
        turn: PagedTurboQuant | None = None,
    ) -> None:
        """``turn``: the format whose rows are attended as they lie, rotated."""
        self._rows: RowSource | None = rows
        self._layout = layout
        self._num_queries = num_queries
        self._rule = rule
        self._masks = masks
        self._lease: Lease | None = None
        self._turn = turn

    def attend(
        self,
        queries: mx.array,
        scale: float,
        *,
        mask: Phase | mx.array | None = PHASE,
        sinks: mx.array | None = None,
        softcap: float | None = None,
    ) -> mx.array:
        """``queries [1, Hq, L, Dk]`` over the S positions of this read: ``[1, Hq, L, Dv]``.

        See ``pagedkv_protocols.Read.attend`` for the options. Under ``PHASE`` L is that of
        the append. Raises ``Disposed``, ``ShapeMismatch``, ``DtypeMismatch`` and, for a
        softcap that is not above 0, ``InvalidArgument``.
        """
        if self._rows is None:
            self._refuse()
        self._layout.check_queries(queries)
        turn = self._turn
        if turn is None:
            keys, values = self._rows()
        else:
            assert isinstance(self._rows, PagedRows)
            keys, values = self._rows.rotated()
            queries = turn.rotate_queries(queries)
        rule = self._phase_mask(queries, keys) if mask is PHASE else mask
        output = attend_rows(queries, keys, values, scale, rule, sinks, softcap)
        return output if turn is None else turn.unrotate_outputs(output)

    def gather(self) -> tuple[mx.array, mx.array]:
        """Keys ``[1, Hkv, S, Dk]`` and values ``[1, Hkv, S, Dv]``. Raises ``Disposed``."""
        if self._rows is None:
            self._refuse()
        return self._rows()

    def dispose(self) -> None:
        """Let go of the positions and the mask. Twice is once."""
        self._rows = None
        self._lease = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None:
        self.dispose()

    def _phase_mask(self, queries: mx.array, keys: mx.array) -> mx.array | Literal["causal"] | None:
        num_queries, num_keys = queries.shape[2], keys.shape[2]
        if num_queries != self._num_queries:
            raise ShapeMismatch(
                f"queries have {num_queries} positions, the append had {self._num_queries}; "
                "the phase's own rule is for these"
            )
        if self._lease is not None:
            return self._lease.array
        mask = self._rule.mask(self._masks, num_queries, num_keys)
        if isinstance(mask, Lease):
            self._lease = mask
            return mask.array
        return mask

    def _refuse(self) -> NoReturn:
        raise Disposed("this read was disposed; append again, or attend before dispose()")


class HeldRows:
    """Rows that a read holds itself."""

    __slots__ = ("_keys", "_values")

    def __init__(self, keys: mx.array, values: mx.array) -> None:
        self._keys = own(keys)
        self._values = own(values)

    def __call__(self) -> tuple[mx.array, mx.array]:
        """The rows as they were given."""
        return self._keys, self._values


class JoinedRows:
    """Stored rows, then a block's own rows, which are not stored."""

    __slots__ = ("_keys", "_stored", "_values")

    def __init__(self, stored: RowSource, keys: mx.array, values: mx.array) -> None:
        self._stored = stored
        self._keys = own(keys)
        self._values = own(values)

    def __call__(self) -> tuple[mx.array, mx.array]:
        """Keys ``[1, Hkv, S + L, Dk]``, values ``[1, Hkv, S + L, Dv]``."""
        keys, values = self._stored()
        return (
            mx.concatenate([keys, self._keys], axis=2),
            mx.concatenate([values, self._values], axis=2),
        )


RowSource = PagedRows | HeldRows | JoinedRows

if TYPE_CHECKING:
    _: Read[mx.array] = cast("GatheredRead", None)
