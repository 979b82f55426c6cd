"""The C++ unit of a kernel: MLX's text between the dialect's header and an entry point."""

from __future__ import annotations

from pagedkv_metal.emulator.front import KernelText, MetalText, Parameter
from pagedkv_metal.emulator.marks import Products, marked


def translation(kernel: KernelText, text: MetalText, products: Products) -> str:
    """What the host's compiler gets; its lines are those of ``source`` and ``header``."""
    header, source = marked(kernel, products)
    # Not inlined into the entry point, which is not checked.
    signature = text.signature.replace("[[kernel]]", "__attribute__((noinline))")
    return "\n".join(
        ['#include "metal.h"', *_lines(kernel, header, signature, source), _entry(text)]
    )


def _lines(kernel: KernelText, header: str, signature: str, source: str) -> list[str]:
    return [
        f'#line 1 "{kernel.name}.h"',
        header,
        f'#line 1 "{kernel.name}.signature"',
        signature,
        f'#line 1 "{kernel.name}.metal"',
        source,
        f'#line 1 "{kernel.name}.entry"',
        "}",
    ]


def _entry(text: MetalText) -> str:
    arguments = ",\n        ".join(map(_argument, _numbers(text.parameters), text.parameters))
    return (
        'extern "C" PKV_PLAIN __attribute__((visibility("default"))) void pkv_kernel() {\n'
        f"    {text.instance}(\n        {arguments});\n}}\n"
    )


def _numbers(parameters: tuple[Parameter, ...]) -> list[int]:
    """The buffer number of each parameter; a position has that of the next buffer."""
    return [sum(p.is_buffer for p in parameters[:i]) for i in range(len(parameters))]


def _argument(number: int, parameter: Parameter) -> str:
    if not parameter.is_buffer:
        return f"static_cast<{parameter.type}>(pkv::{parameter.name}())"
    if parameter.type.endswith("&"):
        return f"*static_cast<{parameter.type[:-1]}*>(pkv_buffer({number}))"
    return f"static_cast<{parameter.type}>(pkv_buffer({number}))"
