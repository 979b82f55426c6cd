"""Packing: codes of 1 to 8 bits, little-endian, without a gap between them.

Code i of a vector takes bits ``i * bits`` to ``i * bits + bits - 1`` of its bytes, the lowest
first, so eight codes fill ``bits`` bytes: they are pushed together, or pulled apart, inside
one 64-bit word, by halves.
"""

from __future__ import annotations

from functools import lru_cache

import mlx.core as mx


def packed_bytes(dim: int, bits: int) -> int:
    """Bytes of ``dim`` packed codes: whole bytes, no more.

    >>> packed_bytes(80, 3), packed_bytes(17, 5)
    (30, 11)
    """
    return -(-dim * bits // 8)


def packed_dtype(dim: int, bits: int) -> mx.Dtype:
    """The widest of uint32, uint16 and uint8 that divides the bytes of ``dim`` codes.

    >>> packed_dtype(128, 4), packed_dtype(80, 3), packed_dtype(17, 5)
    (mlx.core.uint32, mlx.core.uint16, mlx.core.uint8)
    """
    size = packed_bytes(dim, bits)
    return mx.uint32 if size % 4 == 0 else mx.uint16 if size % 2 == 0 else mx.uint8


def pack(codes: mx.array, bits: int) -> mx.array:
    """Codes uint8 ``[..., D]``, each below ``2**bits``, to ``packed_dtype`` ``[..., width]``.

    >>> pack(mx.array([1, 2, 3, 4, 5, 6, 7, 0], mx.uint8), 3).tolist()  # 0o07654321, by bytes
    [209, 88, 31]
    """
    dim = codes.shape[-1]
    dtype = packed_dtype(dim, bits)
    if bits == 8:
        return mx.view(codes, dtype)
    if dim % 8:
        codes = mx.pad(codes, [(0, 0)] * (codes.ndim - 1) + [(0, -dim % 8)])
    words = push_together(mx.view(codes, mx.uint64), *lanes(bits))
    if dim % 8 == 0 and bits in WORDS:
        packed = words.astype(WORDS[bits])
        return packed if packed.dtype == dtype else mx.view(packed, dtype)
    groups = mx.view(words, mx.uint8).reshape(*words.shape, 8)[..., :bits]
    octets = groups.reshape(*words.shape[:-1], -1)[..., : packed_bytes(dim, bits)]
    return mx.view(octets, dtype)


def unpack(packed: mx.array, dim: int, bits: int) -> mx.array:
    """What ``pack`` made, to codes uint8 ``[..., D]``.

    >>> unpack(mx.array([209, 88, 31], mx.uint8), 8, 3).tolist()
    [1, 2, 3, 4, 5, 6, 7, 0]
    """
    if bits == 8:
        return mx.view(packed, mx.uint8)
    if dim % 8 == 0 and bits in WORDS:
        words = mx.view(packed, WORDS[bits])
    else:
        words = words_of_eight(mx.view(packed, mx.uint8), dim, bits)
    codes = mx.view(pull_apart(words, *lanes(bits)), mx.uint8)
    return codes if dim % 8 == 0 else codes[..., :dim]


def words_of_eight(octets: mx.array, dim: int, bits: int) -> mx.array:
    """Each ``bits`` bytes of ``octets``, with zeros above, as one uint64."""
    lead, groups = octets.shape[:-1], -(-dim // 8)
    missing = groups * bits - octets.shape[-1]
    if missing:
        octets = mx.concatenate([octets, mx.zeros((*lead, missing), mx.uint8)], axis=-1)
    zeros = mx.zeros((*lead, groups, 8 - bits), mx.uint8)
    octets = mx.concatenate([octets.reshape(*lead, groups, bits), zeros], axis=-1)
    return mx.view(octets, mx.uint64).reshape(*lead, groups)


WORDS = {1: mx.uint8, 2: mx.uint16, 4: mx.uint32}
"""The word that eight codes fill, where there is one."""


@lru_cache(maxsize=8)
def lanes(bits: int) -> tuple[mx.array, ...]:
    """How neighbours merge in lanes of 8, 16 and 32 bits: a shift, low and high mask each.

    In a lane of ``size`` bits lies a run of ``bits * size / 8``; the high mask is where the
    odd lanes' runs lie after the shift, right above those of the even lanes.
    """
    numbers = []
    for size in (8, 16, 32):
        run = bits * size // 8
        low = sum(((1 << run) - 1) << at for at in range(0, 64, 2 * size))
        numbers += [size - run, low, low << run]
    arrays = tuple(mx.array(number, mx.uint64) for number in numbers)
    mx.eval(arrays)
    return arrays


def push_together(words: mx.array, *by: mx.array) -> mx.array:
    """Eight codes in the bytes of a word to eight codes in its lowest bits; ``by`` lanes."""
    for shift, low, high in (by[:3], by[3:6], by[6:]):
        words = (words & low) | ((words >> shift) & high)
    return words


def pull_apart(words: mx.array, *by: mx.array) -> mx.array:
    """Eight codes in the lowest bits of a word to eight codes in its bytes; ``by`` lanes."""
    words = words.astype(mx.uint64)
    for shift, low, high in (by[6:], by[3:6], by[:3]):
        words = (words & low) | ((words & high) << shift)
    return words
