"""A recorded decode step: the bits of the eager one, few traces, nothing lost on the way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import pytest

from pagedkv_formats import DensePages
from pagedkv_mlx import (
    Blocks,
    ContiguousKVCache,
    LayerPages,
    PagedKVCache,
    PagedQuantization,
    PagedTurboQuant,
)
from pagedkv_mlx.decode import CompiledDecoder
from pagedkv_mlx.slots import bucket_for
from pagedkv_protocols import DecodePhase, PoolExhausted, Unsupported
from tests.mlx.toy_decoder import NUM_KV_HEADS, ToyDecoder, ToyEntry, prefilled

MAKERS: dict[str, Callable[[], PagedKVCache | ContiguousKVCache]] = {
    "dense": lambda: PagedKVCache(block_size=16),
    "affine 4": lambda: PagedKVCache(block_size=16, quantization=PagedQuantization(4)),
    "affine 3": lambda: PagedKVCache(block_size=16, quantization=PagedQuantization(3)),
    "mxfp4": lambda: PagedKVCache(block_size=16, quantization=PagedQuantization(mode="mxfp4")),
    "mxfp8": lambda: PagedKVCache(block_size=16, quantization=PagedQuantization(mode="mxfp8")),
    "nvfp4": lambda: PagedKVCache(block_size=16, quantization=PagedQuantization(mode="nvfp4")),
    "turboquant": lambda: PagedKVCache(block_size=16, turbo=PagedTurboQuant()),
    "turboquant 3": lambda: PagedKVCache(block_size=7, turbo=PagedTurboQuant(3, 3)),
    "turboquant 1 and 6": lambda: PagedKVCache(block_size=7, turbo=PagedTurboQuant(1, 6)),
    "contiguous": ContiguousKVCache,
}
PHASES = list(DecodePhase)

makers = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())
phases = pytest.mark.parametrize("phase", PHASES, ids=lambda phase: phase.value)


def decode_both(
    decoder: ToyDecoder, compiled: CompiledDecoder, eager: list[Any], recorded: list[Any], n: int
) -> None:
    """``n`` tokens through both; every output has the same bits."""
    for step in range(n):
        token = mx.array([[(7 * step + 3) % 64]])
        expected, output = decoder(token, eager), compiled(token, cache=recorded)
        assert mx.array_equal(output, expected), f"step {step}"


def assert_same_rows(left: list[ToyEntry], right: list[ToyEntry]) -> None:
    for a, b in zip(left, right, strict=True):
        assert a.cache.offset == b.cache.offset
        for mine, theirs in zip(a.cache.export() or (), b.cache.export() or (), strict=True):
            assert mx.array_equal(mine, theirs)


@makers
def test_a_shapeless_step_is_traced_once_in_300_tokens(
    make: Callable[[], PagedKVCache | ContiguousKVCache],
) -> None:
    decoder = ToyDecoder()
    eager, recorded = prefilled(decoder, make, 7), prefilled(decoder, make, 7)
    compiled = CompiledDecoder(decoder, DecodePhase.CONCAT)
    decode_both(decoder, compiled, eager, recorded, 300)
    assert compiled.num_traces == 1
    assert_same_rows(eager, recorded)


@makers
@pytest.mark.parametrize("phase", [DecodePhase.BUCKET, DecodePhase.RESIDENT])
def test_r27_a_bucketed_step_is_traced_once_a_bucket(
    make: Callable[[], PagedKVCache | ContiguousKVCache], phase: DecodePhase
) -> None:
    decoder = ToyDecoder()
    eager, recorded = prefilled(decoder, make, 200), prefilled(decoder, make, 200)
    compiled = CompiledDecoder(decoder, phase)
    decode_both(decoder, compiled, eager, recorded, 200)
    block = getattr(recorded[0].cache, "block_size", 256)
    buckets = {bucket_for(length + 1, block) for length in range(200, 400)}
    assert compiled.num_traces <= len(buckets) <= 4
    assert_same_rows(eager, recorded)


def test_r27_the_last_row_written_after_100_steps_is_row_99() -> None:
    decoder = ToyDecoder()
    recorded = prefilled(decoder, MAKERS["dense"], 1)
    for entry in recorded:
        entry.cache.trim(1)
    compiled = CompiledDecoder(decoder)
    for step in range(100):
        mx.eval(compiled(mx.array([[step % 64]]), cache=recorded))
    for entry in recorded:
        keys, _ = entry.cache.export() or pytest.fail("nothing is stored")
        assert keys.shape[2] == 100
        assert mx.all(keys[:, :, 99] != 0).item()
        assert not mx.array_equal(keys[:, :, 99], keys[:, :, 98])


@phases
def test_one_recording_drives_two_caches_of_different_lengths_in_turn(phase: DecodePhase) -> None:
    decoder = ToyDecoder()
    compiled = CompiledDecoder(decoder, phase)
    pairs = [
        (prefilled(decoder, MAKERS["dense"], n), prefilled(decoder, MAKERS["dense"], n))
        for n in (5, 40)
    ]
    for _ in range(8):
        for eager, recorded in pairs:
            decode_both(decoder, compiled, eager, recorded, 3)
    assert compiled.num_traces == 1


@makers
@phases
def test_trims_growth_and_a_reset_between_recorded_steps_change_nothing(
    make: Callable[[], PagedKVCache | ContiguousKVCache], phase: DecodePhase
) -> None:
    decoder = ToyDecoder()
    compiled = CompiledDecoder(decoder, phase)
    eager, recorded = prefilled(decoder, make, 30), prefilled(decoder, make, 30)
    for n, trim in ((5, 3), (20, 17), (40, 2), (3, 1000), (9, 0)):
        decode_both(decoder, compiled, eager, recorded, n)
        for entry in (*eager, *recorded):
            entry.cache.trim(trim)
    mx.eval(decoder(mx.arange(300)[None] % 64, eager), decoder(mx.arange(300)[None] % 64, recorded))
    decode_both(decoder, compiled, eager, recorded, 6)
    assert_same_rows(eager, recorded)


@phases
def test_a_fork_goes_its_own_way_under_recorded_steps(phase: DecodePhase) -> None:
    decoder = ToyDecoder()
    compiled = CompiledDecoder(decoder, None if phase is DecodePhase.RESIDENT else phase)
    eager, recorded = (prefilled(decoder, MAKERS["dense"], 21) for _ in range(2))
    decode_both(decoder, compiled, eager, recorded, 4)
    eager_fork = [ToyEntry(entry.cache.fork()) for entry in eager]
    fork = [ToyEntry(entry.cache.fork()) for entry in recorded]
    decode_both(decoder, compiled, eager, recorded, 5)
    decode_both(decoder, compiled, eager_fork, fork, 3)
    decode_both(decoder, compiled, eager, recorded, 2)
    assert_same_rows(eager, recorded)
    assert_same_rows(eager_fork, fork)


@phases
def test_a_step_that_raises_leaves_every_cache_as_it_was(phase: DecodePhase) -> None:
    decoder = ToyDecoder()
    eager, recorded = (prefilled(decoder, MAKERS["dense"], 16) for _ in range(2))

    def failing(tokens: mx.array, cache: Any) -> mx.array:
        decoder(tokens, cache)
        raise RuntimeError("the model failed")

    stored = [entry.cache.state() for entry in recorded]
    with pytest.raises(RuntimeError, match="the model failed"):
        CompiledDecoder(failing, phase)(mx.array([[1]]), cache=recorded)
    assert [entry.cache.offset for entry in recorded] == [16, 16]
    for entry, planes in zip(recorded, stored, strict=True):
        assert isinstance(entry.cache, PagedKVCache)
        assert len(entry.cache.block_table) == 1
        assert all(map(mx.array_equal, entry.cache.state(), planes))
    assert_same_rows(eager, recorded)
    decode_both(decoder, CompiledDecoder(decoder, phase), eager, recorded, 3)


def test_a_pool_without_room_refuses_the_step_before_anything_changed() -> None:
    decoder = ToyDecoder()
    pools = [LayerPages(block_size=4, limit=Blocks(2)) for _ in decoder.layers]
    places = iter(pools)
    entries = prefilled(decoder, lambda: PagedKVCache(pages=next(places)), 8)
    with pytest.raises(PoolExhausted):
        CompiledDecoder(decoder)(mx.array([[1]]), cache=entries)
    assert [entry.cache.offset for entry in entries] == [8, 8]
    assert [pages.pool.num_used for pages in pools] == [2, 2]


def test_rows_of_neighbours_reach_no_recorded_step() -> None:
    decoder = ToyDecoder()
    pools = [LayerPages(block_size=4) for _ in decoder.layers]
    eager = prefilled(decoder, MAKERS["dense"], 6)
    places, neighbours = iter(pools), iter(pools)
    recorded = prefilled(decoder, lambda: PagedKVCache(pages=next(places)), 6)
    for entry in prefilled(decoder, lambda: PagedKVCache(pages=next(neighbours)), 9):
        spoilt = mx.full((1, NUM_KV_HEADS, 5, 64), float("nan"))
        entry.cache.append_window(spoilt, spoilt).dispose()
    decode_both(decoder, CompiledDecoder(decoder), eager, recorded, 9)


@phases
def test_a_trimmed_nan_reaches_no_recorded_step(phase: DecodePhase) -> None:
    decoder = ToyDecoder()
    eager, recorded = (prefilled(decoder, MAKERS["dense"], 6) for _ in range(2))
    for entry in recorded:
        spoilt = mx.full((1, NUM_KV_HEADS, 30, 64), float("nan"))
        entry.cache.append_window(spoilt, spoilt).dispose()
        entry.cache.trim(30)
    decode_both(decoder, CompiledDecoder(decoder, phase), eager, recorded, 9)


def test_a_window_is_decoded_under_its_mask() -> None:
    decoder = ToyDecoder()

    def windowed() -> PagedKVCache:
        return PagedKVCache(block_size=4, window=9)

    eager, recorded = (prefilled(decoder, windowed, 14) for _ in range(2))
    decode_both(decoder, CompiledDecoder(decoder), eager, recorded, 12)
    with pytest.raises(Unsupported, match="window"):
        recorded[0].cache.prepare_decode_step(DecodePhase.CONCAT)


@makers
def test_every_format_can_be_recorded_without_shapes(
    make: Callable[[], PagedKVCache | ContiguousKVCache],
) -> None:
    [entry] = prefilled(ToyDecoder(num_layers=1), make, 3)
    assert entry.cache.prepare_decode_step(DecodePhase.CONCAT).phase is DecodePhase.CONCAT


class ViewedPages(DensePages):
    """Dense pages from elsewhere, by an operation that MLX cannot record without shapes."""

    def encode(self, keys: mx.array, values: mx.array, /) -> tuple[mx.array, ...]:
        return mx.view(mx.view(keys, mx.uint8), keys.dtype), values


def test_a_codec_that_mlx_cannot_record_without_shapes_says_so_and_takes_a_bucket() -> None:
    def viewed() -> PagedKVCache:
        return PagedKVCache(pages=LayerPages(block_size=4, codec=ViewedPages()))

    decoder = ToyDecoder()
    eager, recorded = (prefilled(decoder, viewed, 3) for _ in range(2))
    cache = recorded[0].cache
    with pytest.raises(Unsupported, match="cannot be recorded without shapes; use BUCKET"):
        cache.prepare_decode_step(DecodePhase.CONCAT)
    assert cache.decode_phase() is not DecodePhase.CONCAT
    decode_both(decoder, CompiledDecoder(decoder), eager, recorded, 5)


def test_what_has_no_compiled_form_decodes_eagerly_and_says_so_once() -> None:
    decoder = ToyDecoder()

    def means() -> PagedKVCache:
        return PagedKVCache(turbo=PagedTurboQuant(page_mean=True))

    eager, recorded = (prefilled(decoder, means, 5) for _ in range(2))
    compiled = CompiledDecoder(decoder)
    with pytest.warns(UserWarning, match="decoding eagerly: page means") as said:
        decode_both(decoder, compiled, eager, recorded, 4)
    assert len(said) == 1
    assert compiled.num_traces == 0


def test_a_cache_before_its_first_append_has_no_recorded_step() -> None:
    with pytest.raises(Unsupported, match="first append"):
        PagedKVCache().prepare_decode_step()


def test_the_planes_are_not_copied_by_a_resident_step() -> None:
    decoder = ToyDecoder(num_layers=8)
    recorded = prefilled(decoder, lambda: PagedKVCache(capacity=16384), 300)
    compiled = CompiledDecoder(decoder)
    for _ in range(3):
        mx.eval(compiled(mx.array([[1]]), cache=recorded))
    plane = recorded[0].cache.state()[0].nbytes
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    for _ in range(10):
        mx.eval(compiled(mx.array([[1]]), cache=recorded))
    assert mx.get_peak_memory() - before < plane / 2
