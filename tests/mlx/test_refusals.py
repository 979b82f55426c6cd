"""Bad input is refused by a typed error that says what was given and what is legal.

And nothing changed: not the offset, not the table, not a count of the pool, not a bit of a page.
"""

import re
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import mlx.core as mx
import pytest

from pagedkv_mlx import (
    Blocks,
    Bytes,
    CacheGroup,
    ContiguousKVCache,
    LayerPages,
    PagedKVCache,
    PagedQuantization,
    PagedTurboQuant,
)
from pagedkv_protocols import (
    Disposed,
    DtypeMismatch,
    InvalidArgument,
    InvalidType,
    PagedKVError,
    PoolExhausted,
    ShapeMismatch,
    Unsupported,
)
from tests.mlx.reference import Layer, Shape, answers, filled, same

Refusal = tuple[type[PagedKVError], str]
APPENDS = ("append_decode", "append_window", "append_committed", "read_block")


def rows_of(*shape: int, dtype: mx.Dtype = mx.bfloat16) -> mx.array:
    return mx.ones(shape, dtype)


def bits(plane: mx.array) -> bytes:
    return bytes(cast("Any", mx.contiguous(plane).view(mx.uint8)))


def state_of(cache: PagedKVCache) -> tuple[Any, ...]:
    """Everything that a refused call must leave as it was."""
    return (
        cache.offset,
        cache.start,
        cache.block_table,
        cache.pool.stats(),
        cache.pages.layout,
        cache.direct,
        cache.nbytes,
        [bits(plane) for plane in cache.pages.planes],
    )


def refused(call: Callable[[], object], refusal: Refusal, *caches: PagedKVCache) -> None:
    """Fail unless ``call`` raises the error, its message fits, and ``caches`` stay as they are."""
    error, message = refusal
    before = [state_of(cache) for cache in caches]
    with pytest.raises(error, match=message) as raised:
        call()
    assert type(raised.value) is error
    assert [state_of(cache) for cache in caches] == before


# Rows.

LEGAL_ROWS = re.escape("takes [1, 2, L, 16] and [1, 2, L, 24] with L >= 1")


def seen(shape: tuple[int, ...]) -> Refusal:
    """A shape that is not of these rows, named beside those that are."""
    return ShapeMismatch, f"{re.escape(str(shape))}.*{LEGAL_ROWS}"


BAD_ROWS: dict[str, tuple[mx.array, mx.array, Refusal]] = {
    "three axes": (rows_of(2, 1, 16), rows_of(2, 1, 24), seen((2, 1, 16))),
    "more heads": (rows_of(1, 3, 1, 16), rows_of(1, 3, 1, 24), seen((1, 3, 1, 16))),
    "fewer value heads": (rows_of(1, 2, 1, 16), rows_of(1, 1, 1, 24), seen((1, 1, 1, 24))),
    "wider keys": (rows_of(1, 2, 1, 17), rows_of(1, 2, 1, 24), seen((1, 2, 1, 17))),
    "narrower values": (rows_of(1, 2, 1, 16), rows_of(1, 2, 1, 16), seen((1, 2, 1, 16))),
    "more values": (rows_of(1, 2, 1, 16), rows_of(1, 2, 2, 24), seen((1, 2, 2, 24))),
    "a batch": (
        rows_of(2, 2, 1, 16),
        rows_of(2, 2, 1, 24),
        (ShapeMismatch, rf"{LEGAL_ROWS}; a batch of sequences is a PagedKVRows"),
    ),
    "integer keys": (
        rows_of(1, 2, 1, 16, dtype=mx.int32),
        rows_of(1, 2, 1, 24),
        (DtypeMismatch, r"keys are mlx\.core\.int32; rows are floating point"),
    ),
    "bool values": (
        rows_of(1, 2, 1, 16),
        rows_of(1, 2, 1, 24, dtype=mx.bool_),
        (DtypeMismatch, r"values are mlx\.core\.bool; rows are floating point"),
    ),
}
NO_ROWS = rows_of(1, 2, 0, 16), rows_of(1, 2, 0, 24)


def warm(**options: Any) -> PagedKVCache:
    """A cache of 5 positions in blocks of 4."""
    return filled(Layer(Shape(4, 2, 16, 24)), 5, PagedKVCache(block_size=4, **options))[0]


