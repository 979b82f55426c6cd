"""DirectRead: attention straight from the pages, on whatever backend compiles the kernels."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files

import mlx.core as mx

from pagedkv_metal.launch import (
    MERGE_THREADS,
    READ_THREADS,
    MaskKind,
    PageShape,
    ReadPlan,
    plan_read,
    read_template,
    why_not_direct,
)
from pagedkv_metal.rows import LEAST, Rows
from pagedkv_protocols import (
    InvalidArgument,
    KernelBackend,
    Launch,
    ShapeMismatch,
    Unsupported,
)

LOG2_E = 1.4426950408889634
MOST_KNOWN = 64
"""Arrays of a few numbers that are kept, for the layers of a step to share."""

READ_INPUTS = (
    "queries",
    "keys",
    "key_scales",
    "key_biases",
    "values",
    "value_scales",
    "value_biases",
    "table",
    "starts",
    "lengths",
    "counts",
    "factors",
)
MERGE_INPUTS = ("partial", "sums", "sinks", "counts")


class DirectRead:
    """The kernels compiled by one backend, for pages of one shape.

    Output is within rounding of attention over the gathered rows; an L-query read equals L
    one-query reads bit for bit, and a row of a batch equals the row alone.
    """

    def __init__(self, backend: KernelBackend[mx.array, mx.Dtype], pages: PageShape) -> None:
        self.pages = pages
        self._known: dict[tuple[tuple[float, ...], mx.Dtype], mx.array] = {}
        header = kernel_text("pages.h") + kernel_text("reduction.h")
        self._read: Launch[mx.array, mx.Dtype] = backend.compile(
            "paged_read", kernel_text("paged_read.metal"), READ_INPUTS, ("partial", "sums"), header
        )
        self._merge: Launch[mx.array, mx.Dtype] = backend.compile(
            "merge_partitions", kernel_text("merge.metal"), MERGE_INPUTS, ("out",)
        )

    def attend(
        self,
        queries: mx.array,
        planes: Sequence[mx.array],
        rows: Rows,
        scale: float,
        *,
        mask: MaskKind = MaskKind.CAUSAL,
        window: int | None = None,
        sinks: mx.array | None = None,
        softcap: float | None = None,
    ) -> mx.array:
        """``queries [B, Hq, L, Dk]``, a row's newest L positions: ``[B, Hq, L, Dv]``.

        ``planes`` are keys and values ``[1, Hkv, N, D]``, or of each side the codes, scales
        and biases as ``mx.quantize`` gives them. Under ``CAUSAL`` query l of a row sees what
        is up to its own position, ``length - L + l``; under ``NONE`` every position. Within
        ``window`` where one is given. ``sinks [Hq]`` and ``softcap`` are as in ``Read.attend``.
        The result has the dtype of ``queries``.

        Raises ``Unsupported`` for what ``why_not_direct`` names, ``ShapeMismatch`` for arrays
        that do not fit, ``InvalidArgument`` for a window below 1 or a softcap not above 0.
        """
        self._check(queries, planes, rows, mask)
        if window is not None and window < 1:
            raise InvalidArgument(f"a window of {window} positions was asked; at least 1 is legal")
        if softcap is not None and not softcap > 0:
            raise InvalidArgument(f"a softcap of {softcap} was asked; it is above 0")
        _, num_heads, num_queries, _ = queries.shape
        begin = rows.begin
        if window is not None and rows.num_rows == 1:
            begin = max(begin, rows.end - num_queries + 1 - window)
        plan = plan_read(self.pages, rows.num_rows, num_heads, num_queries, begin, rows.end)
        counts = self._numbers(
            (
                num_queries,
                num_heads // self.pages.num_kv_heads * num_queries,
                planes[0].shape[2],
                rows.columns,
                plan.first_partition,
                window or 0,
                int(mask is MaskKind.CAUSAL),
                plan.row_blocks,
            ),
            mx.uint32,
        )
        partial, sums = self._launch_read(queries, planes, rows, plan, counts, scale, softcap)
        return self._launch_merge(queries, partial, sums, plan, sinks)

    def _launch_read(
        self,
        queries: mx.array,
        planes: Sequence[mx.array],
        rows: Rows,
        plan: ReadPlan,
        counts: mx.array,
        scale: float,
        softcap: float | None,
    ) -> list[mx.array]:
        pages = self.pages
        count, num_heads, num_queries, _ = queries.shape
        num_rows = num_heads // pages.num_kv_heads * num_queries
        shape = (count, pages.num_kv_heads, num_rows, plan.num_partitions)
        factors = (scale * LOG2_E, 0.0) if softcap is None else (scale / softcap, softcap * LOG2_E)
        return self._read(
            inputs=[
                queries,
                *_sides(planes, bool(pages.key_bits), bool(pages.value_bits)),
                rows.table,
                rows.starts,
                rows.lengths,
                counts,
                self._numbers(factors, mx.float32),
            ],
            template=read_template(pages, plan.rows, queries.dtype),
            grid=plan.read_grid,
            threadgroup=(READ_THREADS, 1, 1),
            output_shapes=[(*shape, pages.value_dim), (*shape, 2)],
            output_dtypes=[mx.float32, mx.float32],
        )

    def _launch_merge(
        self,
        queries: mx.array,
        partial: mx.array,
        sums: mx.array,
        plan: ReadPlan,
        sinks: mx.array | None,
    ) -> mx.array:
        count, num_heads, num_queries, _ = queries.shape
        first, partitions = plan.first_partition, plan.num_partitions
        numbers = (num_queries, num_heads, partitions, first, int(sinks is not None))
        counts = self._numbers(numbers, mx.uint32)
        [out] = self._merge(
            inputs=[partial, sums, self._sinks(sinks), counts],
            template=[("T", queries.dtype), ("DV", self.pages.value_dim)],
            grid=plan.merge_grid,
            threadgroup=(MERGE_THREADS, 1, 1),
            output_shapes=[(count, num_heads, num_queries, self.pages.value_dim)],
            output_dtypes=[queries.dtype],
        )
        return out

    def _sinks(self, sinks: mx.array | None) -> mx.array:
        if sinks is None:
            return self._numbers((0.0,), mx.float32)
        return mx.pad(sinks.astype(mx.float32), (0, max(0, LEAST - sinks.size)))

    def _numbers(self, numbers: tuple[float, ...], dtype: mx.Dtype) -> mx.array:
        """An array of them, 8 elements at least; the layers of a step ask for the same ones."""
        known = self._known.get((numbers, dtype))
        if known is None:
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            known = mx.array([*numbers, *[0] * (LEAST - len(numbers))], dtype)
            self._known[numbers, dtype] = known
        return known

    def _check(
        self, queries: mx.array, planes: Sequence[mx.array], rows: Rows, mask: MaskKind
    ) -> None:
        if queries.ndim != 4 or queries.shape[3] != self.pages.key_dim:
            raise ShapeMismatch(
                f"queries have shape {queries.shape}; [B, Hq, L, {self.pages.key_dim}] is legal"
            )
        if queries.shape[0] != rows.num_rows:
            raise ShapeMismatch(
                f"queries are of {queries.shape[0]} rows, the tables {rows.num_rows}"
            )
        why = why_not_direct(self.pages, queries.shape[1], queries.shape[2], queries.dtype, mask)
        if why is not None:
            raise Unsupported(f"{why}; use a gathered read")
        _check_planes(self.pages, planes)


def _check_planes(pages: PageShape, planes: Sequence[mx.array]) -> None:
    widths = [*_widths(pages.key_dim, pages.key_bits, pages.group_size)]
    widths += _widths(pages.value_dim, pages.value_bits, pages.group_size)
    num_rows = planes[0].shape[2] if planes and planes[0].ndim == 4 else 0
    want = [(1, pages.num_kv_heads, num_rows, width) for width in widths]
    if [tuple(plane.shape) for plane in planes] != want:
        raise ShapeMismatch(f"planes have shapes {[p.shape for p in planes]}; {want} fit")
    if num_rows >= 1 << 31:
        raise ShapeMismatch(f"planes have {num_rows} rows; fewer than {1 << 31} are legal")


def _widths(dim: int, bits: int, group_size: int) -> list[int]:
    return [dim * bits // 32, dim // group_size, dim // group_size] if bits else [dim]


def _sides(planes: Sequence[mx.array], *coded: bool) -> list[mx.array]:
    """Three arrays a side; pages that are not coded stand for their own scales and biases."""
    arrays, rest = [], list(planes)
    for is_coded in coded:
        arrays += [rest.pop(0) for _ in range(3)] if is_coded else [rest.pop(0)] * 3
    return arrays


def kernel_text(name: str) -> str:
    """A kernel or header of this package, by its file name."""
    return (files("pagedkv_metal") / "kernels" / name).read_text(encoding="utf-8")
