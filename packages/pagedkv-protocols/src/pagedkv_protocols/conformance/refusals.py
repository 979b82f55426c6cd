"""What does not fit: refused by a typed error, with nothing changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple, TypeVar

import pytest

from pagedkv_protocols.conformance.clauses import Clause, check, refused
from pagedkv_protocols.conformance.kit import CacheKit
from pagedkv_protocols.conformance.rows import Dims
from pagedkv_protocols.conformance.subject import Subject
from pagedkv_protocols.errors import DtypeMismatch, PagedKVError, ShapeMismatch

ArrayT = TypeVar("ArrayT")


class BadRows(NamedTuple):
    """Shapes of keys and values, and their dtype, that do not fit."""

    keys: tuple[int, ...]
    values: tuple[int, ...]
    dtype: str | None = None

    @property
    def error(self) -> type[PagedKVError]:
        """What refuses them."""
        return DtypeMismatch if self.dtype else ShapeMismatch


def bad_rows(dims: Dims, length: int = 2) -> dict[str, BadRows]:
    """What no append of ``length`` positions ever takes."""
    heads, key_dim, value_dim = dims[1:]
    keys, values = (1, heads, length, key_dim), (1, heads, length, value_dim)
    return {
        "keys of rank 3": BadRows(keys[1:], values),
        "values of rank 3": BadRows(keys, values[1:]),
        "rows of rank 5": BadRows((1, *keys), (1, *values)),
        "numbers": BadRows((), ()),
        "a batch of 2": BadRows((2, *keys[1:]), (2, *values[1:])),
        "a batch of 0": BadRows((0, *keys[1:]), (0, *values[1:])),
        "no positions": BadRows((1, heads, 0, key_dim), (1, heads, 0, value_dim)),
        "more values than keys": BadRows(keys, (1, heads, length + 1, value_dim)),
        "more keys than values": BadRows((1, heads, length + 1, key_dim), values),
        "more heads of values": BadRows(keys, (1, heads + 1, length, value_dim)),
        "integers": BadRows(keys, values, "int32"),
        "bools": BadRows(keys, values, "bool"),
    }


def bad_later(dims: Dims, length: int = 2) -> dict[str, BadRows]:
    """What no append of ``length`` positions takes after another."""
    _, heads, key_dim, value_dim = dims
    keys, values = (1, heads, length, key_dim), (1, heads, length, value_dim)
    return bad_rows(dims, length) | {
        "another head": BadRows((1, heads + 1, length, key_dim), (1, heads + 1, length, value_dim)),
        "wider keys": BadRows((1, heads, length, 2 * key_dim), values),
        "wider values": BadRows(keys, (1, heads, length, 2 * value_dim)),
    }


def fingerprint(kit: CacheKit[Any], cache: Any) -> tuple[object, ...]:
    """Whatever a refused call must leave as it is."""
    exported = cache.export()
    return (
        cache.offset,
        cache.start,
        cache.window,
        cache.signature(),
        cache.is_trimmable(1),
        None if exported is None else [kit.arrays.bits(array) for array in exported],
        [kit.arrays.bits(array) for array in cache.state()],
    )


def check_rows_refused(
    kit: CacheKit[ArrayT],
    subject: Subject[ArrayT],
    call: Callable[[ArrayT, ArrayT], object],
    bad: Mapping[str, BadRows],
) -> None:
    """Fail unless ``call`` refuses each of ``bad`` and the cache is as before."""
    __tracebackhide__ = True
    for name, rows in bad.items():
        case = f"{subject.case}, {name}"
        keys = subject.setting.blank(*rows.keys, dtype=rows.dtype)
        values = subject.setting.blank(*rows.values, dtype=rows.dtype)
        before = fingerprint(kit, subject.cache)
        refused(rows.error, partial(call, keys, values), case)
        same = fingerprint(kit, subject.cache) == before
        check(same, Clause.UNCHANGED, case, "another offset, state or export")


class RefusalTests(CacheKit[ArrayT]):
    """Rows, queries, masks and sinks that do not fit."""

    @pytest.mark.parametrize(("method", "length"), [("append_window", 2), ("append_decode", 1)])
    def test_rows_that_do_not_fit_are_refused_at_the_first_append(
        self, method: str, length: int
    ) -> None:
        """And fix nothing: other rows may come first."""
        subject = self.subject()
        bad = bad_rows(self.dims, length)
        check_rows_refused(self, subject, getattr(subject.cache, method), bad)
        subject.window(3).check(Clause.UNCHANGED)
        subject.check_holds(Clause.UNCHANGED)

    @pytest.mark.parametrize(("method", "length"), [("append_window", 2), ("append_decode", 1)])
    def test_rows_that_do_not_fit_are_refused_later(self, method: str, length: int) -> None:
        """And what is stored stays, and can be read."""
        subject = self.subject()
        subject.window(self.block_size + 1)
        bad = bad_later(self.dims, length)
        check_rows_refused(self, subject, getattr(subject.cache, method), bad)
        subject.decode().check(Clause.UNCHANGED)
        subject.check_holds(Clause.UNCHANGED)

    @pytest.mark.parametrize("before", [0, 5])
    def test_a_decode_of_two_positions_is_refused(self, before: int) -> None:
        """A window takes them."""
        subject = self.subject()
        if before:
            subject.window(before)
        keys, values = subject.setting.pair(subject.draw(2))
        case = f"{subject.case}, append_decode of 2"
        refused(ShapeMismatch, lambda: subject.cache.append_decode(keys, values), case)
        subject.check_holds(Clause.UNCHANGED)
        subject.decode().check(Clause.UNCHANGED)

    def test_queries_that_do_not_fit_are_refused(self) -> None:
        """And the read can still be attended."""
        heads, kv_heads, dim, _ = self.dims
        self._refused_attend(ShapeMismatch, "queries of rank 3", queries=(heads, 3, dim))
        self._refused_attend(ShapeMismatch, "a batch of 2", queries=(2, heads, 3, dim))
        self._refused_attend(ShapeMismatch, "wider queries", queries=(1, heads, 3, 2 * dim))
        if kv_heads > 1:
            uneven = (1, 2 * kv_heads + 1, 3, dim)
            self._refused_attend(ShapeMismatch, "heads that are no multiple", queries=uneven)

    @pytest.mark.parametrize("dtype_of_queries", ["int32", "bool"])
    def test_queries_that_are_no_floats_are_refused(self, dtype_of_queries: str) -> None:
        """Attention has no integers."""
        self._refused_attend(DtypeMismatch, f"{dtype_of_queries} queries", dtype_of_queries)

    @pytest.mark.parametrize("kind", ["bool", "float"])
    def test_a_mask_that_does_not_fit_is_refused(self, kind: str) -> None:
        """Broadcastable to ``[B, Hq, L, S]`` or nothing."""
        heads, length = self.dims.num_query_heads, self.block_size + 4
        setting = self.subject().setting
        for what, shape in {
            "a longer mask": (3, length + 1),
            "a shorter mask": (3, length - 1),
            "a mask of other queries": (1, 1, 2, length),
            "a mask of other heads": (1, heads + 1, 3, length),
            "a mask of two batches": (2, 1, 3, length),
            "a mask of rank 5": (1, 1, 1, 3, length),
        }.items():
            mask = setting.blank(*shape, dtype="bool" if kind == "bool" else self.dtypes[0])
            self._refused_attend(ShapeMismatch, what, mask=mask)

    def test_a_mask_of_integers_is_refused(self) -> None:
        """It would be neither which nor how much."""
        mask = self.subject().setting.blank(3, self.block_size + 4, dtype="int32")
        self._refused_attend(DtypeMismatch, "an int32 mask", mask=mask)

    @pytest.mark.parametrize("sinks", ["one too many", "one too few", "of rank 2"])
    def test_sinks_that_do_not_fit_are_refused(self, sinks: str) -> None:
        """One number a query head."""
        heads = self.dims.num_query_heads
        shapes = {"one too many": (heads + 1,), "one too few": (heads - 1,)}
        shape = shapes.get(sinks, (1, heads))
        array = self.subject().setting.blank(*shape)
        self._refused_attend(ShapeMismatch, f"sinks {sinks}", sinks=array)

    def _refused_attend(
        self,
        error: type[PagedKVError],
        what: str,
        dtype: str | None = None,
        queries: tuple[int, ...] | None = None,
        **options: ArrayT,
    ) -> None:
        """Three queries, over a block and four more positions."""
        subject = self.subject()
        subject.window(self.block_size + 1)
        seen = subject.window(3)
        seen.check(Clause.WINDOW)
        shape = queries or (1, self.dims.num_query_heads, 3, self.dims.key_dim)
        array = subject.setting.blank(*shape, dtype=dtype)
        attend: Any = seen.read.attend
        refused(error, lambda: attend(array, 1.0, **options), f"{seen.case}, {what}")
        seen.check(Clause.UNCHANGED)
