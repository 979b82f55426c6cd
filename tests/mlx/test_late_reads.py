"""A read is of the moment of its append, whenever it is attended or evaluated.

Every row of every free slot is NaN by then: nothing of one is read.
"""

import gc
from typing import NamedTuple

import mlx.core as mx
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from pagedkv_mlx import (
    Blocks,
    ContiguousKVCache,
    GatheredRead,
    LayerPages,
    PagedKVCache,
    PagedQuantization,
)
from pagedkv_protocols import DecodePhase, PoolExhausted, Unsupported
from tests.mlx.reference import (
    Layer,
    Rows,
    Shape,
    answers,
    causal,
    filled,
    first,
    joined,
    poison,
    same,
    used_by,
)


class Seen(NamedTuple):
    """A read, the question it is asked late, an answer not evaluated, and the right one."""

    read: GatheredRead
    queries: mx.array
    pending: mx.array | None
    right: mx.array


class Sequence:
    """A cache and the rows it should hold, as its pages give them back."""

    def __init__(self, cache: PagedKVCache, rows: Rows) -> None:
        self.cache = cache
        self.rows = rows


class LateReads(RuleBasedStateMachine):
    """Sequences on one layer's pages, and reads of moments that are long gone."""

    @initialize(
        dtype=st.sampled_from([mx.bfloat16, mx.float32]),
        bits=st.sampled_from([None, None, 4]),
        block_size=st.sampled_from([1, 2, 3, 8]),
        window=st.sampled_from([None, None, 3]),
        seed=st.integers(0, 9),
    )
    def begin(
        self, dtype: mx.Dtype, bits: int | None, block_size: int, window: int | None, seed: int
    ) -> None:
        self.layer = Layer(Shape(4, 2, 32, 32, dtype), seed)
        codec = None if bits is None else PagedQuantization(bits, 32)
        self.pages = LayerPages(codec, block_size=block_size)
        self.window = window
        self.reads: list[Seen] = []
        self.sequences: list[Sequence] = []
        self.another_sequence()

    def pick(self, which: int) -> Sequence:
        return self.sequences[which % len(self.sequences)]

    def through(self, rows: Rows) -> Rows:
        _, _, key_dim, value_dim, dtype = self.layer.shape
        return self.pages.codec.decode(self.pages.codec.encode(*rows), key_dim, value_dim, dtype)

    def keep(self, read: GatheredRead, rows: Rows, mask: mx.array | None, pending: bool) -> None:
        queries = self.layer.queries(rows[0].shape[2] if mask is None else mask.shape[0])
        right = self.layer.attend(queries, rows, mask)
        mx.eval(right)
        answer = read.attend(queries, self.layer.scale) if pending else None
        self.reads.append(Seen(read, queries, answer, right))

    @rule(
        which=st.integers(0, 3),
        length=st.integers(1, 9),
        kept=st.sampled_from(["not", "unasked", "pending"]),
    )
    def append(self, which: int, length: int, kept: str) -> None:
        sequence, rows = self.pick(which), self.layer.rows(length)
        read = sequence.cache.append_window(*rows)
        sequence.rows = joined(sequence.rows, self.through(rows))
        if kept != "not" and len(self.reads) < 6:
            start, end = sequence.cache.start, sequence.cache.offset
            seen = sequence.rows[0][:, :, start:], sequence.rows[1][:, :, start:]
            mask = causal(length, end, self.window, start)
            self.keep(read, seen, mask, kept == "pending")

    @precondition(lambda self: len(self.reads) < 6)
    @rule(which=st.integers(0, 3), length=st.integers(1, 4), pending=st.booleans())
    def read_beside_a_block(self, which: int, length: int, pending: bool) -> None:
        sequence, rows = self.pick(which), self.layer.rows(length)
        if not sequence.cache.offset:
            return
        read = sequence.cache.read_block(*rows)
        start = sequence.cache.start
        seen = joined((sequence.rows[0][:, :, start:], sequence.rows[1][:, :, start:]), rows)
        mask = mx.ones((length, seen[0].shape[2]), mx.bool_)
        self.keep(read, seen, mask, pending)

    @rule(which=st.integers(0, 3), n=st.integers(0, 12))
    def trim(self, which: int, n: int) -> None:
        sequence = self.pick(which)
        if sequence.cache.is_trimmable(n):
            sequence.cache.trim(n)
            sequence.rows = first(sequence.rows, sequence.cache.offset)

    @precondition(lambda self: len(self.sequences) < 4)
    @rule(which=st.integers(0, 3))
    def fork(self, which: int) -> None:
        sequence = self.pick(which)
        self.sequences.append(Sequence(sequence.cache.fork(), sequence.rows))

    @precondition(lambda self: len(self.sequences) < 4)
    @rule()
    def another_sequence(self) -> None:
        cache = PagedKVCache(
            pages=self.pages, window=self.window, release_behind=self.window is not None
        )
        self.sequences.append(Sequence(cache, self.layer.no_rows()))

    @precondition(lambda self: len(self.sequences) > 1)
    @rule(which=st.integers(0, 3), dispose=st.booleans())
    def end_a_sequence(self, which: int, dispose: bool) -> None:
        sequence = self.sequences.pop(which % len(self.sequences))
        if dispose:
            sequence.cache.dispose()

    @rule()
    def evaluate(self) -> None:
        mx.eval(self.pages.planes)

    @rule()
    def poison_what_is_free(self) -> None:
        poison(self.pages)

    @precondition(lambda self: self.reads)
    @rule(which=st.integers(0, 5), end=st.sampled_from(["drop", "dispose", "keep"]))
    def attend_late(self, which: int, end: str) -> None:
        at = which % len(self.reads)
        self.check(self.reads[at])
        if end != "keep":
            seen = self.reads.pop(at)
            if end == "dispose":
                seen.read.dispose()

    def check(self, seen: Seen) -> None:
        assert same(seen.read.attend(seen.queries, self.layer.scale), seen.right)
        if seen.pending is not None:
            assert same(seen.pending, seen.right)

    @invariant()
    def blocks_are_used_by_tables_and_by_reads_alone(self) -> None:
        held = used_by(sequence.cache for sequence in self.sequences)
        used = self.pages.pool.num_used
        assert used >= held if self.reads else used == held

    def teardown(self) -> None:
        if not hasattr(self, "pages"):
            return
        poison(self.pages)
        while self.reads:
            self.check(self.reads.pop())
        self.sequences.clear()
        stats = self.pages.pool.stats()
        assert (stats.num_used, stats.num_pinned) == (0, 0)


