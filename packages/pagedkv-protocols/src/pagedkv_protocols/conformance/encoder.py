"""EncoderConformance: a first window that comes from an encoder, with its own mask."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any, TypeVar

import pytest

from pagedkv_protocols.capabilities import ENCODER, Capability
from pagedkv_protocols.conformance.clauses import Clause, check, refused
from pagedkv_protocols.conformance.kit import CacheKit
from pagedkv_protocols.conformance.late import CHANGES, check_late
from pagedkv_protocols.conformance.reference import Mask, all_positions, draw_mask
from pagedkv_protocols.conformance.refusals import bad_rows, check_rows_refused, fingerprint
from pagedkv_protocols.conformance.seen import Seen
from pagedkv_protocols.conformance.subject import Subject
from pagedkv_protocols.errors import DtypeMismatch, PagedKVError, ShapeMismatch, Unsupported

ArrayT = TypeVar("ArrayT")

SHAPES = ["[L]", "[L, L]", "[1, L]", "[L, 1]", "[1, 1, L, L]", "[1, 1, 1, L]"]
"""Shapes that are broadcastable to ``[B, 1, L, L]``."""


class EncoderConformance(CacheKit[ArrayT]):
    """``append_encoder`` under a bool mask and under none."""

    claims: Sequence[Capability[Any]] = (ENCODER,)

    @pytest.mark.parametrize("length", [1, 3, 9, 17])
    def test_without_a_mask_all_see_all(self, dtype: str, window: int | None, length: int) -> None:
        """No causality is implied, and no window."""
        subject = self.subject(dtype, window=window, having=ENCODER)
        self._append_encoded(subject, length, None).check(Clause.ENCODER)

    @pytest.mark.parametrize("shape", SHAPES)
    def test_a_mask_says_who_sees_whom(self, dtype: str, window: int | None, shape: str) -> None:
        """Broadcast over heads, queries or positions."""
        subject = self.subject(dtype, window=window, having=ENCODER)
        sizes = tuple(9 if axis == "L" else 1 for axis in shape[1:-1].split(", "))
        mask = draw_mask(random.Random(shape), sizes, "bool")  # noqa: S311
        self._append_encoded(subject, 9, mask).check(Clause.ENCODER)

    def test_a_position_that_sees_nothing_is_finite(self, dtype: str) -> None:
        """Padding of a batch of images, say."""
        subject = self.subject(dtype, having=ENCODER)
        mask = Mask((4, 4), (1.0,) * 12 + (0.0,) * 4, "bool")
        answer = self.arrays.values(self._append_encoded(subject, 4, mask).ask())
        check(all(map(math.isfinite, answer)), Clause.MASK_ROW, subject.case, str(answer))

    def test_what_follows_an_encoder_is_causal(self, dtype: str, window: int | None) -> None:
        """A decode and a window behind the encoder's rows."""
        subject = self.subject(dtype, window=window, having=ENCODER)
        self._append_encoded(subject, self.block_size + 2, None)
        subject.decode().check(Clause.DECODE)
        subject.window(5).check(Clause.WINDOW)
        subject.check_holds()

    def test_an_encoder_writes_the_first_window_only(self) -> None:
        """A later one is refused; one after a trim to nothing is not."""
        subject = self.subject(having=ENCODER)
        subject.window(3)
        cache = self.having(subject.cache, ENCODER)
        rows = subject.setting.pair(subject.draw(4))
        before = fingerprint(self, cache)
        case = f"{subject.case}, append_encoder"
        refused(Unsupported, lambda: cache.append_encoder(*rows, None), case, Clause.FIRST_ONLY)
        check(fingerprint(self, cache) == before, Clause.UNCHANGED, case, "something else")
        subject.trim(3)
        self._append_encoded(subject, 4, None).check(Clause.FIRST_ONLY)

    @pytest.mark.parametrize(
        ("error", "shape", "dtype_of_mask"),
        [
            (ShapeMismatch, (4, 3), "bool"),
            (ShapeMismatch, (5,), "bool"),
            (ShapeMismatch, (1, 2, 4, 4), "bool"),
            (ShapeMismatch, (2, 1, 4, 4), "bool"),
            (ShapeMismatch, (1, 1, 1, 4, 4), "bool"),
            (DtypeMismatch, (4, 4), "float"),
            (DtypeMismatch, (4, 4), "int32"),
        ],
        ids=["columns", "longer", "heads", "batch", "rank 5", "floats", "integers"],
    )
    def test_an_encoder_mask_that_does_not_fit_is_refused(
        self, error: type[PagedKVError], shape: tuple[int, ...], dtype_of_mask: str
    ) -> None:
        """It is bool, broadcastable to ``[B, 1, L, L]``."""
        subject = self.subject(having=ENCODER)
        cache = self.having(subject.cache, ENCODER)
        rows = subject.setting.pair(subject.draw(4))
        dtype = self.dtypes[0] if dtype_of_mask == "float" else dtype_of_mask
        mask = subject.setting.blank(*shape, dtype=dtype)
        case = f"{subject.case}, mask {dtype} {list(shape)} for 4 positions"
        refused(error, lambda: cache.append_encoder(*rows, mask), case)
        subject.check_holds(Clause.UNCHANGED)
        self._append_encoded(subject, 3, None).check(Clause.UNCHANGED)

    def test_encoder_rows_that_do_not_fit_are_refused(self) -> None:
        """As a window's are."""
        subject = self.subject(having=ENCODER)
        cache = self.having(subject.cache, ENCODER)
        check_rows_refused(
            self, subject, lambda k, v: cache.append_encoder(k, v, None), bad_rows(self.dims)
        )
        subject.window(3).check(Clause.UNCHANGED)

    @pytest.mark.parametrize("change", CHANGES)
    def test_an_encoder_read_is_of_the_moment_of_its_append(self, dtype: str, change: str) -> None:
        """Whenever it is asked for or evaluated."""

        def begin() -> tuple[Subject[ArrayT], Seen[ArrayT]]:
            subject = self.subject(dtype, having=ENCODER)
            mask = draw_mask(random.Random(1), (7, 7), "bool")  # noqa: S311
            return subject, self._append_encoded(subject, 7, mask)

        check_late(self, begin, change, Clause.ENCODER)

    def _append_encoded(
        self, subject: Subject[ArrayT], length: int, mask: Mask | None
    ) -> Seen[ArrayT]:
        rule = all_positions if mask is None else mask.rule
        array = None if mask is None else subject.setting.mask(mask)
        return subject.append("append_encoder", length, array, rule=rule)
