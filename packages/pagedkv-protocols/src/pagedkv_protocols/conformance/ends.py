"""The end of a read and of a cache."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from pagedkv_protocols.capabilities import (
    BIDIRECTIONAL,
    BLOCK_READ,
    COMMITTED,
    DONOR,
    ENCODER,
    FORK,
    supports,
)
from pagedkv_protocols.conformance.clauses import Clause, refused
from pagedkv_protocols.conformance.kit import CacheKit
from pagedkv_protocols.conformance.subject import Subject
from pagedkv_protocols.errors import Disposed

ArrayT = TypeVar("ArrayT")


class EndTests(CacheKit[ArrayT]):
    """``dispose`` of reads and caches, and the context managers."""

    def test_a_disposed_read_refuses(self, dtype: str) -> None:
        """Twice is once, and the cache goes on."""
        subject = self.subject(dtype)
        seen = subject.window(5)
        seen.check(Clause.WINDOW)
        seen.read.dispose()
        seen.read.dispose()
        refused(Disposed, seen.ask, f"{seen.case}, read disposed", Clause.DISPOSED)
        subject.decode().check(Clause.DECODE)

    def test_a_read_ends_with_its_block(self) -> None:
        """It is a context manager."""
        seen = self.subject().window(5)
        with seen.read as read:
            seen.check(Clause.WINDOW)
            seen.ask(read=read)
        refused(Disposed, seen.ask, f"{seen.case}, after with", Clause.DISPOSED)

    def test_a_disposed_cache_refuses(self, dtype: str) -> None:
        """Every method but ``dispose``, which twice is once."""
        subject = self.subject(dtype)
        subject.window(5)
        calls = self._calls(subject)
        subject.cache.dispose()
        subject.cache.dispose()
        for name, call in calls.items():
            refused(Disposed, call, f"{subject.case}, disposed, {name}", Clause.DISPOSED)

    def test_a_cache_that_holds_nothing_can_be_disposed(self) -> None:
        """Before the first append, too."""
        subject = self.subject()
        calls = self._calls(subject)
        subject.cache.dispose()
        for name, call in calls.items():
            refused(Disposed, call, f"{subject.case}, disposed, {name}", Clause.DISPOSED)

    def test_a_cache_ends_with_its_block(self) -> None:
        """It is a context manager, and gives itself."""
        subject = self.subject()
        with subject.cache as cache:
            assert cache is subject.cache
            subject.window(5)
        refused(Disposed, cache.export, f"{subject.case}, after with", Clause.DISPOSED)

    def _calls(self, subject: Subject[ArrayT]) -> dict[str, Callable[[], object]]:
        """Every method of the cache, with arguments that would be taken."""
        cache = subject.cache
        rows = subject.setting.pair(subject.draw(1))
        calls: dict[str, Callable[[], object]] = {
            "append_decode": lambda: cache.append_decode(*rows),
            "append_window": lambda: cache.append_window(*rows),
            "trim": lambda: cache.trim(0),
            "is_trimmable": lambda: cache.is_trimmable(1),
            "state": cache.state,
            "export": cache.export,
        }
        return calls | self._capable_calls(subject)

    def _capable_calls(self, subject: Subject[ArrayT]) -> dict[str, Callable[[], object]]:
        cache = subject.cache
        rows = subject.setting.pair(subject.draw(1))
        overlay = subject.setting.blank(1, dtype="bool")
        calls: dict[str, Callable[[], object]] = {}
        if supports(cache, COMMITTED):
            calls["append_committed"] = lambda: cache.append_committed(*rows)
        if supports(cache, BIDIRECTIONAL):
            calls["append_bidirectional"] = lambda: cache.append_bidirectional(*rows, overlay)
        if supports(cache, ENCODER):
            calls["append_encoder"] = lambda: cache.append_encoder(*rows, None)
        if supports(cache, BLOCK_READ):
            calls["read_block"] = lambda: cache.read_block(*rows)
        if supports(cache, DONOR):
            calls["capture_donor_rows"] = cache.capture_donor_rows
        if supports(cache, FORK):
            calls["fork"] = cache.fork
        return calls
