"""LayerPages: one layer's planes over a BlockPool: write rows, copy a block, gather."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import repeat

import attrs
import mlx.core as mx

from pagedkv_formats import DensePages, PagedTurboQuant, block_rows, run_rows
from pagedkv_mlx.arguments import check_integers
from pagedkv_mlx.layout import RowLayout
from pagedkv_pool import BlockPool, BlockTable
from pagedkv_protocols import (
    DtypeMismatch,
    InvalidArgument,
    InvalidType,
    PageCodec,
    PlaneSpec,
    PoolExhausted,
    ShapeMismatch,
)

DEFAULT_BLOCK_SIZE = 256
GROWTH = 256
"""A pool without a limit grows to the next multiple of this many positions."""
schedule: Callable[..., None] = mx.async_eval
PENDING = 16
"""A plane that nobody reads, such as the values', has at most so many writes pending."""
ROW_AXES = repeat((2,))


@attrs.frozen
class Blocks:
    """A pool's limit as a number of blocks a layer.

    >>> Blocks(8)
    Blocks(count=8)
    """

    count: int = attrs.field()

    @count.validator
    def _check(self, _: object, value: int) -> None:
        check_integers(count=value)
        if value < 1:
            raise InvalidArgument(f"a pool was limited to {value} blocks; at least 1 is legal")


@attrs.frozen
class Bytes:
    """A pool's limit as bytes of pages a layer; as many whole blocks as fit.

    >>> Bytes(1 << 20)
    Bytes(count=1048576)
    """

    count: int = attrs.field()

    @count.validator
    def _check(self, _: object, value: int) -> None:
        check_integers(count=value)
        if value < 1:
            raise InvalidArgument(f"a pool was limited to {value} bytes; at least 1 is legal")


class BlockSpan:
    """The blocks of a sequence as they are: what appends extend and reads follow.

    ``row`` is the flat row of position ``start`` where all blocks are one run, else ``None``.
    """

    __slots__ = ("_index", "count", "row", "slots", "start")

    def __init__(self, table: BlockTable) -> None:
        self.slots: Sequence[int] = table.snapshot()
        self.count: int = table.num_blocks
        self.start: int = table.start
        is_run = self.count and table.is_run
        self.row: int | None = self.slots[0] * table.block_size if is_run else None
        self._index: mx.array | None = None

    @property
    def index(self) -> mx.array:
        """The slots ``int32 [count]``, made once."""
        if self._index is None:
            self._index = mx.array(list(self.slots[: self.count]), mx.int32)
        return self._index


