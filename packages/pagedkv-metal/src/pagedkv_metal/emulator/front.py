"""KernelText and MetalText: the body that an author writes, and what MLX makes of it."""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple, cast

import mlx.core as mx

Template = Sequence[tuple[str, "int | bool | mx.Dtype"]]

_STDOUT = threading.Lock()
"""One capture at a time: file descriptor 1 belongs to the whole process."""


class KernelText(NamedTuple):
    """A kernel as ``mx.fast.metal_kernel`` takes it."""

    name: str
    source: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    header: str


class Parameter(NamedTuple):
    """One parameter of the function that MLX writes: a buffer or a thread's position."""

    type: str
    name: str
    is_buffer: bool


class MetalText(NamedTuple):
    """MLX's text in its three parts, the author's own two left out.

    >>> kernel = KernelText("double", "y[0] = x[0] + x[0]; //", ("x",), ("y",), "// header")
    >>> text = metal_text(kernel, [mx.zeros(8)], [], [(8,)], [mx.float32])
    >>> [parameter.type for parameter in text.parameters]
    ['const device float*', 'device float*']
    """

    signature: str
    function: str
    instance: str
    parameters: tuple[Parameter, ...]

    @property
    def is_template(self) -> bool:
        """Whether the function has template arguments."""
        return self.instance != self.function


def metal_text(
    kernel: KernelText,
    inputs: Sequence[mx.array],
    template: Template,
    output_shapes: Sequence[Sequence[int]],
    output_dtypes: Sequence[mx.Dtype],
) -> MetalText:
    """What ``mx.fast.metal_kernel`` would hand to Apple's compiler for these arguments.

    Nothing is evaluated and no GPU is needed: MLX traces the call and prints its text.
    """

    def call(*arrays: mx.array) -> list[mx.array]:
        launch = cast(
            "Callable[..., list[mx.array]]",
            mx.fast.metal_kernel(
                kernel.name, kernel.inputs, kernel.outputs, kernel.source, kernel.header
            ),
        )
        return launch(
            inputs=list(arrays),
            template=list(template),
            grid=(1, 1, 1),
            threadgroup=(1, 1, 1),
            output_shapes=output_shapes,
            output_dtypes=output_dtypes,
            verbose=True,
        )

    printed = _printed(lambda: mx.export_function(lambda _: None, call, *inputs))
    _, _, text = printed.partition("```\n")
    return _parts(kernel, text.rpartition("```")[0])


def _printed(act: Callable[[], object]) -> str:
    """What ``act`` writes to file descriptor 1, as C++ does."""
    with _STDOUT, tempfile.TemporaryFile() as paper:
        sys.stdout.flush()
        kept = os.dup(1)
        os.dup2(paper.fileno(), 1)
        try:
            act()
        finally:
            os.dup2(kept, 1)
            os.close(kept)
        paper.seek(0)
        return paper.read().decode()


def _parts(kernel: KernelText, text: str) -> MetalText:
    after_header = text[text.index(kernel.header) + len(kernel.header) :]
    opening = ") {\n"
    end = after_header.index(opening + kernel.source)
    signature = after_header[:end] + opening
    after = after_header[len(signature) + len(kernel.source) :]
    before, _, listed = signature.removesuffix(opening).rpartition("(\n")
    function = before.split()[-1]
    return MetalText(signature, function, _instance(function, after), _parameters(listed))


def _instance(function: str, after: str) -> str:
    """``function`` with its template arguments, as the text instantiates it."""
    _, found, arguments = after.rpartition(f" {function}<")
    return f"{function}<{arguments.rpartition(';')[0]}" if found else function


def _parameters(listed: str) -> tuple[Parameter, ...]:
    """From lines such as ``const device float* x [[buffer(0)]],``."""
    lines = (line.strip() for line in listed.split(",\n"))
    return tuple(_parameter(line) for line in lines if line)


def _parameter(line: str) -> Parameter:
    declared, _, attribute = line.partition(" [[")
    kind, _, name = declared.rpartition(" ")
    return Parameter(kind, name, attribute.startswith("buffer("))
