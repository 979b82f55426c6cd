"""How the pages of a model's layers are made: for all alike, and by a policy."""

from __future__ import annotations

from typing import Literal

import attrs

from pagedkv_formats import PagedQuantization, PagedTurboQuant
from pagedkv_mlx.arguments import check_integers
from pagedkv_mlx.cache import PagedKVCache
from pagedkv_mlx.masks import AttentionMasks
from pagedkv_mlx.pages import DEFAULT_BLOCK_SIZE, Blocks, Bytes, LayerPages
from pagedkv_protocols import InvalidArgument


@attrs.frozen
class KeepDense:
    """A policy: the first and last so many attention layers keep pages as the rows came.

    Those are the layers whose keys and values a model minds most when they are rounded.

    >>> [KeepDense(first=1, last=2).keeps(layer, num_layers=5) for layer in range(5)]
    [True, False, False, True, True]
    """

    first: int = 1
    last: int = 1

    def __attrs_post_init__(self) -> None:
        check_integers(first=self.first, last=self.last)
        if min(self.first, self.last) < 0:
            raise InvalidArgument(f"{self} was asked for; at least 0 layers are legal")

    def keeps(self, layer: int, num_layers: int) -> bool:
        """Whether attention layer ``layer`` of ``num_layers`` keeps its rows as they came."""
        return layer < self.first or layer >= num_layers - self.last


@attrs.frozen(kw_only=True)
class PageOptions:
    """How the pages of a model's layers are made; see ``PagedKVCache`` for each."""

    policy: KeepDense | None = None
    block_size: int | None = None
    quantization: PagedQuantization | None = None
    turbo: PagedTurboQuant | None = None
    direct: bool | Literal["auto"] = False
    release_behind: bool = False

    def layer(self, index: int, num_layers: int) -> PageOptions:
        """The options of attention layer ``index``, by the policy."""
        if self.policy is not None and self.policy.keeps(index, num_layers):
            return attrs.evolve(self, quantization=None, turbo=None)
        return self

    def cache(
        self, capacity: int | None, window: int | None, masks: AttentionMasks
    ) -> PagedKVCache:
        """A cache with pages of its own; ``window`` is that of a sliding layer."""
        return PagedKVCache(
            capacity,
            block_size=self.block_size,
            quantization=self.quantization,
            turbo=self.turbo,
            direct=self.direct,
            masks=masks,
            window=window,
            release_behind=self.release_behind and window is not None,
        )

    def pages(self, limit: Blocks | Bytes | None) -> LayerPages:
        """Pages for many caches of one layer."""
        size = DEFAULT_BLOCK_SIZE if self.block_size is None else self.block_size
        return LayerPages(self.quantization or self.turbo, block_size=size, limit=limit)

    def cache_over(
        self, pages: LayerPages, window: int | None, masks: AttentionMasks
    ) -> PagedKVCache:
        """A cache over shared ``pages``."""
        return PagedKVCache(
            direct=self.direct,
            masks=masks,
            pages=pages,
            window=window,
            release_behind=self.release_behind and window is not None,
        )
