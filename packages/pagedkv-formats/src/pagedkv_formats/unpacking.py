"""Affine codes to numbers in few passes, where MLX has no kernel that does it in one."""

from __future__ import annotations

import math

import mlx.core as mx


def affine_numbers(
    codes: mx.array, scales: mx.array, biases: mx.array, group_size: int, bits: int
) -> mx.array:
    """The bits that ``mx.dequantize`` gives: ``[..., D]`` in the dtype of ``scales``.

    On a CPU, MLX takes codes apart as uint32s: while it makes 16-bit rows it holds five times
    their bytes at 4 bits, and fifteen times at 6. Here a code is a byte, which holds 1 to 2.5
    times their bytes, the rows included, and takes a half to a tenth of the time. On a GPU
    ``mx.dequantize`` is one kernel that holds nothing besides.

    >>> coded = mx.quantize(mx.random.normal((5, 64)), group_size=32, bits=6)
    >>> mx.array_equal(affine_numbers(*coded, 32, 6), mx.dequantize(*coded, 32, 6)).item()
    True
    """
    groups = mx.unflatten(unpacked(codes, bits), -1, (-1, group_size)).astype(scales.dtype)
    return (groups * scales[..., None] + biases[..., None]).flatten(-2)


def unpacked(codes: mx.array, bits: int) -> mx.array:
    """Each code of the uint32 words ``[..., W]`` in a byte: uint8 ``[..., 32 * W / bits]``.

    A row's words are a stream of bits, lowest first.

    >>> unpacked(mx.array([0x87654321], mx.uint32), 4).tolist()
    [1, 2, 3, 4, 5, 6, 7, 8]
    """
    stream = mx.view(codes, mx.uint8)
    if bits == 8:
        return stream
    if bits == 4:  # a byte's two codes, spread over two bytes
        pairs = stream.astype(mx.uint16)
        return mx.view((pairs | (pairs << 4)) & 0x0F0F, mx.uint8)
    if bits == 2:  # its two halves first, then the two codes of each
        fours = stream.astype(mx.uint32)
        fours = (fours | (fours << 12)) & 0x000F000F
        return mx.view((fours | (fours << 6)) & 0x03030303, mx.uint8)
    return unpacked_across_bytes(stream, bits)


def unpacked_across_bytes(stream: mx.array, bits: int) -> mx.array:
    """Codes of a width that some byte boundaries cut: 3, 5 or 6 bits.

    >>> unpacked_across_bytes(mx.array([0b11_000_001, 0b0_000_000_1, 0], mx.uint8), 3).tolist()
    [1, 0, 7, 0, 0, 0, 0, 0]
    """
    num_bytes = math.lcm(bits, 8) // 8  # the fewest that hold whole codes
    packs = mx.unflatten(stream, -1, (-1, num_bytes))
    codes = []
    for bit in range(0, 8 * num_bytes, bits):
        byte, shift = divmod(bit, 8)
        code = packs[..., byte] >> shift
        if shift + bits > 8:
            code = code | (packs[..., byte + 1] << (8 - shift))
        codes.append(code & (2**bits - 1))
    return mx.stack(codes, axis=-1).flatten(-2)
