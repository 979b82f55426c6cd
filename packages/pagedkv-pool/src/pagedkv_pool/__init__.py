"""Blocks of a paged cache as integers: who holds them, in what order, and what may be written."""

from pagedkv_pool.pool import BlockPool, PoolStats
from pagedkv_pool.runs import FreeRuns
from pagedkv_pool.table import BlockTable, Pin

__all__ = ["BlockPool", "BlockTable", "FreeRuns", "Pin", "PoolStats"]
