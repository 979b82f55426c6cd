"""What caches of this kind got wrong in the field, one record after the other."""

import copy
import gc
import itertools
import re
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagedkv_mlx import (
    Blocks,
    CacheGroup,
    ContiguousKVCache,
    LayerPages,
    PagedKVCache,
    PagedQuantization,
    PagedTurboQuant,
)
from pagedkv_protocols import PoolExhausted, ShapeMismatch
from tests.mlx.reference import (
    Layer,
    Shape,
    answers,
    attend,
    causal,
    filled,
    first,
    free_slots,
    holds,
    joined,
    normal,
    poison,
    same,
    used_by,
)

MIB = 1 << 20


def memory() -> int:
    """Bytes of arrays that are alive, once nothing is left to collect."""
    gc.collect()
    mx.synchronize()
    mx.clear_cache()
    return mx.get_active_memory()


# R06: odd block sizes and unaligned lengths.


@pytest.mark.parametrize("block_size", [1, 2, 3, 5, 7, 16, 48, 100, 256])
def test_r06_any_block_size_reads_any_length_as_plain_rows_are_read(block_size):
    layer = Layer()
    for stored in sorted({1, block_size - 1, block_size, block_size + 1, 2 * block_size + 1} - {0}):
        for length in (1, 2, 8, 9):
            cache, rows = filled(layer, stored, block_size=block_size)
            more = layer.rows(length)
            read = cache.append_window(*more)
            poison(cache.pages)
            assert answers(read, layer, length, joined(rows, more))


