"""A book played forward in bulk: ends, begins and reservations as events, and at each of them the starts they allow.

Owns: the order of events and starts. Must not know: what the times are for (``eta.py`` says what is left out).
Cost: for each event the shapes that wait; for each start or end a few list insertions a node.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from airyard.core.policy import PoolOrder
from airyard.core.scheduling.book import Book
from airyard.core.scheduling.future import FutureNode, Promise, Zone, ready_for, zones_of
from airyard.core.scheduling.lines import REACH, Line, LineShape, Turn, Want, blocks, soonest
from airyard.core.scheduling.nodes import Kind
from airyard.core.scheduling.order import FIRST_BAND
from airyard.core.scheduling.places import bands_of, group_for, place_of
from airyard.core.scheduling.plan import GroupKey, Shape, Waiting
from airyard.core.scheduling.planner import CLEARING_MS
from airyard.core.scheduling.preempt import BEST_EFFORT_RANK
from airyard.core.scheduling.queue import Group

GRAIN = 200
LATE_GRAIN = 50
"""What happens within such a part of the time that has gone by is taken to happen at once, at the last of it.

Late ends are a guess anyway.
"""

MADE_ANEW = 300
MADE_ANEW_EVERY = 16
"""At so many first events promises are made anew, as plans do, and later at every so many; else they stay."""

SECOND_TURN = -2
LAST_TURN: Turn = (1 << 30, 0.0, 0.0, 0, 0)
MOST_FAILED = 16
"""So many blocked runs are tried for a promise at one event."""


class _Held(NamedTuple):
    """What a run holds of its project's quotas."""

    project: str
    owner: str
    pool: str
    rank: int
    devices: int


@dataclass(slots=True, eq=False)
class _Event:
    """Devices come free, quota is given back, a run wakes or its promise is due; with nothing set: look again."""

    nodes: list[tuple[FutureNode, int]]
    given_back: _Held | None = None
    due: Want | None = None


