"""A toy array library, and a codec, a pool and a kernel backend over it, each of a few lines."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from pagedkv_protocols import (
    BlockNotHeld,
    IllegalFormat,
    InvalidArgument,
    KernelBackend,
    PageCodec,
    PlaneSpec,
    PoolExhausted,
)
from pagedkv_protocols.conformance import ArrayAdapter, Pool
from pagedkv_protocols.conformance.kernels import (
    ELEMENTWISE,
    SIMD_SUM,
    THREADGROUP_SUM,
    WITH_HEADER,
)
from pagedkv_protocols.conformance.rows import rounded


@dataclass
class Tensor:
    """Numbers in row-major order."""

    shape: tuple[int, ...]
    dtype: str
    numbers: list[float]


class Tensors:
    """What the kit needs to know about ``Tensor``."""

    def make(self, values, shape, dtype, /):
        whole = dtype in ("bool", "int8", "int32")
        numbers = [float(x) if whole else rounded(x, dtype) for x in values]
        assert len(numbers) == math.prod(shape)
        return Tensor(tuple(shape), dtype, numbers)

    def shape(self, array, /):
        return array.shape

    def dtype(self, array, /):
        return array.dtype

    def values(self, array, /):
        return list(array.numbers)

    def bits(self, array, /):
        return b"".join(f"{number!r:>32}".encode() for number in array.numbers)

    def evaluate(self, arrays, /):
        """Nothing is ever pending."""

    def spoil(self, array, /):
        array.numbers = [0.0 for _ in array.numbers]


@dataclass(frozen=True)
class ToyCodec:
    """Numbers as multiples of 1/64 in eight bits, which it clips; dims are even."""

    steps: int = 64

    @property
    def name(self):
        return "toy"

    def planes(self, key_dim, value_dim, dtype, /):
        for which, dim in (("K", key_dim), ("V", value_dim)):
            if dim % 2:
                raise IllegalFormat(f"{which} has dim {dim}; legal are even ones")
        return (PlaneSpec("keys", key_dim, "int8"), PlaneSpec("values", value_dim, "int8"))

    def encode(self, keys, values, /):
        return tuple(self._codes(rows) for rows in (keys, values))

    def _codes(self, rows):
        codes = [float(max(-128, min(127, round(x * self.steps)))) for x in rows.numbers]
        return Tensor(rows.shape, "int8", codes)

    def decode(self, rows, key_dim, value_dim, dtype, /):
        keys, values = (
            Tensor(plane.shape, dtype, [code / self.steps for code in plane.numbers])
            for plane in rows
        )
        return keys, values

    def signature(self):
        return f"toy/{self.steps}"

    def to_dict(self):
        return {"format": "toy", "steps": self.steps}

    @classmethod
    def from_dict(cls, data, /):
        if data.keys() != {"format", "steps"} or data["format"] != "toy":
            raise IllegalFormat(f"{dict(data)} describes no toy codec")
        return cls(data["steps"])


class ToyPool:
    """Holders, counted."""

    def __init__(self, num_blocks):
        self.holders = Counter(dict.fromkeys(range(num_blocks), 0))

    @property
    def num_free(self):
        return sum(not count for count in self.holders.values())

    def take(self, count, /):
        if count < 0:
            raise InvalidArgument(f"wanted {count} blocks")
        if count > self.num_free:
            raise PoolExhausted(f"wanted {count} blocks, {self.num_free} are free")
        taken = [block for block, holders in self.holders.items() if not holders][:count]
        self.holders.update(taken)
        return taken

    def share(self, blocks, /):
        self._check(blocks, dict.fromkeys(blocks, 1))
        self.holders.update(blocks)

    def release(self, blocks, /):
        self._check(blocks, Counter(blocks))
        self.holders.subtract(blocks)

    def _check(self, blocks, needed):
        for block in blocks:
            if self.holders.get(block, 0) < needed[block]:
                raise BlockNotHeld(f"block {block} has too few holders")


def sums(x, size):
    """The sum of each ``size`` numbers."""
    return [sum(x[at : at + size]) for at in range(0, len(x), size)]


PROGRAMS: dict[str, Callable[..., list[list[float]]]] = {
    ELEMENTWISE: lambda given, x, factor: [[n * factor[0] + given["N"] for n in x]],
    WITH_HEADER: lambda given, x: [[2 * n for n in x], [4 * n for n in x]],
    THREADGROUP_SUM: lambda given, x: [sums(x, 64)],
    SIMD_SUM: lambda given, x: [sums(x, 32)],
}
"""What the kit's kernels mean."""


class ToyBackend:
    """A compiler that knows a few sources by heart, and what an undeclared name is."""

    name = "toy"

    def options(self):
        return {"language": "python"}

    def compile(self, name, source, inputs, outputs, header="", /):
        declared = {*inputs, *outputs, *re.findall(r"threadgroup \w+ (\w+)\[", source)}
        unknown = set(re.findall(r"(\w+)\[", source)) - declared
        if unknown:
            raise InvalidArgument(f"{name} names {sorted(unknown)}, which nobody stated")

        def launch(*, inputs, template, grid, threadgroup, output_shapes, output_dtypes):
            if len(inputs) != len(wanted):
                raise InvalidArgument(f"{name} takes {len(wanted)} inputs, {len(inputs)} given")
            numbers = PROGRAMS[source](dict(template), *(x.numbers for x in inputs))
            triples = zip(numbers, output_shapes, output_dtypes, strict=True)
            return [Tensors().make(*triple) for triple in triples]

        wanted = list(inputs)
        return launch


if TYPE_CHECKING:
    _arrays: ArrayAdapter[Tensor] = cast("Tensors", None)
    _codec: PageCodec[Tensor, str] = cast("ToyCodec", None)
    _pool: Pool = cast("ToyPool", None)
    _backend: KernelBackend[Tensor, str] = cast("ToyBackend", None)
