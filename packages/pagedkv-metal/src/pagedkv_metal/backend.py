"""MetalBackend: kernels of the Metal language on Apple's GPUs, by ``mx.fast.metal_kernel``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, cast

import mlx.core as mx

from pagedkv_protocols import InvalidArgument, KernelBackend, Unsupported

Template = Sequence[tuple[str, "int | bool | mx.Dtype"]]


class MetalBackend:
    """Kernels compiled by Apple's compiler for the GPU that MLX uses."""

    name = "metal"

    def compile(
        self,
        name: str,
        source: str,
        inputs: Sequence[str],
        outputs: Sequence[str],
        header: str = "",
        /,
    ) -> MetalLaunch:
        """A launch of ``source``; it is compiled when the first arguments are known.

        Raises ``Unsupported`` where MLX has no Metal device.
        """
        if not mx.metal.is_available():
            raise Unsupported(f"kernel {name} needs Metal; MLX has {mx.default_device()}")
        kernel = mx.fast.metal_kernel(name, list(inputs), list(outputs), source, header)
        return MetalLaunch(name, len(inputs), cast("Callable[..., list[mx.array]]", kernel))

    def options(self) -> Mapping[str, str]:
        """Which device the kernels run on."""
        return {"compiler": "mx.fast.metal_kernel", "device": str(mx.default_device())}


class MetalLaunch:
    """One kernel, for whatever arguments it is called with."""

    def __init__(self, name: str, num_inputs: int, kernel: Callable[..., list[mx.array]]) -> None:
        self._name = name
        self._num_inputs = num_inputs
        self._kernel = kernel

    def __call__(
        self,
        *,
        inputs: Sequence[mx.array],
        template: Template,
        grid: tuple[int, int, int],
        threadgroup: tuple[int, int, int],
        output_shapes: Sequence[Sequence[int]],
        output_dtypes: Sequence[mx.Dtype],
    ) -> list[mx.array]:
        """Fresh, lazy outputs. Raises ``InvalidArgument`` for another number of inputs."""
        if len(inputs) != self._num_inputs:
            raise InvalidArgument(
                f"kernel {self._name} got {len(inputs)} inputs; it takes {self._num_inputs}"
            )
        return self._kernel(
            inputs=list(inputs),
            template=list(template),
            grid=grid,
            threadgroup=threadgroup,
            output_shapes=[tuple(shape) for shape in output_shapes],
            output_dtypes=list(output_dtypes),
            stream=mx.gpu,
        )


if TYPE_CHECKING:
    _: KernelBackend[mx.array, mx.Dtype] = cast("MetalBackend", None)