@pytest.mark.parametrize("block_size", [1, 2, 3, 5, 7, 16, 48, 100, 256])
def test_r06_queries_of_zero_see_the_mean_of_the_values_that_are_there(block_size):
    layer = Layer(Shape(4, 2, 16, 16, mx.float32))
    for stored in sorted({1, block_size - 1, block_size, block_size + 1, 2 * block_size + 1} - {0}):
        pages = LayerPages(block_size=block_size)
        neighbour, cache = PagedKVCache(pages=pages), PagedKVCache(pages=pages)
        rows = layer.rows(stored)
        for begin in range(0, stored, max(1, stored // 2)):  # the tables scatter
            part = (rows[0][:, :, begin:], rows[1][:, :, begin:])
            cache.append_window(*first(part, max(1, stored // 2))).dispose()
            neighbour.append_window(*layer.rows(block_size)).dispose()
        with cache.read_block(*layer.rows(1)) as read:
            mask = mx.arange(stored + 1) < stored
            answer = read.attend(mx.zeros((1, 4, 1, 16)), layer.scale, mask=mask)
        mean = mx.repeat(rows[1].mean(axis=2, keepdims=True), 2, axis=1)
        assert mx.allclose(answer, mean, rtol=1e-5, atol=1e-5).item()


def test_r08_more_keys_than_16_bits_count_are_read_under_an_array_mask():
    layer = Layer(Shape(1, 1, 16, 16))
    cache, rows = filled(layer, 33_000, block_size=100)
    more, queries = layer.rows(2), layer.queries(2)
    read = cache.append_window(*more)
    mask = normal(7, 2, 33_002) > 0
    assert same(
        read.attend(queries, layer.scale, mask=mask),
        layer.attend(queries, joined(rows, more), mask),
    )


# R13, R14: trims.


def test_r13_trim_drops_what_there_is_and_says_how_many():
    for cache in (PagedKVCache(block_size=4), ContiguousKVCache()):
        attend(cache, Layer(), 10)
        assert (cache.trim(0), cache.offset) == (0, 10)
        assert (cache.trim(4), cache.offset) == (4, 6)
        assert (cache.trim(99), cache.offset) == (6, 0)
        assert (cache.trim(3), cache.offset) == (0, 0)


class Three:
    """An integer of another library."""

    def __index__(self) -> int:
        return 3


def test_r13_trim_takes_any_integer_and_gives_an_int():
    cache, _ = filled(Layer(), 10, block_size=4)
    answer = cache.trim(Three())
    assert (answer, type(answer), cache.offset) == (3, int, 7)
    assert cache.is_trimmable(Three())


def test_r14_a_trimmed_token_does_not_return():
    layer = Layer()
    cache, rows = filled(layer, 10, block_size=4)
    cache.trim(4)
    more = layer.rows(1)
    read = cache.append_decode(*more)
    stored = joined(first(rows, 6), more)
    assert cache.offset == 7
    assert answers(read, layer, 1, stored)
    assert holds(cache, stored)
    cache.trim(7)
    again = layer.rows(9)
    read = cache.append_window(*again)
    assert answers(read, layer, 9, again)


@pytest.mark.parametrize("n", range(10))
def test_r14_append_trim_append_is_as_if_the_trimmed_had_never_been(n):
    layer = Layer()
    for t, m in itertools.product(range(n + 1), range(10)):
        cache, rows = filled(layer, n, block_size=4)
        assert cache.trim(t) == t
        more, queries = layer.rows(max(1, m)), layer.queries(max(1, m))
        stored = first(rows, n - t)
        if m:
            stored = joined(stored, more)
            with cache.append_window(*more) as read:
                answer = read.attend(queries, layer.scale)
            assert same(answer, layer.attend(queries, stored, causal(m, n - t + m)))
        assert (cache.offset, cache.pool.num_used) == (n - t + m, -(-(n - t + m) // 4))
        assert holds(cache, stored)


def test_r14_a_thousand_trims_of_one_token_allocate_nothing():
    cache, _ = filled(Layer(Shape(4, 2, 64, 64)), 8192)
    mx.eval(cache.state())
    before = memory()
    mx.reset_peak_memory()
    for _ in range(1000):
        assert cache.trim(1) == 1
    mx.eval(cache.state())
    mx.synchronize()
    assert mx.get_peak_memory() <= before
    assert (cache.offset, cache.pool.num_used) == (7192, 29)


# R16: a partial tail shared.


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))), ids=str)
@pytest.mark.parametrize("length", [6, 8])
def test_r16_forks_of_one_tail_each_read_their_own_next_row(length, order):
    layer = Layer()
    parent, rows = filled(layer, length, block_size=4)
    caches = [parent, parent.fork(), parent.fork()]
    assert len({cache.block_table for cache in caches}) == 1
    stored = []
    for cache in caches:
        more = layer.rows(1)
        stored.append(joined(rows, more))
        assert answers(cache.append_decode(*more), layer, 1, stored[-1])
    assert all(holds(cache, own) for cache, own in zip(caches, stored, strict=True))
    pool, [whole] = parent.pool, {cache.block_table[0] for cache in caches}
    assert pool.ref_cnt(whole) == 3
    shared = {cache.block_table[: length // 4] for cache in caches}
    assert len(shared) == 1
    assert pool.num_used == length // 4 + 3
    for at in order:
        caches[at].dispose()
        left = [cache for i, cache in enumerate(caches) if order.index(i) > order.index(at)]
        own = [own for i, own in enumerate(stored) if order.index(i) > order.index(at)]
        assert all(holds(cache, rows) for cache, rows in zip(left, own, strict=True))
    assert (pool.num_used, pool.stats().num_shared) == (0, 0)


def test_r16_a_fork_on_a_block_boundary_copies_nothing():
    layer = Layer()
    parent, _ = filled(layer, 8, block_size=4)
    fork = parent.fork()
    parent.append_decode(*layer.rows(1)).dispose()
    fork.append_decode(*layer.rows(1)).dispose()
    assert parent.block_table[:2] == fork.block_table[:2] == (0, 1)
    assert parent.pool.stats().peak_used == 4


# R18: memory pinned or not returned.


def test_r18_a_snapshot_of_16_tokens_keeps_its_own_size_alone():
    layer = Layer(Shape(4, 2, 128, 128))
    bare = memory()
    cache, rows = filled(layer, 16, PagedKVCache(65_536))
    assert cache.pages.nbytes == 64 * MIB
    snapshot, donor = cache.export(), cache.capture_donor_rows()
    assert snapshot is not None
    mx.eval(snapshot, donor.keys, donor.values, cache.state())
    assert memory() - bare >= 64 * MIB
    del cache
    assert memory() - bare < MIB
    assert all(map(same, snapshot, rows))
    assert all(map(same, donor[:2], rows))


def test_r18_sequences_that_come_and_go_leave_nothing_behind():
    layer = Layer(Shape(4, 2, 64, 64))
    pages = LayerPages(block_size=16, limit=Blocks(20))

    def live(turn: int) -> None:
        cache = PagedKVCache(pages=pages)
        read = cache.append_window(*layer.rows(299))
        if turn % 5 == 1:
            with pytest.raises(PoolExhausted), cache:
                cache.append_window(*layer.rows(99))
        elif turn % 5 == 2:
            read.attend(layer.queries(299), layer.scale)  # and the last references go
        else:
            mx.eval(cache.append_decode(*layer.rows(1)).attend(layer.queries(1), layer.scale))
            cache.dispose()

    levels = []
    for turn in range(50):
        live(turn)
        assert pages.pool.num_free == 20
        mx.eval(pages.planes)
        levels.append(memory())
    assert max(levels) - levels[0] < MIB // 4


def test_r18_closing_one_of_two_caches_that_share_a_prefix_keeps_the_other_right():
    layer = Layer()
    parent, rows = filled(layer, 10, block_size=4)
    child, more = parent.fork(), layer.rows(3)
    child.append_window(*more).dispose()
    parent.dispose()
    poison(child.pages)
    assert holds(child, joined(rows, more))
    filled(layer, 20, PagedKVCache(pages=child.pages))
    assert holds(child, joined(rows, more))


# R20: the pool through its caches.


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3), st.integers(0, 9)), max_size=60))
def test_r20_blocks_are_free_or_used_and_never_handed_out_while_held(calls):
    layer, pages = Layer(Shape(1, 1, 1, 1)), LayerPages(block_size=2)
    caches = [PagedKVCache(pages=pages)]
    for call, which, size in calls:
        cache = caches[which % len(caches)]
        if call == 0 and size:
            before, held = set(free_slots(pages)), set(cache.block_table)
            grown = pages.pool.num_blocks
            cache.append_window(*layer.rows(size)).dispose()
            taken = set(cache.block_table) - held
            assert all(slot in before or slot >= grown for slot in taken)
        elif call == 1:
            cache.trim(size)
        elif call == 2 and len(caches) < 6:
            caches.append(cache.fork())
        elif call == 3 and len(caches) > 1:
            caches.pop(which % len(caches)).dispose()
        elif call == 4 and len(caches) > 1:
            del cache
            del caches[which % len(caches)]
        free = free_slots(pages)
        held = {slot for cache in caches for slot in cache.block_table}
        assert len(free) == len(set(free))
        assert not held & set(free)
        assert len(free) + pages.pool.num_used == pages.pool.num_blocks
        assert pages.pool.num_used == used_by(caches)
    for cache in caches:
        cache.dispose()
        cache.dispose()
    assert pages.pool.num_free == pages.pool.num_blocks


# R23: empty everything.


def fresh_and_emptied(**options: Any) -> list[PagedKVCache]:
    emptied, _ = filled(Layer(), 5, PagedKVCache(block_size=4, **options))
    emptied.trim(5)
    return [PagedKVCache(block_size=4, **options), emptied]


def test_r23_a_cache_without_positions_answers_every_call():
    layer = Layer()
    for emptied, cache in enumerate(fresh_and_emptied()):
        assert (cache.offset, cache.start, cache.block_table) == (0, 0, ())
        assert (cache.trim(3), cache.trim(0), cache.is_trimmable(3)) == (0, 0, True)
        assert cache.nbytes == cache.pool.num_used == 0
        rows = cache.gather()
        assert (cache.export() is None, rows is None) == (not emptied, not emptied)
        assert rows is None or [part.shape[2] for part in rows] == [0, 0]
        assert [plane.shape[2] for plane in cache.page_rows()] == [0, 0][: 2 * emptied]
        assert (cache.make_mask(1), cache.make_mask(3)) == (None, "causal")
        assert len(cache.state()) == 2 * emptied
        block = layer.rows(2)
        with cache.read_block(*block) as read:
            queries = layer.queries(2)
            assert same(read.attend(queries, layer.scale), layer.attend(queries, block))
        with pytest.raises(ShapeMismatch, match="L >= 1"):
            cache.read_block(*layer.no_rows())
        for each in (cache.fork(), copy.deepcopy(cache), cache):
            more = layer.rows(3)
            assert answers(each.append_window(*more), layer, 3, more)
            assert holds(each, more)


def test_r23_rows_of_none_are_donated_and_restored():
    layer = Layer()
    [_, emptied] = fresh_and_emptied()
    keys, values, offset, start, end = emptied.capture_donor_rows()
    assert (keys.shape, values.shape, offset, start, end) == ((1, 2, 0, 16),) * 2 + (0, 0, 0)
    layout = emptied.pages.layout
    assert layout is not None
    restored = PagedKVCache(block_size=3)
    restored.restore_rows(layout, emptied.page_rows())
    more = layer.rows(3)
    assert answers(restored.append_window(*more), layer, 3, more)


def test_r23_a_stack_of_a_full_and_an_empty_layer_goes_on():
    layer = Layer()
    full, rows = filled(layer, 10, block_size=4)
    group = CacheGroup([full, PagedKVCache(block_size=4)])
    fork = group.fork()
    assert group.trim(0) == 0
    for cache, stored in zip(fork.caches, (rows, layer.no_rows()), strict=True):
        more = layer.rows(3)
        cache.append_window(*more).dispose()
        assert holds(cache, joined(stored, more))
    assert fork.trim(3) == 3
    assert [cache.offset for cache in fork.caches] == [10, 0]
    fork.dispose()
    assert full.pool.num_used == 3


# R24: dtype mixing.


@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float16], ids=str)
@pytest.mark.parametrize("block_size", [7, 256])
def test_r24_pages_keep_their_first_dtype_and_round_later_rows_to_nearest(dtype, block_size):
    layer, wide = Layer(Shape(4, 2, 16, 16, dtype)), Layer(Shape(4, 2, 16, 16, mx.float32))
    cache, rows = filled(layer, 256, block_size=block_size)
    odd = wide.rows(1)
    odd[0][..., :3] = mx.array([0.1621, 188, 436])
    rounded = odd[0].astype(dtype), odd[1].astype(dtype)
    fetched = cache.append_rows(*odd)
    assert {part.dtype for part in fetched} == {dtype}
    more = layer.rows(600)
    for begin in range(0, 600, 100):
        part = (more[0][:, :, begin : begin + 100], more[1][:, :, begin : begin + 100])
        assert {x.dtype for x in cache.append_rows(*part)} == {dtype}
    assert {plane.dtype for plane in cache.state()} == {dtype}
    assert holds(cache, joined(rows, rounded, more))
    exported = cache.export()
    assert exported is not None
    numbers = exported[0][0, 0, 256, :3].tolist()
    assert numbers == mx.array([0.1621, 188, 436]).astype(dtype).tolist()
    assert numbers == pytest.approx([0.1621, 188, 436], rel=2**-8)


