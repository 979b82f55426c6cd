"""Sample kernels and how they are launched on the emulator."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import mlx.core as mx

from pagedkv_metal import EmulatorBackend

SAMPLES = pathlib.Path(__file__).parent / "samples"

Template = Sequence[tuple[str, "int | bool | mx.Dtype"]]


class Kernel(NamedTuple):
    """A body and its header, by the name under which a report shows them."""

    name: str
    source: str
    header: str = ""

    def edited(self, old: str, new: str) -> Kernel:
        """With ``new`` for ``old``, which stands once in the source or else in the header."""
        if old in self.source:
            assert self.source.count(old) == 1
            return self._replace(source=self.source.replace(old, new))
        assert self.header.count(old) == 1
        return self._replace(header=self.header.replace(old, new))


def sample(name: str) -> Kernel:
    """A correct kernel of ``samples/``, with its header where it has one."""
    source, header = SAMPLES / f"{name}.metal", SAMPLES / f"{name}.h"
    return Kernel(name, source.read_text(), header.read_text() if header.exists() else "")


def launched(
    kernel: Kernel,
    inputs: Mapping[str, mx.array],
    outputs: Mapping[str, tuple[Sequence[int], mx.Dtype]],
    *,
    grid: tuple[int, int, int],
    threadgroup: tuple[int, int, int] = (32, 1, 1),
    template: Template = (),
    backend: EmulatorBackend | None = None,
) -> list[mx.array]:
    """The kernel's outputs."""
    launch = (backend or EmulatorBackend()).compile(
        kernel.name, kernel.source, list(inputs), list(outputs), kernel.header
    )
    return launch(
        inputs=list(inputs.values()),
        template=template,
        grid=grid,
        threadgroup=threadgroup,
        output_shapes=[shape for shape, _ in outputs.values()],
        output_dtypes=[dtype for _, dtype in outputs.values()],
    )