class Forward:
    """The future of a book as it is at ``now_ms``.

    ``late``: runs last as long as one time in ten, else as long as in the median.
    """

    def __init__(self, book: Book, now_ms: int, *, late: bool) -> None:
        self._book = book
        self._now_ms = now_ms
        self._late = late
        self._events: list[tuple[int, int, _Event]] = []
        self._number = 0
        self._starts: dict[int, int] = {}
        self._left: set[int] = set()
        self._held = dict(book.shares.held)
        self._firm = dict(book.shares.firm)
        self._users = dict(book.shares.users)
        self._cycles = 0
        self._promised: dict[str, int] = {}
        self._holders: dict[Want, None] = {}
        self._room: set[str] = set()
        """Pools in which one more run may be given a promise."""
        self._blocked: list[tuple[Turn, Want, bool]] = []
        """Who might be given one at this event: the first of each line, by turn."""
        awake = {group.key.shape for group in book.queue.groups.values()}
        asleep = [book.queue.runs[run_id] for run_id, wakes_ms in book.queue.parked.items() if wakes_ms]
        self._zones = self._look_at_nodes(awake | {want.shape for want in asleep})
        self._known: dict[Shape, LineShape] = {}
        self._lines: dict[tuple[GroupKey, bool], Line] = {}
        self._line_up(asleep)
        for line in self._lines.values():
            line.runs.sort(key=lambda one: one.entry)
            line.settle()
        self._shapes = [shape for shape in self._known.values() if shape.pools]
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

    def _line_up(self, asleep: Sequence[Waiting]) -> None:
        book = self._book
        for group in book.queue.groups.values():
            if group.key.project in book.spent or not self._shape(group.key.shape).pools:
                continue
            since_ms = self._now_ms - group.ageing_ms
            for entry in group.entries:
                aged = entry[1] <= since_ms and not group.key.claims
                line = self._line(group, aged=aged)
                stands = (float(entry[1]), entry[1], entry[2]) if aged else entry
                line.runs.append(Want(book.queue.runs[entry[2]], stands, line))
        for want in asleep:
            if want.project in book.spent or not self._shape(want.shape).pools:
                continue
            place = place_of(book, want, self._now_ms)
            line = self._line(group_for(book, want), aged=place.band == FIRST_BAND)
            one = Want(want, (place.standing, place.queued_ms, place.run_id), line)
            one.asleep = True
            self._at(book.queue.parked[want.run_id], _Event([], due=one))

    def _shape(self, shape: Shape) -> LineShape:
        found = self._known.get(shape)
        if found is None:
            in_submit_order = self._book.pool(self._book.primary(shape)).order is PoolOrder.FIFO
            found = LineShape(shape, self._pools_of(shape), opens_at_once=in_submit_order)
            self._known[shape] = found
        return found

    def _line(self, group: Group, *, aged: bool) -> Line:
        key, shares = group.key, self._book.shares
        line = self._lines.get((key, aged))
        if line is not None:
            return line
        guarantee, bands = 0, (FIRST_BAND, FIRST_BAND)
        if not aged:
            bands = bands_of(self._book, group)
            if key.rank != BEST_EFFORT_RANK and bands[0] != bands[1]:
                guarantee = shares.guarantee(key.project, group.pool)
        shape = self._shape(key.shape)
        limited = shares.limits(key.project)
        line = Line(shape, (key.project, group.pool), bands, guarantee=guarantee, limited=limited)
        shape.lines.append(line)
        self._lines[key, aged] = line
        return line

    def _band(self, line: Line) -> float:
        """Return the band of a line as things stand: projects leave and enter their guarantees."""
        within = line.guarantee and self._firm.get(line.held_by, 0) <= line.beyond
        return line.bands[0] if within else line.bands[1]

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
        counted = {key.project for (key, _), line in self._lines.items() if line.counted}
        for one in self._book.running.values():
            if one.project in counted:
                held = _Held(one.project, one.owner, one.pool, one.rank, one.devices)
                self._at(max(one.end_ms, self._now_ms + 1), _Event([], held))
        bars = {one for of_node in self._book.barred.values() for one in of_node}
        for at_ms in {at for one in bars for at in (one.from_ms, one.to_ms) if at > self._now_ms}:
            self._at(at_ms, _Event([]))

    def _at(self, at_ms: int, event: _Event) -> None:
        self._number += 1
        heapq.heappush(self._events, (at_ms, self._number, event))

    # Time goes by.

    def run(self, left: set[int] | None) -> dict[int, int]:
        """Return when each run starts; ends as soon as nobody of ``left`` is left to start. Called once."""
        events, now_ms, grain = self._events, self._now_ms, LATE_GRAIN if self._late else GRAIN
        self._left = left if left is not None else set()
        self._cycle(now_ms)
        while events and (left is None or left):
            until_ms = max(events[0][0], now_ms)
            until_ms += (until_ms - self._now_ms) // grain
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
        self._take_apart()
        return self._starts

    def _take_apart(self) -> None:
        """Break the circles of runs and lines, nodes and zones: they are many, and would be garbage to search for."""
        for line in self._lines.values():
            line.runs.clear()
        for shape in self._known.values():
            shape.lines.clear()
            shape.rows.clear()
        for zones in self._zones.values():
            for zone in zones:
                zone.clear()

    def _happen(self, event: _Event) -> None:
        for node, count in event.nodes:
            node.zone.give_back(node, count)
        if event.given_back is not None:
            self._count(event.given_back, -1)
            self._more_room(event.given_back.pool)

    def _due(self, one: Want, now_ms: int) -> None:
        """Wake a run, or start it where it was promised to."""
        if one.asleep:
            one.asleep = False
            one.line.enter(one)
            for pool, _ in one.line.shape.pools:
                self._more_room(pool)
        promise = one.promise
        if promise is None or promise.from_ms > now_ms or self._cycles < MADE_ANEW:
            return
        over = one.line.limited and self._over(one.want, promise.pool)
        if not over and all(node.ready >= node.share_of(promise.devices) for node in promise.nodes):
            self._start(one, promise.pool, promise.nodes, now_ms)
        else:
            self._release(one)

    def _cycle(self, now_ms: int) -> None:
        """Start what fits now, in order; give the first blocked ones promises before later ones are looked at."""
        self._cycles += 1
        self._blocked.clear()
        if self._cycles <= MADE_ANEW or self._cycles % MADE_ANEW_EVERY == 0:
            for one in tuple(self._holders):
                self._release(one)
            self._expect_blocked()
        shapes = self._short_enough(now_ms)
        looked: dict[Line, int] = {}
        while shapes:
            _, number, shape = heapq.heappop(shapes)
            if not shape.possible() or shape.until_ms <= now_ms:
                continue
            self._take_turn(shape, now_ms, looked)
            if shape.rows:
                heapq.heappush(shapes, (shape.rows[0][0], number, shape))
        if self._blocked:
            self._promise_before(LAST_TURN, now_ms)

    def _short_enough(self, now_ms: int) -> list[tuple[Turn, int, LineShape]]:
        """Let each line stand with the first of its runs that might go now; return the shapes by turn, as a heap."""
        shapes = []
        for number, shape in enumerate(self._shapes):
            if not shape.possible() or (window_ms := shape.window(now_ms)) <= 0:
                continue
            shape.rows = rows = []
            for line in shape.lines:
                index = line.first(window_ms)
                if index >= 0:
                    one = line.runs[index]
                    turn = one.turn(self._band(line), opening=False)
                    rows.append((turn, index, line, shape.opens_at_once))
            if rows:
                heapq.heapify(rows)
                shapes.append((rows[0][0], number, shape))
        heapq.heapify(shapes)
        return shapes

    def _take_turn(self, shape: LineShape, now_ms: int, looked: dict[Line, int]) -> None:
        """Look at the next run of a shape."""
        turn, index, line, opening = heapq.heappop(shape.rows)
        one = line.runs[index]
        if now_ms + one.bound_ms > shape.until_ms:
            self._push(line, line.next(index, shape.until_ms - now_ms))
        elif line.guarantee and turn[1] != self._band(line):
            # Starts have taken its project beyond its guarantee meanwhile.
            self._push(line, index, opening=opening)
        else:
            if self._blocked:
                self._promise_before(turn, now_ms)
            after = self._serve(one, now_ms, looked, opening=opening or not shape.opens())
            if after == SECOND_TURN:
                self._push(line, index, opening=True)
            else:
                self._push(line, after)

    def _push(self, line: Line, index: int, *, opening: bool | None = None) -> None:
        """Have a run of a line looked at in its turn; -1 is nobody."""
        if index >= 0:
            one, at_once = line.runs[index], line.shape.opens_at_once
            turn = one.turn(self._band(line), opening=bool(opening) and not at_once)
            row = (turn, index, line, at_once if opening is None else opening)
            heapq.heappush(line.shape.rows, row)

    def _serve(self, one: Want, now_ms: int, looked: dict[Line, int], *, opening: bool) -> int:
        """Start a run if it fits; return who of its line is next, -1 for nobody, ``SECOND_TURN`` for itself."""
        line, shape = one.line, one.line.shape
        found = self._find(one, now_ms, opening=opening) if one.promise is None else None
        if found is not None:
            self._start(one, *found, now_ms)
        elif line.limited and self._over_in_all(one.want, shape):
            return -1
        elif one.promise is None and not opening:
            return SECOND_TURN
        else:
            looked[line] = looked.get(line, 0) + 1
            if looked[line] > REACH:
                return -1
        return line.next(one.index, shape.until_ms - now_ms)

    # One run.

    def _find(self, one: Want, now_ms: int, *, opening: bool) -> tuple[str, list[FutureNode]] | None:
        """Return where a run fits now, or None."""
        want, shape = one.want, one.line.shape
        version = shape.version()
        if not opening and version == shape.shut[0] and one.bound_ms >= shape.shut[1]:
            return None
        until_ms = now_ms + one.bound_ms
        for pool, zones in shape.pools:
            if one.line.limited and self._over(want, pool):
                continue
            gone_ms = until_ms + want.grace_ms + CLEARING_MS
            allowed = [z for z in zones if not (z.bars and z.bars_run(want.project, now_ms, gone_ms))]
            for block in blocks(allowed, shape):
                nodes = list(islice(ready_for(block, shape.count, until_ms, opening=opening), shape.nodes))
                if len(nodes) == shape.nodes:
                    return pool, nodes
        if opening:
            shape.note_failure()
        elif not one.line.limited:
            shape.shut = version, one.bound_ms
        return None

    def _start(self, one: Want, pool: str, nodes: list[FutureNode], now_ms: int) -> None:
        want = one.want
        if one.promise is not None:
            self._release(one)
        one.line.start(one)
        self._starts[want.run_id] = now_ms
        self._left.discard(want.run_id)
        lasts_ms = one.bound_ms if self._late else min(want.expected_ms, one.bound_ms)
        end_ms, bound_ms = now_ms + max(lasts_ms, 1), now_ms + one.bound_ms
        event = _Event(
            [(node, node.zone.take(node, want.devices_per_node, end_ms, bound_ms)) for node in nodes]
        )
        if one.line.counted:
            event.given_back = _Held(want.project, want.owner, pool, want.rank, want.devices)
            self._count(event.given_back, 1)
        self._at(end_ms, event)

    # Promises.

    def _expect_blocked(self) -> None:
        """Line up the first run of each line by the turn at which it is settled that it is blocked."""
        for shape in self._shapes:
            # A run that may open a whole node for a part of it has a later turn for that.
            later = not shape.opens_at_once and shape.opens()
            for line in shape.lines:
                if line.head >= 0:
                    one = line.runs[line.head]
                    self._blocked.append((one.turn(self._band(line), opening=later), one, later))
        heapq.heapify(self._blocked)

    def _promise_before(self, turn: Turn, now_ms: int) -> None:
        """Give promises to runs ahead of a turn, all of them blocked, until their pools have as many as they may."""
        blocked, failed = self._blocked, 0
        while blocked and blocked[0][0] < turn:
            _, one, later = heapq.heappop(blocked)
            line = one.line
            if not one.started and not (line.limited and self._over_in_all(one.want, line.shape)):
                failed += not self._promise(one, now_ms)
            if not self._room or failed > MOST_FAILED:
                blocked.clear()
                return
            index = line.next(one.index)
            if index >= 0:
                one = line.runs[index]
                heapq.heappush(blocked, (one.turn(self._band(line), opening=later), one, later))

    def _promise(self, one: Want, now_ms: int) -> bool:
        """Promise a run the nodes that come free for it first, in the first of its pools that has room for that."""
        shape, want = one.line.shape, one.want
        stays_ms = want.bound_ms + want.grace_ms + CLEARING_MS
        for pool, zones in shape.pools:
            if pool not in self._room or (one.line.limited and self._over(want, pool)):
                continue
            nodes, at_ms = soonest(
                zones,
                shape,
                now_ms,
                lambda zone, at_ms: zone.opens_ms(want.project, at_ms, stays_ms) if zone.bars else at_ms,
            )
            if nodes:
                self._keep(one, Promise(nodes, want.devices_per_node, at_ms, pool))
                return True
        return False

    def _keep(self, one: Want, promise: Promise) -> None:
        one.promise = promise
        self._holders[one] = None
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
        del self._holders[one]
        self._promised[promise.pool] -= 1
        self._more_room(promise.pool)

    def _more_room(self, pool: str) -> None:
        """Note that one more run of a pool may be given a promise."""
        if self._promised.get(pool, 0) < self._book.pool(pool).reservations:
            self._room.add(pool)

    # Quotas.

    def _count(self, held: _Held, times: int) -> None:
        devices, key = held.devices * times, (held.project, held.pool)
        self._held[key] = self._held.get(key, 0) + devices
        if held.rank != BEST_EFFORT_RANK:
            self._firm[key] = self._firm.get(key, 0) + devices
        runs, of_user = self._users.get((held.project, held.owner), (0, 0))
        self._users[held.project, held.owner] = runs + times, of_user + devices

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
