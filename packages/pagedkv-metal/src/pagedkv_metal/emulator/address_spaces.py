"""The syntax pass: clang's front end over a text in which every address space is its own."""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import pathlib
from collections.abc import Iterator
from typing import NamedTuple

from pagedkv_metal.emulator.compiler import RUNTIME
from pagedkv_metal.emulator.front import KernelText, MetalText
from pagedkv_metal.emulator.marks import spaced

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
_FILE = b"kernel.cpp"
_ERROR = 3


def pass_unit(kernel: KernelText, text: MetalText) -> str:
    """MLX's text after the stub that gives the address spaces numbers."""
    header, source = spaced(kernel.header, kernel.source)
    lines = [
        (RUNTIME / "address_spaces.h").read_text(encoding="utf-8").replace("#pragma once", ""),
        f'#line 1 "{kernel.name}.h"',
        header,
        f'#line 1 "{kernel.name}.signature"',
        text.signature,
        f'#line 1 "{kernel.name}.metal"',
        source,
        f'#line 1 "{kernel.name}.entry"',
        "}",
        f"template decltype({text.instance}) {text.instance};" if "<" in text.instance else "",
    ]
    return "\n".join(lines)


def errors(kernel: KernelText, text: MetalText) -> list[str]:
    """What clang says of a kernel, each with its place; nothing where it is right."""
    clang = _find_clang()
    return list(_errors(clang, pass_unit(kernel, text).encode())) if clang else []


def pass_options() -> str:
    """What the pass is told, and by which clang it is made."""
    clang = _find_clang()
    if clang is None:
        return "not checked: install pagedkv-metal[emulator] for clang's front end"
    version = _text(clang, clang.clang_getClangVersion())
    return " ".join([version, *PASS_FLAGS])


@functools.cache
def _find_clang() -> ctypes.CDLL | None:
    """The library of the wheel ``libclang``, or nothing where that is not installed."""
    package = importlib.util.find_spec("clang")
    folders = (package.submodule_search_locations or []) if package else []
    found = [path for folder in folders for path in pathlib.Path(folder).glob("native/libclang.*")]
    return _declared(ctypes.CDLL(str(found[0]))) if found else None


class _String(ctypes.Structure):
    _fields_ = (("data", ctypes.c_void_p), ("flags", ctypes.c_uint))


class _Location(ctypes.Structure):
    _fields_ = (("pointers", ctypes.c_void_p * 2), ("number", ctypes.c_uint))


class _Unsaved(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("contents", ctypes.c_char_p),
        ("length", ctypes.c_ulong),
    )


def _declared(clang: ctypes.CDLL) -> ctypes.CDLL:
    """With the types of the functions that are called; the rest give and take an ``int``."""
    pointer, number = ctypes.c_void_p, ctypes.c_uint
    kinds: dict[str, tuple[list[type], type | None]] = {
        "clang_createIndex": ([ctypes.c_int, ctypes.c_int], pointer),
        "clang_getNumDiagnostics": ([pointer], number),
        "clang_getDiagnostic": ([pointer, number], pointer),
        "clang_getDiagnosticSeverity": ([pointer], ctypes.c_int),
        "clang_getDiagnosticSpelling": ([pointer], _String),
        "clang_getDiagnosticLocation": ([pointer], _Location),
        "clang_getChildDiagnostics": ([pointer], pointer),
        "clang_getNumDiagnosticsInSet": ([pointer], number),
        "clang_getDiagnosticInSet": ([pointer, number], pointer),
        "clang_getClangVersion": ([], _String),
        "clang_getCString": ([_String], ctypes.c_char_p),
        "clang_disposeString": ([_String], None),
        "clang_disposeDiagnostic": ([pointer], None),
        "clang_disposeTranslationUnit": ([pointer], None),
        "clang_disposeIndex": ([pointer], None),
    }
    for name, (takes, gives) in kinds.items():
        function = getattr(clang, name)
        function.argtypes, function.restype = takes, gives
    return clang


class _Parsed(NamedTuple):
    owner: ctypes.c_void_p
    unit: ctypes.c_void_p


def _errors(clang: ctypes.CDLL, text: bytes) -> Iterator[str]:
    parsed = _parse(clang, text)
    for number in range(clang.clang_getNumDiagnostics(parsed.unit)):
        diagnostic = clang.clang_getDiagnostic(parsed.unit, number)
        if clang.clang_getDiagnosticSeverity(diagnostic) >= _ERROR:
            yield f"{_place(clang, diagnostic)}: {_said(clang, diagnostic)}"
        clang.clang_disposeDiagnostic(diagnostic)
    clang.clang_disposeTranslationUnit(parsed.unit)
    clang.clang_disposeIndex(parsed.owner)


def _parse(clang: ctypes.CDLL, text: bytes) -> _Parsed:
    index = clang.clang_createIndex(0, 0)
    words = (ctypes.c_char_p * len(PASS_FLAGS))(*(flag.encode() for flag in PASS_FLAGS))
    unsaved = _Unsaved(_FILE, text, len(text))
    unit = ctypes.c_void_p()
    failed = clang.clang_parseTranslationUnit2(
        ctypes.c_void_p(index), _FILE, words, len(words), ctypes.byref(unsaved), 1, 0,
        ctypes.byref(unit),
    )  # fmt: skip
    assert not failed, f"clang gave up with {failed}"
    return _Parsed(index, unit)


def _text(clang: ctypes.CDLL, string: _String) -> str:
    said: bytes = clang.clang_getCString(string)
    clang.clang_disposeString(string)
    return said.decode()


def _said(clang: ctypes.CDLL, diagnostic: int) -> str:
    """Its words, and those of its first note, which says why nothing matches."""
    said = _text(clang, clang.clang_getDiagnosticSpelling(diagnostic))
    notes = clang.clang_getChildDiagnostics(diagnostic)
    if clang.clang_getNumDiagnosticsInSet(notes) == 0:
        return said
    note = clang.clang_getDiagnosticInSet(notes, 0)
    return f"{said} ({_text(clang, clang.clang_getDiagnosticSpelling(note))})"


def _place(clang: ctypes.CDLL, diagnostic: int) -> str:
    """By the names and numbers of ``#line``."""
    location = clang.clang_getDiagnosticLocation(diagnostic)
    file, line, column = _String(), ctypes.c_uint(), ctypes.c_uint()
    clang.clang_getPresumedLocation(
        location, ctypes.byref(file), ctypes.byref(line), ctypes.byref(column)
    )
    return f"{_text(clang, file)}:{line.value}"
