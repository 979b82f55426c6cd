"""A cache that is typed for NumPy, seen through the protocols, which name no array library."""

from __future__ import annotations

from typing import cast

import numpy as np
import numpy.typing as npt
from typing_extensions import assert_type

from pagedkv_protocols import (
    BIDIRECTIONAL,
    BLOCK_READ,
    COMMITTED,
    COMPILED_DECODE,
    DONOR,
    ENCODER,
    FORK,
    PHASE,
    BidirectionalCache,
    BlockReadCache,
    Cache,
    CommittedCache,
    CompiledDecodeCache,
    DonorCache,
    DonorRows,
    EncoderCache,
    ForkableCache,
    PageCodec,
    PlaneSpec,
    Read,
    supports,
)
from pagedkv_protocols.conformance import ArrayAdapter
from tests.numpy_cache.arrays import NumpyArrays
from tests.numpy_cache.cache import NumpyCache
from tests.numpy_cache.read import NumpyRead

Array = npt.NDArray[np.float32]

ROWS: Array = np.ones((1, 2, 3, 4), np.float32)
ONE: Array = np.ones((1, 2, 1, 4), np.float32)
SINKS: Array = np.zeros(2, np.float32)
OVERLAY = cast("Array", np.array([False, True, True]))
"""An overlay of bools; the cache is typed for one dtype alone."""


def test_a_numpy_cache_satisfies_every_protocol() -> None:
    cache = NumpyCache()
    core: Cache[Array] = cache
    committed: CommittedCache[Array] = cache
    bidirectional: BidirectionalCache[Array] = cache
    encoder: EncoderCache[Array] = cache
    block: BlockReadCache[Array] = cache
    donor: DonorCache[Array] = cache
    fork: ForkableCache[Array] = cache
    read: Read[Array] = cache.append_window(ROWS, ROWS)
    arrays: ArrayAdapter[Array] = NumpyArrays()
    assert {core, committed, bidirectional, encoder, block, donor, fork} == {cache}
    assert arrays.shape(read.attend(ROWS, 0.5)) == (1, 2, 3, 4)


def test_a_cache_keeps_its_own_type() -> None:
    with NumpyCache() as cache, cache.append_window(ROWS, ROWS) as read:
        assert_type(cache, NumpyCache)
        assert_type(cache.fork(), NumpyCache)
        assert_type(read, NumpyRead)


def test_reads_are_of_the_array_type() -> None:
    reading(NumpyCache())


def reading(cache: Cache[Array]) -> None:
    with cache.append_window(ROWS, ROWS) as read:
        assert_type(read, Read[Array])
        assert_type(read.attend(ROWS, 0.5), Array)
        assert_type(read.attend(ROWS, 0.5, mask=PHASE, sinks=SINKS, softcap=50.0), Array)
        assert_type(read.attend(ROWS, 0.5, mask=None), Array)
        assert_type(read.attend(ROWS, 0.5, mask=np.zeros((3, 3), np.float32)), Array)
    assert_type(cache.append_decode(ONE, ONE), Read[Array])


def test_what_a_cache_hands_out_is_typed() -> None:
    handed_out(NumpyCache())


def handed_out(cache: Cache[Array]) -> None:
    assert_type(cache.offset, int)
    assert_type(cache.start, int)
    assert_type(cache.window, int | None)
    assert_type(cache.trim(np.int64(3)), int)
    assert_type(cache.is_trimmable(), bool)
    assert_type(cache.state(), tuple[Array, ...])
    assert_type(cache.export(), tuple[Array, Array] | None)
    assert_type(cache.signature(), str)


def test_donor_rows_are_generic() -> None:
    cache = NumpyCache()
    cache.append_window(ROWS, ROWS)
    rows = cache.capture_donor_rows()
    assert_type(rows, DonorRows[Array])
    assert_type(rows.keys, Array)
    assert_type(rows.values, Array)
    assert_type(rows.end - rows.start, int)


def test_supports_narrows_and_keeps_the_array_type() -> None:
    first_windows(NumpyCache(), NumpyCache())
    any_time(NumpyCache())


def first_windows(image: Cache[Array], encoded: Cache[Array]) -> None:
    if supports(image, BIDIRECTIONAL):
        assert_type(image, BidirectionalCache[Array])
        assert_type(image.append_bidirectional(ROWS, ROWS, OVERLAY), Read[Array])
    if supports(encoded, ENCODER):
        assert_type(encoded, EncoderCache[Array])
        assert_type(encoded.append_encoder(ROWS, ROWS, None), Read[Array])


def any_time(cache: Cache[Array]) -> None:
    if supports(cache, COMMITTED):
        assert_type(cache, CommittedCache[Array])
        assert_type(cache.append_committed(ROWS, ROWS), Read[Array])
    if supports(cache, BLOCK_READ):
        assert_type(cache.read_block(ROWS, ROWS), Read[Array])
    if supports(cache, DONOR):
        assert_type(cache.capture_donor_rows(), DonorRows[Array])
    if supports(cache, FORK):
        assert_type(cache.fork(), ForkableCache[Array])
    if supports(cache, COMPILED_DECODE):
        assert_type(cache, CompiledDecodeCache[Array])
        assert_type(cache.decode_inputs(cache.prepare_decode_step()), tuple[Array, ...])


def test_supports_leaves_a_type_that_says_more() -> None:
    cache = NumpyCache()
    if supports(cache, FORK):
        assert_type(cache, NumpyCache)
    core: Cache[Array] = cache.fork()
    without(core)


def without(cache: Cache[Array]) -> None:
    if not supports(cache, COMPILED_DECODE):
        assert_type(cache, Cache[Array])


def a_codec_is_generic(codec: PageCodec[Array, np.dtype[np.float32]]) -> None:
    """For the type checkers alone: there is no NumPy codec."""
    dtype = np.dtype(np.float32)
    assert_type(codec.planes(64, 64, dtype), tuple[PlaneSpec[np.dtype[np.float32]], ...])
    assert_type(codec.encode(ROWS, ROWS), tuple[Array, ...])
    assert_type(codec.decode([ROWS, ROWS], 64, 64, dtype), tuple[Array, Array])
