"""Free slots as maximal runs, beside a set of slots."""

from hypothesis import given
from hypothesis import strategies as st

from pagedkv_pool import FreeRuns
from tests.pool.model import longest_run


def runs_of(free: set[int]) -> list[tuple[int, int]]:
    """The readable reference: each maximal run as (first, one past the last)."""
    starts = [slot for slot in sorted(free) if slot - 1 not in free]
    ends = [slot + 1 for slot in sorted(free) if slot + 1 not in free]
    return list(zip(starts, ends, strict=True))


@given(st.data(), st.integers(0, 30))
def test_any_order_of_adding_and_cutting_leaves_the_maximal_runs(data, size):
    runs = FreeRuns()
    free: set[int] = set()
    for _ in range(60):
        used = set(range(size)) - free
        if free and (not used or data.draw(st.booleans())):
            start, end = data.draw(st.sampled_from(runs_of(free)))
            count = data.draw(st.integers(1, end - start))
            runs.cut(start, count)
            free -= set(range(start, start + count))
        elif used:
            start, end = data.draw(st.sampled_from(runs_of(used)))
            runs.add(start, end)
            free |= set(range(start, end))
        assert runs.spans() == runs_of(free)
        assert len(runs) == len(free)
        assert not free or runs.longest() == longest_run(free)
        assert [runs.length_from(s) for s, _ in runs_of(free)] == [e - s for s, e in runs_of(free)]


def test_no_run_starts_within_a_run_or_where_nothing_is_free():
    runs = FreeRuns()
    runs.add(4, 8)
    assert [runs.length_from(slot) for slot in (-1, 3, 4, 5, 8)] == [0, 0, 4, 0, 0]


def test_slots_given_back_one_by_one_join_on_both_sides():
    runs = FreeRuns()
    for slot in (0, 2, 4, 3, 1):
        runs.add(slot, slot + 1)
    assert runs.spans() == [(0, 5)]


def test_the_longest_run_is_the_lowest_of_equals():
    runs = FreeRuns()
    for start in (20, 0, 10):
        runs.add(start, start + 3)
    assert runs.longest() == 0
    runs.cut(0, 1)
    assert runs.longest() == 10


def test_what_is_remembered_of_past_runs_stays_small():
    """A thousand rounds leave no thousand entries behind."""
    runs = FreeRuns()
    runs.add(0, 8)
    for _ in range(1000):
        runs.cut(0, 4)
        runs.add(0, 4)
    assert len(runs._heap) <= 100
    assert runs.longest() == 0
