"""A paged key/value cache for MLX: 16-bit, affine and TurboQuant pages, read like a plain cache."""

from pagedkv_formats import PagedQuantization, PagedTurboQuant
from pagedkv_mlx.cache import PagedKVCache
from pagedkv_mlx.contiguous import ContiguousKVCache
from pagedkv_mlx.group import CacheGroup
from pagedkv_mlx.layout import RowLayout
from pagedkv_mlx.masks import AttentionMasks
from pagedkv_mlx.pages import DEFAULT_BLOCK_SIZE, Blocks, Bytes, LayerPages
from pagedkv_mlx.reads import GatheredRead
from pagedkv_protocols import PHASE

__all__ = [
    "DEFAULT_BLOCK_SIZE",
    "PHASE",
    "AttentionMasks",
    "Blocks",
    "Bytes",
    "CacheGroup",
    "ContiguousKVCache",
    "GatheredRead",
    "LayerPages",
    "PagedKVCache",
    "PagedQuantization",
    "PagedTurboQuant",
    "RowLayout",
]