def test_a_read_is_of_the_moment_of_its_append_whatever_follows():
    run_state_machine_as_test(LateReads, settings=settings(stateful_step_count=25))


# One thing at a time.

CODECS = [None, PagedQuantization(8, 32), PagedQuantization(3, 32), PagedQuantization(mode="mxfp4")]


def begun(codec: PagedQuantization | None = None) -> tuple[Layer, PagedKVCache, Rows, GatheredRead]:
    """A cache of 6 positions in blocks of 4, with the read of the last 2."""
    layer = Layer(Shape(4, 2, 32, 32))
    cache, _ = filled(layer, 4, block_size=4, quantization=codec)
    read = cache.append_window(*layer.rows(2))
    rows = cache.export()
    assert rows is not None
    return layer, cache, rows, read


@pytest.mark.parametrize("codec", CODECS, ids=str)
def test_later_appends_and_growth_change_no_answer(codec):
    layer, cache, rows, read = begun(codec)
    for length in (1, 1, 1, 300):
        cache.append_window(*layer.rows(length)).dispose()
        poison(cache.pages)
        assert answers(read, layer, 2, rows)


@pytest.mark.parametrize("codec", CODECS, ids=str)
@pytest.mark.parametrize("n", [1, 2, 4, 6])
def test_a_trim_and_other_rows_in_its_place_change_no_answer(n, codec):
    layer, cache, rows, read = begun(codec)
    cache.trim(n)
    poison(cache.pages)
    assert answers(read, layer, 2, rows)
    cache.append_window(*layer.rows(9)).dispose()
    poison(cache.pages)
    assert answers(read, layer, 2, rows)


