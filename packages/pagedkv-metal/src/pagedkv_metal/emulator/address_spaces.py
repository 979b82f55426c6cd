"""The syntax pass: clang's front end over a text in which every address space is its own."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from pagedkv_metal.emulator.clang import clang_version, read
from pagedkv_metal.emulator.compiler import RUNTIME
from pagedkv_metal.emulator.edits import edited, origin
from pagedkv_metal.emulator.front import KernelText, MetalText
from pagedkv_metal.emulator.marks import spaces
from pagedkv_metal.emulator.tokens import Tokens

PASS_FLAGS = (
    "-std=c++17",
    "--target=x86_64-linux-gnu",
    "-nostdinc",
    "-Wno-everything",
    # What loses the upper half of an address, and what has no value.
    "-Werror=shorten-64-to-32",
    "-Werror=uninitialized",
    "-Werror=sometimes-uninitialized",
    "-Werror=return-type",
    "-Werror=array-bounds",
    "-Werror=shift-count-overflow",
    "-Werror=division-by-zero",
)


class Examined(NamedTuple):
    """What the pass found: errors, and each 32-bit product by its offset in a text."""

    errors: list[str]
    in_header: list[int]
    in_source: list[int]


def pass_options() -> str:
    """What the pass is told, and by which clang it is made."""
    version = clang_version()
    if not version:
        return "not checked: install pagedkv-metal[emulator] for clang's front end"
    return " ".join([version, *PASS_FLAGS])


def examined(kernel: KernelText, text: MetalText) -> Examined:
    """What clang's front end says of a kernel; nothing where it is not installed."""
    if not clang_version():
        return Examined([], [], [])
    header_edits, source_edits = spaces(Tokens(kernel.header)), spaces(Tokens(kernel.source))
    header, source = edited(kernel.header, header_edits), edited(kernel.source, source_edits)
    above = _lines([_stub(), f'#line 1 "{kernel.name}.h"'])
    between = _lines(
        [f'\n#line 1 "{kernel.name}.signature"', text.signature, f'#line 1 "{kernel.name}.metal"']
    )
    instance = f"template decltype({text.instance}) {text.instance};" if text.is_template else ""
    below = _lines([f'\n#line 1 "{kernel.name}.entry"', "}", instance])
    found = read(_ascii(above + header + between + source + below), PASS_FLAGS, len(above))
    header_at, source_at = len(above), len(above + header + between)
    return Examined(
        found.errors,
        [origin(header_edits, at) for at in _inside(found.products, header_at, header)],
        [origin(source_edits, at) for at in _inside(found.products, source_at, source)],
    )


def _stub() -> str:
    return (RUNTIME / "address_spaces.h").read_text(encoding="utf-8").replace("#pragma once", "")


def _lines(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _ascii(text: str) -> str:
    """One byte a character: others stand only in comments and strings."""
    return text.encode("ascii", "replace").decode()


def _inside(offsets: Iterable[int], start: int, part: str) -> list[int]:
    """Those that fall into ``part``, counted from its start."""
    return [offset - start for offset in offsets if 0 <= offset - start < len(part)]
