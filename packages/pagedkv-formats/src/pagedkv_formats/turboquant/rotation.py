"""Rotations: one fixed orthogonal map a seed and dim, that spreads a vector over all numbers."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import cast

import attrs
import mlx.core as mx

HADAMARD_DIMS = frozenset(
    m << k for m in (1, 12, 20, 28) for k in range(1, 10) if 16 <= m << k <= 512
)
"""Dims whose ``mx.hadamard_transform`` was seen to be right: a matrix of ±1, orthogonal.

Elsewhere it is not called. MLX 0.32.4 on the CPU corrupts memory for dims 72, 120 and 144, and
gives wrong numbers for 36 and NaN for 576; on Metal some versions cannot build it for 20 and 28
(MLX issue 4049).
"""

SYMMETRIC_DIMS = frozenset(d for d in HADAMARD_DIMS if d & (d - 1) == 0 or d % 3 == 0)
"""Dims whose Hadamard matrix is its own transpose; those of 20 and 28 are not."""


@attrs.frozen(eq=False)
class Rotation:
    """An orthogonal map R of vectors of ``dim`` numbers, the same on every machine.

    - a row's result depends on that row alone, bit for bit, whatever rows share the call;
    - ``revert(apply(x))`` is x within 1e-5 of its length, in fp32;
    - R comes from integer arithmetic, and from float64 sums and products whose order is
      written down here, so that no library's random numbers or reductions are in it.

    Random signs and then a Hadamard matrix where ``dim`` is one of ``HADAMARD_DIMS``; else a
    dense matrix, the Q of a QR of random numbers.

    >>> turn = rotation(0, 64)
    >>> x = mx.array([3.0] + [0.0] * 63)
    >>> mx.abs(turn.apply(x)).max().item()  # 3 in one number is 3/8 in each of 64
    0.375
    >>> mx.abs(turn.revert(turn.apply(x)) - x).max().item() < 1e-6
    True
    """

    dim: int
    signs: mx.array | None
    """fp32 ``[dim]`` of ±1 where there is a Hadamard matrix."""
    matrix: mx.array | None
    """fp32 ``[dim, dim]``: R itself where it is dense, and where it is not symmetric."""

    def apply(self, rows: mx.array, scale: float = 1.0) -> mx.array:
        """``scale`` times R times each of the rows fp32 ``[..., dim]``."""
        if self.signs is None:
            assert self.matrix is not None
            return each_row_times(rows if scale == 1 else rows * scale, self.matrix.T)
        return mx.hadamard_transform(rows * self.signs, scale=scale * self.dim**-0.5)

    def revert(self, rows: mx.array) -> mx.array:
        """The transpose of R times each of the rows fp32 ``[..., dim]``."""
        if self.matrix is not None:
            return each_row_times(rows, self.matrix)
        assert self.signs is not None
        return mx.hadamard_transform(rows, scale=self.dim**-0.5) * self.signs

    def digest(self) -> str:
        """16 hex digits that stand for R: of its signs, or of its fp32 numbers if dense.

        >>> rotation(0, 64).digest() == rotation(1, 64).digest()
        False
        """
        if self.signs is None:
            assert self.matrix is not None
            octets = mx.view(self.matrix.reshape(-1), mx.uint8)
        else:
            octets = (hadamard_matrix(self.signs) > 0).reshape(-1).astype(mx.uint8)
        return hashlib.sha256(bytes(cast("list[int]", octets.tolist()))).hexdigest()[:16]


@lru_cache(maxsize=64)
def rotation(seed: int, dim: int) -> Rotation:
    """The rotation of that seed and dim, evaluated, so that any thread may use it."""
    if dim not in HADAMARD_DIMS:
        return Rotation(dim, None, dense_matrix(seed, dim))
    signs = random_signs(seed, dim)
    if dim in SYMMETRIC_DIMS:
        return Rotation(dim, signs, None)
    matrix = hadamard_matrix(signs) * dim**-0.5
    mx.eval(matrix)
    return Rotation(dim, signs, matrix)


def each_row_times(rows: mx.array, matrix: mx.array) -> mx.array:
    """``rows [..., D] @ matrix [D, D]``, as one product a row.

    A product of all rows at once may sum in another order for another number of them, and on
    a GPU may round its factors to TF32.
    """
    dim = rows.shape[-1]
    flat = rows.reshape(-1, 1, dim)
    each = mx.broadcast_to(matrix, (flat.shape[0], dim, dim))
    return (flat @ each).reshape(rows.shape)


def hadamard_matrix(signs: mx.array) -> mx.array:
    """R times √D: ±1 everywhere, fp32 ``[D, D]``."""
    return mx.contiguous(mx.hadamard_transform(mx.diag(signs), scale=1.0).T)


def random_signs(seed: int, dim: int) -> mx.array:
    """±1, fp32 ``[dim]``: the lowest bits of the first ``dim`` random words."""
    signs = 1.0 - 2.0 * (random_words(seed, dim) & 1).astype(mx.float32)
    mx.eval(signs)
    return signs


def dense_matrix(seed: int, dim: int) -> mx.array:
    """The Q of a QR of a ``dim`` × ``dim`` matrix of random integers, fp32.

    Each integer is the sum of the four quarters of a random word, near enough to a normal
    number that no direction is preferred. Gram and Schmidt, modified, in float64 on the CPU:
    each step is a product, a sum in a fixed order, a square root or a division, and these
    are exact to the last bit wherever IEEE arithmetic is.
    """
    with mx.stream(mx.cpu):
        words = random_words(seed, dim * dim).reshape(dim, dim)
        quarters = [((words >> (16 * i)) & 0xFFFF).astype(mx.float64) for i in range(4)]
        rest = quarters[0] + quarters[1] + quarters[2] + quarters[3] - 131070.0
        done = []
        for _ in range(dim):
            column, rest = rest[:, :1], rest[:, 1:]
            column = column / mx.sqrt(sum_in_order(column * column))
            rest = rest - column * sum_in_order(column * rest)
            mx.eval(column, rest)
            done.append(column)
        matrix = mx.concatenate(done, axis=1).astype(mx.float32)
        mx.eval(matrix)
    return matrix


def sum_in_order(columns: mx.array) -> mx.array:
    """The sum of each of ``columns [D, n]``, as ``[1, n]``: the halves are added up, and theirs.

    >>> sum_in_order(mx.ones((6, 2))).tolist()
    [[6.0, 6.0]]
    """
    half = 1 << (columns.shape[0] - 1).bit_length() - 1
    while half:
        over = columns.shape[0] - half
        folded = columns[:over] + columns[half:]
        columns = folded if over == half else mx.concatenate([folded, columns[over:half]])
        half //= 2
    return columns


def random_words(seed: int, count: int) -> mx.array:
    """``count`` words of SplitMix64 from ``seed`` (Steele, Lea and Flood, 2014), uint64.

    >>> random_words(1234567, 2).tolist()
    [6457827717110365317, 3203168211198807973]
    """
    steps = mx.arange(1, count + 1).astype(mx.uint64)
    words = word(seed) + steps * word(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        words = (words ^ (words >> shift)) * word(factor)
    return words ^ (words >> 31)


def word(value: int) -> mx.array:
    """``value`` as uint64 ``[1]``; ``mx.array`` itself takes none above 2**63."""
    return mx.view(mx.array([value & 0xFFFFFFFF, value >> 32], mx.uint32), mx.uint64)