@pytest.mark.parametrize("codec", CODECS, ids=str)
def test_the_end_of_the_cache_changes_no_answer_and_its_blocks_come_back_after_the_read(codec):
    layer, cache, rows, read = begun(codec)
    pages = cache.pages
    cache.dispose()
    PagedKVCache(pages=pages).append_window(*layer.rows(20)).dispose()
    poison(pages)
    assert answers(read, layer, 2, rows)
    assert pages.pool.num_used == 2
    read.dispose()
    assert pages.pool.num_used == 0


def test_a_dropped_cache_lives_on_in_its_read_alone():
    layer, cache, rows, read = begun()
    pages = cache.pages
    del cache
    gc.collect()
    PagedKVCache(pages=pages).append_window(*layer.rows(20)).dispose()
    poison(pages)
    assert answers(read, layer, 2, rows)
    assert pages.pool.num_used == 2
    del read
    assert pages.pool.num_used == 0


def test_a_cache_that_is_dropped_in_a_cycle_gives_its_blocks_back_when_it_is_collected():
    layer = Layer()
    pages = LayerPages(block_size=4)
    cache, _ = filled(layer, 9, PagedKVCache(pages=pages))
    ring: list[object] = [cache, cache.append_window(*layer.rows(1))]
    ring.append(ring)
    del cache, ring
    gc.collect()
    assert (pages.pool.num_used, pages.pool.stats().num_pinned) == (0, 0)


@pytest.mark.parametrize("first_to_write", [0, 1])
def test_a_rewrite_by_another_holder_changes_no_answer(first_to_write):
    layer, cache, rows, read = begun()
    holders = [cache, cache.fork()]
    for holder in (holders[first_to_write], holders[1 - first_to_write]):
        holder.trim(1)
        holder.append_window(*layer.rows(3)).dispose()
        poison(cache.pages)
        assert answers(read, layer, 2, rows)


def test_a_holder_that_is_left_alone_with_a_block_does_not_rewrite_what_a_read_saw():
    layer, cache, rows, read = begun()
    fork = cache.fork()
    fork.trim(1)
    cache.dispose()
    fork.append_window(*layer.rows(1)).dispose()
    assert answers(read, layer, 2, rows)
    tail = fork.block_table[1]
    read.dispose()
    fork.trim(1)
    fork.append_window(*layer.rows(1)).dispose()
    assert fork.block_table[1] == tail


def test_an_answer_that_is_evaluated_late_is_of_the_moment_of_its_append():
    layer, cache, rows, read = begun()
    queries = layer.queries(2)
    pending = read.attend(queries, layer.scale)
    read.dispose()
    cache.trim(6)
    cache.append_window(*layer.rows(9)).dispose()
    mx.eval(cache.state())
    assert same(pending, layer.attend(queries, rows, causal(2, 6)))


@pytest.mark.parametrize("end", ["dispose", "drop", "with"])
def test_trimmed_blocks_come_back_when_the_last_read_that_saw_them_ends(end):
    layer, cache, _, read = begun()
    other = cache.append_decode(*layer.rows(1))
    cache.trim(7)
    assert (cache.block_table, cache.pool.num_used) == ((), 2)
    other.dispose()
    assert cache.pool.num_used == 2
    if end == "dispose":
        read.dispose()
    elif end == "with":
        with read:
            pass
    del read
    assert (cache.pool.num_used, cache.pool.stats().num_pinned) == (0, 0)


