"""Subject: a cache under test, the rows it should hold, and a reference beside it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from pagedkv_protocols.cache import Cache
from pagedkv_protocols.capabilities import FORK, supports
from pagedkv_protocols.conformance.clauses import Clause, check
from pagedkv_protocols.conformance.reference import Rule, all_positions, causal
from pagedkv_protocols.conformance.rows import Rows, draw_rows, no_rows
from pagedkv_protocols.conformance.seen import Seen
from pagedkv_protocols.conformance.setting import Setting
from pagedkv_protocols.read import Read

ArrayT = TypeVar("ArrayT")


class Subject(Generic[ArrayT]):
    """A cache and what is known of it: the rows appended and not trimmed, as it stores them.

    Whatever is done to the cache through the subject is done to the reference as well.
    """

    def __init__(
        self,
        setting: Setting[ArrayT],
        cache: Cache[ArrayT],
        exact: Cache[ArrayT] | None,
        history: Sequence[str],
        seed: str = "0",
    ) -> None:
        self.setting = setting
        self.cache = cache
        self.exact = exact
        self.stored: Rows = no_rows(setting.dims.num_kv_heads)
        self.history: list[str] = list(history)
        self.seed: str = seed
        self._source = random.Random(seed)  # noqa: S311 - the same in every run

    @property
    def length(self) -> int:
        """How many positions the sequence should have."""
        return self.stored.length

    @property
    def case(self) -> str:
        """What was done so far."""
        return ", ".join(self.history)

    def draw(self, length: int) -> Rows:
        """New rows, other than any before."""
        return draw_rows(self._source, self.setting.dims, length)

    def decode(self) -> Seen[ArrayT]:
        """Append one position."""
        return self.append("append_decode", 1)

    def window(self, length: int) -> Seen[ArrayT]:
        """Append ``length`` positions."""
        return self.append("append_window", length)

    def append(
        self, method: str, length: int, *more: ArrayT | None, rule: Rule | None = None
    ) -> Seen[ArrayT]:
        """Append by the method of that name; without a ``rule`` the read is causal."""
        before = self.length
        keys, values = self.setting.pair(self.draw(length))
        read, exact = self._call(method, keys, values, *more)
        self.stored = self.stored.then(self._as_stored(keys, values))
        self.history.append(f"{method} of {length}")
        start = self.cache.start  # what a read sees begins where the cache does
        rule = rule or causal(before - start, self.cache.window)
        return self._seen(read, exact, self.stored.span(start), rule, length)

    def block(self, length: int) -> Seen[ArrayT]:
        """Read beside a block that is not appended."""
        keys, values = self.setting.pair(self.draw(length))
        read, exact = self._call("read_block", keys, values)
        self.history.append(f"read_block of {length}")
        rows = self.stored.span(self.cache.start).then(self.setting.rows(keys, values))
        return self._seen(read, exact, rows, all_positions, length)

    def trim(self, n: int) -> None:
        """Drop the last ``n`` positions, or all if fewer."""
        dropped = min(n, self.length)
        answer = self.cache.trim(n)
        self.history.append(f"trim of {n}")
        check(answer == dropped, Clause.TRIM, self.case, f"trim gave {answer!r}")
        self.stored = self.stored.span(0, self.length - dropped)
        if self.exact is not None:
            self.exact.trim(n)

    def fork(self) -> Subject[ArrayT]:
        """The subject of a fork, which draws other rows from now on."""
        assert supports(self.cache, FORK)
        cache, exact = self.cache.fork(), self.exact
        self.history.append("fork")
        self.seed += "+"
        other: Subject[ArrayT] = Subject(
            self.setting,
            cache,
            exact.fork() if exact is not None and supports(exact, FORK) else None,
            [*self.history, "in the fork"],
            f"fork of {self.seed}",
        )
        other.stored = self.stored
        return other

    def evaluate(self) -> None:
        """Compute what is pending of the cache's state, as a generation loop does."""
        self.setting.arrays.evaluate(self.cache.state())

    def check_holds(self, clause: Clause = Clause.EXPORT) -> None:
        """Fail unless offset and export are those of the rows that should be there."""
        __tracebackhide__ = True
        check(self.cache.offset == self.length, Clause.OFFSET, self.case, str(self.cache.offset))
        exported = self.cache.export()
        if exported is None:
            check(not self.length, clause, self.case, "None")
            return
        shapes = [self.setting.arrays.shape(array) for array in exported]
        rows = self.stored.span(self.cache.start)
        heads, key_dim, value_dim = self.setting.dims[1:]
        wanted = [(1, heads, rows.length, dim) for dim in (key_dim, value_dim)]
        check(shapes == wanted, clause, self.case, f"shapes {shapes}, not {wanted}")
        found = self.setting.rows(*exported)
        check(found == rows, clause, self.case, f"keys {found.keys}, not {rows.keys}")

    def _as_stored(self, keys: ArrayT, values: ArrayT) -> Rows:
        return self.setting.rows(*self.setting.as_stored(keys, values))

    def _call(self, method: str, *arguments: Any) -> tuple[Read[ArrayT], Read[ArrayT] | None]:
        if self.exact is not None and not hasattr(self.exact, method):
            self.exact = None  # it cannot follow from here on
        read: Read[ArrayT] = getattr(self.cache, method)(*arguments)
        exact = None if self.exact is None else getattr(self.exact, method)(*arguments)
        return read, exact

    def _seen(
        self,
        read: Read[ArrayT],
        exact: Read[ArrayT] | None,
        rows: Rows,
        rule: Rule,
        length: int,
    ) -> Seen[ArrayT]:
        return Seen(self.setting, read, exact, rows, rule, length, self.case)
