"""Words: small numbers side by side in a wide one, made and parted by arithmetic.

``mx.view`` does the same for nothing, but MLX cannot record a view without shapes.
"""

from __future__ import annotations

from functools import lru_cache

import mlx.core as mx


def joined(parts: mx.array, count: int, width: int, dtype: mx.Dtype) -> mx.array:
    """Each ``count`` parts of ``width`` bits as one word, the lowest first: ``[..., n / count]``.

    A word must fit in ``dtype``, uint32 or uint64.

    >>> joined(mx.array([1, 2, 3, 4], mx.uint8), 2, 4, mx.uint32).tolist()
    [33, 67]
    """
    if count == 1:  # MLX 0.32.4 crashes on it in a recording without shapes
        return parts.astype(dtype)
    each = mx.unflatten(parts, -1, (-1, count)).astype(dtype)
    return mx.sum(each << shifts(count, width, dtype), axis=-1)


def parted(words: mx.array, count: int, width: int) -> mx.array:
    """What was joined: ``count`` parts of a word, in the words' dtype, ``[..., n * count]``.

    >>> parted(mx.array([33, 67], mx.uint32), 2, 4).tolist()
    [1, 2, 3, 4]
    """
    if count == 1:
        return words & mask(width, words.dtype)
    each = mx.expand_dims(words, -1) >> shifts(count, width, words.dtype)
    return mx.flatten(each & mask(width, words.dtype), -2)


@lru_cache(maxsize=64)
def shifts(count: int, width: int, dtype: mx.Dtype) -> mx.array:
    """``0, width, 2 * width`` and so on, ``[count]``."""
    return evaluated([width * i for i in range(count)], dtype)


@lru_cache(maxsize=16)
def mask(width: int, dtype: mx.Dtype) -> mx.array:
    """The lowest ``width`` bits."""
    return evaluated(2**width - 1, dtype)


def evaluated(numbers: int | list[int], dtype: mx.Dtype) -> mx.array:
    """An array that any thread and any recording may use."""
    array = mx.array(numbers, dtype)
    mx.eval(array)
    return array
