"""PagedTurboQuant: pages of rotated vectors at 1 to 8 bits a number and one scale a vector."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, cast

import attrs
import mlx.core as mx

from pagedkv_formats.parameters import check_parameters
from pagedkv_formats.turboquant.graphs import Graph, in_graph
from pagedkv_formats.turboquant.levels import codes_and_levels, levels_of
from pagedkv_formats.turboquant.packing import pack, packed_bytes, packed_dtype, unpack
from pagedkv_formats.turboquant.rotation import rotation
from pagedkv_formats.turboquant.scales import (
    LARGEST,
    apart,
    key_and_value_scales,
    key_scales,
    unit_rows,
    value_scales,
)
from pagedkv_protocols import IllegalFormat, InvalidArgument, PageCodec, PlaneSpec

BITS = range(1, 9)
DIMS = range(16, 577)
KERNELS = ("rotated", "plain")
SEEDS = range(2**64)

PROBED_DIMS = (16, 24, 40, 56, 17)
"""A dim of each kind of rotation: powers of 2, of 12, 20 and 28 times them, and dense."""


@attrs.frozen
class PagedTurboQuant:
    """Rotated vectors, each number at the nearest Lloyd-Max level, one fp16 scale a vector.

    Zandieh, Daliri, Hadian and Mirrokni, 2025 (arXiv 2504.19874), with a scale that is fitted
    after coding in place of the norm, and no residual. A page of ``block_size`` positions of
    one head, for any dims from 16 to 576:

    ================  =========================================  =============================
    plane             bytes                                      dtype
    ================  =========================================  =============================
    ``key_codes``     ``block_size * ceil(Dk * key_bits / 8)``   the widest of uint32, 16, 8
    ``key_scales``    ``block_size * 2``                         fp16
    ``value_codes``   ``block_size * ceil(Dv * value_bits / 8)`` as for keys
    ``value_scales``  ``block_size * 2``                         fp16
    ``key_means``     ``Dk * 2``, with ``page_mean`` only        fp16, one row a block, rotated
    ================  =========================================  =============================

    No value planes where ``Dv`` is 0. Codes lie little-endian without gaps.

    - a row's bytes depend on that row alone (and its block's mean), whatever shares the call;
    - what rows decode to is ``scale`` times their levels, rotated back; where numbers would
      leave fp16 they end at ±65,504, and so does each scale, in pages of any dtype;
    - a row of zeros decodes to zeros; a row with a NaN or an infinity in it decodes to NaN,
      one with numbers beyond 1e18 to NaN or to its direction lost, and neither spoils another;
    - one number 50 to 300 times the others rotates to two heaps and costs up to 1.4 times the
      least distortion at 2 and 3 bits; up to 30 times the others it costs nothing;
    - ``kernels`` says how windows are attended, rotated or not, and changes no byte.

    >>> codec = PagedTurboQuant(key_bits=4, value_bits=4)
    >>> [(plane.name, plane.width) for plane in codec.planes(128, 64, mx.bfloat16)[::2]]
    [('key_codes', 16), ('value_codes', 8)]
    >>> x = mx.random.normal((1, 2, 300, 128), key=mx.random.key(0))
    >>> _, values = codec.decode(codec.encode(x, x), 128, 128, mx.float32)
    >>> (mx.square(values - x).sum() / mx.square(x).sum()).item() < 0.0096
    True
    """

    key_bits: int = 8
    value_bits: int = 4
    seed: int = 0
    page_mean: bool = False
    kernels: str = "rotated"

    def __attrs_post_init__(self) -> None:
        check_choice("key_bits", self.key_bits, BITS, "1 to 8")
        check_choice("value_bits", self.value_bits, BITS, "1 to 8")
        check_choice("seed", self.seed, SEEDS, "0 to 2**64 - 1")
        check_choice("page_mean", self.page_mean, (True, False), "True or False")
        check_choice("kernels", self.kernels, KERNELS, "'rotated' or 'plain'")

    @property
    def name(self) -> str:
        """``turboquant``."""
        return "turboquant"

    def planes(
        self, key_dim: int, value_dim: int, dtype: mx.Dtype, /
    ) -> tuple[PlaneSpec[mx.Dtype], ...]:
        """Codes and scales of the keys, then of the values, then the blocks' mean keys.

        Raises ``IllegalFormat`` for a dim below 16 or above 576.

        >>> PagedTurboQuant().planes(8, 64, mx.float16)
        Traceback (most recent call last):
        pagedkv_protocols.errors.IllegalFormat: K dim 8 is not of 16 to 576, which TurboQuant ...
        """
        planes = [*vector_planes("K", "key", key_dim, self.key_bits)]
        if value_dim:
            planes += vector_planes("V", "value", value_dim, self.value_bits)
        if self.page_mean:
            planes.append(PlaneSpec("key_means", key_dim, mx.float16, per_block=True))
        return tuple(planes)

    def encode(
        self, keys: mx.array, values: mx.array, means: mx.array | None = None, /
    ) -> tuple[mx.array, ...]:
        """The rows of every plane that has one a position: ``key_means`` is not among them.

        With ``page_mean``, ``means`` fp16 ``[B, H, L, Dk]`` is the ``block_mean`` of each
        row's block. Raises ``InvalidArgument`` where it is missing, or given and not wanted.
        """
        if (means is None) == self.page_mean:
            raise InvalidArgument(
                f"encode got {'no ' if self.page_mean else ''}means and page_mean is "
                f"{self.page_mean}; give the block's mean of each row with page_mean only"
            )
        rows = [keys, values] if means is None else [keys, values, means]
        return in_graph(encoding(self), rows)

    def block_mean(self, keys: mx.array) -> mx.array:
        """The mean of a block's first keys ``[B, H, n, Dk]``, rotated, fp16 ``[B, H, 1, Dk]``.

        It is kept as it is for as long as the block lives. A mean that is no number is 0.

        >>> codec, keys = PagedTurboQuant(page_mean=True), mx.full((1, 1, 5, 64), 100.0)
        >>> mean = codec.block_mean(keys)
        >>> _, scales = codec.encode(keys, keys[..., :0], mx.broadcast_to(mean, keys.shape))
        >>> scales.max().item() < 0.1  # of 100: little is left to code
        True
        """
        mean = mx.mean(keys.astype(mx.float32), axis=2, keepdims=True)
        mean = rotation(self.seed, keys.shape[-1]).apply(mean)
        return mx.where(mx.isfinite(mean), mx.clip(mean, -LARGEST, LARGEST), 0).astype(mx.float16)

    def decode(
        self, rows: Sequence[mx.array], key_dim: int, value_dim: int, dtype: mx.Dtype, /
    ) -> tuple[mx.array, mx.array]:
        """Rows of every plane, means repeated for each position, to keys and values."""
        keys, values = in_graph(decoding(self, key_dim, value_dim, dtype, reverted=True), rows)
        return keys, values

    def decode_rotated(
        self, rows: Sequence[mx.array], key_dim: int, value_dim: int, dtype: mx.Dtype, /
    ) -> tuple[mx.array, mx.array]:
        """What ``decode`` gives, before it is rotated back.

        Queries that were rotated too have the same scores with these keys, and attention
        over these values is rotated back once for each output, not once for each position.

        >>> codec, x = PagedTurboQuant(), mx.random.normal((1, 1, 9, 64), key=mx.random.key(1))
        >>> keys, _ = codec.decode(codec.encode(x, x), 64, 64, mx.float32)
        >>> rotated, _ = codec.decode_rotated(codec.encode(x, x), 64, 64, mx.float32)
        >>> scores = codec.rotate_queries(x) @ rotated.swapaxes(2, 3)
        >>> mx.allclose(x @ keys.swapaxes(2, 3), scores, atol=1e-4).item()
        True
        """
        keys, values = in_graph(decoding(self, key_dim, value_dim, dtype, reverted=False), rows)
        return keys, values

    def rotate_queries(self, queries: mx.array) -> mx.array:
        """Queries ``[B, Hq, L, Dk]`` for keys of ``decode_rotated``, in their own dtype."""
        turn = rotation(self.seed, queries.shape[-1])
        return turn.apply(queries.astype(mx.float32)).astype(queries.dtype)

    def unrotate_outputs(self, outputs: mx.array) -> mx.array:
        """Outputs ``[B, Hq, L, Dv]`` over values of ``decode_rotated``, as over ``decode``'s."""
        if not outputs.shape[-1]:
            return outputs
        turn = rotation(self.seed, outputs.shape[-1])
        return turn.revert(outputs.astype(mx.float32)).astype(outputs.dtype)

    def rotation_digest(self, dim: int) -> str:
        """16 hex digits that stand for the rotation of vectors of ``dim`` numbers.

        Saved pages keep it: pages of one rotation are noise to another.

        >>> PagedTurboQuant(seed=3).rotation_digest(64) == PagedTurboQuant().rotation_digest(64)
        False
        """
        return rotation(self.seed, dim).digest()

    def signature(self) -> str:
        """Bits, seed and whether means are kept.

        >>> PagedTurboQuant(seed=7, page_mean=True).signature()
        'turboquant-k8-v4-s7-mean'
        """
        mean = "-mean" if self.page_mean else ""
        return f"turboquant-k{self.key_bits}-v{self.value_bits}-s{self.seed}{mean}"

    def to_dict(self) -> dict[str, int | str | bool | None]:
        """The parameters, and ``rotation``, a digest over a dim of each kind.

        >>> sorted(PagedTurboQuant().to_dict())
        ['format', 'kernels', 'key_bits', 'page_mean', 'rotation', 'seed', 'value_bits']
        """
        return {
            "format": "turboquant",
            **attrs.asdict(self),
            "rotation": digest_of_kinds(self.seed),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, object], /) -> PagedTurboQuant:
        """Raises ``IllegalFormat`` for what is missing, unknown or illegal, the digest too.

        >>> PagedTurboQuant.from_dict({**PagedTurboQuant().to_dict(), "rotation": "0" * 16})
        Traceback (most recent call last):
        pagedkv_protocols.errors.IllegalFormat: rotation is '0000000000000000'; this format has...
        """
        names = [field.name for field in attrs.fields(cls)]
        check_parameters(data, dict.fromkeys(("format", "rotation", *names), ...))
        codec = cls(**{name: data[name] for name in names})  # type: ignore[arg-type]
        check_parameters(data, codec.to_dict())
        return codec

    def _encode(
        self, keys: mx.array, values: mx.array, means: mx.array | None = None
    ) -> tuple[mx.array, ...]:
        if self.key_bits == self.value_bits and keys.shape == values.shape and means is None:
            return self._encode_together(keys, values)
        turn = rotation(self.seed, keys.shape[-1])
        unit, squares = unit_rows(keys, turn, means)
        codes, levels = codes_and_levels(unit, self.key_bits)
        coded = (pack(codes, self.key_bits), key_scales(unit, levels, squares))
        if not values.shape[-1]:
            return coded
        unit, squares = unit_rows(values, rotation(self.seed, values.shape[-1]))
        codes, levels = codes_and_levels(unit, self.value_bits)
        return (*coded, pack(codes, self.value_bits), value_scales(unit, levels, squares))

    def _encode_together(self, keys: mx.array, values: mx.array) -> tuple[mx.array, ...]:
        """Keys and values as heads of one array: half the operations, the same bytes."""
        both = mx.concatenate([keys, values], axis=1)
        unit, squares = unit_rows(both, rotation(self.seed, keys.shape[-1]))
        codes, levels = codes_and_levels(unit, self.key_bits)
        packed = pack(codes, self.key_bits)
        scales = key_and_value_scales(unit, levels, squares)
        codes_of_keys, codes_of_values = mx.split(packed, 2, axis=1)
        scales_of_keys, scales_of_values = mx.split(scales, 2, axis=1)
        return codes_of_keys, scales_of_keys, codes_of_values, scales_of_values

    def _decode(
        self, rows: Sequence[mx.array], key_dim: int, value_dim: int
    ) -> tuple[mx.array, mx.array]:
        """Keys and values in the rotated domain, fp32."""
        keys = levels_of(unpack(rows[0], key_dim, self.key_bits), self.key_bits)
        keys = apart(apart(keys) * apart(rows[1].astype(mx.float32)))
        if self.page_mean:
            keys = keys + rows[-1].astype(mx.float32)
        if not value_dim:
            return keys, mx.zeros((*keys.shape[:-1], 0))
        values = levels_of(unpack(rows[2], value_dim, self.value_bits), self.value_bits)
        return keys, apart(apart(values) * apart(rows[3].astype(mx.float32)))


