"""Rules: which positions the queries of each phase see."""

from __future__ import annotations

from typing import Literal, Protocol

import attrs
import mlx.core as mx

from pagedkv_mlx.arguments import own
from pagedkv_mlx.masks import AttentionMasks, Lease


class Rule(Protocol):
    """What a phase lets its queries see, once the number of keys is known."""

    def mask(
        self, masks: AttentionMasks, num_queries: int, num_keys: int
    ) -> Lease | Literal["causal"] | None:
        """A shared mask ``[num_queries, num_keys]``, ``"causal"`` or ``None`` for all."""
        ...


@attrs.frozen
class All:
    """Every query sees every position."""

    def mask(self, masks: AttentionMasks, num_queries: int, num_keys: int) -> None:
        """``None``."""


@attrs.frozen
class Causal:
    """A query sees the positions up to its own, within the window."""

    window: int | None = None

    def mask(
        self, masks: AttentionMasks, num_queries: int, num_keys: int
    ) -> Lease | Literal["causal"] | None:
        """The policy of mlx-lm's ``KVCache``: an array only where there is a window."""
        if self.window is not None:
            return masks.lease(num_queries, num_keys, window=self.window)
        return None if num_queries == 1 else "causal"


@attrs.frozen(eq=False)
class Overlaid:
    """Causal, and besides that the flagged or equally numbered positions see each other."""

    overlay: mx.array = attrs.field(converter=own)
    window: int | None = None

    def mask(self, masks: AttentionMasks, num_queries: int, num_keys: int) -> Lease:
        """An array, shared by the layers that pass an equal overlay."""
        return masks.lease(num_queries, num_keys, window=self.window, overlay=self.overlay)


@attrs.frozen(eq=False)
class Given:
    """The caller's own mask, as an encoder gives it."""

    array: mx.array = attrs.field(converter=own)

    def mask(self, masks: AttentionMasks, num_queries: int, num_keys: int) -> Lease:
        """The array that was given."""
        return Lease(self.array)


ALL = All()