def test_r24_rows_of_another_dtype_are_rounded_on_shared_pages_from_the_first():
    layer, wide = Layer(), Layer(Shape(4, 2, 16, 16, mx.float32))
    narrow, _ = filled(layer, 3, block_size=4)
    cache = PagedKVCache(pages=narrow.pages)
    block, queries = wide.rows(2), layer.queries(2)
    rounded = block[0].astype(mx.bfloat16), block[1].astype(mx.bfloat16)
    answer = cache.read_block(*block).attend(queries, layer.scale)
    assert same(answer, layer.attend(queries, rounded))
    cache.append_window(*block).dispose()
    assert holds(cache, rounded)
    beside = cache.read_block(*block).attend(queries, layer.scale)
    assert same(beside, layer.attend(queries, joined(rounded, rounded)))


@pytest.mark.parametrize("codec", [None, PagedQuantization(8, 32)], ids=str)
@pytest.mark.parametrize("softcap", [None, 50.0])
def test_r24_an_answer_has_the_dtype_of_its_queries_on_every_path(codec, softcap):
    layer = Layer(Shape(4, 2, 32, 32))
    cache, _ = filled(layer, 5, block_size=4, quantization=codec)
    read = cache.append_window(*layer.rows(3))
    for dtype in (mx.bfloat16, mx.float16, mx.float32):
        queries = layer.queries(3).astype(dtype)
        for mask in (None, causal(3, 8)):
            answer = read.attend(queries, layer.scale, mask=mask, softcap=softcap)
            assert answer.dtype == dtype