def check_choice(what: str, value: object, choices: Sequence[object], said: str) -> None:
    """Refuse ``value`` unless it is one of ``choices``, and of their type: neither 4.0 nor True.

    Raises ``IllegalFormat``.

    >>> check_choice("key_bits", 9, BITS, "1 to 8")
    Traceback (most recent call last):
    pagedkv_protocols.errors.IllegalFormat: key_bits is 9; TurboQuant takes 1 to 8
    """
    if type(value) is not type(choices[0]) or value not in choices:
        raise IllegalFormat(f"{what} is {value!r}; TurboQuant takes {said}")


def vector_planes(
    which: str, prefix: str, dim: int, bits: int
) -> tuple[PlaneSpec[mx.Dtype], PlaneSpec[mx.Dtype]]:
    """The planes of vectors of ``dim`` numbers; ``which`` is K or V."""
    if dim not in DIMS:
        raise IllegalFormat(
            f"{which} dim {dim} is not of {DIMS[0]} to {DIMS[-1]}, which TurboQuant takes; "
            "leave such pages unquantized"
        )
    dtype = packed_dtype(dim, bits)
    width = packed_bytes(dim, bits) // dtype.size
    return PlaneSpec(f"{prefix}_codes", width, dtype), PlaneSpec(f"{prefix}_scales", 1, mx.float16)


