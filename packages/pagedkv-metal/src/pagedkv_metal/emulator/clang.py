"""Clang's front end as a library: what it says of a text, and where it sees 32-bit products."""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import pathlib
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

_FILE = b"kernel.cpp"
_ERROR = 3
_CONTINUE, _RECURSE = 1, 2
_INTEGER_LITERAL, _BINARY_OPERATOR = 106, 114
_MULTIPLY = 3
_UINT = 9
_STAR = re.compile(r"(?:\s|/\*.*?\*/|//[^\n]*)*\*", re.DOTALL)


class Reading(NamedTuple):
    """What clang found in a text.

    - ``errors``: each with its place, by the names and numbers of ``#line``;
    - ``products``: the offset of each ``*`` that multiplies two numbers of 32 unsigned bits.
    """

    errors: list[str]
    products: list[int]


def read(text: str, flags: Sequence[str], start: int) -> Reading:
    """Parse ``text``; what lies before ``start`` is taken to be right.

    Only where ``clang_version()`` is not empty.
    """
    assert text.isascii(), "clang counts bytes"
    clang = _library()
    assert clang is not None, "asked for without clang"
    index = clang.clang_createIndex(0, 0)
    unit = _parsed(clang, index, text.encode(), flags)
    reading = Reading(list(_errors(clang, unit)), sorted(_products(clang, unit, text, start)))
    clang.clang_disposeTranslationUnit(unit)
    clang.clang_disposeIndex(index)
    return reading


def clang_version() -> str:
    """What the library of the wheel ``libclang`` calls itself; empty where it is not installed."""
    clang = _library()
    return _text(clang, clang.clang_getClangVersion()) if clang else ""


class _String(ctypes.Structure):
    _fields_ = (("data", ctypes.c_void_p), ("flags", ctypes.c_uint))


class _Location(ctypes.Structure):
    _fields_ = (("pointers", ctypes.c_void_p * 2), ("number", ctypes.c_uint))


class _Range(ctypes.Structure):
    _fields_ = (("pointers", ctypes.c_void_p * 2), ("start", ctypes.c_uint), ("end", ctypes.c_uint))


class _Cursor(ctypes.Structure):
    _fields_ = (("kind", ctypes.c_int), ("data", ctypes.c_int), ("pointers", ctypes.c_void_p * 3))


class _Type(ctypes.Structure):
    _fields_ = (("kind", ctypes.c_int), ("pointers", ctypes.c_void_p * 2))


class _Unsaved(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("contents", ctypes.c_char_p),
        ("length", ctypes.c_ulong),
    )


_POINTER, _NUMBER = ctypes.c_void_p, ctypes.c_uint
_VISIT = ctypes.CFUNCTYPE(ctypes.c_int, _Cursor, _Cursor, ctypes.c_void_p)
_FUNCTIONS: dict[str, tuple[list[type], type | None]] = {
    "clang_createIndex": ([ctypes.c_int, ctypes.c_int], _POINTER),
    "clang_disposeDiagnostic": ([_POINTER], None),
    "clang_disposeIndex": ([_POINTER], None),
    "clang_disposeString": ([_String], None),
    "clang_disposeTranslationUnit": ([_POINTER], None),
    "clang_getCString": ([_String], ctypes.c_char_p),
    "clang_getCanonicalType": ([_Type], _Type),
    "clang_getChildDiagnostics": ([_POINTER], _POINTER),
    "clang_getClangVersion": ([], _String),
    "clang_getCursorBinaryOperatorKind": ([_Cursor], ctypes.c_int),
    "clang_getCursorExtent": ([_Cursor], _Range),
    "clang_getCursorLocation": ([_Cursor], _Location),
    "clang_getCursorType": ([_Cursor], _Type),
    "clang_getDiagnostic": ([_POINTER, _NUMBER], _POINTER),
    "clang_getDiagnosticInSet": ([_POINTER, _NUMBER], _POINTER),
    "clang_getDiagnosticLocation": ([_POINTER], _Location),
    "clang_getDiagnosticSeverity": ([_POINTER], ctypes.c_int),
    "clang_getDiagnosticSpelling": ([_POINTER], _String),
    "clang_getNumDiagnostics": ([_POINTER], _NUMBER),
    "clang_getNumDiagnosticsInSet": ([_POINTER], _NUMBER),
    "clang_getRangeEnd": ([_Range], _Location),
    "clang_getTranslationUnitCursor": ([_POINTER], _Cursor),
    "clang_visitChildren": ([_Cursor, _VISIT, _POINTER], _NUMBER),
}


@functools.cache
def _library() -> ctypes.CDLL | None:
    package = importlib.util.find_spec("clang")
    folders = (package.submodule_search_locations or []) if package else []
    found = [path for folder in folders for path in pathlib.Path(folder).glob("native/libclang.*")]
    if not found:
        return None
    clang = ctypes.CDLL(str(found[0]))
    for name, (takes, gives) in _FUNCTIONS.items():
        function = getattr(clang, name)
        function.argtypes, function.restype = takes, gives
    return clang


