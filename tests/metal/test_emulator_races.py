"""Race reports are exact: beside a model that knows only which barrier lies between."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import mlx.core as mx
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pagedkv_metal import EmulatorBackend, EmulatorFault
from tests.metal.emulated import launched, sample

PHASES, STEPS = 4, 2
ACTORS = (0, 1, 31, 32, 63)
"""Threads that do anything: three of one simdgroup, two of the other."""
NONE, THREADGROUP, SIMDGROUP = range(3)


class Act(NamedTuple):
    """One access of one byte."""

    phase: int
    step: int
    thread: int
    byte: int
    writes: bool


def ordered(a: Act, b: Act, barriers: list[int]) -> bool:
    """Whether ``a`` comes before ``b`` in whatever order threads run."""
    if a.thread == b.thread:
        return (a.phase, a.step) < (b.phase, b.step)
    between = barriers[a.phase : b.phase]
    near = a.thread // 32 == b.thread // 32
    return THREADGROUP in between or (near and SIMDGROUP in between)


def is_wrong(acts: list[Act], barriers: list[int]) -> bool:
    """Two threads at one byte with no barrier between, or a read that no write precedes."""
    for a, b in itertools.combinations(acts, 2):
        meet = a.byte == b.byte and (a.writes or b.writes) and a.thread != b.thread
        if meet and not ordered(a, b, barriers) and not ordered(b, a, barriers):
            return True
    return any(
        not any(w.writes and w.byte == r.byte and ordered(w, r, barriers) for w in acts)
        for r in acts
        if not r.writes
    )


def reported(acts: list[Act], barriers: list[int], seed: int) -> bool:
    codes = [0] * (PHASES * STEPS * 64)
    for act in acts:
        where = (act.phase * STEPS + act.step) * 64 + act.thread
        codes[where] = act.byte + (5 if act.writes else 1)
    inputs = {
        "codes": mx.array(codes, mx.uint8),
        "barriers": mx.array(barriers + [0] * (8 - PHASES), mx.uint8),
    }
    try:
        launched(
            sample("program"),
            inputs,
            {"y": ((64,), mx.uint32)},
            grid=(64, 1, 1),
            threadgroup=(64, 1, 1),
            template=[("PHASES", PHASES), ("STEPS", STEPS)],
            backend=EmulatorBackend(seed=seed),
        )
    except EmulatorFault as fault:
        return "race in threadgroup memory" in str(fault) or "uninitialised" in str(fault)
    return False


acts = st.lists(
    st.builds(
        Act,
        st.integers(0, PHASES - 1),
        st.integers(0, STEPS - 1),
        st.sampled_from(ACTORS),
        st.integers(0, 1),
        st.booleans(),
    ),
    max_size=8,
    unique_by=lambda act: act[:3],
)
barriers = st.lists(st.sampled_from([NONE, THREADGROUP, SIMDGROUP]), min_size=PHASES,
                    max_size=PHASES)  # fmt: skip

WRITE = Act(0, 0, 0, 0, True)
NEAR_READ = Act(1, 0, 1, 0, False)
FAR_READ = Act(1, 0, 32, 0, False)


@pytest.mark.parametrize("seed", [0, 1])
@given(acts, barriers)
@example([WRITE, NEAR_READ], [SIMDGROUP, NONE, NONE, NONE])
@example([WRITE, FAR_READ], [SIMDGROUP, NONE, NONE, NONE])
@example([WRITE, FAR_READ], [THREADGROUP, NONE, NONE, NONE])
@example([WRITE, NEAR_READ, Act(2, 0, 0, 0, True)], [THREADGROUP, SIMDGROUP, NONE, NONE])
@example([WRITE, FAR_READ, Act(2, 0, 0, 0, True)], [THREADGROUP, SIMDGROUP, NONE, NONE])
@example([WRITE, NEAR_READ, FAR_READ, Act(1, 1, 0, 0, True)], [THREADGROUP, NONE, NONE, NONE])
def test_a_kernel_is_reported_where_and_only_where_it_races(seed, acts, barriers):
    assert reported(acts, barriers, seed) == is_wrong(acts, barriers)
