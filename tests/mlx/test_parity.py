"""16-bit pages give the bits of mlx-lm's ``KVCache``, whatever was appended, trimmed and forked."""

import copy
from typing import Any

import mlx.core as mx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from pagedkv_mlx import ContiguousKVCache, LayerPages, PagedKVCache
from tests.mlx.reference import (
    BLOCK_SIZES,
    DIMS,
    HEADS,
    Layer,
    Rows,
    Shape,
    causal,
    overlaid,
    poison,
    same,
    shapes,
    small_shapes,
    stored_in,
    used_by,
)

pytest.importorskip("mlx_lm")

from mlx_lm.models.cache import KVCache

SHORT = settings(stateful_step_count=20)


def plain(cache: Any, layer: Layer, rows: Rows, queries: mx.array) -> mx.array:
    """What a model does with mlx-lm's cache: mask, append, fused attention."""
    mask = cache.make_mask(rows[0].shape[2], return_array=False, window_size=None)
    keys, values = cache.update_and_fetch(*rows)
    return mx.fast.scaled_dot_product_attention(queries, keys, values, scale=layer.scale, mask=mask)


class PagedAndPlain(RuleBasedStateMachine):
    """Sequences over one layer's pages, each beside a ``KVCache`` that is fed the same rows."""

    @initialize(shape=shapes, block_size=st.sampled_from(BLOCK_SIZES), seed=st.integers(0, 99))
    def begin(self, shape: Shape, block_size: int, seed: int) -> None:
        self.layer = Layer(shape, seed)
        width = shape.num_heads * (shape.key_dim + shape.value_dim)
        self.longest = max(9, 100_000 // width)  # a CPU takes its time over 71 wide heads
        self.pages = LayerPages(block_size=block_size)
        self.pairs = [(PagedKVCache(pages=self.pages), KVCache())]

    def pick(self, which: int) -> tuple[PagedKVCache, Any]:
        return self.pairs[which % len(self.pairs)]

    def append(self, which: int, length: int, method: str = "append_window") -> None:
        paged, other = self.pick(which)
        rows, queries = self.layer.rows(length), self.layer.queries(length)
        with getattr(paged, method)(*rows) as read:
            output = read.attend(queries, self.layer.scale)
        assert same(output, plain(other, self.layer, rows, queries))

    @rule(which=st.integers(0, 3))
    def decode(self, which: int) -> None:
        self.append(which, 1, "append_decode")

    @rule(which=st.integers(0, 3), length=st.integers(1, 40) | st.integers(99, 257))
    def window(self, which: int, length: int) -> None:
        self.append(which, min(length, self.longest))

    @rule(which=st.integers(0, 3), length=st.integers(1, 9))
    def rows_for_a_caller_who_attends(self, which: int, length: int) -> None:
        paged, other = self.pick(which)
        rows, queries = self.layer.rows(length), self.layer.queries(length)
        fetched = paged.append_rows(*rows)
        mask = None if length == 1 else "causal"
        output = mx.fast.scaled_dot_product_attention(
            queries, *fetched, scale=self.layer.scale, mask=mask
        )
        assert same(output, plain(other, self.layer, rows, queries))

    @rule(which=st.integers(0, 3), n=st.integers(0, 30))
    def trim(self, which: int, n: int) -> None:
        paged, other = self.pick(which)
        assert paged.trim(n) == other.trim(n)

    @precondition(lambda self: len(self.pairs) < 4)
    @rule(which=st.integers(0, 3))
    def fork(self, which: int) -> None:
        paged, other = self.pick(which)
        self.pairs.append((paged.fork(), copy.deepcopy(other)))

    @precondition(lambda self: len(self.pairs) < 4)
    @rule()
    def another_sequence(self) -> None:
        self.pairs.append((PagedKVCache(pages=self.pages), KVCache()))

    @precondition(lambda self: len(self.pairs) > 1)
    @rule(which=st.integers(0, 3), dispose=st.booleans())
    def end(self, which: int, dispose: bool) -> None:
        paged, _ = self.pairs.pop(which % len(self.pairs))
        if dispose:
            paged.dispose()

    @rule()
    def poison_what_is_free(self) -> None:
        poison(self.pages)

    @invariant()
    def offsets_are_those_of_plain_caches(self) -> None:
        for paged, other in self.pairs:
            assert paged.offset == other.offset

    @invariant()
    def blocks_in_use_are_as_many_as_the_positions_need(self) -> None:
        for paged, _ in self.pairs:
            assert len(paged.block_table) == -(-paged.offset // paged.block_size)
        assert self.pages.pool.num_used == used_by(paged for paged, _ in self.pairs)

    @invariant()
    def exports_are_the_rows_of_plain_caches(self) -> None:
        for paged, other in self.pairs[-1:]:
            exported = paged.export()
            if exported is not None and paged.offset:
                assert all(map(same, exported, stored_in(other)))


def test_every_read_has_the_bits_of_a_plain_cache_after_any_schedule():
    run_state_machine_as_test(PagedAndPlain, settings=SHORT)


# The reference of every other test here, beside mlx-lm's cache.

windows = st.sampled_from([None, 1, 3, 4, 5])


@given(
    small_shapes,
    windows,
    st.booleans(),
    st.lists(st.integers(1, 9) | st.integers(-9, -1), min_size=1, max_size=9),
)
def test_the_contiguous_reference_is_a_plain_cache_under_the_stated_mask(
    shape, window, release, schedule
):
    layer, block_size, other = Layer(shape), 4, KVCache()
    release_behind = release and window is not None
    cache = ContiguousKVCache(block_size=block_size, window=window, release_behind=release_behind)
    for length in schedule:
        if length < 0:
            if cache.is_trimmable(-length):
                assert cache.trim(-length) == other.trim(-length)
            continue
        rows, queries = layer.rows(length), layer.queries(length)
        named = [cache.append_window, cache.append_committed, cache.append_decode]
        read = named[cache.offset % 2 if length > 1 else 2](*rows)
        stored = kept(other.update_and_fetch(*rows), cache.start)
        mask = causal(length, cache.offset, window, cache.start)
        assert same(read.attend(queries, layer.scale), layer.attend(queries, stored, mask))
        assert same(read.attend(queries, layer.scale, mask=None), layer.attend(queries, stored))
        if release_behind:
            assert cache.offset - cache.start < window + block_size + length - 1
        else:
            assert cache.start == 0


def kept(rows: Rows, start: int) -> Rows:
    return rows[0][:, :, start:], rows[1][:, :, start:]


@given(small_shapes, windows, st.lists(st.integers(0, 2), min_size=1, max_size=12), st.booleans())
def test_the_contiguous_reference_reads_spans_as_sdpa_does_under_the_overlaid_mask(
    shape, window, spans, flags
):
    layer, cache, other = Layer(shape), ContiguousKVCache(window=window), KVCache()
    rows, queries = layer.rows(len(spans)), layer.queries(len(spans))
    marks = [span > 0 for span in spans] if flags else spans
    read = cache.append_bidirectional(*rows, mx.array(marks))
    expected = layer.attend(queries, other.update_and_fetch(*rows), overlaid(marks, window))
    assert same(read.attend(queries, layer.scale), expected)


@given(small_shapes, st.integers(1, 9), st.sampled_from([None, "full", "row", "column"]))
def test_the_contiguous_reference_reads_an_encoders_window_under_its_own_mask(shape, length, form):
    layer, cache, other = Layer(shape), ContiguousKVCache(window=2), KVCache()
    rows, queries = layer.rows(length), layer.queries(length)
    full = {"full": (length, length), "row": (1, 1, 1, length), "column": (1, length, 1)}
    mask = None if form is None else mx.random.bernoulli(0.7, full[form], key=mx.random.key(1))
    read = cache.append_encoder(*rows, mask)
    expected = layer.attend(queries, other.update_and_fetch(*rows), mask)
    assert same(read.attend(queries, layer.scale), expected)


@given(small_shapes, st.integers(0, 9), st.integers(1, 9))
def test_the_contiguous_reference_reads_a_block_as_if_it_were_appended_and_trimmed(
    shape, stored, length
):
    layer, cache, other = Layer(shape), ContiguousKVCache(window=2), KVCache()
    if stored:
        rows = layer.rows(stored)
        cache.append_window(*rows).dispose()
        other.update_and_fetch(*rows)
    block, queries = layer.rows(length), layer.queries(length)
    read = cache.read_block(*block)
    expected = layer.attend(queries, other.update_and_fetch(*block))
    assert same(read.attend(queries, layer.scale), expected)
    assert cache.offset == stored


@pytest.mark.parametrize("dims", [*DIMS, (32, 32), (72, 72), (512, 512), (576, 512)], ids=str)
def test_r07_every_ratio_of_heads_and_every_dim_gathers_to_the_bits_of_a_plain_cache(dims):
    for heads in (*HEADS, (12, 2), (28, 4)):
        layer, paged, other = Layer(Shape(*heads, *dims)), PagedKVCache(block_size=16), KVCache()
        for length in (37, 1, 4):
            rows, queries = layer.rows(length), layer.queries(length)
            with paged.append_window(*rows) as read:
                output = read.attend(queries, layer.scale)
            assert same(output, plain(other, layer, rows, queries)), heads
