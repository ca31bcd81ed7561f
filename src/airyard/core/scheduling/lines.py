"""The queue of a look ahead: runs of one shape stand in line, so that what is tried in vain is tried once.

Owns: lines, their order, what is known of a shape. Must not know: nodes' inner state, events.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable
from heapq import nsmallest

from airyard.core.scheduling.future import FutureNode, Promise, Zone
from airyard.core.scheduling.nodes import FAR_MS
from airyard.core.scheduling.order import OPENING_MS
from airyard.core.scheduling.plan import Shape, Waiting
from airyard.core.scheduling.queue import Entry

REACH = 16
"""How many runs of one line are tried in vain at one event."""


Turn = tuple[int, float, float, int, int]
"""When a run is looked at: class, band, standing, queued_ms, run id; the lower first."""


class Want:
    """A waiting run of a line."""

    __slots__ = ("asleep", "bound_ms", "entry", "index", "line", "promise", "started", "want")

    def __init__(self, want: Waiting, entry: Entry, line: Line) -> None:
        self.want = want
        self.entry = entry
        self.bound_ms = want.bound_ms
        self.line = line
        self.index = -1
        """Its place in the line."""
        self.started = False
        self.asleep = False
        self.promise: Promise | None = None

    @property
    def blocked(self) -> bool:
        """True when it could be given a promise."""
        return not self.started and self.promise is None

    def turn(self, band: float, *, opening: bool) -> Turn:
        """Return its turn; with ``opening`` the later one, at which it may open a whole node for a part of it."""
        standing, queued_ms, run_id = self.entry
        return self.want.rank, band, standing + OPENING_MS if opening else standing, queued_ms, run_id


class _Durations:
    """How long each run of a line may last, for the question who is the next that is short enough."""

    __slots__ = ("_least", "_size")

    def __init__(self, durations: list[int]) -> None:
        size = 1
        while size < len(durations):
            size *= 2
        self._size = size
        self._least = [FAR_MS + 1] * size + durations + [FAR_MS + 1] * (size - len(durations))
        """A tree in a row: entry i is the less of entries 2i and 2i + 1, the last ``size`` are the durations."""
        for at in range(size - 1, 0, -1):
            self._least[at] = min(self._least[2 * at], self._least[2 * at + 1])

    def least(self) -> int:
        """Return the shortest duration of all."""
        return self._least[1]

    def strike_out(self, index: int) -> None:
        """Let a run be no candidate any more."""
        least, at = self._least, index + self._size
        least[at] = FAR_MS + 1
        while at > 1:
            at //= 2
            less = min(least[2 * at], least[2 * at + 1])
            if less == least[at]:
                return
            least[at] = less

    def first(self, index: int, most: int) -> int:
        """Return the first from ``index`` on that lasts at most so long; -1 when there is none."""
        least, size = self._least, self._size
        if index >= size:
            return -1
        at = index + size
        while least[at] > most:
            while at & 1:
                at >>= 1
            if at == 0:
                return -1
            at += 1
        while at < size:
            at *= 2
            at += least[at] > most
        return at - size


class Line:
    """Waiting runs of one group in order; those that have waited too long are a line of their own.

    ``held_by``: its project and the pool that serves it first. ``bands``: its band while its project is within its
    guarantee of ``guarantee`` devices there, and else.
    """

    __slots__ = (
        "_durations",
        "bands",
        "beyond",
        "counted",
        "guarantee",
        "head",
        "held_by",
        "least_ms",
        "limited",
        "runs",
        "shape",
    )

    def __init__(
        self,
        shape: LineShape,
        held_by: tuple[str, str],
        bands: tuple[float, float],
        *,
        guarantee: int,
        limited: bool,
    ) -> None:
        self.shape = shape
        self.held_by = held_by
        self.bands = bands
        self.guarantee = guarantee
        self.beyond = guarantee - shape.count * shape.nodes
        """With more devices than this its project would leave its guarantee with one of these runs more."""
        self.limited = limited
        self.counted = limited or guarantee > 0
        """What its runs hold is to be counted: somebody asks for it."""
        self.runs: list[Want] = []
        self._durations = _Durations([])
        self.head = -1
        """Where the first run stands that has not started, or -1."""
        self.least_ms = FAR_MS + 1
        """How long the shortest of those may last."""

    def enter(self, one: Want) -> None:
        """Put a run in its place."""
        insort(self.runs, one, key=lambda other: other.entry)
        self.settle()

    def settle(self) -> None:
        """Take in who stands in line by now. Cost: its runs."""
        for index, one in enumerate(self.runs):
            one.index = index
        self._durations = _Durations([FAR_MS + 1 if one.started else one.bound_ms for one in self.runs])
        self._note(self._durations.first(0, FAR_MS))

    def _note(self, head: int) -> None:
        self.head = head
        self.least_ms = self._durations.least()

    def start(self, one: Want) -> None:
        """Let one of the runs start."""
        one.started = True
        self._durations.strike_out(one.index)
        self._note(self._durations.first(one.index + 1, FAR_MS) if one.index == self.head else self.head)

    def next(self, index: int, most_ms: int = FAR_MS) -> int:
        """Return where the next run after a place stands that has not started and lasts at most so long, or -1."""
        return self._durations.first(index + 1, most_ms) if self.least_ms <= most_ms else -1

    def first(self, most_ms: int) -> int:
        """Return where the first run stands that has not started and lasts at most so long, or -1."""
        if self.least_ms > most_ms:
            return -1
        return self.head if self.runs[self.head].bound_ms <= most_ms else self.next(self.head, most_ms)


class LineShape:
    """What runs of one shape share: where they may stand, and what was tried in vain."""

    __slots__ = (
        "_seen",
        "count",
        "fabric_bound",
        "lines",
        "nodes",
        "opens_at_once",
        "pools",
        "rows",
        "shut",
        "until_ms",
    )

    def __init__(self, shape: Shape, pools: list[tuple[str, list[Zone]]], *, opens_at_once: bool) -> None:
        self.opens_at_once = opens_at_once
        """Its runs may take parts of whole free nodes at their first turn."""
        self.count = shape.devices
        self.nodes = shape.nodes
        self.fabric_bound = shape.same_fabric
        self.pools = pools
        self.lines: list[Line] = []
        self.rows: list[tuple[Turn, int, Line, bool]] = []
        """Of each line who is looked at next at this event, where it stands, and whether at its second turn."""
        self.shut = (-1, 0)
        """The version of its zones at which a run that lasts so long found no node in use to go to, and that long."""
        self._seen = -1
        self.until_ms = 0
        """Until when a run of the shape could go beside all promises, reservations left aside; 0: not at all."""

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

    def window(self, now_ms: int) -> int:
        """Return how long a run of the shape may last at most to go now; 0 or less when none can."""
        version = self.version()
        if version != self._seen:
            self._seen = version
            self.note_failure()
        return self.until_ms - now_ms

    def note_failure(self) -> None:
        """Find out anew until when a run could go: somebody went, or could not."""
        self.until_ms = self.longest()

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
