"""Which ranks of a gang compute slower than the others, and whether a whole node does.

Owns: scores and thresholds, how many windows it takes. Must not know: where the times come from, what is done about it.

In synchronous training every rank shows the same step time, so compute time is compared: what a step takes without
waiting for others. Most stragglers are no fault of hardware (longer sequences, a last pipeline stage, garbage
collection), so that nobody is blamed here.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

WATCH_BELOW = 0.9
ACT_BELOW = 0.75
STEPS_A_WINDOW = 20
WINDOWS = 5
WINDOWS_NEEDED = 3
FEWEST_RANKS = 3
"""Of two nobody can say which is the slow one."""
_Z_ABOVE = 3.5
_RATIO_ABOVE = 1.05
_NORMAL = 0.6745
_SMALLEST_SPREAD = 0.01
_SHORTEST_MS = 0.001


class Level(Enum):
    """How slow."""

    WATCH = "WATCH"
    ACT = "ACT"


@dataclass(frozen=True, slots=True, kw_only=True)
class Straggler:
    """A slow rank. ``score``: the usual compute time over its own, so that 0.5 is half as fast as the others."""

    rank: int
    node: str
    level: Level
    score: float
    compute_ms: float
    median_ms: float
    whole_node: bool
    """All ranks of its node are slow, of several, and none elsewhere: the slowness may be the node's."""
    since_ms: int | None = None
    """The end of the first window of the row in which it stood out, where that is known."""


def judge(
    windows: Sequence[Mapping[int, float]], nodes: Mapping[int, str], since: Mapping[int, int] | None = None
) -> list[Straggler]:
    """Return the slow ranks, slowest first. A window has the median compute time in ms of each rank over 20 steps.

    A rank counts when it stands out in three of the last five windows. ``since``: as ``Rows`` have it.
    """
    last = [one for one in windows[-WINDOWS:] if len(one) >= FEWEST_RANKS]
    if len(last) < WINDOWS_NEEDED:
        return []
    times: dict[int, int] = {}
    for window in last:
        for rank in outliers(window):
            times[rank] = times.get(rank, 0) + 1
    slow = [rank for rank, count in times.items() if count >= WINDOWS_NEEDED and rank in nodes]
    found = [_straggler(rank, last, nodes, set(slow)) for rank in slow]
    named = [replace(one, since_ms=(since or {}).get(one.rank)) for one in found if one is not None]
    return sorted(named, key=lambda one: (one.score, one.rank))


class Rows:
    """Since when each rank has stood out, over more windows than a verdict needs; a row ends with three without."""

    def __init__(self) -> None:
        self.since: dict[int, int] = {}
        self._well: dict[int, int] = {}

    def add(self, window: Mapping[int, float], at_ms: int) -> None:
        """Take in a window that has ended."""
        slow = outliers(window) if len(window) >= FEWEST_RANKS else set()
        for rank in list(self.since):
            self._well[rank] = 0 if rank in slow else self._well.get(rank, 0) + 1
            if self._well[rank] >= WINDOWS_NEEDED:
                del self.since[rank], self._well[rank]
        for rank in slow:
            self.since.setdefault(rank, at_ms)


def outliers(window: Mapping[int, float]) -> set[int]:
    """Return the ranks whose compute time stands out: by a robust z above 3.5, and by more than 5 %."""
    median = statistics.median(window.values())
    if median < _SHORTEST_MS:
        return set()
    spread = statistics.median(abs(value - median) for value in window.values())
    scale = max(spread, _SMALLEST_SPREAD * median)
    return {
        rank
        for rank, value in window.items()
        if _NORMAL * (value - median) / scale > _Z_ABOVE and value / median > _RATIO_ABOVE
    }


def _straggler(
    rank: int, windows: Sequence[Mapping[int, float]], nodes: Mapping[int, str], slow: set[int]
) -> Straggler | None:
    own = statistics.median(window[rank] for window in windows if rank in window)
    usual = statistics.median(statistics.median(window.values()) for window in windows)
    score = usual / own
    if score >= WATCH_BELOW:
        return None
    neighbours = {other for other, node in nodes.items() if node == nodes[rank]}
    return Straggler(
        rank=rank,
        node=nodes[rank],
        level=Level.ACT if score < ACT_BELOW else Level.WATCH,
        score=score,
        compute_ms=own,
        median_ms=usual,
        whole_node=len(neighbours) > 1 and slow == neighbours,
    )