@pytest.mark.parametrize("method", APPENDS)
@pytest.mark.parametrize("bad", BAD_ROWS)
def test_rows_unlike_the_first_are_refused(method, bad):
    keys, values, refusal = BAD_ROWS[bad]
    cache = warm()
    refused(lambda: getattr(cache, method)(keys, values), refusal, cache)
    reference = ContiguousKVCache()
    reference.append_window(rows_of(1, 2, 5, 16), rows_of(1, 2, 5, 24)).dispose()
    with pytest.raises(refusal[0]):
        getattr(reference, method)(keys, values)
    assert reference.offset == 5


@pytest.mark.parametrize("method", APPENDS[1:])
def test_no_rows_are_refused(method):
    cache = warm()
    refused(lambda: getattr(cache, method)(*NO_ROWS), (ShapeMismatch, LEGAL_ROWS), cache)


def test_a_decode_of_two_positions_is_refused():
    for cache in (warm(), PagedKVCache()):
        rows = rows_of(1, 2, 2, 16), rows_of(1, 2, 2, 24)
        message = r"\(1, 2, 2, 16\); append_decode takes one position, append_window any"
        refused(partial(cache.append_decode, *rows), (ShapeMismatch, message), cache)


FIRST_ROWS: dict[str, tuple[mx.array, mx.array, Refusal]] = {
    "three axes": (
        rows_of(2, 3, 16), rows_of(2, 3, 16), (ShapeMismatch, r"\[1, heads, positions, dim\]")
    ),
    "a batch": (
        rows_of(2, 2, 3, 16), rows_of(2, 2, 3, 16), (ShapeMismatch, "PagedKVRows")
    ),
    "no rows": (
        rows_of(1, 2, 0, 16), rows_of(1, 2, 0, 16), (ShapeMismatch, "with L >= 1")
    ),
    "no heads": (
        rows_of(1, 0, 3, 16), rows_of(1, 0, 3, 16), (ShapeMismatch, "no axis may be empty")
    ),
    "keys of width 0": (
        rows_of(1, 2, 3, 0), rows_of(1, 2, 3, 16), (ShapeMismatch, "no axis may be empty")
    ),
    "other heads in the values": (
        rows_of(1, 2, 3, 16), rows_of(1, 4, 3, 16), (ShapeMismatch, r"\(1, 4, 3, 16\)")
    ),
    "integers": (
        rows_of(1, 2, 3, 16, dtype=mx.int32),
        rows_of(1, 2, 3, 16, dtype=mx.int32),
        (DtypeMismatch, r"keys are mlx\.core\.int32; .* bfloat16, float16 or float32"),
    ),
    "bools": (
        rows_of(1, 2, 3, 16, dtype=mx.bool_),
        rows_of(1, 2, 3, 16, dtype=mx.bool_),
        (DtypeMismatch, r"keys are mlx\.core\.bool"),
    ),
    "keys and values of two dtypes": (
        rows_of(1, 2, 3, 16),
        rows_of(1, 2, 3, 16, dtype=mx.float16),
        (DtypeMismatch, r"bfloat16 and values mlx\.core\.float16; .* one dtype"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("bad", FIRST_ROWS)
def test_first_rows_that_no_page_can_hold_are_refused_with_nothing_allocated(bad):
    keys, values, refusal = FIRST_ROWS[bad]
    overlay = mx.zeros(keys.shape[2:3], mx.bool_)
    for cache in (
        PagedKVCache(),
        PagedKVCache(100),
        PagedKVCache(quantization=PagedQuantization(4, 32)),
    ):
        calls: list[Callable[[], object]] = [
            partial(cache.append_window, keys, values),
            partial(cache.append_committed, keys, values),
            partial(cache.read_block, keys, values),
            partial(cache.append_bidirectional, keys, values, overlay),
            partial(cache.append_encoder, keys, values, None),
        ]
        for call in calls:
            refused(call, refusal, cache)
        assert cache.pages.planes == ()


def test_rows_unlike_those_of_shared_pages_are_refused():
    first = warm()
    for method in ("append_window", "append_committed", "read_block"):
        second = PagedKVCache(pages=first.pages)
        rows = rows_of(1, 2, 3, 16), rows_of(1, 2, 3, 16)
        message = "2 heads and dims 16/16; the shared pages have 2 and 16/24"
        refused(partial(getattr(second, method), *rows), (ShapeMismatch, message), second)
        assert second.gather() is None


def test_a_direct_read_that_cannot_be_had_is_refused_at_the_first_append():
    for codec in (PagedQuantization(8, 32), None):
        cache = PagedKVCache(direct=True, quantization=codec)
        rows = rows_of(1, 2, 3, 32), rows_of(1, 2, 3, 32)
        message = "direct=True was asked; .* use direct=False or 'auto'"
        refused(partial(cache.append_window, *rows), (Unsupported, message), cache)


# What only a first window can be.


def test_an_overlay_or_a_mask_that_does_not_fit_its_window_is_refused():
    rows = rows_of(1, 2, 3, 16), rows_of(1, 2, 3, 24)
    overlays: list[tuple[mx.array, Refusal]] = [
        (mx.zeros(4, mx.bool_), (ShapeMismatch, r"shape \(4,\); one entry a position is \(3,\)")),
        (mx.zeros((1, 3), mx.bool_), (ShapeMismatch, r"shape \(1, 3\)")),
        (mx.zeros(3), (DtypeMismatch, r"mlx\.core\.float32; it must be bool or integer span ids")),
    ]
    for overlay, refusal in overlays:
        cache = PagedKVCache()
        refused(partial(cache.append_bidirectional, *rows, overlay), refusal, cache)
    masks: list[tuple[mx.array, Refusal]] = [
        (mx.ones((2, 3), mx.bool_), (ShapeMismatch, r"\(2, 3\); it broadcasts to \(1, 1, 3, 3\)")),
        (mx.ones((1, 2, 3, 3), mx.bool_), (ShapeMismatch, r"\(1, 2, 3, 3\)")),
        (mx.ones((1, 1, 1, 3, 3), mx.bool_), (ShapeMismatch, r"\(1, 1, 1, 3, 3\)")),
        (mx.ones((3, 3)), (DtypeMismatch, r"mlx\.core\.float32; it must be bool")),
    ]
    for mask, refusal in masks:
        cache = PagedKVCache()
        refused(partial(cache.append_encoder, *rows, mask), refusal, cache)


def test_a_second_window_is_neither_bidirectional_nor_an_encoders():
    cache, rows = warm(), (rows_of(1, 2, 3, 16), rows_of(1, 2, 3, 24))
    message = "takes the first window of a sequence; this one has 5 positions"
    refusal = (Unsupported, message)
    overlay = mx.ones(3, mx.bool_)
    refused(lambda: cache.append_bidirectional(*rows, overlay), refusal, cache)
    refused(lambda: cache.append_encoder(*rows, None), refusal, cache)
    refused(
        lambda: cache.restore_rows(cache.pages.layout, cache.page_rows()),  # type: ignore[arg-type]
        (Unsupported, message),
        cache,
    )


def test_rows_of_another_format_are_not_restored():
    source = warm()
    layout, rows = source.pages.layout, source.page_rows()
    assert layout is not None
    bad: list[tuple[tuple[mx.array, ...], type[PagedKVError]]] = [
        (rows[:1], ShapeMismatch),
        ((), ShapeMismatch),
        ((rows[1], rows[0]), ShapeMismatch),
        ((rows[0][:, :1], rows[1]), ShapeMismatch),
        ((rows[0], rows[1].astype(mx.float32)), DtypeMismatch),
    ]
    for planes, error in bad:
        cache = PagedKVCache()
        refused(partial(cache.restore_rows, layout, planes), (error, "pages hold"), cache)


# What is never legal.

NEVER: dict[str, tuple[Callable[[], object], Refusal]] = {
    "capacity 0": (lambda: PagedKVCache(0), (InvalidArgument, "capacity is 0; at least 1")),
    "capacity -1": (lambda: PagedKVCache(-1), (InvalidArgument, "capacity is -1; at least 1")),
    "block size 0": (
        lambda: PagedKVCache(block_size=0), (InvalidArgument, "block_size is 0; at least 1")
    ),
    "block size of pages": (
        lambda: LayerPages(block_size=-3), (InvalidArgument, "block_size is -3; at least 1")
    ),
    "block size of the reference": (
        lambda: ContiguousKVCache(block_size=0), (InvalidArgument, "block_size is 0; at least 1")
    ),
    "window 0": (lambda: PagedKVCache(window=0), (InvalidArgument, "window is 0; at least 1")),
    "nothing behind": (
        lambda: PagedKVCache(release_behind=True), (InvalidArgument, "release_behind.* a window")
    ),
    "nothing behind the reference": (
        lambda: ContiguousKVCache(release_behind=True), (InvalidArgument, "needs a window")
    ),
    "two formats": (
        lambda: PagedKVCache(quantization=PagedQuantization(), turbo=PagedTurboQuant()),
        (InvalidArgument, "both quantization and turbo .* one format"),
    ),
    "direct maybe": (
        lambda: PagedKVCache(direct="maybe"),  # type: ignore[arg-type]
        (InvalidArgument, "direct is 'maybe'; legal are False, True and 'auto'"),
    ),
    "another block size than the pages'": (
        lambda: PagedKVCache(pages=LayerPages(block_size=4), block_size=8),
        (InvalidArgument, "shared pages are paged/4/dense; leave block_size and the format out"),
    ),
    "another format than the pages'": (
        lambda: PagedKVCache(pages=LayerPages(block_size=4), quantization=PagedQuantization()),
        (InvalidArgument, "shared pages are paged/4/dense"),
    ),
    "0 blocks": (lambda: Blocks(0), (InvalidArgument, "0 blocks; at least 1")),
    "0 bytes": (lambda: Bytes(0), (InvalidArgument, "0 bytes; at least 1")),
    "a group of none": (lambda: CacheGroup([]), (InvalidArgument, "at least one cache")),
}  # fmt: skip


@pytest.mark.parametrize("what", NEVER)
def test_what_is_never_legal_is_refused_when_it_is_made(what):
    call, refusal = NEVER[what]
    refused(call, refusal)


def test_a_cache_of_one_live_group_is_refused_by_another():
    cache = warm()
    group = CacheGroup([cache])
    refused(lambda: CacheGroup([cache]), (InvalidArgument, "one group; fork it"), cache)
    del group
    CacheGroup([cache])


BAD_TRIMS: dict[str, tuple[Any, Refusal]] = {
    "-5": (-5, (InvalidArgument, "wanted to trim -5 positions; at least 0 is legal")),
    "True": (True, (InvalidType, "wanted to trim True; .* is an integer")),
    "2.0": (2.0, (InvalidType, "wanted to trim 2.0; .* is an integer")),
    "'2'": ("2", (InvalidType, "wanted to trim '2'; .* is an integer")),
    "None": (None, (InvalidType, "wanted to trim None; .* is an integer")),
}


@pytest.mark.parametrize("n", BAD_TRIMS)
def test_r13_a_trim_by_what_is_no_count_is_refused_and_the_offset_stays(n):
    count, refusal = BAD_TRIMS[n]
    cache, reference = warm(), ContiguousKVCache()
    group = CacheGroup([cache])
    for call in (cache.trim, cache.is_trimmable, group.trim, group.is_trimmable):
        refused(partial(call, count), refusal, cache)
    for call in (reference.trim, reference.is_trimmable):
        refused(partial(call, count), refusal)


def test_a_step_or_a_way_back_of_no_size_is_refused():
    cache = warm()
    group = CacheGroup([cache])
    for n in (0, -1):
        with_step = group.step(n)
        refused(with_step.__enter__, (InvalidArgument, f"step of {n} positions"), cache)
    refused(lambda: group.trim_to(-1), (InvalidArgument, "trim to -1; at least 0"), cache)


# Reads.

BAD_QUESTIONS: dict[str, tuple[dict[str, Any], Refusal]] = {
    "three axes": (
        {"queries": rows_of(4, 3, 16)},
        (ShapeMismatch, r"\(4, 3, 16\); .* \[1, Hq, L, 16\], Hq a multiple of 2"),
    ),
    "a batch": ({"queries": rows_of(2, 4, 3, 16)}, (ShapeMismatch, r"\(2, 4, 3, 16\)")),
    "3 heads for 2": ({"queries": rows_of(1, 3, 3, 16)}, (ShapeMismatch, "Hq a multiple of 2")),
    "no heads": ({"queries": rows_of(1, 0, 3, 16)}, (ShapeMismatch, "Hq a multiple of 2")),
    "another dim": ({"queries": rows_of(1, 4, 3, 24)}, (ShapeMismatch, r"\(1, 4, 3, 24\)")),
    "integers": (
        {"queries": rows_of(1, 4, 3, 16, dtype=mx.int32)},
        (DtypeMismatch, r"queries are mlx\.core\.int32; they must be floating point"),
    ),
    "more queries than were appended": (
        {"queries": rows_of(1, 4, 4, 16)},
        (ShapeMismatch, "queries have 4 positions, the append had 3"),
    ),
    "a narrow mask": (
        {"mask": mx.ones((3, 7), mx.bool_)},
        (ShapeMismatch, r"\(3, 7\); it must broadcast to \(1, 4, 3, 8\)"),
    ),
    "a mask of 2 heads": (
        {"mask": mx.ones((1, 2, 3, 8), mx.bool_)}, (ShapeMismatch, r"\(1, 2, 3, 8\)")
    ),
    "a mask of five axes": (
        {"mask": mx.ones((1, 1, 1, 3, 8), mx.bool_)}, (ShapeMismatch, r"\(1, 1, 1, 3, 8\)")
    ),
    "a mask of integers": (
        {"mask": mx.ones((3, 8), mx.int32)},
        (DtypeMismatch, r"mlx\.core\.int32; it must be bool or floating point"),
    ),
    "a sink for 2 heads": (
        {"sinks": mx.ones(2)}, (ShapeMismatch, r"\(2,\); one number a query head is \(4,\)")
    ),
    "sinks that are integers": (
        {"sinks": mx.ones(4, mx.int32)}, (DtypeMismatch, r"mlx\.core\.int32; .* floating point")
    ),
    "softcap 0": ({"softcap": 0.0}, (InvalidArgument, r"softcap is 0\.0; it must be above 0")),
    "softcap -50": ({"softcap": -50.0}, (InvalidArgument, r"softcap is -50\.0")),
    "softcap nan": ({"softcap": float("nan")}, (InvalidArgument, "softcap is nan")),
}  # fmt: skip


@pytest.mark.parametrize("bad", BAD_QUESTIONS)
def test_a_question_that_does_not_fit_is_refused_and_the_read_still_answers(bad):
    arguments, refusal = BAD_QUESTIONS[bad]
    layer = Layer(Shape(4, 2, 16, 24))
    cache, _ = filled(layer, 5, block_size=4)
    read = cache.append_window(*layer.rows(3))
    stored = cache.gather()
    assert stored is not None
    asked = {"queries": layer.queries(3), "scale": layer.scale} | arguments
    refused(lambda: read.attend(**asked), refusal, cache)
    assert answers(read, layer, 3, stored)


def test_a_disposed_read_refuses_and_twice_is_once():
    layer = Layer()
    cache, _ = filled(layer, 5, block_size=4)
    read = cache.append_window(*layer.rows(3))
    read.dispose()
    read.dispose()
    refusal = (Disposed, "this read was disposed; append again, or attend before")
    refused(lambda: read.attend(layer.queries(3), layer.scale), refusal, cache)
    refused(read.gather, refusal, cache)


def test_a_disposed_cache_refuses_every_method_and_twice_is_once():
    cache, overlay = warm(), mx.ones(1, mx.bool_)
    layout, planes = cache.pages.layout, cache.page_rows()
    assert layout is not None
    rows = rows_of(1, 2, 1, 16), rows_of(1, 2, 1, 24)
    cache.dispose()
    cache.dispose()
    calls: list[Callable[[], object]] = [
        *(partial(getattr(cache, m), *rows) for m in (*APPENDS, "append_rows")),
        lambda: cache.append_bidirectional(*rows, overlay),
        lambda: cache.append_encoder(*rows, None),
        lambda: cache.restore_rows(layout, planes),
        *(cache.capture_donor_rows, cache.gather, cache.page_rows, cache.export, cache.state),
        *(lambda: cache.make_mask(3), lambda: cache.make_room(1), cache.fork, cache.__enter__),
        *(lambda: cache.trim(0), lambda: cache.trim(1), lambda: cache.is_trimmable(1)),
    ]
    for call in calls:
        refused(call, (Disposed, "this cache was disposed; make another"), cache)
    assert (cache.block_table, cache.pool.num_used, cache.nbytes) == ((), 0, 0)


def test_a_disposed_reference_refuses_every_method_and_twice_is_once():
    cache, rows = ContiguousKVCache(), (rows_of(1, 2, 1, 16), rows_of(1, 2, 1, 24))
    cache.append_window(*rows).dispose()
    cache.dispose()
    cache.dispose()
    calls: list[Callable[[], object]] = [
        *(partial(getattr(cache, m), *rows) for m in APPENDS),
        *(cache.capture_donor_rows, cache.export, cache.state, cache.fork, cache.__enter__),
        *(lambda: cache.make_mask(3), lambda: cache.trim(0), lambda: cache.is_trimmable(1)),
    ]
    for call in calls:
        refused(call, (Disposed, "this cache was disposed; make another"))


def test_a_cache_without_rows_has_none_to_donate():
    cache = PagedKVCache()
    refused(cache.capture_donor_rows, (Unsupported, "has no rows to capture"), cache)


# Limits.


def full(limit: int = 3) -> tuple[Layer, PagedKVCache]:
    """A cache that holds all 3 blocks of 4 positions but one row."""
    layer = Layer(Shape(4, 2, 16, 24))
    cache, _ = filled(layer, 11, PagedKVCache(pages=LayerPages(block_size=4, limit=Blocks(limit))))
    return layer, cache


@pytest.mark.parametrize("method", ["append_window", "append_committed", "append_rows"])
def test_an_append_past_the_pools_limit_is_refused(method):
    layer, cache = full()
    rows = layer.rows(2)
    message = "wanted 1 blocks, 0 of 3 are free; release a sequence or raise the pool's limit"
    refused(lambda: getattr(cache, method)(*rows), (PoolExhausted, message), cache)
    cache.append_decode(*layer.rows(1)).dispose()
    refused(lambda: cache.append_decode(*layer.rows(1)), (PoolExhausted, message), cache)


def test_a_copy_of_a_shared_tail_that_finds_no_block_is_refused():
    layer, cache = full()
    fork = cache.fork()
    for each in (cache, fork):
        refused(
            partial(each.append_decode, *layer.rows(1)),
            (PoolExhausted, "wanted 1 blocks, 0 of 3 are free"),
            *(cache, fork),
        )
    fork.dispose()
    cache.append_decode(*layer.rows(1)).dispose()


@pytest.mark.parametrize("limit", [Blocks(1), Bytes(4 * 2 * 40 * 2), Bytes(200)], ids=str)
def test_a_first_append_past_the_limit_is_refused_with_no_layout_fixed(limit):
    layer, wide = Layer(Shape(4, 2, 16, 24)), Layer(Shape(4, 1, 8, 8))
    cache = PagedKVCache(pages=LayerPages(block_size=4, limit=limit), direct="auto")
    refused(lambda: cache.append_window(*layer.rows(5)), (PoolExhausted, "wanted 2 blocks"), cache)
    assert (cache.gather(), cache.state(), cache.bytes_per_token()) == (None, (), 0)
    with cache.append_decode(*wide.rows(1)) as read:
        assert same(read.gather()[0], cache.export()[0])  # type: ignore[index]


def test_rows_past_the_limit_are_not_restored():
    _, source = full()
    layout = source.pages.layout
    assert layout is not None
    for limit in (Blocks(2), Bytes(1000)):
        cache = PagedKVCache(pages=LayerPages(block_size=4, limit=limit))
        refused(
            partial(cache.restore_rows, layout, source.page_rows()),
            (PoolExhausted, "wanted 3 blocks"),
            cache,
        )
        assert cache.gather() is None


def test_a_limit_in_bytes_has_as_many_whole_blocks_as_fit():
    layer = Layer(Shape(4, 2, 16, 24))
    block = 4 * 2 * (16 + 24) * 2
    pages = LayerPages(block_size=4, limit=Bytes(3 * block + block // 2))
    cache, _ = filled(layer, 12, PagedKVCache(pages=pages))
    assert (pages.bytes_per_block, pages.pool.num_blocks, pages.nbytes) == (block, 3, 3 * block)
    refused(lambda: cache.append_decode(*layer.rows(1)), (PoolExhausted, "0 of 3 are free"), cache)


def test_a_step_that_does_not_fit_is_refused():
    _, first = full()
    second = PagedKVCache(pages=LayerPages(block_size=4))
    group = CacheGroup([second, first])
    step = group.step(2)
    refused(step.__enter__, (PoolExhausted, "wanted 1 blocks, 0 of 3"), first, second)
    with group.step(1):
        pass


def test_an_append_that_another_layer_has_no_room_for_is_refused_in_every_layer():
    layer, tight = full()
    first = PagedKVCache(block_size=4)
    group = CacheGroup([first, tight])
    refused(
        lambda: first.append_window(*layer.rows(13)),
        (PoolExhausted, "wanted 1 blocks, 0 of 3 are free"),
        *(first, tight),
    )
    assert [cache.offset for cache in group.caches] == [0, 11]