class LayerPages:
    """The pages of one layer, shared by every cache that is given them.

    True between any two calls:

    - each plane is ``[1, Hkv, slots * block_size, width]``, heads first, positions flat;
      there are none before the first append;
    - rows of a free slot mean nothing and reach no read;
    - without a limit the planes grow to the next multiple of 256 positions; with one, all
      of it is reserved at the first append and never exceeded.

    >>> pages = LayerPages(block_size=16, limit=Blocks(4))
    >>> pages.pool.num_free, pages.planes
    (4, ())
    """

    def __init__(
        self,
        codec: PageCodec[mx.array, mx.Dtype] | None = None,
        *,
        block_size: int = DEFAULT_BLOCK_SIZE,
        limit: Blocks | Bytes | None = None,
        capacity: int | None = None,
    ) -> None:
        check_integers(block_size=block_size, capacity=capacity)
        if block_size < 1:
            raise InvalidArgument(f"block_size is {block_size}; at least 1 is legal")
        if not (limit is None or isinstance(limit, Blocks | Bytes)):
            raise InvalidType(f"a limit is {limit!r}; legal are Blocks(n), Bytes(n) and None")
        self.codec: PageCodec[mx.array, mx.Dtype] = DensePages() if codec is None else codec
        self.block_size = block_size
        self.is_shared = False  # whether caches were made over these pages that were there
        self.keeps_means: bool = isinstance(codec, PagedTurboQuant) and codec.page_mean
        self.limit = limit
        self.layout: RowLayout | None = None
        self.planes: tuple[mx.array, ...] = ()
        self.specs: tuple[PlaneSpec[mx.Dtype], ...] = ()
        self.num_block_planes: int = 0  # those with one row a block: of page means
        self._strides: list[list[int]] = []  # of each plane, of numbers
        self._num_slots = 0  # how many the planes hold; the pool may be ahead
        self._num_pending = 0  # at most so many writes were not evaluated
        first = limit.count if isinstance(limit, Blocks) else -(-(capacity or 0) // block_size)
        self.pool: BlockPool = BlockPool(first)

    def adopt(self, layout: RowLayout, length: int) -> None:
        """Take the layout of a first append of ``length`` rows; planes follow when written.

        Raises ``IllegalFormat`` where the codec cannot hold such rows, ``PoolExhausted``
        where a limit in bytes has no room for them.
        """
        specs = self.codec.planes(layout.key_dim, layout.value_dim, layout.dtype)
        if isinstance(self.limit, Bytes):
            block = sum(self._plane_bytes(layout, spec) for spec in specs)
            blocks, needed = self.limit.count // block, -(-length // self.block_size)
            if blocks < needed:
                raise PoolExhausted(
                    f"wanted {needed} blocks of {block} bytes each, a pool of "
                    f"{self.limit.count} bytes has {blocks}; raise its limit"
                )
            self.pool.grow(blocks)
        self.layout, self.specs = layout, specs
        self.num_block_planes = sum(spec.per_block for spec in specs)

    @property
    def is_sized(self) -> bool:
        """Whether the number of blocks is known: a limit in bytes waits for the first rows."""
        return self.layout is not None or not isinstance(self.limit, Bytes)

    def can_grow(self) -> bool:
        """Whether blocks can be added: there is no limit."""
        return self.limit is None

    def grow_by(self, num_blocks: int) -> None:
        """Add ``num_blocks`` at least, if no limit forbids; else leave the refusal to the pool."""
        if self.can_grow():
            wanted = (self.pool.num_blocks + num_blocks) * self.block_size
            positions = -(-wanted // GROWTH) * GROWTH
            self.pool.grow(-(-positions // self.block_size) - self.pool.num_blocks)

    def write(self, row: int | list[int], keys: mx.array, values: mx.array) -> None:
        """Store L rows: one update a plane, in place where MLX can.

        ``keys [1, Hkv, L, Dk]``, ``values [1, Hkv, L, Dv]``, already in the pages' dtype.
        ``row`` is the flat row of the first where they are one run, else that of each. The
        rows belong to blocks that their holder may write.
        """
        self.store(row, self.codec.encode(keys, values))

    def store(self, row: int | list[int], rows: Sequence[mx.array]) -> None:
        """Store encoded rows, one ``[1, Hkv, L, width]`` a plane, as ``write`` does."""
        if self._num_slots != self.pool.num_blocks:
            self._fit_planes()
        planes = self.planes
        self._num_pending += 1
        if self._num_pending > PENDING:
            self._num_pending = 0
            schedule(planes)  # costs nothing where they were evaluated with a step's output
        if isinstance(row, int):
            at = repeat(start_index(row))
            written = tuple(map(mx.slice_update, planes, rows, at, ROW_AXES))
        else:
            written = tuple(map(put_rows, planes, repeat(row), rows))
        # Planes with one row a block come last, and are written apart.
        self.planes = written + planes[len(rows) :] if self.num_block_planes else written

    def write_blocks(self, table: BlockTable, begin: int, keys: mx.array, values: mx.array) -> None:
        """What ``write`` does, for a format with page means: rows from position ``begin`` on.

        A block's mean is that of the rows of its first write, and stays.
        """
        if self._num_slots != self.pool.num_blocks:
            self._fit_planes()
        codec = self.codec
        assert isinstance(codec, PagedTurboQuant)
        size, end, kept = self.block_size, begin + keys.shape[2], self.planes[-1]
        means, fresh = [], {}
        for index in range(begin // size, -(-end // size)):
            first, last = max(begin, index * size) - begin, min(end, (index + 1) * size) - begin
            slot = table.slot(index)
            if index * size < begin:
                mean = kept[:, :, slot : slot + 1]
            else:
                mean = fresh[slot] = codec.block_mean(keys[:, :, first:last])
            means.append(mx.broadcast_to(mean, (*mean.shape[:2], last - first, mean.shape[3])))
        rows = codec.encode(keys, values, mx.concatenate(means, axis=2))
        row = table.run(begin, end)
        self.store(table.rows(begin, end) if row is None else row, rows)
        self._put_means(fresh)

    def restore(self, table: BlockTable, rows: Sequence[mx.array]) -> None:
        """Store what ``rows`` of another cache gave, from position 0 on."""
        length = rows[0].shape[2]
        row = table.run(0, length)
        count = len(rows) - self.num_block_planes
        self.store(table.rows(0, length) if row is None else row, rows[:count])
        for means in rows[count:]:
            firsts = range(0, length, self.block_size)
            self._put_means(
                {table.slot(p // self.block_size): means[:, :, p : p + 1] for p in firsts}
            )

    def _put_means(self, means: Mapping[int, mx.array]) -> None:
        if means:
            put = put_rows(self.planes[-1], list(means), mx.concatenate([*means.values()], axis=2))
            self.planes = (*self.planes[:-1], put)

    def check_page_rows(self, layout: RowLayout, rows: Sequence[mx.array]) -> int:
        """How many positions encoded rows have.

        Raises ``ShapeMismatch`` or ``DtypeMismatch`` where they are not of the planes that
        the format has for ``layout``, ``InvalidArgument`` for means that differ within a block.
        """
        specs = self.codec.planes(layout.key_dim, layout.value_dim, layout.dtype)
        length = rows[0].shape[2] if rows and rows[0].ndim == 4 else 0
        want = [(1, layout.num_kv_heads, length, spec.width) for spec in specs]
        if [tuple(plane.shape) for plane in rows] != want:
            raise ShapeMismatch(f"rows have shapes {[p.shape for p in rows]}; pages hold {want}")
        if [plane.dtype for plane in rows] != [spec.dtype for spec in specs]:
            raise DtypeMismatch(f"rows are {[p.dtype for p in rows]}; pages hold {specs}")
        for means in (rows[at] for at, spec in enumerate(specs) if spec.per_block):
            self._check_means(means)
        return length

    def _check_means(self, means: mx.array) -> None:
        size, length = self.block_size, means.shape[2]
        firsts = mx.repeat(means[:, :, ::size], size, axis=2)[:, :, :length]
        if not mx.array_equal(firsts, means).item():
            raise InvalidArgument(
                f"page means differ within a block of {size}: these rows are of another block size"
            )

    def copy_block(self, source: int, target: int) -> None:
        """Copy all rows of slot ``source`` to slot ``target``.

        The copy is evaluated before the update: left lazy, it would hold the plane, and the
        update would copy all of it.
        """
        if self._num_slots != self.pool.num_blocks:
            self._fit_planes()
        size = self.block_size
        counts = [1 if spec.per_block else size for spec in self.specs]
        rows = [
            mx.contiguous(run_rows(plane, source * count, count))
            for plane, count in zip(self.planes, counts, strict=True)
        ]
        mx.eval(rows)
        self.planes = tuple(
            mx.slice_update(plane, copied, start_index(target * count), (2,))
            for plane, copied, count in zip(self.planes, rows, counts, strict=True)
        )

    def clear(self) -> None:
        """Let go of the planes, which no block is used of; the next write makes them anew."""
        self.planes, self._num_slots = (), 0

    def reside(self, span: BlockSpan, begin: int, end: int, bucket: int) -> int:
        """Let a recorded step read ``bucket`` rows from ``span``'s first on; gives how many.

        The planes grow to as many where no limit forbids it. Rows ``begin`` to ``end - 1``
        may hold trimmed ones and are cleared: under a mask their values still meet
        a weight of zero, which does not hide a NaN.
        """
        assert span.row is not None
        short = -(-(span.row + bucket) // self.block_size) - self.pool.num_blocks
        if short > 0 and self.can_grow():
            self.pool.grow(short)
        if self._num_slots != self.pool.num_blocks:
            self._fit_planes()
        there = self.pool.num_blocks * self.block_size - span.row
        end = min(end, there)
        if begin < end:
            self.store(
                span.row + begin,
                [
                    mx.zeros((1, plane.shape[1], end - begin, plane.shape[3]), plane.dtype)
                    for plane in self.planes
                ],
            )
        return min(bucket, there)

    def rows(self, span: BlockSpan, length: int) -> list[mx.array]:
        """The first ``length`` rows of ``span`` in each plane: ``[1, Hkv, length, width]``.

        Slices where the blocks are one run, one take a plane where they are not.
        """
        planes = self.planes
        if self.num_block_planes:
            planes = planes[: -self.num_block_planes]
        if span.row is not None:
            rows = list(map(run_rows, planes, repeat(span.row), repeat(length)))
        else:
            rows = [block_rows(plane, span.index, self.block_size, length) for plane in planes]
        if not self.num_block_planes:
            return rows
        for plane in self.planes[len(planes) :]:
            a_block = block_rows(plane, span.index, 1, span.count)
            rows.append(mx.repeat(a_block, self.block_size, axis=2)[:, :, :length])
        return rows

    def gather(self, span: BlockSpan, length: int) -> tuple[mx.array, mx.array]:
        """Keys ``[1, Hkv, length, Dk]`` and values ``[1, Hkv, length, Dv]`` of ``span``."""
        layout = self.layout
        assert layout is not None
        row = span.row
        if row is None or self.num_block_planes:
            rows = self.rows(span, length)
        else:  # as ``rows``, with no call more: every layer passes here for every token
            heads = layout.num_kv_heads
            rows = [
                mx.as_strided(plane, [1, heads, length, strides[2]], strides, row * strides[2])
                for plane, strides in zip(self.planes, self._strides, strict=True)
            ]
        return self.codec.decode(rows, layout.key_dim, layout.value_dim, layout.dtype)

    def gather_rotated(self, span: BlockSpan, length: int) -> tuple[mx.array, mx.array]:
        """What ``gather`` gives, of TurboQuant pages before they are rotated back."""
        layout, codec = self.layout, self.codec
        assert layout is not None
        assert isinstance(codec, PagedTurboQuant)
        rows = self.rows(span, length)
        return codec.decode_rotated(rows, layout.key_dim, layout.value_dim, layout.dtype)

    @property
    def bytes_per_block(self) -> int:
        """Bytes of one block in all planes; 0 before the first append."""
        layout = self.layout
        if layout is None:
            return 0
        return sum(self._plane_bytes(layout, spec) for spec in self.specs)

    @property
    def nbytes(self) -> int:
        """Bytes of the planes as they are reserved."""
        return sum(plane.nbytes for plane in self.planes)

    def signature(self) -> str:
        """The format and block size; two pages with equal signatures store rows alike."""
        return f"paged/{self.block_size}/{self.codec.signature()}"

    def __deepcopy__(self, memo: object) -> LayerPages:
        return self  # forks share pages

    def _plane_bytes(self, layout: RowLayout, spec: PlaneSpec[mx.Dtype]) -> int:
        rows = 1 if spec.per_block else self.block_size
        return layout.num_kv_heads * rows * spec.width * spec.dtype.size

    def _fit_planes(self) -> None:
        """Allocate the planes, or lengthen them to as many slots as the pool has."""
        layout = self.layout
        assert layout is not None
        more = self.pool.num_blocks - self._num_slots
        size = self.block_size
        zeros = [
            mx.zeros(
                (1, layout.num_kv_heads, more * (1 if spec.per_block else size), spec.width),
                spec.dtype,
            )
            for spec in self.specs
        ]
        if self.planes:
            zeros = [
                mx.concatenate([old, new], axis=2)
                for old, new in zip(self.planes, zeros, strict=True)
            ]
        self.planes = tuple(zeros)
        self._strides = [
            [plane.size, plane.shape[2] * plane.shape[3], plane.shape[3], 1] for plane in zeros
        ]
        self._num_slots += more


def put_rows(plane: mx.array, rows: list[int], new: mx.array) -> mx.array:
    """``plane`` with ``new [1, H, L, width]`` at flat rows ``rows``, L of them."""
    index = mx.array(rows, mx.int32).reshape(1, 1, -1, 1)
    return mx.put_along_axis(plane, mx.broadcast_to(index, new.shape), new, 2)


@lru_cache(maxsize=64)
def start_index(row: int) -> mx.array:
    """``row`` as the array ``int32 [1]`` that an update takes, shared by a step's layers.

    It is made from a Python int and so holds its data: no thread needs to evaluate it.
    """
    return mx.array([row], mx.int32)
