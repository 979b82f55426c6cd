"""A cache typed for NumPy, seen through the protocols by mypy and basedpyright; never run."""

from __future__ import annotations

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


def a_numpy_cache_satisfies_every_protocol(mine: NumpyCache, read: NumpyRead) -> None:
    core: Cache[Array] = mine
    committed: CommittedCache[Array] = mine
    bidirectional: BidirectionalCache[Array] = mine
    encoder: EncoderCache[Array] = mine
    block: BlockReadCache[Array] = mine
    donor: DonorCache[Array] = mine
    fork: ForkableCache[Array] = mine
    attended: Read[Array] = read
    arrays: ArrayAdapter[Array] = NumpyArrays()
    print(core, committed, bidirectional, encoder, block, donor, fork, attended, arrays)


def a_cache_keeps_its_own_type(mine: NumpyCache, rows: Array) -> None:
    assert_type(mine.fork(), NumpyCache)
    assert_type(mine.append_window(rows, rows), NumpyRead)
    with mine as same, mine.append_decode(rows, rows) as read:
        assert_type(same, NumpyCache)
        assert_type(read, NumpyRead)


def reads_are_of_the_array_type(cache: Cache[Array], rows: Array, mask: Array) -> None:
    assert_type(cache.append_decode(rows, rows), Read[Array])
    assert_type(cache.append_window(rows, rows), Read[Array])
    with cache.append_window(rows, rows) as read:
        assert_type(read, Read[Array])
        assert_type(read.attend(rows, 0.5), Array)
        assert_type(read.attend(rows, 0.5, mask=PHASE, sinks=rows, softcap=50.0), Array)
        assert_type(read.attend(rows, 0.5, mask=None), Array)
        assert_type(read.attend(rows, 0.5, mask=mask), Array)


def what_a_cache_hands_out_is_typed(cache: Cache[Array]) -> None:
    assert_type(cache.offset, int)
    assert_type(cache.start, int)
    assert_type(cache.window, "int | None")
    assert_type(cache.trim(np.int64(3)), int)
    assert_type(cache.is_trimmable(), bool)
    assert_type(cache.state(), tuple[Array, ...])
    assert_type(cache.export(), "tuple[Array, Array] | None")
    assert_type(cache.signature(), str)


def donor_rows_are_generic(donor: DonorCache[Array]) -> None:
    rows = donor.capture_donor_rows()
    assert_type(rows, DonorRows[Array])
    assert_type(rows.keys, Array)
    assert_type(rows.values, Array)
    assert_type(rows.end - rows.start, int)


def supports_narrows_and_keeps_the_array_type(cache: Cache[Array], rows: Array) -> None:
    if supports(cache, COMMITTED):
        assert_type(cache, CommittedCache[Array])
        assert_type(cache.append_committed(rows, rows), Read[Array])
    if supports(cache, BIDIRECTIONAL):
        assert_type(cache.append_bidirectional(rows, rows, rows), Read[Array])
    if supports(cache, ENCODER):
        assert_type(cache.append_encoder(rows, rows, None), Read[Array])
    if supports(cache, BLOCK_READ):
        assert_type(cache.read_block(rows, rows), Read[Array])
    if supports(cache, DONOR):
        assert_type(cache.capture_donor_rows(), DonorRows[Array])
    if supports(cache, FORK):
        assert_type(cache.fork(), ForkableCache[Array])
    if supports(cache, COMPILED_DECODE):
        assert_type(cache, CompiledDecodeCache[Array])
        assert_type(cache.decode_inputs(cache.prepare_decode_step()), tuple[Array, ...])


def supports_leaves_the_rest_as_it_was(cache: Cache[Array], mine: NumpyCache) -> None:
    if not supports(cache, FORK):
        assert_type(cache, Cache[Array])
    if supports(mine, FORK):
        assert_type(mine, NumpyCache)


def a_codec_is_generic_over_arrays_and_dtypes(
    codec: PageCodec[Array, np.dtype[np.float32]], rows: Array, dtype: np.dtype[np.float32]
) -> None:
    assert_type(codec.planes(64, 64, dtype), tuple[PlaneSpec[np.dtype[np.float32]], ...])
    assert_type(codec.encode(rows, rows), tuple[Array, ...])
    assert_type(codec.decode([rows, rows], 64, 64, dtype), tuple[Array, Array])
