"""Edit: a change of a text, and the way back from the changed text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Edit(NamedTuple):
    """``text`` in the place of the characters from ``start`` to ``end``."""

    start: int
    end: int
    text: str


def edited(text: str, edits: Sequence[Edit]) -> str:
    """``text`` with all of ``edits``, none of which overlap.

    >>> edited("a b", [Edit(0, 1, "long"), Edit(3, 3, "!")])
    'long b!'
    """
    parts, at = [], 0
    for edit in sorted(edits):
        parts += [text[at : edit.start], edit.text]
        at = edit.end
    return "".join([*parts, text[at:]])


def origin(edits: Sequence[Edit], offset: int) -> int:
    """Where a character of the edited text stood before, one that no edit brought.

    >>> origin([Edit(0, 1, "long"), Edit(3, 3, "!")], "long b!".index("b"))
    2
    """
    for edit in sorted(edits):
        if edit.start + len(edit.text) > offset:
            break
        offset += edit.end - edit.start - len(edit.text)
    return offset
