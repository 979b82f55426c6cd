"""FreeRuns: which slots are free, as maximal runs, and which run is longest."""

from __future__ import annotations

import heapq


class FreeRuns:
    """The free slots of a pool, kept as maximal runs of consecutive slots.

    True between any two calls:

    - no two runs touch: a run's neighbours are not free;
    - ``len(runs)`` is the number of free slots.

    >>> runs = FreeRuns()
    >>> runs.add(0, 8)
    >>> runs.cut(0, 2)
    >>> runs.longest(), len(runs), runs.spans()
    (2, 6, [(2, 8)])
    """

    def __init__(self) -> None:
        self._end: dict[int, int] = {}  # first slot of a run -> one past its last
        self._start: dict[int, int] = {}  # the same, the other way
        self._heap: list[tuple[int, int]] = []  # (-length, start); stale entries are skipped
        self._num_slots = 0

    def __len__(self) -> int:
        return self._num_slots

    def spans(self) -> list[tuple[int, int]]:
        """Each run as (first slot, one past its last), in ascending order."""
        return sorted(self._end.items())

    def length_from(self, slot: int) -> int:
        """How long the run is that starts at ``slot``; 0 where none starts."""
        return self._end.get(slot, slot) - slot

    def longest(self) -> int:
        """The start of the longest run, the lowest on ties; at least one slot must be free."""
        while True:
            length, start = self._heap[0]
            if self._end.get(start) == start - length:
                return start
            heapq.heappop(self._heap)

    def add(self, start: int, end: int) -> None:
        """Free the slots ``start`` to ``end - 1``, none of which is free."""
        self._num_slots += end - start
        start = self._start.pop(start, start)  # joins the run before
        end = self._end.pop(end, end)  # and the run after
        self._put(start, end)

    def cut(self, start: int, count: int) -> None:
        """Take the first ``count`` slots of the run that starts at ``start``."""
        end = self._end.pop(start)
        del self._start[end]
        self._num_slots -= count
        if start + count < end:
            self._put(start + count, end)

    def _put(self, start: int, end: int) -> None:
        self._end[start] = end
        self._start[end] = start
        if len(self._heap) > 4 * len(self._end) + 64:  # mostly stale by now
            self._heap = [(first - last, first) for first, last in self._end.items()]
            heapq.heapify(self._heap)
        else:
            heapq.heappush(self._heap, (start - end, start))