def test_blocks_behind_a_window_leave_the_table_at_once_and_are_reused_after_the_read():
    layer = Layer()
    pages = LayerPages(block_size=2, limit=Blocks(4))
    cache = PagedKVCache(pages=pages, window=2, release_behind=True)
    read = cache.append_window(*layer.rows(4))
    rows = cache.export()
    assert rows is not None
    cache.append_decode(*layer.rows(1)).dispose()
    assert (cache.start, len(cache.block_table), pages.pool.num_used) == (2, 2, 3)
    cache.append_window(*layer.rows(3)).dispose()
    before = pages.pool.stats()
    with pytest.raises(PoolExhausted):
        cache.append_window(*layer.rows(3))
    assert pages.pool.stats() == before
    queries = layer.queries(4)
    assert same(
        read.attend(queries, layer.scale), layer.attend(queries, rows, causal(4, 4, window=2))
    )
    read.dispose()
    cache.append_window(*layer.rows(3)).dispose()
    assert pages.pool.num_used == len(cache.block_table)


def test_a_read_that_waits_holds_no_plane():
    layer = Layer(Shape(1, 1, 256, 256, mx.float32))
    cache, _ = filled(layer, 1, PagedKVCache(4096, block_size=16))
    mx.eval(cache.state())
    size = cache.pages.nbytes
    reads = []
    mx.synchronize()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    for _ in range(8):
        reads.append(cache.append_window(*layer.rows(3)))
        mx.eval(cache.state())
    assert mx.get_peak_memory() - before < size // 4
    rows = cache.export()
    assert rows is not None
    ends = range(4, 26, 3)
    assert all(
        answers(read, layer, 3, first(rows, end)) for read, end in zip(reads, ends, strict=True)
    )


def test_r31_what_was_handed_out_stays_as_it_was():
    layer, cache, rows, read = begun()
    offset, table, state = cache.offset, cache.block_table, cache.state()
    mask, exported, gathered = cache.make_mask(2, return_array=True), cache.export(), cache.gather()
    copies = [mx.array(part) for part in state]
    assert isinstance(mask, mx.array)
    shown = mx.array(mask)
    cache.append_window(*layer.rows(3)).dispose()
    cache.trim(4)
    cache.append_window(*layer.rows(9)).dispose()
    assert (offset, table) == (6, (0, 1))
    assert all(map(same, state, copies))
    assert same(mask, shown)
    assert exported is not None
    assert gathered is not None
    assert all(map(same, exported, rows))
    assert all(map(same, gathered, rows))
    assert answers(read, layer, 2, rows)


def test_r31_arrays_that_a_caller_changes_in_place_change_no_read():
    layer = Layer()
    rows, flags = layer.rows(5), mx.array([1, 0, 0, 1, 0])
    kept = [mx.array(part) for part in rows]
    spans = PagedKVCache(block_size=2).append_bidirectional(*rows, flags)
    hidden = mx.array([[True, False, True, False, True]])
    encoded = PagedKVCache(block_size=2).append_encoder(*rows, hidden)
    block = PagedKVCache(block_size=2).read_block(*rows)
    warm, _ = filled(layer, 3, block_size=2)
    stored = warm.export()
    assert stored is not None
    beside = warm.read_block(*rows)
    for part in (*rows, flags, hidden):
        part[...] = 0
    queries, right = layer.queries(5), (kept[0], kept[1])
    both = mx.array([[i >= j or {i, j} == {0, 3} for j in range(5)] for i in range(5)])
    odd = mx.array([[True, False, True, False, True]])
    questions = [(spans, right, both), (encoded, right, odd), (block, right, None)]
    for read, seen, mask in [*questions, (beside, joined(stored, right), None)]:
        assert same(read.attend(queries, layer.scale), layer.attend(queries, seen, mask))