def _parsed(clang: ctypes.CDLL, index: int, text: bytes, flags: Sequence[str]) -> int:
    words = (ctypes.c_char_p * len(flags))(*(flag.encode() for flag in flags))
    unsaved = _Unsaved(_FILE, text, len(text))
    unit = ctypes.c_void_p()
    failed = clang.clang_parseTranslationUnit2(
        ctypes.c_void_p(index), _FILE, words, len(words), ctypes.byref(unsaved), 1, 0,
        ctypes.byref(unit),
    )  # fmt: skip
    assert not failed, f"clang gave up with {failed}"
    assert unit.value
    return unit.value


def _text(clang: ctypes.CDLL, string: _String) -> str:
    said: bytes = clang.clang_getCString(string)
    clang.clang_disposeString(string)
    return said.decode()


def _errors(clang: ctypes.CDLL, unit: int) -> Iterator[str]:
    for number in range(clang.clang_getNumDiagnostics(unit)):
        diagnostic = clang.clang_getDiagnostic(unit, number)
        if clang.clang_getDiagnosticSeverity(diagnostic) >= _ERROR:
            yield f"{_place(clang, diagnostic)}: {_said(clang, diagnostic)}"
        clang.clang_disposeDiagnostic(diagnostic)


def _said(clang: ctypes.CDLL, diagnostic: int) -> str:
    """Its words, and those of its first note, which says why nothing matches."""
    said = _text(clang, clang.clang_getDiagnosticSpelling(diagnostic))
    notes = clang.clang_getChildDiagnostics(diagnostic)
    if clang.clang_getNumDiagnosticsInSet(notes) == 0:
        return said
    note = clang.clang_getDiagnosticInSet(notes, 0)
    return f"{said} ({_text(clang, clang.clang_getDiagnosticSpelling(note))})"


def _place(clang: ctypes.CDLL, diagnostic: int) -> str:
    location = clang.clang_getDiagnosticLocation(diagnostic)
    file, line, column = _String(), ctypes.c_uint(), ctypes.c_uint()
    clang.clang_getPresumedLocation(
        location, ctypes.byref(file), ctypes.byref(line), ctypes.byref(column)
    )
    return f"{_text(clang, file)}:{line.value}"


def _products(clang: ctypes.CDLL, unit: int, text: str, start: int) -> set[int]:
    found: set[int] = set()

    def visit(cursor: _Cursor, _above: _Cursor, _data: int | None) -> int:
        if _offset(clang, clang.clang_getCursorLocation(cursor)) < start:
            return _CONTINUE
        if _multiplies(clang, cursor):
            left, right = _children(clang, cursor)
            end = _offset(clang, clang.clang_getRangeEnd(clang.clang_getCursorExtent(left)))
            star = _STAR.match(text, end)
            # A constant factor of many bits is a hash's, which is meant to wrap.
            if star and not any(_is_large(clang, text, factor) for factor in (left, right)):
                found.add(star.end() - 1)
        return _RECURSE

    root = clang.clang_getTranslationUnitCursor(unit)
    clang.clang_visitChildren(root, _VISIT(visit), None)
    return found


def _multiplies(clang: ctypes.CDLL, cursor: _Cursor) -> bool:
    return bool(
        cursor.kind == _BINARY_OPERATOR
        and clang.clang_getCursorBinaryOperatorKind(cursor) == _MULTIPLY
        and clang.clang_getCanonicalType(clang.clang_getCursorType(cursor)).kind == _UINT
    )


def _children(clang: ctypes.CDLL, cursor: _Cursor) -> list[_Cursor]:
    found: list[_Cursor] = []

    def visit(child: _Cursor, _above: _Cursor, _data: int | None) -> int:
        found.append(_Cursor.from_buffer_copy(child))
        return _CONTINUE

    clang.clang_visitChildren(cursor, _VISIT(visit), None)
    return found


def _is_large(clang: ctypes.CDLL, text: str, factor: _Cursor) -> bool:
    """Whether it is a literal past 16 bits; an implicit conversion may lie around it."""
    while factor.kind != _INTEGER_LITERAL:
        inside = _children(clang, factor)
        if len(inside) != 1:
            return False
        factor = inside[0]
    start = _offset(clang, clang.clang_getCursorLocation(factor))
    end = _offset(clang, clang.clang_getRangeEnd(clang.clang_getCursorExtent(factor)))
    return int(text[start:end].rstrip("uUlL"), 0) >= 1 << 16


def _offset(clang: ctypes.CDLL, location: _Location) -> int:
    offset = ctypes.c_uint()
    clang.clang_getSpellingLocation(location, None, None, None, ctypes.byref(offset))
    return offset.value
