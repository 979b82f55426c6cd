"""BidirectionalConformance: a first window whose spans see each other both ways."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import pytest

from pagedkv_protocols.capabilities import BIDIRECTIONAL, Capability
from pagedkv_protocols.conformance.clauses import Clause, refused
from pagedkv_protocols.conformance.kit import CacheKit
from pagedkv_protocols.conformance.late import CHANGES, check_late
from pagedkv_protocols.conformance.reference import overlaid
from pagedkv_protocols.conformance.refusals import bad_rows, check_rows_refused, fingerprint
from pagedkv_protocols.conformance.seen import Seen
from pagedkv_protocols.conformance.subject import Subject
from pagedkv_protocols.errors import DtypeMismatch, PagedKVError, ShapeMismatch, Unsupported

ArrayT = TypeVar("ArrayT")

IMAGES = [int(5 <= i < 13) + 2 * int(18 <= i < 26) for i in range(30)]
"""R36: 30 positions, two images."""

OVERLAYS = {
    "one image": [0, 0, 1, 1, 1, 1, 0, 0],
    "an image at the start": [1, 1, 1, 0],
    "an image at the end": [0, 1, 1, 1],
    "everything": [1] * 9,
    "nothing": [0] * 9,
    "flags far apart": [1, 0, 0, 0, 0, 0, 0, 0, 1, 0],
    "a single position": [1],
}


class BidirectionalConformance(CacheKit[ArrayT]):
    """``append_bidirectional`` with flags and with span ids (R36)."""

    claims: Sequence[Capability[Any]] = (BIDIRECTIONAL,)

    @pytest.mark.parametrize("overlay", OVERLAYS)
    def test_flagged_positions_see_each_other_whatever_the_order_or_window(
        self, dtype: str, window: int | None, overlay: str
    ) -> None:
        """The rest is causal in the window."""
        self._begun_overlaid(dtype, OVERLAYS[overlay], "bool", window).check(Clause.BIDIRECTIONAL)

    def test_positions_of_one_span_see_each_other(self, dtype: str, window: int | None) -> None:
        """And spans do not see each other forwards; text stays causal."""
        self._begun_overlaid(dtype, IMAGES, "int32", window).check(Clause.BIDIRECTIONAL)

    def test_a_span_may_have_any_number_and_lie_in_pieces(self, dtype: str) -> None:
        """Ids in no order, 0 for none."""
        spans = [7, 0, 3, 7, 7, 0, 3, 100000, 100000]
        self._begun_overlaid(dtype, spans, "int32").check(Clause.BIDIRECTIONAL)

    def test_what_follows_an_overlay_is_causal(self, dtype: str, window: int | None) -> None:
        """A decode and a window behind two images."""
        subject = self.subject(dtype, window=window, having=BIDIRECTIONAL)
        self._append_overlaid(subject, IMAGES, "int32").check(Clause.BIDIRECTIONAL)
        subject.decode().check(Clause.DECODE)
        subject.window(9).check(Clause.WINDOW)
        subject.check_holds()

    def test_a_trim_into_a_span_drops_rows_and_nothing_else(self, dtype: str) -> None:
        """R36: four of the second image's eight."""
        subject = self.subject(dtype, having=BIDIRECTIONAL)
        seen = self._append_overlaid(subject, IMAGES, "int32")
        subject.trim(8)
        subject.window(3).check(Clause.WINDOW)
        subject.check_holds(Clause.TRIM)
        seen.check(Clause.AS_OF_APPEND)

    def test_an_overlay_is_for_the_first_window_only(self) -> None:
        """A later one is refused; one after a trim to nothing is not."""
        subject = self.subject(having=BIDIRECTIONAL)
        subject.window(3)
        cache = self.having(subject.cache, BIDIRECTIONAL)
        keys, values = subject.setting.pair(subject.draw(4))
        overlay = self._overlay([0, 1, 1, 0], "bool")
        before = fingerprint(self, cache)
        refused(
            Unsupported,
            lambda: cache.append_bidirectional(keys, values, overlay),
            f"{subject.case}, append_bidirectional",
            Clause.FIRST_ONLY,
        )
        assert fingerprint(self, cache) == before, Clause.UNCHANGED.value
        subject.trim(3)
        self._append_overlaid(subject, [0, 1, 1, 0], "bool").check(Clause.FIRST_ONLY)

    @pytest.mark.parametrize(
        ("error", "shape", "kind"),
        [
            (ShapeMismatch, (3,), "bool"),
            (ShapeMismatch, (5,), "int32"),
            (ShapeMismatch, (1, 4), "bool"),
            (ShapeMismatch, (), "bool"),
            (DtypeMismatch, (4,), "float"),
        ],
        ids=["too short", "too long", "of rank 2", "a number", "of floats"],
    )
    def test_an_overlay_that_does_not_fit_is_refused(
        self, error: type[PagedKVError], shape: tuple[int, ...], kind: str
    ) -> None:
        """It is ``bool [L]`` or integer ``[L]``."""
        subject = self.subject(having=BIDIRECTIONAL)
        cache = self.having(subject.cache, BIDIRECTIONAL)
        keys, values = subject.setting.pair(subject.draw(4))
        overlay = subject.setting.blank(*shape, dtype=self.dtypes[0] if kind == "float" else kind)
        case = f"{subject.case}, overlay {kind} {list(shape)} for 4 positions"
        refused(error, lambda: cache.append_bidirectional(keys, values, overlay), case)
        subject.check_holds(Clause.UNCHANGED)
        self._append_overlaid(subject, [0, 1, 1], "bool").check(Clause.UNCHANGED)

    def test_bidirectional_rows_that_do_not_fit_are_refused(self) -> None:
        """As a window's are."""
        subject = self.subject(having=BIDIRECTIONAL)
        cache, overlay = self.having(subject.cache, BIDIRECTIONAL), self._overlay([1, 1], "bool")
        check_rows_refused(
            self,
            subject,
            lambda k, v: cache.append_bidirectional(k, v, overlay),
            bad_rows(self.dims),
        )
        subject.window(3).check(Clause.UNCHANGED)

    @pytest.mark.parametrize("change", CHANGES)
    def test_a_bidirectional_read_is_of_the_moment_of_its_append(
        self, dtype: str, change: str
    ) -> None:
        """Whenever it is asked for or evaluated."""

        def begin() -> tuple[Subject[ArrayT], Seen[ArrayT]]:
            subject = self.subject(dtype, having=BIDIRECTIONAL)
            return subject, self._append_overlaid(subject, [0, 1, 1, 0, 2, 2, 2], "int32")

        check_late(self, begin, change, Clause.BIDIRECTIONAL)

    def _begun_overlaid(
        self, dtype: str, spans: Sequence[int], kind: str, window: int | None = None
    ) -> Seen[ArrayT]:
        subject = self.subject(dtype, window=window, having=BIDIRECTIONAL)
        return self._append_overlaid(subject, spans, kind)

    def _append_overlaid(
        self, subject: Subject[ArrayT], spans: Sequence[int], kind: str
    ) -> Seen[ArrayT]:
        rule = overlaid(spans, subject.cache.window)
        overlay = self._overlay(spans, kind)
        return subject.append("append_bidirectional", len(spans), overlay, rule=rule)

    def _overlay(self, spans: Sequence[int], kind: str) -> ArrayT:
        return self.arrays.make([float(span) for span in spans], (len(spans),), kind)
