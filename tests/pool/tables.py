"""Tables as tests make them and write to them."""

from pagedkv_pool import BlockPool, BlockTable


def table_of(pool: BlockPool, length: int, block_size: int = 4) -> BlockTable:
    table = BlockTable(pool, block_size)
    table.reserve(length)
    return table


def write(table: BlockTable, position: int) -> tuple[int, int] | None:
    """Room for one position that may be written: the (old, new) slots if a block was copied."""
    table.reserve(position + 1)
    return None if table.is_writable(position) else table.replace(position // table.block_size)
