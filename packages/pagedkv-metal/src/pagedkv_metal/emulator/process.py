"""A launch in a process of its own, over memory that both sides see.

The checks stop nearly every wrong access before it is made. Three things they cannot stop: a
stack that overflows, a private array whose address the compiler folded away, and a loop without
an end. None of them may take the caller's Python with it, and starting a small process costs
about two milliseconds. So there is one for each launch, and it has nothing to clean up.
"""

from __future__ import annotations

import mmap
import os
import struct
import subprocess
from collections.abc import Iterator, Sequence
from typing import NamedTuple

LAYOUT = 1
"""Of ``launch.h``: raised with every change of what follows."""

HEAD = struct.Struct("=QQQQ3I3IQ")
BUFFER = struct.Struct("=64sQQQ")
REPORT_BYTES = 16384
MAX_BUFFERS = 96
HEADER_BYTES = HEAD.size + REPORT_BYTES + MAX_BUFFERS * BUFFER.size
FINISHED_AT = HEAD.size - 8
PAGE = mmap.PAGESIZE


class Buffer(NamedTuple):
    """An input with its bytes, or an output with as many bytes as it will have."""

    name: str
    data: memoryview | None
    size: int


class Shape(NamedTuple):
    """Threadgroups, threads in each, and what orders them."""

    groups: tuple[int, int, int]
    threads: tuple[int, int, int]
    seed: int
    cpu_seconds: int


class Outcome(NamedTuple):
    """The outputs' bytes, or what went wrong: a report, or a process that died."""

    outputs: list[bytes]
    report: str
    status: int


def run(runner: str, kernel: str, buffers: Sequence[Buffer], shape: Shape) -> Outcome:
    """Run ``kernel`` in a child: whatever it does, this process goes on."""
    offsets, size = _offsets(buffers)
    file = os.memfd_create("pagedkv-emulator", os.MFD_CLOEXEC)
    try:
        os.ftruncate(file, size)
        with mmap.mmap(file, size) as memory:
            _write(memory, buffers, offsets, shape)
            status = _wait(runner, kernel, file, 20 * shape.cpu_seconds)
            return _outcome(memory, buffers, offsets, status)
    finally:
        os.close(file)


def _wait(runner: str, kernel: str, file: int, seconds: float) -> int:
    words = [runner, str(file), kernel]
    try:
        return subprocess.run(words, pass_fds=[file], check=False, timeout=seconds).returncode  # noqa: S603
    except subprocess.TimeoutExpired:
        return 124


def _offsets(buffers: Sequence[Buffer]) -> tuple[list[int], int]:
    offsets, at = [], _pages(HEADER_BYTES)
    for buffer in buffers:
        offsets.append(at)
        at += _pages(buffer.size)
    return offsets, at


def _pages(size: int) -> int:
    return -(-size // PAGE) * PAGE


def _write(
    memory: mmap.mmap, buffers: Sequence[Buffer], offsets: Sequence[int], shape: Shape
) -> None:
    head = (LAYOUT, shape.seed, shape.cpu_seconds, len(buffers), *shape.groups, *shape.threads, 0)
    HEAD.pack_into(memory, 0, *head)
    at = HEAD.size + REPORT_BYTES
    for buffer, offset in zip(buffers, offsets, strict=True):
        name = buffer.name.encode()[:63]
        BUFFER.pack_into(memory, at, name, offset, buffer.size, buffer.data is None)
        at += BUFFER.size
        if buffer.data is not None:
            memory[offset : offset + buffer.size] = buffer.data


def _outcome(
    memory: mmap.mmap, buffers: Sequence[Buffer], offsets: Sequence[int], status: int
) -> Outcome:
    report = memory[HEAD.size : HEAD.size + REPORT_BYTES].partition(b"\0")[0].decode()
    finished = struct.unpack_from("=Q", memory, FINISHED_AT)[0] == 1
    if status or report or not finished:
        return Outcome([], report, status)
    return Outcome(list(_output_bytes(memory, buffers, offsets)), "", 0)


def _output_bytes(
    memory: mmap.mmap, buffers: Sequence[Buffer], offsets: Sequence[int]
) -> Iterator[bytes]:
    for buffer, offset in zip(buffers, offsets, strict=True):
        if buffer.data is None:
            yield memory[offset : offset + buffer.size]
