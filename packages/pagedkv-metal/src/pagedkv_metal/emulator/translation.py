"""The C++ unit of a kernel: MLX's text between the dialect's header and an entry point."""

from __future__ import annotations

from pagedkv_metal.emulator.front import KernelText, MetalText, Parameter


def translation(kernel: KernelText, text: MetalText) -> str:
    """What the host's compiler gets; its lines are those of ``source`` and ``header``."""
    return "\n".join(
        [
            '#include "metal.h"',
            f'#line 1 "{kernel.name}.h"',
            kernel.header,
            '#line 1 "signature"',
            # Not inlined into the entry point, which is not checked.
            text.signature.replace("[[kernel]]", "__attribute__((noinline))")
            + f'\n#line 1 "{kernel.name}.metal"',
            kernel.source,
            '#line 1 "entry"',
            "}",
            "#undef device",
            "#undef constant",
            "#define device",
            "#define constant",
            _entry(text),
            "",
        ]
    )


def _entry(text: MetalText) -> str:
    arguments = ",\n        ".join(map(_argument, _numbered(text.parameters), text.parameters))
    return (
        'extern "C" PKV_PLAIN __attribute__((visibility("default"))) void pkv_kernel() {\n'
        f"    {text.instance}(\n        {arguments});\n}}"
    )


def _numbered(parameters: tuple[Parameter, ...]) -> list[int]:
    """The buffer number of each parameter; a position has the number of the next buffer."""
    return [sum(p.is_buffer for p in parameters[:i]) for i in range(len(parameters))]


def _argument(number: int, parameter: Parameter) -> str:
    if not parameter.is_buffer:
        return f"static_cast<{parameter.type}>(pkv::{parameter.name}())"
    if parameter.type.endswith("&"):
        return f"*static_cast<{parameter.type[:-1]}*>(pkv_buffer({number}))"
    return f"static_cast<{parameter.type}>(pkv_buffer({number}))"
