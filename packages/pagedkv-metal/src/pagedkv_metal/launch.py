"""Launch planning: what a direct read needs, as integers, and which reads can be direct."""

from __future__ import annotations

import enum
from typing import NamedTuple

import mlx.core as mx

PARTITION = 512
"""Positions of a partition: one constant, so that a row's bits depend on nothing else.

On an H200 512 read long contexts and codes faster than 256 and short contexts slower; 1024
would not leave 8 query rows their threadgroup memory.
"""

MAX_QUERIES = 8
MAX_DIM = 256
BITS = (2, 4, 8)
GROUPS = (32, 64, 128)
ROW_COUNTS = (1, 2, 3, 4, 6, 8)
"""Query rows a threadgroup can take: few numbers, for each is compiled once."""

READ_THREADS = 256
MERGE_THREADS = 512
FORMATS = {mx.bfloat16: 0, mx.float16: 1, mx.float32: 2}
"""The numbers by which kernels know a dtype; affine codes of b bits are 100 + b."""

IN_FLIGHT = 4
"""Tokens whose bytes a lane waits for at once."""


class MaskKind(enum.Enum):
    """What a read masks: the rule of its append, nothing, or what an array says."""

    CAUSAL = "causal"
    NONE = "none"
    ARRAY = "array"


class PageShape(NamedTuple):
    """What a kernel must know of pages: dims, dtype and, where they are coded, integers.

    ``key_bits`` and ``value_bits`` are 0 for pages in ``dtype`` itself, else those of affine
    codes in groups of ``group_size``, whose scales and biases have ``dtype``.
    """

    num_kv_heads: int
    key_dim: int
    value_dim: int
    dtype: mx.Dtype
    block_size: int
    key_bits: int = 0
    value_bits: int = 0
    group_size: int = 64

    @property
    def key_format(self) -> int:
        """The kernel's number for the keys' format."""
        return 100 + self.key_bits if self.key_bits else FORMATS[self.dtype]

    @property
    def value_format(self) -> int:
        """The kernel's number for the values' format."""
        return 100 + self.value_bits if self.value_bits else FORMATS[self.dtype]


def can_read_directly(
    pages: PageShape,
    num_heads: int,
    num_queries: int,
    query_dtype: mx.Dtype,
    mask: MaskKind = MaskKind.CAUSAL,
) -> bool:
    """Whether the kernels take this read, on a machine that runs them.

    >>> pages = PageShape(8, 128, 128, mx.bfloat16, block_size=256)
    >>> can_read_directly(pages, 32, 1, mx.bfloat16)
    True
    >>> can_read_directly(pages, 32, 9, mx.bfloat16)
    False
    """
    return why_not_direct(pages, num_heads, num_queries, query_dtype, mask) is None


def why_not_direct(
    pages: PageShape,
    num_heads: int,
    num_queries: int,
    query_dtype: mx.Dtype,
    mask: MaskKind = MaskKind.CAUSAL,
) -> str | None:
    """What stands against a direct read, as a clause for a message; ``None`` if nothing does."""
    if mask is MaskKind.ARRAY:
        return "an array mask is read gathered"
    if not 1 <= num_queries <= MAX_QUERIES:
        return f"{num_queries} queries are read gathered, 1 to {MAX_QUERIES} directly"
    if num_heads < 1 or num_heads % pages.num_kv_heads:
        return f"{num_heads} query heads are no multiple of {pages.num_kv_heads} KV heads"
    if query_dtype not in FORMATS:
        return f"queries are {query_dtype}; direct reads take bfloat16, float16 and float32"
    return why_no_kernel(pages)


def why_no_kernel(pages: PageShape) -> str | None:
    """What stands against any direct read of such pages; ``None`` if nothing does.

    >>> why_no_kernel(PageShape(8, 100, 128, mx.bfloat16, block_size=256))
    'keys have dim 100; direct reads take multiples of 8 from 16 to 256'
    """
    if pages.dtype not in FORMATS:
        return f"pages are {pages.dtype}; direct reads take bfloat16, float16 and float32"
    if pages.block_size < 1:
        return f"block_size is {pages.block_size}; at least 1 is legal"
    for name, dim in (("keys", pages.key_dim), ("values", pages.value_dim)):
        if dim % 8 or not 16 <= dim <= MAX_DIM:
            return f"{name} have dim {dim}; direct reads take multiples of 8 from 16 to {MAX_DIM}"
    return why_not_coded(pages)