# R29: state that nobody reads.


def nodes_behind(arrays: tuple[mx.array, ...], folder: Path) -> int:
    """How many nodes there are in the graph that ``arrays`` wait for."""
    path = folder / "graph.dot"
    mx.export_to_dot(str(path), *arrays)
    return len(re.findall("label", path.read_text()))


@pytest.mark.parametrize("values_are_read", [True, False])
@pytest.mark.parametrize("codec", [None, PagedQuantization(4, 32)], ids=str)
@pytest.mark.parametrize("scattered", [False, True])
def test_r29_steps_that_evaluate_only_an_output_leave_no_chain_of_writes(
    values_are_read, codec, scattered, tmp_path
):
    layer = Layer(Shape(4, 2, 32, 32))
    pages = LayerPages(codec, block_size=64)
    neighbour = PagedKVCache(pages=pages)
    cache = PagedKVCache(pages=pages)
    rows, queries = layer.rows(1), layer.queries(1)
    levels, sizes = [], []
    for step in range(500):
        if scattered and step % 64 == 0:
            neighbour.append_window(*layer.rows(64)).dispose()
        keys, values = cache.append_rows(*rows)
        values = values if values_are_read else keys
        mx.eval(mx.fast.scaled_dot_product_attention(queries, keys, values, scale=layer.scale))
        if step % 25 == 24:
            levels.append(nodes_behind(cache.state(), tmp_path))
        if step >= 450:
            sizes.append(mx.get_active_memory())
    assert max(levels) < 200
    assert max(sizes) - min(sizes) < MIB