def test_r31_the_reference_keeps_what_a_caller_changes_in_place_as_well():
    layer = Layer()
    rows = layer.rows(5)
    kept = [mx.array(part) for part in rows]
    flags = mx.array([True, False, False, True, False])
    spans = ContiguousKVCache().append_bidirectional(*rows, flags)
    block = ContiguousKVCache().read_block(*rows)
    for part in (*rows, flags):
        part[...] = 0
    queries, right = layer.queries(5), (kept[0], kept[1])
    both = mx.array([[i >= j or {i, j} == {0, 3} for j in range(5)] for i in range(5)])
    assert same(spans.attend(queries, layer.scale), layer.attend(queries, right, both))
    assert same(block.attend(queries, layer.scale), layer.attend(queries, right))


# Recorded steps, which read their pages' rows behind the last under a mask.


def rows_behind_are_numbers(cache: PagedKVCache) -> bool:
    """Whether a recorded step, where it reads the pages as they lie, meets no NaN in them."""
    plan = cache.prepare_decode_step()
    if plan.phase is not DecodePhase.RESIDENT:
        return True
    row = cache.sequence.span.row
    assert row is not None
    behind = [plane[:, :, row + cache.offset : row + plan.bucket] for plane in cache.state()]
    return all(mx.isfinite(part).all().item() for part in behind)


def test_a_recorded_step_clears_no_row_that_a_read_saw():
    layer, cache = Layer(), PagedKVCache(block_size=256)
    early = cache.append_window(*layer.rows(256))
    cache.trim(256)
    read = cache.append_window(*layer.rows(256))
    rows = cache.export()
    assert rows is not None
    cache.append_window(*layer.rows(44)).dispose()
    cache.trim(300)
    early.dispose()
    cache.append_decode(*layer.rows(1)).dispose()
    assert rows_behind_are_numbers(cache)
    assert answers(read, layer, 256, rows)


def test_a_recorded_step_meets_no_row_of_an_earlier_place_of_its_sequence():
    layer, cache = Layer(), PagedKVCache(block_size=4)
    keys, values = layer.rows(16)
    read = cache.append_window(keys, mx.full(values.shape, float("nan"), values.dtype))
    cache.trim(16)
    cache.append_decode(*layer.rows(1)).dispose()
    assert cache.block_table != (0,)
    assert rows_behind_are_numbers(cache)
    cache.trim(1)
    read.dispose()
    cache.append_decode(*layer.rows(1)).dispose()
    assert cache.block_table == (0,)
    assert rows_behind_are_numbers(cache)


def test_a_recorded_step_meets_no_row_that_was_written_around_a_pinned_block():
    layer, cache = Layer(), PagedKVCache(block_size=4)
    cache.append_window(*layer.rows(4)).dispose()
    read = cache.append_window(*layer.rows(4))
    cache.trim(4)
    keys, values = layer.rows(4)
    cache.append_window(keys, mx.full(values.shape, float("nan"), values.dtype)).dispose()
    assert cache.block_table == (0, 2)
    cache.trim(4)
    read.dispose()
    assert rows_behind_are_numbers(cache)


@pytest.mark.parametrize("asked", [None, DecodePhase.RESIDENT])
def test_a_recorded_step_that_would_clear_a_pinned_row_takes_a_bucket_or_is_refused(asked):
    layer, cache = Layer(), PagedKVCache(12, block_size=4)
    early = cache.append_window(*layer.rows(4))
    cache.trim(4)
    read = cache.append_window(*layer.rows(4))
    rows = cache.export()
    assert rows is not None
    cache.trim(4)
    early.dispose()
    cache.append_window(*layer.rows(2)).dispose()
    assert cache.block_table == (0,)  # and the read's block is the next
    if asked is None:
        assert cache.prepare_decode_step().phase is DecodePhase.BUCKET
    else:
        with pytest.raises(Unsupported, match="use BUCKET"):
            cache.prepare_decode_step(asked)
    assert answers(read, layer, 4, rows)
