"""EmulatorBackend: kernels of the Metal language, run and checked on a CPU."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, cast

import mlx.core as mx

from pagedkv_metal.emulator.address_spaces import pass_options
from pagedkv_metal.emulator.cache import Cache
from pagedkv_metal.emulator.compiler import find_compiler
from pagedkv_metal.emulator.front import KernelText
from pagedkv_metal.emulator.launch import EmulatorLaunch, Workshop
from pagedkv_protocols import KernelBackend


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
        workshop = Workshop(find_compiler(), self._cache, self.seed, self.cpu_seconds)
        return EmulatorLaunch(kernel, workshop)

    def options(self) -> Mapping[str, str]:
        """The compiler and its flags, and whether address spaces are checked."""
        compiler = find_compiler()
        return {
            "compiler": compiler.version.splitlines()[0],
            "flags": " ".join(compiler.kernel_flags),
            "address spaces": pass_options(),
        }


if TYPE_CHECKING:
    _: KernelBackend[mx.array, mx.Dtype] = cast("EmulatorBackend", None)
