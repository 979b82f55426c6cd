"""What a caller may do out of order, and what must hold all the same.

Neighbours made over a cache's own pages, arrays changed in the caller's hands, plans that are
committed late, rows of another block size, values of a wrong type.
"""

import copy
import gc
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
    PagedTurboQuant,
    RowLayout,
)
from pagedkv_protocols import DecodePhase, InvalidArgument, InvalidType, PagedKVError
from tests.mlx.reference import Layer, answers, filled, joined, same

CACHES = [PagedKVCache, ContiguousKVCache]
PHASES = [DecodePhase.BUCKET, DecodePhase.RESIDENT]


def moved(layer: Layer) -> PagedKVCache:
    """A cache of two positions whose rows a live read had lie elsewhere before."""
    cache, _ = filled(layer, 2, block_size=4)
    read = cache.append_window(*layer.rows(1))
    cache.trim(1)
    cache.append_window(*layer.rows(1)).dispose()
    read.dispose()
    return cache


def recorded(layer: Layer, cache: Any, phase: DecodePhase) -> tuple[Any, tuple[mx.array, ...]]:
    """A plan of one position and what its recording would put out."""
    plan = cache.prepare_decode_step(phase)
    trace = cache.decode_slot(plan).trace(cache.decode_inputs(plan), mx.array([plan.length]))
    trace.update_and_fetch(*layer.rows(1))
    return plan, trace.outputs()


def test_a_recorded_step_clears_no_row_of_a_cache_made_over_the_same_pages():
    layer = Layer()
    cache = moved(layer)
    neighbour = PagedKVCache(pages=cache.pages)
    rows = layer.rows(9)
    neighbour.append_window(*rows).dispose()
    cache.prepare_decode_step()
    assert all(map(same, neighbour.export() or (), rows))


def test_a_recorded_step_meets_no_row_of_a_cache_made_over_the_same_pages():
    layer = Layer()
    cache, _ = filled(layer, 3, block_size=4)
    neighbour = PagedKVCache(pages=cache.pages)
    neighbour.append_window(*(mx.full(part.shape, mx.nan) for part in layer.rows(9))).dispose()
    plan = cache.prepare_decode_step()
    assert all(mx.isfinite(part[:, :, :4]).all().item() for part in cache.decode_inputs(plan))
    assert plan.phase is not DecodePhase.RESIDENT


@pytest.mark.parametrize("kind", CACHES)
def test_r31_a_mask_and_a_state_that_a_caller_changes_in_place_change_no_cache(kind):
    layer = Layer()
    cache = kind(window=4)
    rows = layer.rows(6)
    cache.append_window(*rows).dispose()
    mask, state = cache.make_mask(3), cache.state()
    before = mx.array(mask)
    for array in (mask, *state):
        array[...] = 0
    assert same(cache.make_mask(3), before)
    assert all(map(same, cache.export(), rows))


@pytest.mark.parametrize("kind", CACHES)
@pytest.mark.parametrize("phase", PHASES)
def test_a_plan_is_not_committed_once_the_cache_went_on(kind, phase):
    layer = Layer()
    cache, rows = kind(block_size=4), layer.rows(4)
    cache.append_window(*rows).dispose()
    plan, outputs = recorded(layer, cache, phase)
    more = layer.rows(1)
    cache.append_decode(*more).dispose()
    with pytest.raises(InvalidArgument, match="planned at 4 positions, the cache has 5"):
        cache.commit_decode_step(plan, outputs)
    assert all(map(same, cache.export(), joined(rows, more)))


def test_a_plan_is_not_committed_once_its_room_was_given_back():
    layer = Layer()
    cache, _ = filled(layer, 4, block_size=4)
    plan, outputs = recorded(layer, cache, DecodePhase.BUCKET)
    cache.trim(0)
    with pytest.raises(InvalidArgument, match="room for 4"):
        cache.commit_decode_step(plan, outputs)
    assert (cache.offset, cache.block_table) == (4, (0,))


def test_page_means_of_another_block_size_are_refused_and_of_whole_parts_of_it_taken():
    layer, turbo = Layer(), PagedTurboQuant(page_mean=True)
    rows = layer.rows(10)
    cache = PagedKVCache(block_size=4, turbo=turbo)
    cache.append_window(*rows).dispose()
    layout = RowLayout.of(*rows)
    coarser = PagedKVCache(block_size=8, turbo=turbo)
    with pytest.raises(InvalidArgument, match="another block size"):
        coarser.restore_rows(layout, cache.page_rows())
    assert (coarser.offset, coarser.pages.layout) == (0, None)
    finer = PagedKVCache(block_size=2, turbo=turbo)
    finer.restore_rows(layout, cache.page_rows())
    assert all(map(same, finer.export() or (), cache.export() or ()))


