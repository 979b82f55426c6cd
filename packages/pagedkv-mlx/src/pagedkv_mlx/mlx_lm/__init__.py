"""Paged caches for mlx-lm: the entries of a prompt cache, and three ways to hand them out."""

from pagedkv_mlx.mlx_lm.entry import STATE_IS_WHOLE, PagedPromptCache
from pagedkv_mlx.mlx_lm.factories import (
    make_paged_prompt_cache,
    page_prompt_cache,
    use_paged_caches,
)
from pagedkv_mlx.mlx_lm.options import KeepDense, PageOptions

__all__ = [
    "STATE_IS_WHOLE",
    "KeepDense",
    "PageOptions",
    "PagedPromptCache",
    "make_paged_prompt_cache",
    "page_prompt_cache",
    "use_paged_caches",
]
