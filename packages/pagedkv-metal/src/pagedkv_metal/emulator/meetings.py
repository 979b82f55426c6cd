"""Which functions of a text make threads meet: simd operations, barriers, and their callers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from pagedkv_metal.emulator.tokens import Tokens

_MEETS = re.compile(r"simd_\w+|quad_\w+|simdgroup_barrier|threadgroup_barrier")
_MACRO = re.compile(r"\s*#\s*define\s+(\w+)(.*)", re.DOTALL)
_NO_FUNCTION = frozenset({"if", "for", "while", "switch", "return", "sizeof", "decltype"})


def meets(tokens: Tokens, index: int, known: frozenset[str]) -> bool:
    """Whether such an operation, or one of the ``known`` callers, is called there."""
    word = tokens[index]
    is_call = tokens[index + 1] in {"(", "<"}
    return is_call and (word in known or _MEETS.fullmatch(word) is not None)


def callers(tokens: Tokens, known: frozenset[str] = frozenset()) -> frozenset[str]:
    """``known``, and every function, lambda or macro of the text in which threads meet.

    >>> text = "float a(float x) { return simd_sum(x); } float b() { return a(1); } int c() {}"
    >>> sorted(callers(Tokens(text)))
    ['a', 'b']
    """
    bodies = [*_functions(tokens), *_macros(tokens)]
    while True:
        found = known.union(name for name, inside in bodies if _meet(inside, known))
        if found == known:
            return known
        known = found


class _Body(NamedTuple):
    tokens: Tokens
    start: int
    end: int


def _meet(body: _Body, known: frozenset[str]) -> bool:
    return any(meets(body.tokens, index, known) for index in range(body.start, body.end))


def _functions(tokens: Tokens) -> Iterator[tuple[str, _Body]]:
    for index, token in enumerate(tokens.all):
        if token.kind == "word" and token.text not in _NO_FUNCTION:
            body = body_of(tokens, index)
            if body:
                yield token.text, _Body(tokens, body, tokens.closing[body])


def body_of(tokens: Tokens, name: int) -> int:
    """The brace that opens the body of the function or lambda that ``name`` defines, or 0."""
    at = name + 1
    if tokens[at] == "=" and tokens[at + 1] == "[":
        at = tokens.closing.get(at + 1, at) + 1
    if tokens[at] != "(" or at not in tokens.closing:
        return 0
    at = tokens.closing[at] + 1
    while tokens[at] in {"const", "mutable", "noexcept"}:
        at += 1
    return at if tokens[at] == "{" and at in tokens.closing else 0


def _macros(tokens: Tokens) -> Iterator[tuple[str, _Body]]:
    for token in tokens.all:
        macro = _MACRO.match(token.text) if token.kind == "line" else None
        if macro:
            inside = Tokens(macro[2])
            yield macro[1], _Body(inside, 0, len(inside))
