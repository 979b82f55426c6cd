"""Which functions of a text make threads meet: simd operations, barriers, and their callers."""

from __future__ import annotations

import re
from collections.abc import Iterator

from pagedkv_metal.emulator.tokens import Tokens

_MEETS = re.compile(r"simd_\w+|quad_\w+|simdgroup_barrier|threadgroup_barrier")
_MACRO = re.compile(r"\s*#\s*define\s+(\w+)(.*)", re.DOTALL)
_NO_FUNCTION = frozenset({"if", "for", "while", "switch", "return", "sizeof", "decltype"})


def meets(word: str, known: frozenset[str]) -> bool:
    """Whether ``word`` is such an operation, or one of the ``known`` callers."""
    return word in known or _MEETS.fullmatch(word) is not None


def callers(tokens: Tokens, known: frozenset[str] = frozenset()) -> frozenset[str]:
    """``known``, and every function, lambda or macro of the text in which threads meet.

    >>> text = "float a(float x) { return simd_sum(x); } float b() { return a(1); } int c() {}"
    >>> sorted(callers(Tokens(text)))
    ['a', 'b']
    """
    bodies = [*_functions(tokens), *_macros(tokens)]
    while True:
        found = known.union(name for name, words in bodies if any(meets(w, known) for w in words))
        if found == known:
            return known
        known = found


def _functions(tokens: Tokens) -> Iterator[tuple[str, list[str]]]:
    for index, token in enumerate(tokens.all):
        if token.kind == "word" and token.text not in _NO_FUNCTION:
            body = body_of(tokens, index)
            if body:
                inside = tokens.all[body : tokens.closing[body]]
                yield token.text, [other.text for other in inside]


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


def _macros(tokens: Tokens) -> Iterator[tuple[str, list[str]]]:
    for token in tokens.all:
        macro = _MACRO.match(token.text) if token.kind == "line" else None
        if macro:
            yield macro[1], re.findall(r"\w+", macro[2])