@lru_cache(maxsize=64)
def encoding(codec: PagedTurboQuant) -> Graph:
    """``codec``'s encode as one graph for each shape."""
    return mx.compile(codec._encode)


@lru_cache(maxsize=64)
def decoding(
    codec: PagedTurboQuant, key_dim: int, value_dim: int, dtype: mx.Dtype, *, reverted: bool
) -> Graph:
    """``codec``'s decode as one graph for each shape, rotated back or not."""

    def decode(*rows: mx.array) -> tuple[mx.array, ...]:
        keys, values = codec._decode(rows, key_dim, value_dim)
        if reverted:
            keys = rotation(codec.seed, key_dim).revert(keys)
            values = rotation(codec.seed, value_dim).revert(values) if value_dim else values
        return cast_rows(keys, dtype), cast_rows(values, dtype)

    return mx.compile(decode)


def cast_rows(rows: mx.array, dtype: mx.Dtype) -> mx.array:
    """fp32 rows in ``dtype``; in fp16 they end where it does."""
    return (mx.clip(rows, -LARGEST, LARGEST) if dtype == mx.float16 else rows).astype(dtype)


@lru_cache(maxsize=64)
def digest_of_kinds(seed: int) -> str:
    """16 hex digits over the digests of a rotation of each kind."""
    digests = "".join(rotation(seed, dim).digest() for dim in PROBED_DIMS)
    return hashlib.sha256(digests.encode()).hexdigest()[:16]


if TYPE_CHECKING:
    _: PageCodec[mx.array, mx.Dtype] = cast("PagedTurboQuant", None)
