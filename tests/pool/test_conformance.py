"""A BlockPool keeps the contract of any pool."""

from pagedkv_pool import BlockPool
from pagedkv_protocols.conformance import PoolConformance


class TestBlockPool(PoolConformance):
    def new_pool(self, num_blocks):
        return BlockPool(num_blocks)
