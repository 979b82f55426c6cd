"""AttentionMasks: one model's masks, each built once a forward and leased by every layer."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, cast

import mlx.core as mx

from pagedkv_protocols import InvalidArgument, MaskLease, Masks

FEWEST_KEPT, MOST_KEPT = 2, 8
"""So many masks are kept for the next layer, more than the fewest only if they are small:"""
BYTES_KEPT = 1 << 24


class Lease:
    """One reader's claim on a mask; the mask lives as long as somebody claims it."""

    __slots__ = ("_mask",)

    def __init__(self, mask: mx.array) -> None:
        self._mask: mx.array | None = mask

    @property
    def array(self) -> mx.array:
        """The mask, bool ``[num_queries, num_keys]``; true where a query may look."""
        assert self._mask is not None, "this lease was released"
        return self._mask

    def release(self) -> None:
        """Give the claim back. Twice is once."""
        self._mask = None


class AttentionMasks:
    """The masks that a model's layers share: equal requests get one array.

    The latest few are kept for the next layer; an older one lives on in its leases alone.

    >>> masks = AttentionMasks()
    >>> first, second = masks.lease(2, 5), masks.lease(2, 5)
    >>> first.array is second.array, masks.builds
    (True, 1)
    >>> first.array.astype(mx.int32).tolist()
    [[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]]
    """

    def __init__(self) -> None:
        self._builds = 0
        self._recent: OrderedDict[tuple[object, ...], mx.array] = OrderedDict()

    @property
    def builds(self) -> int:
        """How many masks were built so far."""
        return self._builds

    def lease(
        self,
        num_queries: int,
        num_keys: int,
        /,
        window: int | None = None,
        overlay: mx.array | None = None,
    ) -> Lease:
        """The causal mask ``bool [num_queries, num_keys]``, last query at the last key.

        A query at key position p sees ``p - window + 1`` to p (from the first key on where
        ``window`` is ``None``). ``overlay [num_queries]`` lets queries see each other
        besides: bool, all flagged ones; integer, those with an equal non-zero id. Layers
        that pass an equal overlay share the mask.

        Raises ``InvalidArgument`` for counts or a window below 1, or more queries than keys.
        """
        # A lazy array belongs to the thread that made it, and so does its place here.
        marks = (
            None if overlay is None else (str(overlay.dtype), *cast("list[int]", overlay.tolist()))
        )
        key = (num_queries, num_keys, window, marks, threading.get_ident())
        mask = self._recent.get(key)
        if mask is None:
            mask = causal_mask(num_queries, num_keys, window)
            if overlay is not None:
                mask = mask | overlay_mask(overlay, num_keys)
            self._recent[key] = mask
            self._builds += 1
            self._forget()
        return Lease(mask)

    def __deepcopy__(self, memo: object) -> AttentionMasks:
        return self

    def _forget(self) -> None:
        """Let the oldest go: a forward has few masks, and in a long prefill they are large."""
        size, recent = sum(mask.nbytes for mask in self._recent.values()), self._recent
        while len(recent) > MOST_KEPT or (size > BYTES_KEPT and len(recent) > FEWEST_KEPT):
            size -= recent.popitem(last=False)[1].nbytes


def causal_mask(num_queries: int, num_keys: int, window: int | None = None) -> mx.array:
    """``bool [num_queries, num_keys]``, bottom-right aligned; see ``AttentionMasks.lease``."""
    if not 1 <= num_queries <= num_keys or (window is not None and window < 1):
        raise InvalidArgument(
            f"wanted a mask for {num_queries} queries over {num_keys} keys, window {window}; "
            "legal are 1 <= queries <= keys and a window of at least 1"
        )
    query = mx.arange(num_keys - num_queries, num_keys)[:, None]
    key = mx.arange(num_keys)[None]
    mask = query >= key
    return mask if window is None else mask & (query < key + window)


def overlay_mask(overlay: mx.array, num_keys: int) -> mx.array:
    """``bool [L, num_keys]``: which of the last L positions see each other, from ``overlay [L]``.

    >>> overlay_mask(mx.array([1, 0, 1]), 4).astype(mx.int32).tolist()
    [[0, 1, 0, 1], [0, 0, 0, 0], [0, 1, 0, 1]]
    """
    both = (overlay[:, None] == overlay[None]) & (overlay != 0)[:, None]
    return mx.pad(both, [(0, 0), (num_keys - overlay.shape[0], 0)])


if TYPE_CHECKING:
    _: Masks[mx.array] = cast("AttentionMasks", None)
    _lease: MaskLease[mx.array] = cast("Lease", None)
