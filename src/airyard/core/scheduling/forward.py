"""A book played forward in bulk: ends, begins and reservations as events, and at each of them the starts they allow.

Owns: the order of events and starts. Must not know: what the times are for (``eta.py`` says what is left out).
Cost: for each event the shapes that wait; for each start or end a few list insertions a node.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from airyard.core.policy import PoolOrder
from airyard.core.scheduling.book import Book
from airyard.core.scheduling.future import FutureNode, Promise, Zone, ready_for, zones_of
from airyard.core.scheduling.lines import REACH, Line, LineShape, Want, blocks, soonest
from airyard.core.scheduling.nodes import FAR_MS, Kind
from airyard.core.scheduling.order import OPENING_MS
from airyard.core.scheduling.places import Place
from airyard.core.scheduling.plan import Shape, Waiting

GRAIN = 500
"""What happens within such a part of the time that has gone by is taken to happen at once, at the last of it."""

MOST_FAILED = 16
"""So many blocked runs are tried for a promise at one event."""


@dataclass(slots=True, eq=False)
class _Event:
    """Devices come free, quota is given back, a run wakes or its promise is due; with nothing set: look again."""

    nodes: list[tuple[FutureNode, int]]
    project: str = ""
    owner: str = ""
    pool: str = ""
    devices: int = 0
    due: Want | None = None


class Forward:
    """The future of a book as it is at ``now_ms``; ``order``: the places of all that wait, now and later.

    ``late``: runs last as long as one time in ten, else as long as in the median.
    """

    def __init__(self, book: Book, now_ms: int, order: Sequence[Place], *, late: bool) -> None:
        self._book = book
        self._now_ms = now_ms
        self._order = order
        self._late = late
        self._events: list[tuple[int, int, _Event]] = []
        self._number = 0
        self._starts: dict[int, int] = {}
        self._left: set[int] = set()
        self._held = dict(book.shares.held)
        self._users = dict(book.shares.users)
        self._promised: dict[str, int] = {}
        self._room: set[str] = set()
        """Pools in which one more run may be given a promise."""
        self._next: Want | None = None
        """The next to be given one, where that is known."""
        self._failed: set[Want] = set()
        """Blocked runs that nothing could be promised to at this event."""
        wants = [book.queue.runs[place.run_id] for place in order]
        self._zones = self._look_at_nodes({want.shape for want in wants})
        self._shapes = self._line_up(wants)
        for shape in self._shapes:
            for pool, _ in shape.pools:
                self._more_room(pool)
        self._expect()

    # What is known at first.

    def _look_at_nodes(self, shapes: set[Shape]) -> dict[Kind, list[Zone]]:
        asked: dict[Kind, set[int]] = {}
        for shape in shapes:
            for kinds in self._book.nodes.fitting(shape).values():
                for kind in kinds:
                    asked.setdefault(kind, set()).add(shape.devices)
        return zones_of(
            self._book,
            self._now_ms,
            {kind: tuple(sorted(counts)) for kind, counts in asked.items()},
            by_fabric=any(shape.same_fabric for shape in shapes),
        )

    def _line_up(self, wants: Sequence[Waiting]) -> list[LineShape]:
        book, parked = self._book, self._book.queue.parked
        shapes: dict[Shape, LineShape] = {}
        lines: dict[tuple[Shape, str, str], Line] = {}
        for number, want in enumerate(wants):
            if want.project in book.spent:
                continue
            shape = shapes.get(want.shape)
            if shape is None:
                in_submit_order = book.pool(book.primary(want.shape)).order is PoolOrder.FIFO
                pools = self._pools_of(want.shape)
                shape = shapes[want.shape] = LineShape(want.shape, pools, opens_at_once=in_submit_order)
            if not shape.pools:
                continue
            limited = book.shares.limits(want.project)
            key = (want.shape, want.project, want.owner) if limited else (want.shape, "", "")
            line = lines.get(key)
            if line is None:
                line = lines[key] = Line(shape, limited=limited)
                shape.lines.append(line)
            one = Want(want, number, line)
            if want.run_id in parked:
                one.asleep = True
                self._at(parked[want.run_id], _Event([], due=one))
            else:
                line.runs.append((number, one))
        return [shape for shape in shapes.values() if shape.pools]

    def _pools_of(self, shape: Shape) -> list[tuple[str, list[Zone]]]:
        """Return the pools in which enough open nodes could serve the shape one day."""
        found = []
        for pool, kinds in self._book.nodes.fitting(shape).items():
            zones = [zone for kind in kinds for zone in self._zones.get(kind, ())]
            if sum(len(zone.nodes) for zone in zones) >= shape.nodes:
                found.append((pool, zones))
        return found

    def _expect(self) -> None:
        """Note what will happen: ends, quota given back with them, begins and ends of reservations."""
        ends: dict[int, list[tuple[FutureNode, int]]] = {}
        for zones in self._zones.values():
            for zone in zones:
                for node in zone.nodes.values():
                    for end_ms in sorted(set(node.busy)):
                        ends.setdefault(end_ms, []).append((node, node.busy.count(end_ms)))
        for end_ms, nodes in ends.items():
            self._at(end_ms, _Event(nodes))
        for one in self._book.running.values():
            if self._book.shares.limits(one.project):
                given_back = _Event([], one.project, one.owner, one.pool, one.devices)
                self._at(max(one.end_ms, self._now_ms + 1), given_back)
        bars = {one for of_node in self._book.barred.values() for one in of_node}
        for at_ms in {at for one in bars for at in (one.from_ms, one.to_ms) if at > self._now_ms}:
            self._at(at_ms, _Event([]))

    def _at(self, at_ms: int, event: _Event) -> None:
        self._number += 1
        heapq.heappush(self._events, (at_ms, self._number, event))

    # Time goes by.

    def run(self, left: set[int] | None) -> dict[int, int]:
        """Return when each run starts; ends as soon as nobody of ``left`` is left to start. Called once."""
        events, now_ms = self._events, self._now_ms
        self._left = left if left is not None else set()
        self._cycle(now_ms)
        while events and (left is None or left):
            until_ms = max(events[0][0], now_ms)
            until_ms += (until_ms - self._now_ms) // GRAIN
            due = []
            while events and events[0][0] <= until_ms:
                at_ms, _, event = heapq.heappop(events)
                now_ms = max(at_ms, now_ms)
                self._happen(event)
                if event.due is not None:
                    due.append(event.due)
            for one in due:
                self._due(one, now_ms)
            self._cycle(now_ms)
        return self._starts

    def _happen(self, event: _Event) -> None:
        for node, count in event.nodes:
            node.zone.give_back(node, count)
        if event.project:
            self._count(event.project, event.owner, event.pool, -event.devices, -1)
            self._more_room(event.pool)

    def _due(self, one: Want, now_ms: int) -> None:
        """Wake a run, or start it where it was promised to."""
        if one.asleep:
            one.asleep = False
            one.line.enter(one)
            for pool, _ in one.line.shape.pools:
                self._more_room(pool)
        promise = one.promise
        if promise is None or promise.from_ms > now_ms:
            return
        over = one.line.limited and self._over(one.want, promise.pool)
        if not over and all(node.ready >= node.share_of(promise.devices) for node in promise.nodes):
            self._start(one, promise.pool, promise.nodes, now_ms)
        else:
            self._release(one)

    def _cycle(self, now_ms: int) -> None:
        """Start what fits now, in order; give the first blocked ones promises before later ones are looked at."""
        self._failed.clear()
        heap: list[tuple[float, int, int, Line, bool]] = []
        for shape in self._shapes:
            if shape.possible():
                for line in shape.lines:
                    index = line.first()
                    if index >= 0:
                        number = line.runs[index][0]
                        heap.append((number, number, index, line, shape.opens_at_once))
        heapq.heapify(heap)
        looked: dict[Line, int] = {}
        while heap:
            turn, number, index, line, opening = heapq.heappop(heap)
            shape = line.shape
            if not shape.possible():
                continue
            if self._room:
                self._promise_before(turn, now_ms)
            one = line.runs[index][1]
            found = self._find(one, now_ms, opening=opening)
            if found is not None:
                self._start(one, *found, now_ms)
                index = line.next(index)
            elif line.limited and self._over_in_all(one.want, shape):
                continue
            elif not opening and shape.opens():
                heapq.heappush(heap, (self._later(one), number, index, line, True))
                continue
            elif one.promise is not None:
                index = line.next(index)
            else:
                looked[line] = looked.get(line, 0) + 1
                within = looked[line] <= REACH
                index = line.shorter(index, shape.until_ms - now_ms) if within else -1
            if index >= 0:
                number = line.runs[index][0]
                heapq.heappush(heap, (number, number, index, line, shape.opens_at_once))
        if self._room:
            self._promise_before(FAR_MS, now_ms)

    def _turn(self, one: Want) -> float:
        """Return when it is settled that a run is blocked: at its place, or where it would have opened a node."""
        shape = one.line.shape
        return one.number if shape.opens_at_once or not shape.opens() else self._later(one)

    def _later(self, one: Want) -> float:
        """Return where a run stands in the queue when it has to open a whole node of which it takes a part."""
        if one.later is None:
            place = self._order[one.number]
            later = place._replace(standing=place.standing + OPENING_MS)
            one.later = bisect_left(self._order, later) - 0.5
        return one.later

    # One run.

    def _find(self, one: Want, now_ms: int, *, opening: bool) -> tuple[str, list[FutureNode]] | None:
        """Return where a run fits now, or None. Its own promise it may use up."""
        want, shape, line = one.want, one.line.shape, one.line
        until_ms = now_ms + one.bound_ms
        version = shape.version()
        if one.promise is None and version == shape.tried and until_ms > shape.until_ms:
            return None
        for pool, zones in shape.pools:
            if line.limited and self._over(want, pool):
                continue
            allowed = [z for z in zones if not (z.bars and z.bars_run(want.project, now_ms, until_ms))]
            own = self._own(one, until_ms) if one.promise is not None else []
            for block in blocks(allowed, shape):
                nodes = [node for node in own if node.zone in block]
                others = ready_for(block, shape.count, until_ms, opening=opening, beside=one.promise is None)
                nodes += islice(others, max(shape.nodes - len(nodes), 0))
                if len(nodes) >= shape.nodes:
                    return pool, nodes[: shape.nodes]
        if one.promise is None and opening:
            shape.tried, shape.until_ms = version, shape.longest()
        return None

    @staticmethod
    def _own(one: Want, until_ms: int) -> list[FutureNode]:
        """Return the nodes promised to a run on which it could be now."""
        promise = one.promise
        assert promise is not None
        count = promise.devices
        return [
            node
            for node in promise.nodes
            if node.ready >= node.share_of(count) and node.allows(count, until_ms, but=promise)
        ]

    def _start(self, one: Want, pool: str, nodes: list[FutureNode], now_ms: int) -> None:
        want = one.want
        if one.promise is not None:
            self._release(one)
        one.started = True
        self._starts[want.run_id] = now_ms
        self._left.discard(want.run_id)
        lasts_ms = one.bound_ms if self._late else min(want.expected_ms, one.bound_ms)
        end_ms, bound_ms = now_ms + max(lasts_ms, 1), now_ms + one.bound_ms
        event = _Event(
            [(node, node.zone.take(node, want.devices_per_node, end_ms, bound_ms)) for node in nodes]
        )
        if one.line.limited:
            event.project, event.owner, event.pool, event.devices = (
                want.project,
                want.owner,
                pool,
                want.devices,
            )
            self._count(want.project, want.owner, pool, want.devices, 1)
        self._at(end_ms, event)

    # Promises.

    def _promise_before(self, number: float, now_ms: int) -> None:
        """Give promises to runs ahead of a place, all of them blocked, until their pools have as many as they may."""
        while self._room:
            one = self._next
            if one is None or not one.blocked:
                one = self._next = self._next_blocked()
            if one is not None and self._turn(one) >= number:
                return
            if one is None or len(self._failed) > MOST_FAILED:
                # Nothing more can be promised until something changes.
                self._room.clear()
                return
            if not self._promise(one, now_ms):
                self._failed.add(one)
            self._next = None

    def _next_blocked(self) -> Want | None:
        best: Want | None = None
        best_turn = 0.0
        for shape in self._shapes:
            if not any(pool in self._room for pool, _ in shape.pools):
                continue
            for line in shape.lines:
                one = line.unpromised(self._failed)
                turn = self._turn(one) if one is not None else 0.0
                if one is None or (best is not None and best_turn <= turn):
                    continue
                if not (line.limited and self._over_in_all(one.want, shape)):
                    best, best_turn = one, turn
        return best

    def _promise(self, one: Want, now_ms: int) -> bool:
        """Promise a run the nodes that come free for it first, in the first of its pools that has room for that."""
        shape, want = one.line.shape, one.want
        for pool, zones in shape.pools:
            if pool not in self._room or (one.line.limited and self._over(want, pool)):
                continue
            nodes, at_ms = soonest(
                zones,
                shape,
                now_ms,
                lambda zone, at_ms: zone.opens_ms(want.project, at_ms, want.bound_ms) if zone.bars else at_ms,
            )
            if nodes:
                self._keep(one, Promise(nodes, want.devices_per_node, at_ms, pool))
                return True
        return False

    def _keep(self, one: Want, promise: Promise) -> None:
        one.promise = promise
        for node in promise.nodes:
            node.zone.promise(node, promise)
        count = self._promised[promise.pool] = self._promised.get(promise.pool, 0) + 1
        if count >= self._book.pool(promise.pool).reservations:
            self._room.discard(promise.pool)
        self._at(promise.from_ms, _Event([], due=one))

    def _release(self, one: Want) -> None:
        promise = one.promise
        assert promise is not None
        for node in promise.nodes:
            node.zone.release(node, promise)
        one.promise = None
        self._promised[promise.pool] -= 1
        self._more_room(promise.pool)

    def _more_room(self, pool: str) -> None:
        """Note that one more run of a pool may be given a promise."""
        if self._promised.get(pool, 0) < self._book.pool(pool).reservations:
            self._room.add(pool)
            self._next = None

    # Quotas.

    def _count(self, project: str, owner: str, pool: str, devices: int, runs: int) -> None:
        self._held[project, pool] = self._held.get((project, pool), 0) + devices
        had_runs, had_devices = self._users.get((project, owner), (0, 0))
        self._users[project, owner] = had_runs + runs, had_devices + devices

    def _over(self, want: Waiting, pool: str) -> bool:
        """True when the run would take its project or user over what they may have."""
        ceiling = self._book.shares.share(want.project, pool).ceiling
        if ceiling is not None and self._held.get((want.project, pool), 0) + want.devices > ceiling:
            return True
        limits = self._book.shares.projects[want.project].per_user
        runs, devices = self._users.get((want.project, want.owner), (0, 0))
        return (limits.running is not None and runs + 1 > limits.running) or (
            limits.devices is not None and devices + want.devices > limits.devices
        )

    def _over_in_all(self, want: Waiting, shape: LineShape) -> bool:
        return all(self._over(want, pool) for pool, _ in shape.pools)
