"""Marks: a kernel's text with what the run must know written in, on the lines where it stands.

Four things cannot be seen from outside a compiled kernel:

- in which iteration of a loop a thread waits: a loop in which threads meet counts;
- from which call it got there: a call of a function in which threads meet says so;
- what a threadgroup variable is called and where it ends: it is asked for by name and size;
- whether an unsigned product lost its upper bits: it is computed in 64.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from pagedkv_metal.emulator.edits import Edit, edited
from pagedkv_metal.emulator.front import KernelText
from pagedkv_metal.emulator.meetings import body_of, callers, meets
from pagedkv_metal.emulator.tokens import Tokens

Products = tuple[Sequence[int], Sequence[int]]

_LOOP = "if (pkv::Loop pkv_loop{}; false) {} else "
_NEXT = " pkv_loop.next();"
_NEXT_ALONE = " if (pkv_loop.next(), false) {} else "
_VECTOR = re.compile(r"vec|(?:bool|u?char|u?short|u?int|u?long|half|bfloat|float)[234]")
_DECLARED = re.compile(
    r"\s* (?P<type> [\w:]+ (?: \s* <[^;=]*> )? ) \s*"
    r"(?P<names> \b\w+ \s* (?: \[[^\]]*\] \s* )* (?: , \s* \w+ \s* (?: \[[^\]]*\] \s* )* )* )",
    re.VERBOSE,
)


def marked(kernel: KernelText, products: Products = ((), ())) -> tuple[str, str]:
    """Header and source for the host's compiler, line for line.

    ``products`` are the offsets, in each, of the ``*`` that must not pass 32 bits.

    >>> def of(source, products=()):
    ...     return marked(KernelText("k", source, (), (), ""), ((), products))[1]
    >>> of("for (;;) { y = simd_sum(x); }")
    'if (pkv::Loop pkv_loop{}; false) {} else for (;;) { pkv_loop.next(); y = simd_sum(x); }'
    >>> of("threadgroup float a[64];")
    'auto& a = PKV_THREADGROUP_VARIABLE("a", float[64]);'
    >>> of("y = a * b;", [6])
    'y = a * pkv::times * b;'
    """
    above, below = Tokens(kernel.header), Tokens(kernel.source)
    known = callers(above)
    everything = callers(below, known)
    return (
        _marked(above, known, products[0], declares_at=0),
        _marked(below, everything, products[1], declares_at=-1),
    )


def spaces(tokens: Tokens) -> list[Edit]:
    """For the syntax pass: threadgroup variables are static, pragmas are gone.

    >>> text = "threadgroup float a[64]; threadgroup float* p = a;"
    >>> edited(text, spaces(Tokens(text)))
    'PKV_THREADGROUP_STORAGE float a[64]; PKV_THREADGROUP float* p = a;'
    """
    edits = _pragmas(tokens)
    for index, token in enumerate(tokens.all):
        if token.text == "threadgroup":
            pointer = _is_pointer(tokens, index)
            word = "PKV_THREADGROUP" if pointer else "PKV_THREADGROUP_STORAGE"
            edits.append(Edit(token.start, token.end, word))
        elif _VECTOR.fullmatch(token.text):
            edits += _made(tokens, index)
    return edits


def _marked(
    tokens: Tokens, known: frozenset[str], products: Sequence[int], declares_at: int
) -> str:
    edits = _edits(tokens, known, declares_at)
    free = [at for at in products if not any(e.start <= at < e.end for e in edits)]
    return edited(tokens.text, edits + [Edit(at, at + 1, "* pkv::times *") for at in free])


def _edits(tokens: Tokens, known: frozenset[str], declares_at: int) -> list[Edit]:
    """``declares_at`` is the depth at which a name before a bracket is declared, not called."""
    edits = _pragmas(tokens)
    tails = _tails_of_do(tokens)
    for index, token in enumerate(tokens.all):
        if token.text == "threadgroup":
            edits += _variable(tokens, index)
        elif token.text in {"for", "while", "do"} and index not in tails:
            edits += _loop(tokens, index, known)
        elif token.text in known and tokens.depth[index] > declares_at:
            edits += _call(tokens, index)
    return edits


def _pragmas(tokens: Tokens) -> list[Edit]:
    """None of them means anything to both compilers; some must stand before a loop."""
    pragma = re.compile(r"\s*#\s*pragma\b")
    lines = [token for token in tokens.all if token.kind == "line" and pragma.match(token.text)]
    return [Edit(line.start, line.end, "\n" * line.text.count("\n")) for line in lines]


def _tails_of_do(tokens: Tokens) -> set[int]:
    """Each ``while`` that ends a loop."""
    starts = [index for index, token in enumerate(tokens.all) if token.text == "do"]
    return {_statement_end(tokens, start + 1) + 1 for start in starts}


def _statement_end(tokens: Tokens, start: int) -> int:
    """The last token of the statement that starts there."""
    if start in tokens.closing and tokens[start] == "{":
        return tokens.closing[start]
    if tokens[start] in {"for", "while", "if", "switch"}:
        end = _statement_end(tokens, tokens.closing.get(start + 1, start + 1) + 1)
        return _statement_end(tokens, end + 2) if tokens[end + 1] == "else" else end
    return tokens.find(";", start)


def _loop(tokens: Tokens, index: int, known: frozenset[str]) -> list[Edit]:
    is_do = tokens[index] == "do"
    body = index + 1 if is_do else tokens.closing.get(index + 1, index) + 1
    end = _statement_end(tokens, body)
    if not any(meets(tokens, i, known) for i in range(index, end + 1)):
        return []
    start = tokens.all[index].start
    if tokens[body] == "{":
        inside = tokens.all[body].end
        return [Edit(start, start, _LOOP), Edit(inside, inside, _NEXT)]
    before = tokens.all[body - 1].end
    return [Edit(start, start, _LOOP), Edit(before, before, _NEXT_ALONE)]


def _call(tokens: Tokens, index: int) -> list[Edit]:
    """``(pkv::Call(17), f(x))``, 17 being the call's number."""
    if tokens[index - 1] in {".", "->", "::"} or body_of(tokens, index):
        return []
    opening = _after_template_arguments(tokens, index + 1)
    if tokens[opening] != "(" or opening not in tokens.closing:
        return []
    start, end = tokens.all[index].start, tokens.all[tokens.closing[opening]].end
    return [Edit(start, start, f"(pkv::Call({start}), "), Edit(end, end, ")")]


