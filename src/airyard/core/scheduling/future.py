"""The nodes of a book as they come free, for a look ahead: equal nodes stand together, counted by what is free.

Owns: the simulated nodes and their indexes. Must not know: the queue, which run goes where.
Cost: a change of one node is a few list insertions; nothing here walks all nodes.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Mapping
from itertools import islice

from airyard.core.policy import Reservation
from airyard.core.scheduling.book import Book
from airyard.core.scheduling.nodes import FAR_MS, Kind, Slot

SCAN = 256
"""How many nodes with promises are looked at for one run that might go beside them."""


class Promise:
    """Devices of some nodes kept for one run from ``from_ms`` on."""

    __slots__ = ("devices", "from_ms", "nodes", "pool", "spare")

    def __init__(self, nodes: list[FutureNode], devices: int, from_ms: int, pool: str) -> None:
        self.nodes = nodes
        self.devices = devices
        self.from_ms = from_ms
        self.pool = pool
        self.spare: dict[FutureNode, int] = {}
        """What is expected to be free on each node beside all promises then."""


class FutureNode:
    """One open node."""

    __slots__ = ("ahead", "busy", "held", "number", "promises", "ready", "size", "zone")

    def __init__(self, zone: Zone, number: int, size: int, busy: list[int]) -> None:
        self.zone = zone
        self.number = number
        self.size = size
        self.busy = busy
        """When each device in use comes free, the first first."""
        self.ready = size - len(busy)
        self.held = 0
        self.promises: list[Promise] = []
        self.ahead: list[int] = []

    @property
    def whole(self) -> bool:
        """True when nobody has any device of it."""
        return self.ready == self.zone.kind.total

    def available_ms(self, count: int) -> int:
        """Return when ``count`` devices are free beside what is promised: 0 for now, FAR_MS for never."""
        wanted = self.share_of(count) + self.held
        if wanted <= self.ready:
            return 0
        return self.busy[wanted - self.ready - 1] if wanted <= self.size else FAR_MS

    def share_of(self, count: int) -> int:
        """Return how many devices go with ``count``: all of a node that is not shared."""
        return count if self.zone.shared else self.size

    def allows(self, count: int, until_ms: int, but: Promise | None = None) -> bool:
        """True when ``count`` of the ready devices may be in use until a time beside all promises but one."""
        count = self.share_of(count)
        return all(until_ms <= one.from_ms or one is but or one.spare[self] >= count for one in self.promises)


class Zone:
    """Open nodes that are alike: one kind, the same reservations, and one fabric where that matters."""

    def __init__(
        self,
        kind: Kind,
        fabric: str,
        shared: bool,
        bars: tuple[Reservation, ...],
        bars_node: str,
        counts: tuple[int, ...],
    ) -> None:
        self.kind = kind
        self.fabric = fabric
        self.shared = shared
        self.bars = bars
        self._bars_node = bars_node
        self.counts = counts
        """Devices that waiting runs ask of a node: for each of them the nodes are kept by when they are free."""
        self.free: list[dict[FutureNode, None]] = [{} for _ in range(kind.total + 1)]
        self.kept: list[dict[FutureNode, None]] = [{} for _ in range(kind.total + 1)]
        """The same for nodes on which something is promised."""
        self.having = [0] * (kind.total + 2)
        """Nodes with at least so many devices ready."""
        self.soonest: dict[int, list[tuple[int, int]]] = {count: [] for count in counts}
        self.nodes: dict[int, FutureNode] = {}
        self.version = 0
        """Changes with everything that might let a run go beside the promises."""

    def add(self, number: int, size: int, busy: list[int]) -> None:
        """Put a node in."""
        node = FutureNode(self, number, size, busy)
        self.nodes[number] = node
        self.free[node.ready][node] = None
        for count in range(node.ready + 1):
            self.having[count] += 1
        for count in self.counts:
            at_ms = node.available_ms(count)
            node.ahead.append(at_ms)
            self.soonest[count].append((at_ms, number))

    def clear(self) -> None:
        """Let go of the nodes, each of which names its zone."""
        for node in self.nodes.values():
            node.promises.clear()
        for row in (*self.free, *self.kept):
            row.clear()
        self.nodes.clear()

    def bars_run(self, project: str, from_ms: int, to_ms: int) -> bool:
        """True when a reservation keeps a run of the project off these nodes at some time of the span."""
        return any(one.bars(self._bars_node, project, from_ms, to_ms) for one in self.bars)

    def opens_ms(self, project: str, at_ms: int, bound_ms: int) -> int:
        """Return the first time from ``at_ms`` on at which no reservation bars a run of the project for so long."""
        for one in self.bars:  # by their begin
            if one.bars(self._bars_node, project, at_ms, at_ms + bound_ms):
                at_ms = one.to_ms
        return at_ms

    def take(self, node: FutureNode, count: int, until_ms: int, bound_ms: int) -> int:
        """Let ``count`` devices be in use until a time, at the latest ``bound_ms``; return how many go with them."""
        count = node.share_of(count)
        # A node that has been opened may take in others.
        self.version += node.whole and count < self.kind.total
        for one in node.promises:
            if bound_ms > one.from_ms:
                one.spare[node] -= count
        place = bisect_left(node.busy, until_ms)
        node.busy[place:place] = [until_ms] * count
        self._ready(node, node.ready - count)
        return count

    def give_back(self, node: FutureNode, count: int) -> None:
        """Let the ``count`` devices that come free first be free."""
        del node.busy[:count]
        self._ready(node, node.ready + count)

    def _ready(self, node: FutureNode, ready: int) -> None:
        rows = self.kept if node.promises else self.free
        del rows[node.ready][node]
        rows[ready][node] = None
        step = 1 if ready > node.ready else -1
        low, high = sorted((ready, node.ready))
        for count in range(low + 1, high + 1):
            self.having[count] += step
        node.ready = ready
        self.version += step > 0
        self._reorder(node)

    def _reorder(self, node: FutureNode) -> None:
        for place, count in enumerate(self.counts):
            at_ms = node.available_ms(count)
            before = node.ahead[place]
            if at_ms != before:
                row = self.soonest[count]
                del row[bisect_left(row, (before, node.number))]
                insort(row, (at_ms, node.number))
                node.ahead[place] = at_ms

    def promise(self, node: FutureNode, one: Promise) -> None:
        """Keep devices of a node for somebody."""
        if not node.promises:
            del self.free[node.ready][node]
            self.kept[node.ready][node] = None
        count = node.share_of(one.devices)
        node.held += count
        for other in node.promises:
            if other.from_ms >= one.from_ms:
                other.spare[node] -= count
        node.promises.append(one)
        one.spare[node] = node.ready + bisect_right(node.busy, one.from_ms) - node.held
        self._reorder(node)

    def release(self, node: FutureNode, one: Promise) -> None:
        """Take a promise back."""
        count = node.share_of(one.devices)
        node.promises.remove(one)
        node.held -= count
        for other in node.promises:
            if other.from_ms >= one.from_ms:
                other.spare[node] += count
        if not node.promises:
            del self.kept[node.ready][node]
            self.free[node.ready][node] = None
        self.version += 1
        self._reorder(node)

    def until(self, count: int, at_ms: int) -> Iterator[tuple[int, int, FutureNode]]:
        """Yield (when, busy, node) of those with ``count`` devices free beside all promises by then."""
        row = self.soonest[count]
        for when_ms, number in row[: bisect_right(row, (at_ms, FAR_MS))]:
            node = self.nodes[number]
            yield when_ms, 0 if node.promises else self.kind.total - node.ready, node

    def windows(self, count: int) -> list[int]:
        """Return until when ``count`` ready devices could be in use on nodes with promises, as far as ``SCAN`` goes."""
        return [
            min(
                (one.from_ms for one in node.promises if one.spare[node] < node.share_of(count)),
                default=FAR_MS,
            )
            for node in islice((node for row in self.kept[count:] for node in row), SCAN)
        ]

    def sort(self) -> None:
        """Order what was added."""
        for row in self.soonest.values():
            row.sort()


def zones_of(
    book: Book, now_ms: int, asked: Mapping[Kind, tuple[int, ...]], *, by_fabric: bool
) -> dict[Kind, list[Zone]]:
    """Return the open nodes of the kinds in zones.

    ``asked`` says how many devices of a node runs ask, in order.
    Cost: nodes and who stands on them.
    """
    zones: dict[tuple[Kind, str, bool, tuple[Reservation, ...]], Zone] = {}
    for number, slot in enumerate(book.nodes.open_ones(asked)):
        bars = book.barred.get(slot.view.name, ())
        fabric = slot.view.fabric if by_fabric else ""
        zone = zones.get(key := (slot.kind, fabric, slot.shared, bars))
        if zone is None:
            zone = zones[key] = Zone(slot.kind, fabric, slot.shared, bars, slot.view.name, asked[slot.kind])
        zone.add(number, len(slot.view.devices), _busy(slot, now_ms))
    by_kind: dict[Kind, list[Zone]] = {}
    for zone in zones.values():
        zone.sort()
        by_kind.setdefault(zone.kind, []).append(zone)
    return by_kind


def _busy(slot: Slot, now_ms: int) -> list[int]:
    busy = [max(running.end_ms, now_ms + 1) for running, devices in slot.residents.values() for _ in devices]
    busy.sort()
    size = len(slot.view.devices)
    if not slot.shared and busy:
        return [busy[-1]] * size
    # A stranger may have taken a device that a run still holds.
    return busy[-size:] if size else []


def ready_for(zones: list[Zone], count: int, until_ms: int, *, opening: bool) -> Iterator[FutureNode]:
    """Yield nodes that have ``count`` devices ready until a time, the fullest first.

    Those with promises on them come last, as far as ``SCAN`` goes. ``opening``: whole free nodes of which only a part
    is asked as well.
    """
    for zone in zones:
        for row in zone.free[count:]:
            for node in row:
                if opening or not node.whole or zone.kind.total == count:
                    yield node
    for zone in zones:
        for node in islice((node for row in zone.kept[count:] for node in row), SCAN):
            if (opening or not node.whole or zone.kind.total == count) and node.allows(count, until_ms):
                yield node
