"""CudaBackend: kernels of the Metal language on NVIDIA GPUs, by ``mx.fast.cuda_kernel``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from typing import TYPE_CHECKING, cast

import mlx.core as mx

from pagedkv_protocols import InvalidArgument, KernelBackend, Unsupported

Template = Sequence[tuple[str, "int | bool | mx.Dtype"]]

Negatives = tuple[tuple[str, int], ...]

BODY_WORDS = {
    "device": "",
    "constant": "",
    "threadgroup": "__shared__",
    "thread_position_in_grid": "(pagedkv_thread_in_grid())",
    "thread_position_in_threadgroup": "threadIdx",
    "threadgroup_position_in_grid": "blockIdx",
    "threads_per_threadgroup": "blockDim",
    "threadgroups_per_grid": "gridDim",
    "thread_index_in_threadgroup": "(pagedkv_thread_index())",
    "thread_index_in_simdgroup": "(pagedkv_thread_index() % 32)",
    "simdgroup_index_in_threadgroup": "(pagedkv_thread_index() / 32)",
}
"""Words that mean something else, or nothing, outside a body: defined before, gone after it."""

HELPERS = {"inline": "__device__ __forceinline__"}
"""Every function of a kernel's header runs on the GPU."""


class CudaBackend:
    """Kernels compiled by NVRTC for the GPU that MLX uses."""

    name = "cuda"

    def compile(
        self,
        name: str,
        source: str,
        inputs: Sequence[str],
        outputs: Sequence[str],
        header: str = "",
        /,
    ) -> CudaLaunch:
        """A launch of ``source``; it is compiled when the first arguments are known.

        Raises ``Unsupported`` where MLX has no NVIDIA GPU.
        """
        if not mx.cuda.is_available():
            raise Unsupported(f"kernel {name} needs an NVIDIA GPU; MLX has {mx.default_device()}")
        return CudaLaunch(name, source, tuple(inputs), tuple(outputs), cuda_header(header))

    def options(self) -> Mapping[str, str]:
        """Which device the kernels run on."""
        return {
            "compiler": "NVRTC, through mx.fast.cuda_kernel",
            "device": str(mx.default_device()),
        }


class CudaLaunch:
    """One kernel, for whatever arguments it is called with."""

    def __init__(
        self,
        name: str,
        source: str,
        inputs: Sequence[str],
        outputs: Sequence[str],
        header: str,
    ) -> None:
        self._name = name
        self._source = source
        self._inputs = inputs
        self._outputs = outputs
        self._header = header
        self._kernels: dict[Negatives, Callable[..., list[mx.array]]] = {}

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
        if len(inputs) != len(self._inputs):
            raise InvalidArgument(
                f"kernel {self._name} got {len(inputs)} inputs; it takes {len(self._inputs)}"
            )
        named, negatives = parted(template)
        return self._kernel(negatives)(
            inputs=list(inputs),
            template=named,
            grid=grid,
            threadgroup=threadgroup,
            output_shapes=[tuple(shape) for shape in output_shapes],
            output_dtypes=list(output_dtypes),
            stream=mx.gpu,
        )

    def _kernel(self, negatives: Negatives) -> Callable[..., list[mx.array]]:
        if negatives not in self._kernels:
            above = "".join(f"constexpr int {name} = {number};\n" for name, number in negatives)
            name = "_".join([self._name, *(f"{word}_minus_{-n}" for word, n in negatives)])
            kernel = mx.fast.cuda_kernel(
                name, list(self._inputs), list(self._outputs), cuda_body(above + self._source),
                self._header,
            )  # fmt: skip
            self._kernels[negatives] = cast("Callable[..., list[mx.array]]", kernel)
        return self._kernels[negatives]


def parted(template: Template) -> tuple[list[tuple[str, int | bool | mx.Dtype]], Negatives]:
    """The arguments that MLX can take, and those below 0, which would spoil a function's name.

    >>> parted([("N", 3), ("M", -3)])
    ([('N', 3)], (('M', -3),))
    """
    negatives = tuple((n, v) for n, v in template if isinstance(v, int) and v < 0)
    return [pair for pair in template if pair not in negatives], negatives


def cuda_header(header: str) -> str:
    """The prelude, then ``header`` with its functions made the device's.

    >>> "inline" in cuda_header("inline int one() { return 1; }")
    True
    """
    return f"{prelude()}\n{worded(header, HELPERS)}"


def cuda_body(source: str) -> str:
    """``source`` between the definitions of the dialect's words and their end."""
    return worded(source, BODY_WORDS)


def worded(text: str, words: Mapping[str, str]) -> str:
    """``text`` with macros that last as long as it does.

    >>> print(worded("device", {"device": ""}))
    #define device
    device
    #undef device
    <BLANKLINE>
    """
    before = [f"#define {word} {meaning}".rstrip() for word, meaning in words.items()]
    return "\n".join([*before, text, *(f"#undef {word}" for word in words), ""])


def prelude() -> str:
    """The dialect's words in CUDA."""
    return (files("pagedkv_cuda") / "prelude.cuh").read_text(encoding="utf-8")


if TYPE_CHECKING:
    _: KernelBackend[mx.array, mx.Dtype] = cast("CudaBackend", None)
