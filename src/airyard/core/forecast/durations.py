"""The last durations of runs that are alike, and what they say of the next one.

Owns: quantiles of a bounded sample, conditional on having lasted so long. Must not know: what makes runs alike.
Times are milliseconds.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import deque

KEPT = 100
"""Ended runs that are looked at: old habits are forgotten."""


class Durations:
    """The last ``KEPT`` durations, in order of end and sorted. Memory: about 16 octets each."""

    __slots__ = ("_by_end", "_sorted")

    def __init__(self) -> None:
        self._by_end: deque[int] = deque()
        self._sorted: list[int] = []

    def __len__(self) -> int:
        return len(self._sorted)

    def add(self, lasted_ms: int) -> None:
        """Take in one more; the oldest goes when there are too many. Cost: a few microseconds."""
        self._by_end.append(lasted_ms)
        insort(self._sorted, lasted_ms)
        if len(self._by_end) > KEPT:
            del self._sorted[bisect_left(self._sorted, self._by_end.popleft())]

    def beyond(self, elapsed_ms: int) -> int:
        """Return how many lasted longer than this."""
        return len(self._sorted) - bisect_right(self._sorted, elapsed_ms)

    def quantile(self, share: float, elapsed_ms: int = 0) -> int:
        """Return a quantile of those that lasted longer than ``elapsed_ms``: the whole duration.

        Raises: IndexError when none did.
        """
        first = bisect_right(self._sorted, elapsed_ms) if elapsed_ms else 0
        count = len(self._sorted) - first
        if count <= 0:
            raise IndexError(f"none of {len(self._sorted)} lasted longer than {elapsed_ms} ms")
        return self._sorted[first + int((count - 1) * share)]

    def in_order(self) -> tuple[int, ...]:
        """Return the durations in order of their ends."""
        return tuple(self._by_end)