def why_not_coded(pages: PageShape) -> str | None:
    """What stands against reading the codes; ``None`` for pages without codes too."""
    sides = (("keys", pages.key_bits, pages.key_dim), ("values", pages.value_bits, pages.value_dim))
    for name, bits, dim in sides:
        if bits and bits not in BITS:
            return f"{name} have {bits} bits; direct reads take 2, 4 and 8"
        if bits and (pages.group_size not in GROUPS or dim % pages.group_size):
            return f"{name} of dim {dim} have groups of {pages.group_size}; 32, 64 or 128 divide it"
    return None


class ReadPlan(NamedTuple):
    """One launch of ``paged_read.metal`` and one of ``merge.metal``."""

    rows: int
    row_blocks: int
    first_partition: int
    num_partitions: int
    read_grid: tuple[int, int, int]
    merge_grid: tuple[int, int, int]


def plan_read(
    pages: PageShape, num_sequences: int, num_heads: int, num_queries: int, begin: int, end: int
) -> ReadPlan:
    """Partitions and grids for positions ``begin`` to ``end - 1``, the widest of any sequence.

    >>> plan = plan_read(PageShape(8, 128, 128, mx.bfloat16, 256), 1, 32, 1, 0, 1000)
    >>> plan.rows, plan.row_blocks, plan.num_partitions, plan.read_grid
    (4, 1, 2, (512, 8, 1))
    """
    num_rows = num_heads // pages.num_kv_heads * num_queries
    rows, row_blocks = rows_of(num_rows)
    first = begin // PARTITION
    count = max(1, -(-end // PARTITION) - first)
    return ReadPlan(
        rows,
        row_blocks,
        first,
        count,
        (READ_THREADS * row_blocks * count, pages.num_kv_heads, num_sequences),
        (MERGE_THREADS * num_sequences * num_heads * num_queries, -(-pages.value_dim // 32), 1),
    )


def rows_of(num_rows: int) -> tuple[int, int]:
    """How many query rows a threadgroup takes, and how many threadgroups share a partition.

    >>> rows_of(4), rows_of(7), rows_of(32)
    ((4, 1), (8, 1), (8, 4))
    """
    blocks = -(-num_rows // ROW_COUNTS[-1])
    wanted = -(-num_rows // blocks)
    return next(count for count in ROW_COUNTS if count >= wanted), blocks


def lanes_for(chunks: int) -> int:
    """The smallest power of two of lanes that hold ``chunks`` chunks of a row.

    >>> [lanes_for(chunks) for chunks in (1, 2, 9, 16)]
    [1, 2, 16, 16]
    """
    return 1 << (chunks - 1).bit_length()


def in_flight(dim: int, number: int) -> int:
    """How many tokens a lane reads at once, of a row of ``dim`` in the format ``number``.

    >>> in_flight(128, 0), in_flight(16, 0)
    (4, 2)
    """
    lanes = lanes_for(dim // (16 if number > 100 else 8))
    return min(IN_FLIGHT, lanes)


def read_template(
    pages: PageShape, rows: int, query_dtype: mx.Dtype
) -> list[tuple[str, int | bool | mx.Dtype]]:
    """The template arguments of ``paged_read.metal``: what must be constant, nothing else."""
    return [
        ("QUERY_FORMAT", FORMATS[query_dtype]),
        ("KEY_FORMAT", pages.key_format),
        ("VALUE_FORMAT", pages.value_format),
        ("KEY_GROUP", pages.group_size if pages.key_bits else pages.key_dim),
        ("VALUE_GROUP", pages.group_size if pages.value_bits else pages.value_dim),
        ("DK", pages.key_dim),
        ("DV", pages.value_dim),
        ("BLOCK", pages.block_size),
        ("PARTITION", PARTITION),
        ("ROWS", rows),
        ("KEYS_IN_FLIGHT", in_flight(pages.key_dim, pages.key_format)),
        ("VALUES_IN_FLIGHT", in_flight(pages.value_dim, pages.value_format)),
    ]
