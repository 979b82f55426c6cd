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
    """Kernels of the Metal language run on a CPU as they are, and what is wrong is reported.

    - MLX writes the signature and the address spaces; the body's text is the author's.
    - Every load and store, barrier and simd operation is checked; a fault raises
      ``EmulatorFault`` with its kind, line, thread and buffer, and there is no output then.
    - A launch has a process of its own: what crashes or never ends is that process.
    - ``seed`` decides in which order threads run; a correct kernel gives the same bits for all.

    ``cpu_seconds`` ends a launch that computes for longer. Compiled kernels are kept in ``cache``,
    by default ``pagedkv/emulator`` in the user's cache folder, which may be removed at any time.

    >>> body = "uint i = thread_position_in_grid.x; y[i] = x[i + 1] - x[i];"
    >>> launch = EmulatorBackend().compile("difference", body, ["x"], ["y"])
    >>> launch(inputs=[mx.arange(32.0)], template=[], grid=(32, 1, 1), threadgroup=(32, 1, 1),
    ...        output_shapes=[(32,)], output_dtypes=[mx.float32])
    Traceback (most recent call last):
    pagedkv_metal.errors.EmulatorFault: kernel difference: access out of bounds: thread (31, 0, 0)\
 of threadgroup (0, 0, 0) reads 4 bytes at offset 128 of input x, which has 128 bytes, at\
 difference.metal:1
    """

    name: str = "emulator"

    def __init__(
        self, *, seed: int = 0, cpu_seconds: int = 60, cache: pathlib.Path | None = None
    ) -> None:
        self.seed: int = seed
        self.cpu_seconds: int = cpu_seconds
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