def _after_template_arguments(tokens: Tokens, index: int) -> int:
    """``index`` itself where no arguments stand there, or what stands is a comparison."""
    depth, at = 0, index
    while at < len(tokens) and tokens[at] not in {";", "{", "}", "&", "|"}:
        depth += (tokens[at] == "<") - (tokens[at] == ">")
        at += 1
        if depth <= 0:
            break
    return at if tokens[index] == "<" and depth == 0 else index


def _is_pointer(tokens: Tokens, index: int) -> bool:
    """Whether ``threadgroup`` says where something points, and not that it lies there."""
    while index < len(tokens) and tokens[index] not in {";", "[", "=", "(", ")", "{", ","}:
        if tokens[index] in {"*", "&"}:
            return True
        index += 1
    return tokens[index] == ")"


def _made(tokens: Tokens, index: int) -> list[Edit]:
    """``float4(a, b, c, d)``: the compiler's own vectors are made by a function."""
    opening = _after_template_arguments(tokens, index + 1)
    if tokens[opening] != "(":
        return []
    start, end = tokens.all[index].start, tokens.all[opening].start
    return [Edit(start, start, "pkv_make<"), Edit(end, end, ">")]


def _variable(tokens: Tokens, index: int) -> list[Edit]:
    """``threadgroup float a[2], b[3];`` as two references to what the run hands out."""
    token = tokens.all[index]
    if _is_pointer(tokens, index):
        return [Edit(token.start, token.end, "")]
    end = tokens.find(";", index)
    declared = tokens.text[token.end : tokens.all[end].start]
    match = _DECLARED.fullmatch(declared)
    if not match:
        why = "threadgroup memory is declared as `threadgroup TYPE NAME[CONSTANT];`"
        return [Edit(token.start, token.end, f'static_assert(sizeof(int) == 0, "{why}");')]
    names = re.findall(r"(\w+)\s*((?:\[[^\]]*\]\s*)*)(?:,|$)", match["names"])
    asked = [
        f'auto& {name} = PKV_THREADGROUP_VARIABLE("{name}", {match["type"]}{extent.strip()});'
        for name, extent in names
    ]
    return [Edit(token.start, tokens.all[end].end, "\n" * declared.count("\n") + " ".join(asked))]
