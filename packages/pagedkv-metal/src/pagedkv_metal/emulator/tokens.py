"""Tokens: a kernel's text in words, with the bracket that closes each bracket."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

_TOKEN = re.compile(
    r"""(?P<space>  \s+ | //[^\n]* | /\*.*?\*/ )
      | (?P<line>   (?<![^\n]) [ \t]* \# (?: \\\n | [^\n] )* )
      | (?P<text>   "(?: \\. | [^"\\] )*" | '(?: \\. | [^'\\] )*' )
      | (?P<word>   [A-Za-z_]\w* )
      | (?P<number> \.?\d[\w.]* )
      | (?P<sign>   :: | -> | . )""",
    re.VERBOSE | re.DOTALL,
)
_CLOSES = {"(": ")", "[": "]", "{": "}"}


class Token(NamedTuple):
    """A word, number, sign or preprocessor line, and where it starts."""

    text: str
    start: int
    kind: str

    @property
    def end(self) -> int:
        """One past its last character."""
        return self.start + len(self.text)


class Tokens:
    """The tokens of a text without its spaces and comments.

    - ``closing[i]`` is the bracket that closes bracket ``i``;
    - ``depth[i]`` is how many braces are open around token ``i``;
    - beyond its end there are only empty tokens.

    >>> found = Tokens("f(a[1]); // g()")
    >>> [token.text for token in found.all], found.closing[1]
    (['f', '(', 'a', '[', '1', ']', ')', ';'], 6)
    """

    def __init__(self, text: str) -> None:
        self.text: str = text
        self.all: list[Token] = list(_tokens(text))
        self.closing: dict[int, int] = {}
        self.depth: list[int] = []
        self._match()

    def __getitem__(self, index: int) -> str:
        return self.all[index].text if 0 <= index < len(self.all) else ""

    def __len__(self) -> int:
        return len(self.all)

    def find(self, word: str, start: int) -> int:
        """The next ``word`` from ``start`` on that is in no bracket opened since."""
        while start < len(self) and self[start] != word:
            start = self.closing.get(start, start) + 1
        return start

    def _match(self) -> None:
        opened: list[int] = []
        braces = 0
        for index, token in enumerate(self.all):
            if token.text in _CLOSES:
                opened.append(index)
            elif opened and token.text == _CLOSES[self[opened[-1]]]:
                self.closing[opened.pop()] = index
            braces -= token.text == "}"
            self.depth.append(braces)
            braces += token.text == "{"


def _tokens(text: str) -> Iterator[Token]:
    for match in _TOKEN.finditer(text):
        kind = match.lastgroup or ""
        if kind != "space":
            yield Token(match.group(), match.start(), kind)