def test_a_disposed_cache_lets_go_of_pages_of_its_own():
    layer = Layer()
    with PagedKVCache(4096) as cache:
        cache.append_window(*layer.rows(3)).dispose()
        mx.eval(cache.state())
    gc.collect()
    assert cache.pages.planes == ()


def test_a_live_read_outlives_its_disposed_cache():
    layer = Layer()
    cache, rows = filled(layer, 3, block_size=2)
    more = layer.rows(2)
    read = cache.append_window(*more)
    cache.dispose()
    assert answers(read, layer, 2, joined(rows, more))


def test_a_shallow_copy_goes_its_own_way():
    layer = Layer()
    cache, rows = filled(layer, 3, block_size=2)
    other = copy.copy(cache)
    other.append_window(*layer.rows(4)).dispose()
    other.dispose()
    assert cache.offset == 3
    assert all(map(same, cache.export() or (), rows))


@pytest.mark.parametrize("softcap", [None, 30.0])
@pytest.mark.parametrize("mask", ["full", True, 0.0, [[True] * 3] * 3])
def test_a_mask_that_is_no_array_is_refused(mask, softcap):
    layer = Layer()
    read = PagedKVCache().append_window(*layer.rows(3))
    with pytest.raises(InvalidType, match="a mask is"):
        read.attend(layer.queries(3), layer.scale, mask=mask, softcap=softcap)


@pytest.mark.parametrize("softcap", [0.0, -1.0, float("inf"), float("nan")])
def test_a_softcap_that_makes_no_number_is_refused(softcap):
    layer = Layer()
    read = PagedKVCache().append_window(*layer.rows(3))
    with pytest.raises(InvalidArgument, match="above 0"):
        read.attend(layer.queries(3), layer.scale, softcap=softcap)


def test_arrays_of_numpy_are_refused_with_the_way_out():
    np = pytest.importorskip("numpy")
    layer, cache = Layer(), PagedKVCache()
    foreign = [np.array(part.astype(mx.float32)) for part in layer.rows(3)]
    for _ in range(2):  # as the first rows, and as later ones
        with pytest.raises(InvalidType, match=r"numpy.ndarray; wrap it in mx.array\(\)"):
            cache.append_window(*foreign)
        read = cache.append_window(*layer.rows(3))
    queries = layer.queries(3)
    with pytest.raises(InvalidType, match=r"mx.array\(\)"):
        read.attend(np.array(queries.astype(mx.float32)), layer.scale)
    with pytest.raises(InvalidType, match="a mask is"):
        read.attend(queries, layer.scale, mask=np.ones((3, 6), bool))
    assert cache.offset == 6


@pytest.mark.parametrize("direct", [1, 0, "yes", None])
def test_an_option_of_another_type_is_refused_and_not_dropped(direct):
    with pytest.raises(PagedKVError, match="legal are False, True and 'auto'"):
        PagedKVCache(direct=direct)


def test_a_limit_is_in_blocks_or_in_bytes():
    with pytest.raises(InvalidType, match=r"a limit is 5; legal are Blocks\(n\), Bytes\(n\)"):
        LayerPages(limit=cast("Any", 5))


def test_a_group_replaces_no_cache_that_is_not_its_own():
    group, fresh = CacheGroup([PagedKVCache()]), PagedKVCache()
    with pytest.raises(InvalidArgument, match="none of this group's"):
        group.replace(PagedKVCache(), fresh)
    assert fresh.sequence.group is None


@pytest.mark.parametrize("size", [2.0, True, "2"])
@pytest.mark.parametrize("name", ["capacity", "block_size", "window"])
def test_a_size_that_is_no_integer_is_refused(name, size):
    with pytest.raises(InvalidType, match=f"{name} is {size!r}; it must be an integer"):
        PagedKVCache(**{name: size})


@pytest.mark.parametrize("size", [1.0, True, "1"])
def test_a_limit_or_a_step_that_is_no_integer_is_refused(size):
    group = CacheGroup([PagedKVCache()])
    for refused in (Blocks, Bytes, group.trim_to, lambda n: group.step(n).__enter__()):
        with pytest.raises(InvalidType, match="it must be an integer"):
            refused(size)


def test_large_masks_of_earlier_forwards_are_not_kept():
    cache, step = ContiguousKVCache(window=64), 2048
    before = mx.get_active_memory()
    rows = mx.zeros((1, 1, step, 1), mx.bfloat16)
    for _ in range(6):
        mx.eval(cache.make_mask(step))
        cache.append_window(rows, rows).dispose()
    mx.eval(cache.state())
    largest, last = step * 6 * step, step * 5 * step
    assert mx.get_active_memory() - before < largest + last + (1 << 20)
