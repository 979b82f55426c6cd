"""EmulatorBackend: kernels of the Metal language, run and checked on a CPU."""

from __future__ import annotations

import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, cast

import mlx.core as mx

from pagedkv_metal.emulator.cache import Cache
from pagedkv_metal.emulator.compiler import (
    KERNEL_FLAGS,
    RUNNER_FLAGS,
    RUNTIME,
    Compiler,
    find_compiler,
)
from pagedkv_metal.emulator.front import KernelText, MetalText, Parameter, Template, metal_text
from pagedkv_metal.emulator.process import Buffer, Shape, run
from pagedkv_metal.emulator.translation import translation
from pagedkv_metal.errors import EmulatorFault
from pagedkv_protocols import InvalidArgument, KernelBackend, Launch

Triple = tuple[int, int, int]


class EmulatorBackend:
    """Kernels run as host C++ in a child process, threads in an order that ``seed`` decides."""

    name = "emulator"

    def __init__(
        self, *, seed: int = 0, cpu_seconds: int = 60, cache: pathlib.Path | None = None
    ) -> None:
        self.seed = seed
        self.cpu_seconds = cpu_seconds
        self._cache = Cache(cache)

    def compile(
        self,
        name: str,
        source: str,
        inputs: Sequence[str],
        outputs: Sequence[str],
        header: str = "",
        /,
    ) -> EmulatorLaunch:
        """A launch of ``source``; it is compiled when the first arguments are known."""
        kernel = KernelText(name, source, tuple(inputs), tuple(outputs), header)
        return EmulatorLaunch(self, kernel, find_compiler())

    def options(self) -> Mapping[str, str]:
        """The compiler and its flags."""
        compiler = find_compiler()
        return {"compiler": compiler.version.splitlines()[0], "flags": " ".join(KERNEL_FLAGS)}


class EmulatorLaunch:
    """One kernel, for whatever arguments it is called with."""

    def __init__(self, backend: EmulatorBackend, kernel: KernelText, compiler: Compiler) -> None:
        self._backend = backend
        self._kernel = kernel
        self._compiler = compiler

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
        """Run every thread; the outputs are there when this returns."""
        if len(inputs) != len(self._kernel.inputs):
            raise InvalidArgument(
                f"kernel {self._kernel.name} takes {len(self._kernel.inputs)} inputs and got "
                f"{len(inputs)}; give one array for each of {', '.join(self._kernel.inputs)}"
            )
        arrays = [mx.contiguous(array) for array in inputs]
        mx.eval(arrays)
        text = metal_text(self._kernel, arrays, template, output_shapes, output_dtypes)
        sizes = [
            math.prod(shape) * dtype.size for shape, dtype in zip(output_shapes, output_dtypes)
        ]
        outputs = [Buffer(name, None, size) for name, size in zip(self._kernel.outputs, sizes)]
        by_name = {buffer.name: buffer for buffer in [*self._input_buffers(arrays), *outputs]}
        buffers = [by_name[p.name] for p in text.parameters if p.is_buffer]
        groups = tuple(g // t for g, t in zip(grid, threadgroup))
        outcome = run(
            self._runner(),
            self._library(text),
            buffers,
            Shape(groups, threadgroup, self._backend.seed, self._backend.cpu_seconds),
        )
        if outcome.report or outcome.status:
            raise EmulatorFault(f"kernel {self._kernel.name}: {outcome.report} ({outcome.status})")
        return [
            mx.array(memoryview(data)).view(dtype).reshape(shape)
            for data, dtype, shape in zip(outcome.outputs, output_dtypes, output_shapes)
        ]

    def _runner(self) -> str:
        parts = [self._compiler.version, *RUNNER_FLAGS, _runtime_text()]
        return self._backend._cache.file(parts, "", self._compiler.runner)

    def _library(self, text: MetalText) -> str:
        unit = translation(self._kernel, text)
        parts = [self._compiler.version, *KERNEL_FLAGS, _runtime_text(), unit]
        return self._backend._cache.file(
            parts, ".so", lambda path: self._compiler.kernel(unit, self._kernel.name, path)
        )

    def _input_buffers(self, arrays: Sequence[mx.array]) -> list[Buffer]:
        found = []
        for name, array in zip(self._kernel.inputs, arrays):
            found.append(Buffer(name, memoryview(array.reshape(-1).view(mx.uint8)), array.nbytes))
            shape = memoryview(mx.array(array.shape, mx.int32).view(mx.uint8))
            found.append(Buffer(f"{name}_shape", shape, shape.nbytes))
        return found


def _runtime_text() -> str:
    return "".join(path.read_text() for path in sorted(RUNTIME.iterdir()))


if TYPE_CHECKING:
    _: KernelBackend[mx.array, mx.Dtype] = cast("EmulatorBackend", None)
