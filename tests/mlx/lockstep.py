"""A paged cache and its contiguous reference in lockstep: every named read, after anything."""

from __future__ import annotations

from typing import Any, ClassVar

import mlx.core as mx
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pagedkv_mlx import PHASE, ContiguousKVCache, GatheredRead, LayerPages, PagedKVCache
from pagedkv_protocols import NotTrimmable, PageCodec
from tests.mlx.reference import (
    Layer,
    Rows,
    Shape,
    joined,
    normal,
    poison,
    same,
    small_shapes,
    used_by,
)

lengths = st.integers(1, 9)


class Lockstep(RuleBasedStateMachine):
    """``paged`` and ``reference`` are fed the same rows and asked the same questions.

    ``through``: rows as the pages give them back, which is what the reference is fed. A
    second sequence on the same pages takes blocks in between, so that tables scatter.
    """

    shapes: ClassVar[st.SearchStrategy[Shape]] = small_shapes
    codecs: ClassVar[st.SearchStrategy[PageCodec[mx.array, mx.Dtype] | None]] = st.none()
    block_sizes: ClassVar[tuple[int, ...]] = (1, 2, 3, 7, 16)

    @initialize(data=st.data(), release=st.booleans(), seed=st.integers(0, 9))
    def begin(self, data: st.DataObject, release: bool, seed: int) -> None:
        self.layer = Layer(data.draw(self.shapes, "shape"), seed)
        size = data.draw(st.sampled_from(self.block_sizes), "block_size")
        window = data.draw(st.sampled_from([None, 1, 3, size, size + 1]), "window")
        options: dict[str, Any] = {
            "window": window,
            "release_behind": release and window is not None,
        }
        self.pages = LayerPages(data.draw(self.codecs, "codec"), block_size=size)
        self.paged = PagedKVCache(pages=self.pages, **options)
        self.reference = ContiguousKVCache(block_size=size, **options)
        self.neighbour = PagedKVCache(pages=self.pages)
        self.stored = self.layer.no_rows()
        self.last = 0

    def through(self, rows: Rows) -> Rows:
        _, _, key_dim, value_dim, dtype = self.layer.shape
        codec = self.pages.codec
        return codec.decode(codec.encode(*rows), key_dim, value_dim, dtype)

    def append(self, method: str, length: int, *more: mx.array | None) -> None:
        rows = self.layer.rows(length)
        read = getattr(self.paged, method)(*rows, *more)
        expected = getattr(self.reference, method)(*self.through(rows), *more)
        self.stored = joined(self.stored, rows)
        self.last = length
        self.compare(read, expected, length)

    def compare(self, read: GatheredRead, expected: GatheredRead, length: int) -> None:
        """Under the read's own rule, no mask, and arrays of either kind."""
        queries, scale = self.layer.queries(length), self.layer.scale
        num_keys = expected.gather()[0].shape[2]
        hidden = mx.random.bernoulli(0.6, (length, num_keys), key=mx.random.key(length))
        added = normal(num_keys, 1, self.layer.shape.num_heads, 1, num_keys)
        with read, expected:
            for mask in (PHASE, None, hidden, added):
                output = read.attend(queries, scale, mask=mask)
                assert same(output, expected.attend(queries, scale, mask=mask))

    @rule()
    def decode(self) -> None:
        self.append("append_decode", 1)

    @rule(length=lengths | st.integers(30, 40), method=st.sampled_from(["window", "committed"]))
    def window(self, length: int, method: str) -> None:
        self.append(f"append_{method}", length)

    @precondition(lambda self: self.paged.offset == 0)
    @rule(spans=st.lists(st.integers(0, 2), min_size=1, max_size=20), flags=st.booleans())
    def spans_that_see_each_other(self, spans: list[int], flags: bool) -> None:
        overlay = mx.array(spans) > 0 if flags else mx.array(spans)
        self.append("append_bidirectional", len(spans), overlay)

    @precondition(lambda self: self.paged.offset == 0)
    @rule(length=lengths, masked=st.booleans())
    def an_encoders_window(self, length: int, masked: bool) -> None:
        mask = mx.random.bernoulli(0.5, (length, length), key=mx.random.key(length))
        self.append("append_encoder", length, mask if masked else None)

    @rule(length=lengths)
    def block(self, length: int) -> None:
        rows = self.layer.rows(length)
        self.compare(self.paged.read_block(*rows), self.reference.read_block(*rows), length)

    @rule(n=st.integers(0, 20))
    def trim(self, n: int) -> None:
        trimmable = self.reference.is_trimmable(n)
        assert self.paged.is_trimmable(n) == trimmable
        if trimmable:
            assert self.paged.trim(n) == self.reference.trim(n)
        else:
            with pytest.raises(NotTrimmable):
                self.paged.trim(n)
        end = self.paged.offset
        self.stored = (self.stored[0][:, :, :end], self.stored[1][:, :, :end])

    @rule(keep=st.booleans())
    def go_on_in_a_fork(self, keep: bool) -> None:
        fork = self.paged.fork()
        if keep:
            self.paged, fork = fork, self.paged
        fork.append_decode(*self.layer.rows(1)).dispose()
        fork.dispose()

    @rule(length=lengths, n=st.integers(0, 12))
    def a_neighbour_comes_and_goes(self, length: int, n: int) -> None:
        self.neighbour.append_window(*self.layer.rows(length)).dispose()
        self.neighbour.trim(n)

    @rule()
    def poison_what_is_free(self) -> None:
        poison(self.pages)

    @invariant()
    def both_are_at_the_same_place(self) -> None:
        assert self.paged.offset == self.reference.offset
        assert self.paged.start == self.reference.start

    @invariant()
    def both_hold_the_same_rows(self) -> None:
        if self.paged.offset:
            ours, theirs = self.paged.export(), self.reference.export()
            assert ours is not None
            assert theirs is not None
            assert all(map(same, ours, theirs))
            donated, expected = (c.capture_donor_rows() for c in (self.paged, self.reference))
            assert donated[2:] == expected[2:]
            assert all(map(same, donated[:2], expected[:2]))

    @invariant()
    def pages_hold_what_coding_all_rows_at_once_gives(self) -> None:
        if self.paged.offset:
            coded = self.pages.codec.encode(*self.stored)
            for plane, at_once in zip(self.paged.page_rows(), coded, strict=True):
                assert same(plane, at_once[:, :, self.paged.start :])

    @invariant()
    def blocks_in_use_are_as_many_as_the_rows_need(self) -> None:
        held, size = self.paged.offset - self.paged.start, self.paged.block_size
        assert len(self.paged.block_table) == -(-held // size)
        assert self.pages.pool.num_used == used_by([self.paged, self.neighbour])

    @invariant()
    def blocks_behind_the_window_were_given_back(self) -> None:
        window, size = self.paged.window, self.paged.block_size
        if self.paged.release_behind and window is not None:
            assert len(self.paged.block_table) <= -(-(window + self.last - 2) // size) + 1
