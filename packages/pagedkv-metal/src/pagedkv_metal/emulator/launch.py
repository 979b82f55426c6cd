"""EmulatorLaunch: one kernel, checked, for whatever arguments it is called with."""

from __future__ import annotations

import math
import pathlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple, cast

import mlx.core as mx

from pagedkv_metal.emulator.address_spaces import examined, pass_options
from pagedkv_metal.emulator.cache import Cache
from pagedkv_metal.emulator.compiler import (
    RUNNER_FLAGS,
    RUNNER_LINKS,
    Compiler,
    own_text,
    runtime_text,
)
from pagedkv_metal.emulator.front import KernelText, MetalText, Template, metal_text
from pagedkv_metal.emulator.process import Buffer, Outcome, Shape, run
from pagedkv_metal.emulator.report import sentence
from pagedkv_metal.emulator.translation import translation
from pagedkv_metal.errors import EmulatorFault
from pagedkv_protocols import InvalidArgument

Triple = tuple[int, int, int]


class Workshop(NamedTuple):
    """Where kernels are compiled and kept, and how they are run."""

    compiler: Compiler
    cache: Cache
    seed: int
    cpu_seconds: int

    def runner(self) -> str:
        """The path of the process that runs kernels."""
        parts = [self.compiler.version, *RUNNER_FLAGS, *RUNNER_LINKS, runtime_text()]
        return self.cache.file(parts, "", self.compiler.runner)

    def library(self, kernel: KernelText, text: MetalText) -> str:
        """The path of a kernel, compiled."""
        told = [self.compiler.version, *self.compiler.kernel_flags, pass_options()]
        texts = [kernel.name, kernel.header, kernel.source, text.signature, text.instance]

        def make(path: pathlib.Path) -> None:
            found = examined(kernel, text)
            if found.errors:
                said = "; ".join(found.errors[:3])
                raise EmulatorFault(f"kernel {kernel.name} is not Metal: {said}")
            unit = translation(kernel, text, (found.in_header, found.in_source))
            self.compiler.kernel(unit, kernel.name, path)

        return self.cache.file([*told, own_text(), *texts], ".so", make)


class EmulatorLaunch:
    """A kernel that runs where it is called: the outputs are there when it returns."""

    def __init__(self, kernel: KernelText, workshop: Workshop) -> None:
        self._kernel = kernel
        self._workshop = workshop

    def __call__(
        self,
        *,
        inputs: Sequence[mx.array],
        template: Template,
        grid: Triple,
        threadgroup: Triple,
        output_shapes: Sequence[Sequence[int]],
        output_dtypes: Sequence[mx.Dtype],
    ) -> list[mx.array]:
        """Raises ``EmulatorFault`` where the kernel is wrong, and gives no output then."""
        self._check(inputs, output_shapes, output_dtypes)
        shape = self._shape(grid, threadgroup)
        arrays = [mx.contiguous(array) for array in inputs]
        mx.eval(arrays)
        text = metal_text(self._kernel, arrays, template, output_shapes, output_dtypes)
        library = self._workshop.library(self._kernel, text)
        buffers = self._buffers(text, arrays, output_shapes, output_dtypes)
        outcome = run(self._workshop.runner(), library, buffers, shape)
        self._check_outcome(outcome, library)
        return [
            _array(data, shape, dtype)
            for data, dtype, shape in zip(
                outcome.outputs, output_dtypes, output_shapes, strict=True
            )
        ]

    def _check(
        self,
        inputs: Sequence[mx.array],
        output_shapes: Sequence[Sequence[int]],
        output_dtypes: Sequence[mx.Dtype],
    ) -> None:
        found = len(inputs), len(output_shapes), len(output_dtypes)
        wanted = len(self._kernel.inputs), len(self._kernel.outputs), len(self._kernel.outputs)
        if found != wanted:
            raise InvalidArgument(
                f"kernel {self._kernel.name} got {found[0]} inputs, {found[1]} output shapes and "
                f"{found[2]} output dtypes; it takes {wanted[0]}, {wanted[1]} and {wanted[2]}"
            )

    def _shape(self, grid: Triple, threadgroup: Triple) -> Shape:
        whole = all(t > 0 and g > 0 and g % t == 0 for g, t in zip(grid, threadgroup, strict=True))
        if not whole or math.prod(threadgroup) > 1024:
            raise InvalidArgument(
                f"kernel {self._kernel.name} got grid {grid} and threadgroup {threadgroup}; a grid "
                "is a multiple of its threadgroup, and a threadgroup has 1 to 1024 threads"
            )
        x, y, z = (g // t for g, t in zip(grid, threadgroup, strict=True))
        return Shape((x, y, z), threadgroup, self._workshop.seed, self._workshop.cpu_seconds)

    def _buffers(
        self,
        text: MetalText,
        arrays: Sequence[mx.array],
        output_shapes: Sequence[Sequence[int]],
        output_dtypes: Sequence[mx.Dtype],
    ) -> list[Buffer]:
        named = {buffer.name: buffer for buffer in _input_buffers(self._kernel.inputs, arrays)}
        for name, shape, dtype in zip(
            self._kernel.outputs, output_shapes, output_dtypes, strict=True
        ):
            named[name] = Buffer(name, None, math.prod(shape) * dtype.size)
        return [named[parameter.name] for parameter in text.parameters if parameter.is_buffer]

    def _check_outcome(self, outcome: Outcome, library: str) -> None:
        if outcome.report:
            raise EmulatorFault(f"kernel {self._kernel.name}: {sentence(outcome.report, library)}")
        if outcome.status:
            raise EmulatorFault(
                f"kernel {self._kernel.name}: its process ended with status {outcome.status}"
            )


def _input_buffers(names: Sequence[str], arrays: Sequence[mx.array]) -> Iterable[Buffer]:
    """Each input, and what MLX offers of it beside: its shape, strides and rank."""
    for name, array in zip(names, arrays, strict=True):
        yield _buffer(name, array)
        yield _buffer(f"{name}_shape", mx.array(array.shape, mx.int32))
        yield _buffer(f"{name}_strides", mx.array(_row_major(array.shape), mx.int64))
        yield _buffer(f"{name}_ndim", mx.array([array.ndim], mx.int32))


def _buffer(name: str, array: mx.array) -> Buffer:
    data = array.reshape(-1).view(mx.uint8)
    # MLX's stubs do not say that an array offers its buffer.
    return Buffer(name, memoryview(cast("bytes", data)), array.nbytes)


def _array(data: bytes, shape: Sequence[int], dtype: mx.Dtype) -> mx.array:
    # Nor that one is made from a buffer.
    return mx.array(cast("mx.array", memoryview(data))).view(dtype).reshape(tuple(shape))


def _row_major(shape: Sequence[int]) -> list[int]:
    return [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
