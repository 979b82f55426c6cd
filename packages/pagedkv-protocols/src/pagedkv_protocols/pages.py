"""Page formats: how the bytes of a page mean keys and values."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Generic, Protocol, TypeVar

from typing_extensions import NamedTuple

ArrayT = TypeVar("ArrayT")
DtypeT = TypeVar("DtypeT")


class PlaneSpec(NamedTuple, Generic[DtypeT]):
    """One array of a pool: ``[1, Hkv, slots * block_size, width]`` of ``dtype``.

    With ``per_block`` it holds one row a block instead: ``[1, Hkv, slots, width]``.
    """

    name: str
    width: int
    dtype: DtypeT
    per_block: bool = False


class PageCodec(Hashable, Protocol[ArrayT, DtypeT]):
    """How rows become page bytes and return: a frozen value, the same for every row.

    - a row's codes depend on that row alone, whatever rows share the call;
    - ``decode(*encode(k, v))`` is what every read attends;
    - ``from_dict(to_dict())`` is equal to the codec.
    """

    @property
    def name(self) -> str:
        """The format's name, such as ``dense`` or ``affine``."""
        ...

    def planes(
        self, key_dim: int, value_dim: int, dtype: DtypeT, /
    ) -> tuple[PlaneSpec[DtypeT], ...]:
        """The arrays that hold rows of these dims, whose first keys had ``dtype``.

        Raises ``IllegalFormat`` naming K or V, the dim and the legal choices.
        """
        ...

    def encode(self, keys: ArrayT, values: ArrayT, /) -> tuple[ArrayT, ...]:
        """Rows ``[1, Hkv, L, Dk]``, ``[1, Hkv, L, Dv]`` to one ``[1, Hkv, L, width]`` a plane."""
        ...

    def decode(
        self, rows: Sequence[ArrayT], key_dim: int, value_dim: int, dtype: DtypeT, /
    ) -> tuple[ArrayT, ArrayT]:
        """Rows of each plane, in order, back to keys ``[..., Dk]`` and values ``[..., Dv]``."""
        ...

    def signature(self) -> str:
        """Every parameter that the meaning of a page's bytes depends on."""
        ...

    def to_dict(self) -> dict[str, int | str | bool | None]:
        """The codec's parameters as plain data, ``format`` among them."""
        ...

    @classmethod
    def from_dict(cls, data: Mapping[str, object], /) -> PageCodec[ArrayT, DtypeT]:
        """The codec that ``to_dict`` described; raises ``IllegalFormat`` if anything differs."""
        ...
