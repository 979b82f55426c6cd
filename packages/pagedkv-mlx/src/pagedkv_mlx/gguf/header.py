"""The front of a GGUF file: its metadata and the list of its tensors."""

import math
import mmap
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar, Union

from attrs import frozen

from pagedkv_protocols import ModelNotFound, UnsupportedModel

T = TypeVar("T", bool, int, float, str)
Value = Union[bool, int, float, str, "list[Value]"]

NUMBERS = dict(enumerate("BbHhIif?")) | dict(enumerate("Qqd", 10))
"""The codes of `struct` for the types of metadata that are numbers."""
STRING, ARRAY = 8, 9

# What `mx.load` reads rightly: name, weights in a block, bytes of a block. BF16 passes through
# fp16 there, so that weights under 6e-5 lose bits.
TENSOR_TYPES = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    8: ("Q8_0", 32, 34),
    10: ("Q2_K", 256, 84),
    14: ("Q6_K", 256, 210),
    30: ("BF16", 1, 2),
}
# Q4_K is here because MLX 0.32.4 reads every second group of 32 with its neighbour's scale.
REFUSED_TYPES = {6: "Q5_0", 7: "Q5_1", 9: "Q8_1", 11: "Q3_K", 12: "Q4_K", 13: "Q5_K", 15: "Q8_K"}


@frozen
class Header:
    """A GGUF file's metadata, and the shape of each of its tensors, rows first."""

    name: str
    metadata: Mapping[str, Value]
    shapes: Mapping[str, tuple[int, ...]]

    def maybe(self, key: str, kind: type[T]) -> T | None:
        """The value at ``key``, or None where the file has none; another type is refused."""
        value = self.metadata.get(key)
        if value is None or type(value) is kind:
            return value
        raise UnsupportedModel(f"{self.name}: {key} is {value!r:.40}, wanted one {kind.__name__}")

    def one(self, key: str, kind: type[T]) -> T:
        """The value at ``key``; none is refused."""
        value = self.maybe(key, kind)
        if value is None:
            raise UnsupportedModel(f"{self.name}: the metadata has no {key}")
        return value

    def many(self, key: str, kind: type[T]) -> list[T]:
        """The list at ``key``; none, or one with anything but ``kind`` in it, is refused."""
        values = self.metadata.get(key)
        if not isinstance(values, list):
            raise UnsupportedModel(f"{self.name}: the metadata has no list {key}")
        chosen = [value for value in values if type(value) is kind]
        if len(chosen) < len(values):
            raise UnsupportedModel(f"{self.name}: {key} holds more than {kind.__name__}")
        return chosen


def read_header(path: Path) -> Header:
    """The header of a whole GGUF file, of which every tensor can be read.

    Raises ``ModelNotFound`` where there is no such file, and ``UnsupportedModel`` for a file that
    is no GGUF, is cut short, or has a tensor of a type that ``mx.load`` does not read rightly.
    """
    try:
        with path.open("rb") as file:
            if file.read(4) != b"GGUF":
                raise UnsupportedModel(f"{path} is no GGUF file: it does not begin with 'GGUF'")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _Parser(data, path.name).header()
    except (EOFError, UnicodeDecodeError) as error:
        raise UnsupportedModel(f"{path} is cut short or damaged: {error}") from error
    except OSError as error:
        raise ModelNotFound(f"no GGUF file can be read at {path}: {error.strerror}") from error


class _Parser:
    """A position in the file's bytes; every read is checked against their end."""

    def __init__(self, data: mmap.mmap, name: str) -> None:
        self.data = data
        self.name = name
        self.at = 4

    def header(self) -> Header:
        version = self.integer("I")
        if version not in {2, 3}:
            raise UnsupportedModel(f"{self.name}: GGUF version {version}, known are 2 and 3")
        num_tensors, num_keys = self.integer("Q"), self.integer("Q")
        metadata = {self.text(): self.value(self.integer("I")) for _ in range(num_keys)}
        tensors = [self.tensor() for _ in range(num_tensors)]
        alignment = metadata.get("general.alignment", 32)
        self.check_end(tensors, alignment if isinstance(alignment, int) else 32)
        return Header(self.name, metadata, {name: shape for name, shape, _ in tensors})

    def take(self, count: int) -> bytes:
        end = self.at + count
        if end > len(self.data):
            raise EOFError(f"byte {end} is wanted, there are {len(self.data)}")
        taken = self.data[self.at : end]
        self.at = end
        return taken

    def integer(self, code: str) -> int:
        return int(self.numbers(code, 1)[0])

    def numbers(self, code: str, count: int) -> tuple[bool | int | float, ...]:
        taken = self.take(count * struct.calcsize("<" + code))
        return struct.unpack(f"<{count}{code}", taken)

    def text(self) -> str:
        return self.take(self.integer("Q")).decode()

    def value(self, kind: int) -> Value:
        if kind == STRING:
            return self.text()
        if kind == ARRAY:
            return self.array(self.integer("I"), self.integer("Q"))
        if kind not in NUMBERS:
            raise UnsupportedModel(f"{self.name}: metadata of type {kind} at byte {self.at}")
        return self.numbers(NUMBERS[kind], 1)[0]

    def array(self, kind: int, count: int) -> list[Value]:
        if kind in NUMBERS:
            return list(self.numbers(NUMBERS[kind], count))
        if kind != STRING:
            raise UnsupportedModel(f"{self.name}: a metadata list of type {kind}")
        return [self.text() for _ in range(count)]

    def tensor(self) -> tuple[str, tuple[int, ...], int]:
        """Name, shape, and the first byte behind it, counted from the start of the tensors."""
        name = self.text()
        shape = tuple(int(dim) for dim in self.numbers("Q", self.integer("I")))[::-1]
        kind, offset = self.integer("I"), self.integer("Q")
        if kind not in TENSOR_TYPES:
            given = REFUSED_TYPES.get(kind, f"type {kind}")
            known = ", ".join(known for known, _, _ in TENSOR_TYPES.values())
            raise UnsupportedModel(f"{self.name}: {name} is stored as {given}, read are {known}")
        _, block, block_bytes = TENSOR_TYPES[kind]
        return name, shape, offset + -(-math.prod(shape) // block) * block_bytes

    def check_end(self, tensors: list[tuple[str, tuple[int, ...], int]], alignment: int) -> None:
        start = -(-self.at // alignment) * alignment
        end = start + max((end for _, _, end in tensors), default=0)
        if end > len(self.data):
            raise EOFError(f"its tensors end at byte {end}, there are {len(self.data)}")