# R33: speculative rollback.


@pytest.mark.parametrize("codec", [None, PagedQuantization(4, 32)], ids=str)
def test_r33_fifty_rounds_of_proposals_leave_caches_as_if_fed_the_accepted_alone(codec):
    layer = Layer(Shape(4, 2, 32, 32))
    target, rows = filled(layer, 7, block_size=4, quantization=codec)
    draft, stored = target.fork(), rows
    plain, _ = filled(layer, 0, block_size=4, quantization=codec)
    plain.append_window(*rows).dispose()
    for turn in range(50):
        accepted = [0, 4, 4, 1, 3, 2, 0, 4][turn % 8]
        proposed = layer.rows(5)  # the last emitted token, and four proposals
        for cache in (draft, target):
            if turn % 7 == 3:
                offset = cache.offset
                cache.append_window(*layer.rows(4)).dispose()  # and the round is abandoned
                cache.trim(cache.offset - offset)
        for i in range(5):
            draft.append_decode(*(part[:, :, i : i + 1] for part in proposed)).dispose()
        with target.append_window(*proposed) as read:
            read.attend(layer.queries(5), layer.scale)
        assert (target.trim(4 - accepted), draft.trim(4 - accepted)) == (4 - accepted,) * 2
        kept = first(proposed, 1 + accepted)
        stored = joined(stored, kept)
        plain.append_window(*kept).dispose()
        for cache in (draft, target):
            assert cache.offset == stored[0].shape[2]
            assert len(cache.block_table) == -(-cache.offset // 4)
            assert all(map(same, cache.page_rows(), plain.page_rows()))


# R37: peaks.


def peak_of(call: Any) -> int:
    """Bytes above what was alive before, at the most."""
    before = memory()
    mx.reset_peak_memory()
    mx.eval(call())
    mx.synchronize()
    return mx.get_peak_memory() - before


@pytest.mark.parametrize("length", [64, 1])
def test_r37_a_quantized_read_never_holds_two_full_copies_besides_what_sdpa_takes(length):
    layer, stored = Layer(Shape(8, 2, 64, 64)), 8192
    queries, rows = layer.queries(length), layer.rows(stored)
    mx.eval(queries, rows)
    sdpa = peak_of(lambda: layer.attend(queries, rows))
    cache = PagedKVCache(stored, quantization=PagedQuantization(4, 64))
    filled(layer, stored - length, cache)
    read = cache.append_window(*layer.rows(length))
    mx.eval(cache.state())
    gathered = 2 * 2 * stored * 64 * 2
    peak = peak_of(lambda: read.attend(queries, layer.scale, mask=None))
    assert peak <= sdpa + 2 * gathered + MIB // 4


@pytest.mark.parametrize("codec", [None, PagedQuantization(4, 64)], ids=str)
def test_r37_filling_a_given_capacity_never_holds_two_full_copies(codec):
    layer = Layer(Shape(8, 2, 64, 64))
    chunks = [layer.rows(256) for _ in range(32)]
    mx.eval(chunks)
    cache = PagedKVCache(8192, quantization=codec)

    def fill() -> tuple[mx.array, ...]:
        for rows in chunks:
            cache.append_window(*rows).dispose()
            mx.eval(cache.state())
        return cache.state()

    peak = peak_of(fill)
    chunk = sum(part.nbytes for part in chunks[0])
    assert cache.pages.nbytes == 8192 * cache.bytes_per_token()
    assert peak <= 1.25 * cache.pages.nbytes + chunk


# R40: one layer reads another layer's cache.


@pytest.mark.parametrize(
    "codec", [None, PagedQuantization(8, 32), PagedQuantization(3, 32), PagedTurboQuant()], ids=str
)
def test_r40_a_borrower_attends_the_lenders_read_with_its_own_queries_and_heads(codec):
    lender, borrower = Layer(Shape(4, 2, 32, 32)), Layer(Shape(6, 2, 32, 32), seed=1)
    cache, _ = filled(lender, 9, PagedKVCache(pages=LayerPages(codec, block_size=4)))
    rotated = isinstance(codec, PagedTurboQuant)
    for length in (12, 5, 1):
        before = cache.pool.stats()
        read = cache.append_window(*lender.rows(length))
        written = cache.pool.stats()
        rows = read.gather()
        for layer in (lender, borrower):
            queries = layer.queries(length)
            mask = causal(length, cache.offset)
            answer, right = read.attend(queries, layer.scale), layer.attend(queries, rows, mask)
            assert mx.allclose(answer, right, atol=0.05) if rotated else same(answer, right)
        assert cache.pool.stats() == written
        assert written.num_used >= before.num_used
    group = CacheGroup([cache, PagedKVCache(block_size=4), cache])
    assert group.caches[1].offset == 0
    group.trim_to(9)
    assert cache.offset == 9
