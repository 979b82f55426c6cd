"""PagedQuantization: pages at 2 to 8 bits, in groups that share a scale, as MLX quantizes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, cast

import attrs
import mlx.core as mx

from pagedkv_formats.legal import check_dim, legal_int, legal_mode
from pagedkv_formats.parameters import check_parameters
from pagedkv_formats.unpacking import affine_numbers
from pagedkv_protocols import PageCodec, PlaneSpec


@attrs.frozen(init=False)
class PagedQuantization:
    """Rows as ``mx.quantize`` codes them and ``mx.dequantize`` gives them back, bit for bit.

    A page of ``block_size`` positions of one head, ``groups`` being ``Dk / group_size``:

    ==============  =================================  =====================================
    plane           bytes                              dtype
    ==============  =================================  =====================================
    ``key_codes``   ``block_size * Dk * bits / 8``     uint32
    ``key_scales``  ``block_size * groups * itemsize`` the rows'; uint8 in mx and nv modes
    ``key_biases``  ``block_size * groups * itemsize`` the rows'; none in mx and nv modes
    ==============  =================================  =====================================

    and the same for ``value_codes`` and so on, with ``Dv`` and ``value_bits``; no value
    planes where ``Dv`` is 0. A dim is a multiple of the group and of 32:
    ``docs/legal-settings.md`` lists what is legal.

    Where MLX's arithmetic ends, these pages end too:

    - affine on fp16 rows: MLX forms scale times code in fp16, so a group whose numbers span
      more than 65,504 decodes to an infinity at its far end; bf16 and fp32 rows do not;
    - affine: the least scale is 1e-7, so a group of magnitudes below 5e-8 decodes to zeros;
    - ``mxfp4`` rounds 60,000 to 65,536, an infinity in fp16; ``nvfp4`` ends at 2,688;
    - a NaN or an infinity spoils its own group and no other: in affine a NaN decodes to the
      group's edge value, which is finite, and an infinity makes the group NaN.

    >>> codec = PagedQuantization(bits=8, value_bits=3, group_size=32)
    >>> [(plane.name, plane.width) for plane in codec.planes(96, 64, mx.bfloat16)[::3]]
    [('key_codes', 24), ('value_codes', 6)]
    >>> rows = mx.linspace(-1, 1, 480).reshape(1, 1, 5, 96), mx.ones((1, 1, 5, 64))
    >>> keys, values = codec.decode(codec.encode(*rows), 96, 64, mx.float32)
    >>> (abs(keys - rows[0]).max() < 1e-3).item(), mx.array_equal(values, rows[1]).item()
    (True, True)
    """

    bits: int
    group_size: int
    mode: str
    value_bits: int

    def __init__(
        self,
        bits: int | None = None,
        group_size: int | None = None,
        mode: str = "affine",
        value_bits: int | None = None,
    ) -> None:
        """What is left out is the mode's own, as in ``mx.quantize``; values get the keys' bits.

        ``affine`` takes 2, 3, 4, 5, 6 or 8 bits in groups of 32, 64 or 128: unasked 4 and 64.
        ``mxfp4`` (4 bits, groups of 32), ``mxfp8`` (8, 32) and ``nvfp4`` (4, 16) take nothing
        else. Raises ``IllegalFormat``.

        >>> PagedQuantization(mode="mxfp8")
        PagedQuantization(bits=8, group_size=32, mode='mxfp8', value_bits=8)
        >>> PagedQuantization() == PagedQuantization(4, 64, "affine", 4)
        True
        """
        legal = legal_mode(mode)
        bits = legal.default_bits if bits is None else bits
        size = legal.default_group_size if group_size is None else group_size
        value_bits = bits if value_bits is None else value_bits
        self.__attrs_init__(  # pyright: ignore[reportAttributeAccessIssue]
            bits=legal_int("bits", bits, legal.bits, mode),
            group_size=legal_int("group_size", size, legal.group_sizes, mode),
            mode=mode,
            value_bits=legal_int("value_bits", value_bits, legal.bits, mode),
        )

    @property
    def name(self) -> str:
        """The mode: ``affine``, ``mxfp4``, ``mxfp8`` or ``nvfp4``."""
        return self.mode

    def planes(
        self, key_dim: int, value_dim: int, dtype: mx.Dtype, /
    ) -> tuple[PlaneSpec[mx.Dtype], ...]:
        """Codes, scales and, in affine, biases of the keys, then of the values.

        Raises ``IllegalFormat`` for a dim that the group does not divide.

        >>> PagedQuantization(group_size=128).planes(128, 192, mx.float16)
        Traceback (most recent call last):
        pagedkv_protocols.errors.IllegalFormat: V dim 192 is no multiple of 128; dim 192 ...
        """
        check_dim("K", key_dim, self.group_size)
        if not value_dim:
            return tuple(self._planes("key", key_dim, self.bits, dtype))
        check_dim("V", value_dim, self.group_size)
        return (
            *self._planes("key", key_dim, self.bits, dtype),
            *self._planes("value", value_dim, self.value_bits, dtype),
        )

    def encode(self, keys: mx.array, values: mx.array, /) -> tuple[mx.array, ...]:
        """The planes' rows: each row is coded alone, whatever shares the call."""
        coded = self._encode(keys, self.bits)
        return (*coded, *self._encode(values, self.value_bits)) if values.shape[-1] else coded

    def decode(
        self, rows: Sequence[mx.array], key_dim: int, value_dim: int, dtype: mx.Dtype, /
    ) -> tuple[mx.array, mx.array]:
        """Keys ``[..., Dk]`` and values ``[..., Dv]``, dequantized and cast to ``dtype``.

        The mx and nv modes decode to bf16 and are cast from there, as scales say no dtype.
        """
        if not value_dim:
            keys = self._decode(rows, key_dim, self.bits, dtype)
            return keys, mx.zeros((*keys.shape[:-1], 0), dtype)
        half = len(rows) // 2
        return (
            self._decode(rows[:half], key_dim, self.bits, dtype),
            self._decode(rows[half:], value_dim, self.value_bits, dtype),
        )

    def signature(self) -> str:
        """Mode, bits and group.

        >>> PagedQuantization(8, value_bits=4).signature()
        'affine-k8-v4-g64'
        """
        return f"{self.mode}-k{self.bits}-v{self.value_bits}-g{self.group_size}"

    def to_dict(self) -> dict[str, int | str | bool | None]:
        """The parameters, with the mode as the ``format``.

        >>> PagedQuantization(mode="nvfp4").to_dict()
        {'format': 'nvfp4', 'bits': 4, 'group_size': 16, 'value_bits': 4}
        """
        return {
            "format": self.mode,
            "bits": self.bits,
            "group_size": self.group_size,
            "value_bits": self.value_bits,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, object], /) -> PagedQuantization:
        """Raises ``IllegalFormat`` for a parameter that is missing, unknown or illegal.

        >>> PagedQuantization.from_dict({"format": "affine", "bits": 4})
        Traceback (most recent call last):
        pagedkv_protocols.errors.IllegalFormat: a page format was described by ['bits', 'format']...
        """
        check_parameters(data, dict.fromkeys(("format", "bits", "group_size", "value_bits"), ...))
        codec = cls(
            cast("int", data["bits"]),
            cast("int", data["group_size"]),
            cast("str", data["format"]),
            cast("int", data["value_bits"]),
        )
        check_parameters(data, codec.to_dict())  # nothing was left to be filled in
        return codec

    def _planes(
        self, prefix: str, dim: int, bits: int, dtype: mx.Dtype
    ) -> Iterator[PlaneSpec[mx.Dtype]]:
        yield PlaneSpec(f"{prefix}_codes", dim * bits // 32, mx.uint32)
        groups = dim // self.group_size
        if self.mode != "affine":
            yield PlaneSpec(f"{prefix}_scales", groups, mx.uint8)
            return
        yield PlaneSpec(f"{prefix}_scales", groups, dtype)
        yield PlaneSpec(f"{prefix}_biases", groups, dtype)

    def _encode(self, rows: mx.array, bits: int) -> tuple[mx.array, ...]:
        if rows.size:
            return tuple(mx.quantize(rows, self.group_size, bits, self.mode))
        specs = self._planes("", rows.shape[-1], bits, rows.dtype)  # MLX refuses to code no rows
        return tuple(mx.zeros((*rows.shape[:-1], spec.width), spec.dtype) for spec in specs)

    def _decode(self, coded: Sequence[mx.array], dim: int, bits: int, dtype: mx.Dtype) -> mx.array:
        codes, scales = coded[:2]
        if not codes.size:
            return mx.zeros((*codes.shape[:-1], dim), dtype)
        if self.mode != "affine":
            return mx.dequantize(codes, scales, None, self.group_size, bits, self.mode).astype(
                dtype
            )
        # One row is decoded inside recorded steps, where bytes cannot be looked at otherwise.
        many = codes.shape[-2] > 1 and mx.default_device() == mx.cpu
        numbers = affine_numbers if many else mx.dequantize
        return numbers(codes, scales, coded[2], self.group_size, bits).astype(dtype)


if TYPE_CHECKING:
    _: PageCodec[mx.array, mx.Dtype] = cast("PagedQuantization", None)
