"""The queue of a look ahead: runs of one shape stand in line, so that what is tried in vain is tried once.

Owns: lines, their order, what is known of a shape. Must not know: nodes' inner state, events.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from heapq import nsmallest

from airyard.core.scheduling.future import FutureNode, Promise, Zone
from airyard.core.scheduling.nodes import FAR_MS
from airyard.core.scheduling.plan import Shape, Waiting

REACH = 16
"""How many runs of one shape behind a blocked one are looked at for one that is short enough."""


class Want:
    """A waiting run; ``number`` is its place in the whole queue."""

    __slots__ = ("asleep", "bound_ms", "later", "line", "number", "promise", "started", "want")

    def __init__(self, want: Waiting, number: int, line: Line) -> None:
        self.want = want
        self.bound_ms = want.bound_ms
        self.number = number
        self.later: float | None = None
        """Its second place, for opening a whole node of which it takes a part; None while that is not known."""
        self.line = line
        self.started = False
        self.asleep = False
        self.promise: Promise | None = None

    @property
    def blocked(self) -> bool:
        """True when it could be given a promise."""
        return not self.started and self.promise is None


class Line:
    """Waiting runs of one shape, and of one project and user where these have limits, in order."""

    __slots__ = ("_at", "limited", "runs", "shape")

    def __init__(self, shape: LineShape, *, limited: bool) -> None:
        self.shape = shape
        self.limited = limited
        self.runs: list[tuple[int, Want]] = []
        self._at = 0

    def enter(self, one: Want) -> None:
        """Put a run that has woken in its place."""
        place = bisect_left(self.runs, one.number, key=lambda row: row[0])
        self.runs.insert(place, (one.number, one))
        self._at = min(self._at, place)

    def first(self) -> int:
        """Return where the first run stands that has not started; -1 when all have."""
        runs, at, end = self.runs, self._at, len(self.runs)
        while at < end and runs[at][1].started:
            at += 1
        self._at = at
        return at if at < end else -1

    def next(self, index: int) -> int:
        """Return where the next run after a place stands that has not started; -1 when there is none."""
        runs, end = self.runs, len(self.runs)
        for at in range(index + 1, end):
            if not runs[at][1].started:
                return at
        return -1

    def shorter(self, index: int, bound_ms: int) -> int:
        """Return where one of the next ``REACH`` runs stands that lasts at most so long; -1 when none does."""
        if bound_ms <= 0:
            return -1
        runs, left = self.runs, REACH
        for at in range(index + 1, len(runs)):
            one = runs[at][1]
            if one.started:
                continue
            if one.bound_ms <= bound_ms:
                return at
            left -= 1
            if not left:
                break
        return -1

    def unpromised(self, but: set[Want]) -> Want | None:
        """Return the first run that has neither started nor a promise, nor is one of ``but``."""
        at = self.first()
        while 0 <= at < len(self.runs):
            one = self.runs[at][1]
            if one.promise is None and not one.started and one not in but:
                return one
            at += 1
        return None


class LineShape:
    """What runs of one shape share: where they may stand, and what was tried in vain."""

    __slots__ = ("count", "fabric_bound", "lines", "nodes", "opens_at_once", "pools", "tried", "until_ms")

    def __init__(self, shape: Shape, pools: list[tuple[str, list[Zone]]], *, opens_at_once: bool) -> None:
        self.opens_at_once = opens_at_once
        """Its runs may take parts of whole free nodes at their first turn."""
        self.count = shape.devices
        self.nodes = shape.nodes
        self.fabric_bound = shape.same_fabric
        self.pools = pools
        self.lines: list[Line] = []
        self.tried = -1
        """The version of its zones at which a run was tried in vain."""
        self.until_ms = 0
        """Until when a run of the shape could go beside the promises then."""

    def possible(self) -> bool:
        """True when enough nodes have the devices ready, promised or not."""
        count = self.count
        for _, zones in self.pools:
            having = 0
            for zone in zones:
                having += zone.having[count]
            if having >= self.nodes:
                return True
        return False

    def opens(self) -> bool:
        """True when there are nodes free as a whole of which a run would take a part."""
        return any(
            zone.kind.total > self.count and zone.having[zone.kind.total]
            for _, zones in self.pools
            for zone in zones
        )

    def version(self) -> int:
        """Return a number that grows with every change for the better."""
        return sum([zone.version for _, zones in self.pools for zone in zones])

    def longest(self) -> int:
        """Return until when such a run could go now beside all promises, reservations left aside; 0: not at all."""
        longest = 0
        for _, zones in self.pools:
            for block in blocks(zones, self):
                free = sum(len(row) for zone in block for row in zone.free[self.count :])
                ends = sorted(end_ms for zone in block for end_ms in zone.windows(self.count))
                wanted = self.nodes - free
                if wanted <= 0:
                    return FAR_MS
                if len(ends) >= wanted:
                    longest = max(longest, ends[-wanted])
        return longest


def blocks(zones: list[Zone], shape: LineShape) -> list[list[Zone]]:
    """Return the sets of zones over which a gang may be spread: all of them, or those of one fabric."""
    if not shape.fabric_bound:
        return [zones]
    found: dict[str, list[Zone]] = {}
    for zone in zones:
        found.setdefault(zone.fabric, []).append(zone)
    return list(found.values())


def soonest(
    zones: list[Zone], shape: LineShape, now_ms: int, opens: Callable[[Zone, int], int]
) -> tuple[list[FutureNode], int]:
    """Return the nodes that are free for the shape first beside all promises, and when; none when never.

    Among nodes that are free at the same time those with promises go first, then the least busy, as in a plan.
    ``opens(zone, at_ms)`` is when no reservation is in the way any more, from a time on.
    """
    best: list[tuple[int, int, int, FutureNode]] = []
    for block in blocks(zones, shape):
        firsts = [
            opens(zone, max(at_ms, now_ms))
            for zone in block
            for at_ms, _ in zone.soonest[shape.count][: shape.nodes]
        ]
        if len(firsts) < shape.nodes:
            continue
        last_ms = sorted(firsts)[shape.nodes - 1]
        if last_ms >= FAR_MS or (best and last_ms >= best[-1][0]):
            continue
        rows: list[tuple[int, int, int, FutureNode]] = []
        for zone in block:
            for free_ms, busy, node in zone.until(shape.count, last_ms):
                at_ms = max(free_ms, now_ms)
                open_ms = opens(zone, at_ms) if zone.bars else at_ms
                rows.append((open_ms, busy if open_ms == at_ms else 0, node.number, node))
        best = nsmallest(shape.nodes, rows)
    if not best:
        return [], FAR_MS
    from_ms = best[-1][0]
    # Rare: the nodes are open one after the other, but not together.
    together = all(opens(row[-1].zone, from_ms) == from_ms for row in best)
    return [row[-1] for row in best] if together else [], from_ms
