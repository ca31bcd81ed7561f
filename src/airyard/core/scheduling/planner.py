"""The planner: one cycle over the queue, from a book to placements, evictions, promises and reasons.

Owns: the cycle. Must not know: clocks (``now_ms`` is given), the journal, who asked.
The book is as it was before once the plan is made: what the plan does becomes true only when it is committed.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Container, Sequence
from enum import Enum

from airyard.core.placement import Seat
from airyard.core.policy import PoolOrder
from airyard.core.scheduling import reasons
from airyard.core.scheduling.book import Book
from airyard.core.scheduling.feasible import impossible
from airyard.core.scheduling.holds import Holds
from airyard.core.scheduling.listing import band_of
from airyard.core.scheduling.nodes import Kind, Slot
from airyard.core.scheduling.order import FIRST_BAND, LAST_TURN, OPENING_MS
from airyard.core.scheduling.plan import (
    Eviction,
    GroupKey,
    Hold,
    Plan,
    Refusal,
    Running,
    Shape,
    Snapshot,
    Start,
    Waiting,
)
from airyard.core.scheduling.preempt import Evictions
from airyard.core.scheduling.queue import Entry, Group
from airyard.core.scheduling.topology import choose, gang

CLEARING_MS = 10_000
"""So long before the begin of a reservation its nodes are to be empty."""

BACKFILL_DEPTH = 2_000
"""How many runs behind a blocked one of their shape a plan looks at for one that is short enough."""


def plan_snapshot(snapshot: Snapshot, now_ms: int) -> Plan:
    """Plan once from a whole snapshot."""
    return plan(Book.of(snapshot, now_ms), now_ms)


def plan(book: Book, now_ms: int) -> Plan:
    """Give every waiting run its seats, or its group the reason. Cost: groups, starts, and nodes for each promise."""
    wake_ms = book.queue.wake(now_ms)
    book.nodes.mark()
    book.shares.mark()
    try:
        return _Cycle(book, now_ms, wake_ms).run()
    finally:
        book.nodes.rollback()
        book.shares.rollback()


_Like = tuple[Shape, str]
_Row = tuple[int, float, Entry, int, "_Stream"]


class _Turn(Enum):
    """How a stream goes on after one of its runs was looked at."""

    NEXT = "with its next run"
    LATER = "with the same run, later"
    OVER = "not at all"


class _Stream:
    """The runs of one group in one order: by standing, or those that have waited too long by age."""

    __slots__ = ("aged", "at", "group", "opening", "seen")

    def __init__(self, group: Group, *, aged: bool) -> None:
        self.group = group
        self.aged = aged
        self.at = 0
        self.opening = False
        """Its next run may take a part of a node that is free as a whole: this is its second, later turn."""
        self.seen = 0
        """Runs that the plan had found devices for when its band was looked at: only that can change it."""


class _Cycle:
    """One plan while it is made."""

    def __init__(self, book: Book, now_ms: int, wake_ms: int | None) -> None:
        self.book = book
        self.now_ms = now_ms
        self.wake_ms = wake_ms
        self.holds = Holds(book.nodes, now_ms)
        self.evictions = Evictions(book, now_ms)
        self.starts: list[Start] = []
        self.asked_to_leave: list[Eviction] = []
        self.refusals: dict[GroupKey, Refusal] = {}
        self.of_runs: dict[int, Refusal] = {}
        self.kept: list[Hold] = []
        self.kept_free: dict[str, int] = {}
        """Node → devices of it that are free now and kept for a run that waits for others to leave."""
        self.done: set[int] = set()
        """Runs that are not looked at again."""
        self.able: dict[Shape, tuple[dict[str, list[Kind]], Refusal | None]] = {}
        self.window: dict[_Like, int] = {}
        """What was refused → how long such a run may last to start all the same; 0 when none can."""
        self.powerless: set[tuple[_Like, int, str, str]] = set()
        """(like, rank, pool, kind of right) that nobody can be evicted for."""
        self.exhausted: dict[_Like, tuple[str, ...]] = {}
        """What can neither start nor be promised anything any more, and the pools it was tried in."""
        self.promised: dict[str, int] = {}
        """Pool → blocked runs that hold a promise."""
        self.why: dict[_Like, Refusal] = {}
        self.depth = BACKFILL_DEPTH
        self.served = 0
        """Runs that were started, or for which others leave: they count against quotas."""

    def run(self) -> Plan:
        heap: list[_Row] = []
        for group in self.book.queue.groups.values():
            since_ms = group.by_age[0][0]
            if since_ms + group.ageing_ms <= self.now_ms:
                self._next(heap, _Stream(group, aged=True), len(heap))
            else:
                self._wake_at(since_ms + group.ageing_ms)
            self._next(heap, _Stream(group, aged=False), len(heap))
        heapq.heapify(heap)
        while heap:
            rank, stored_band, entry, tie, stream = heapq.heappop(heap)
            run_id = entry[2]
            if run_id in self.done:
                stream.at += 1
                self._push(heap, stream, tie)
                continue
            want = self.book.queue.runs[run_id]
            if self._hopeless(want, stream.group.key):
                continue
            if stream.seen != self.served:
                now_band = self._band(stream)
                if now_band > stored_band:
                    heapq.heappush(heap, (rank, now_band, entry, tie, stream))
                    continue
            turn = self._serve(want, stream)
            if turn is not _Turn.OVER:
                stream.opening = turn is _Turn.LATER
                stream.at += turn is _Turn.NEXT
                self._push(heap, stream, tie)
        return Plan(
            seq=self.book.seq,
            made_ms=self.now_ms,
            starts=tuple(self.starts),
            evictions=tuple(self.asked_to_leave),
            refusals=self.refusals,
            of_shapes={shape: refusal for (shape, _), refusal in self.why.items()},
            of_runs=self.of_runs,
            kept=tuple(self.kept),
            holds=tuple(self.holds.made),
            wake_ms=self._wakes(),
        )

    # The order.

    def _next(self, rows: list[_Row], stream: _Stream, tie: int) -> bool:
        """Add a stream's next run to the rows; False when the stream is over."""
        group, at = stream.group, stream.at
        if not stream.aged:
            if at >= len(group.entries):
                return False
            entry = group.entries[at]
            if stream.opening:
                entry = entry[0] + LAST_TURN, entry[1], entry[2]
        else:
            if at >= len(group.by_age):
                return False
            since_ms, run_id = group.by_age[at]
            if since_ms + group.ageing_ms > self.now_ms:
                self._wake_at(since_ms + group.ageing_ms)
                return False
            entry = since_ms + (LAST_TURN if stream.opening else 0.0), since_ms, run_id
        rows.append((group.key.rank, self._band(stream), entry, tie, stream))
        return True

    def _push(self, heap: list[_Row], stream: _Stream, tie: int) -> None:
        """Put a stream's next run in its place; a stream that has none is over."""
        row: list[_Row] = []
        if self._next(row, stream, tie):
            heapq.heappush(heap, row[0])

    def _band(self, stream: _Stream) -> float:
        stream.seen = self.served
        return FIRST_BAND if stream.aged else band_of(self.book, stream.group)

    # One run.

    def _like(self, key: GroupKey) -> _Like:
        """Return what runs must have in common for what was found of one to hold for the other."""
        return key.shape, key.project if self.book.barred else ""

    def _hopeless(self, want: Waiting, key: GroupKey) -> bool:
        """True when a run like this one was blocked before, for good, and this one has no more right to evict.

        Cost: constant; a long queue consists of such runs. Where quotas may be the reason they are asked.
        """
        like = self._like(key)
        pools = self.exhausted.get(like)
        if pools is None or key.project in self.book.spent or self.book.shares.limits(key.project):
            return False
        for pool in pools:
            right = self.evictions.power(want, pool, sliced=self.book.sliced(want, pool))
            if right is not None and (like, key.rank, pool, right) not in self.powerless:
                return False
        return True

    def _serve(self, want: Waiting, stream: _Stream) -> _Turn:
        """Place a run or note why not."""
        key = stream.group.key
        able, refusal = self._able(want, key)
        if refusal is not None:
            return self._refuse(key, refusal)
        if want.project in self.book.spent and want.model is not None:
            return self._refuse(key, reasons.budget(want))
        over = self.book.shares.over_user_limit(want)
        if over is not None:
            return self._refuse(key, reasons.user_limit(want, *over))
        pools, refusal = self._allowed(want, able)
        if refusal is not None:
            return self._refuse(key, refusal)
        like = self._like(key)
        window = self.window.get(like)
        if window is None or window >= want.bound_ms:
            patient = self.now_ms - want.queued_ms >= OPENING_MS
            opening = stream.opening or patient or stream.group.order is PoolOrder.FIFO
            for pool, kinds in pools.items():
                if self._start(want, pool, kinds, opening=opening):
                    return _Turn.NEXT
            if not opening and self._could_open(want, pools):
                return _Turn.LATER
            if window is None:
                self.window[like] = self._window(want, able, tried=pools)
            elif len(pools) == len(able):
                self.window[like] = want.bound_ms - 1
        return self._blocked(want, stream, pools)

    def _could_open(self, want: Waiting, pools: dict[str, list[Kind]]) -> bool:
        """True when there are nodes free as a whole of which the run would take a part."""
        index = self.book.nodes
        return any(index.whole(kinds, want.devices_per_node) for kinds in pools.values())

    def _refuse(self, key: GroupKey, refusal: Refusal) -> _Turn:
        self.refusals.setdefault(key, refusal)
        return _Turn.OVER

    def _able(self, want: Waiting, key: GroupKey) -> tuple[dict[str, list[Kind]], Refusal | None]:
        """Return the pools that could hold the run if they were empty, or why there is none."""
        found = self.able.get(key.shape)
        if found is None:
            index = self.book.nodes
            able = {
                pool: kinds
                for pool, kinds in index.fitting(key.shape).items()
                if index.largest(kinds, same_fabric=want.same_fabric) >= want.nodes
            }
            never = None
            if not able:
                never = impossible(index.offers(), want)
            found = self.able[key.shape] = able, never
        return found

    def _allowed(
        self, want: Waiting, able: dict[str, list[Kind]]
    ) -> tuple[dict[str, list[Kind]], Refusal | None]:
        """Return the pools in which the project's ceiling leaves room, or why there is none."""
        refusal: Refusal | None = None
        allowed = {}
        for pool, kinds in able.items():
            over = self.book.shares.over_ceiling(want, pool)
            if over is None:
                allowed[pool] = kinds
            elif refusal is None:
                refusal = reasons.ceiling(want, pool, *over)
        return allowed, None if allowed else refusal

    def _start(self, want: Waiting, pool: str, kinds: Sequence[Kind], *, opening: bool) -> bool:
        allowed = lambda slot: self._free_for(slot, want)  # noqa: E731  # short, and used once
        slots = choose(self.book.nodes, kinds, want, allowed, opening=opening)
        if slots is None:
            return False
        until_ms = self.now_ms + min(want.expected_ms, want.bound_ms)
        seats = []
        for slot in slots:
            devices = self.book.nodes.take(slot, want.devices_per_node, until_ms)
            self.holds.given(slot, want.devices_per_node, self.now_ms + want.bound_ms)
            seats.append(Seat(node=slot.view.name, machine=slot.view.machine, devices=devices))
        self._count(want, pool)
        self.starts.append(Start(run_id=want.run_id, seats=tuple(seats)))
        self.done.add(want.run_id)
        return True

    def _count(self, want: Waiting, pool: str) -> None:
        self.book.shares.start(want, pool)
        self.served += 1

    def _free_for(self, slot: Slot, want: Waiting) -> bool:
        return self.holds.window_ms(slot, want.devices_per_node) >= want.bound_ms and self._may_stand(
            slot, want, self.now_ms
        )

    def _may_stand(self, slot: Slot, want: Waiting, from_ms: int) -> bool:
        """True when no reservation bars the run from the node while it may be there."""
        barred = self.book.barred.get(slot.view.name)
        if barred is None:
            return True
        to_ms = from_ms + _stays_ms(want)
        return not any(one.bars(slot.view.name, want.project, from_ms, to_ms) for one in barred)

    def _window(self, want: Waiting, pools: dict[str, list[Kind]], *, tried: Container[str]) -> int:
        """Return how long a run of this shape may last to start now beside all promises; 0 when none can.

        Only promises are looked at: where topology or a reservation is in the way, duration is tried out. The run
        did not start in the pools that were ``tried``; of the others, closed to its project, it has shown nothing.
        """
        longest = 0
        for pool, kinds in pools.items():
            windows = sorted(
                (
                    self.holds.window_ms(slot, want.devices_per_node)
                    for slot in self.book.nodes.open_ones(kinds)
                    if slot.ready >= want.devices_per_node
                ),
                reverse=True,
            )
            if len(windows) >= want.nodes:
                window = windows[want.nodes - 1]
                longest = max(longest, min(window, want.bound_ms - 1) if pool in tried else window)
        return longest

    # A run that is blocked.

    def _blocked(self, want: Waiting, stream: _Stream, pools: dict[str, list[Kind]]) -> _Turn:
        key = stream.group.key
        like = self._like(key)
        # An aged one stands in its group twice, and must not be promised anything twice.
        self.done.add(want.run_id)
        making_room = self._make_room(want, key, pools)
        if making_room is not None:
            self.of_runs[want.run_id] = making_room
            return _Turn.NEXT
        refusal = self.why.get(like)
        if refusal is None:
            refusal = self.why[like] = self._why(want, pools)
        self.refusals.setdefault(key, refusal)
        if self._promise(want, pools):
            return _Turn.NEXT
        window = self.window.get(like, 0)
        if not window and len(pools) == len(self._able(want, key)[0]):
            self.exhausted[like] = tuple(pools)
        return _Turn.NEXT if window > 0 and self._skip_long(stream, window) else _Turn.OVER

    def _skip_long(self, stream: _Stream, window: int) -> bool:
        """Move a stream to just before its next run that is short enough. False when there is none in reach."""
        if stream.group.by_length[0][0] > window:
            return False
        runs = self.book.queue.runs
        rows = stream.group.by_age if stream.aged else stream.group.entries
        at = stream.at + 1
        while at < len(rows) and self.depth > 0:
            if runs[rows[at][-1]].bound_ms <= window:
                stream.at = at - 1
                return True
            at += 1
            self.depth -= 1
        return False

    def _make_room(self, want: Waiting, key: GroupKey, pools: dict[str, list[Kind]]) -> Refusal | None:
        """Promise what others are leaving, or ask others to leave. None when neither places the run."""
        for pool, kinds in pools.items():
            nodes = self._leaving_for(want, kinds)
            if nodes is not None:
                leaving = self._leaving_on(nodes)
                self._keep(nodes, want, pool)
                evicted = any(running.evicted for running in leaving)
                return (reasons.preempting if evicted else reasons.ending)(want, leaving)
        for pool, kinds in pools.items():
            sliced = self.book.sliced(want, pool)
            right = self.evictions.power(want, pool, sliced=sliced)
            power = self._like(key), key.rank, pool, right or ""
            if right is None or power in self.powerless:
                continue
            found = None
            for avoided in dict.fromkeys((want.avoid_nodes, ())):
                allowed = self._allowed_on(want, avoided)
                found = found or self.evictions.choose(kinds, want, allowed, sliced=sliced)
            if found is None:
                self.powerless.add(power)
                continue
            victims, nodes = found
            for victim in victims:
                running = victim.running
                self.evictions.send_away(running)
                self.asked_to_leave.append(
                    Eviction(
                        run_id=running.run_id,
                        attempt=running.attempt,
                        for_run=want.run_id,
                        rule=victim.rule,
                        lost_ms=victim.lost_ms,
                    )
                )
                for seat in running.seats:
                    if seat.node in self.book.nodes.slots:
                        self.book.nodes.let_go(self.book.nodes.slots[seat.node], running.run_id)
            self._keep(nodes, want, pool)
            return reasons.preempting(want, [victim.running for victim in victims])
        return None

    def _leaving_for(self, want: Waiting, kinds: Sequence[Kind]) -> list[Slot] | None:
        """Return nodes on which the run fits once those that are leaving have left; None when it would not."""
        leaving = [s for s in self.book.nodes.leaving() if s.kind in kinds and s.open]
        if not leaving:
            return None
        count = want.devices_per_node
        able = [s for s in leaving if self._room(s) >= count and self._free_for(s, want)]
        if not able:
            return None
        if want.nodes > 1:
            names = {slot.view.name for slot in able}
            able += [
                slot
                for slot in self.book.nodes.open_ones(kinds)
                if slot.view.name not in names and slot.ready >= count and self._free_for(slot, want)
            ]
        for avoided in dict.fromkeys((want.avoid_nodes, ())):
            wished = [slot for slot in able if slot.view.name not in avoided]
            found = gang(wished, want.nodes, same_fabric=want.same_fabric)
            if found is not None:
                return found
        return None

    def _allowed_on(self, want: Waiting, avoided: tuple[str, ...]) -> Callable[[Slot], bool]:
        return lambda slot: slot.view.name not in avoided and self._free_for(slot, want)

    @staticmethod
    def _room(slot: Slot) -> int:
        """Return the devices of a node once those that are leaving have left."""
        room = len(slot.free) + slot.leaving
        return room if slot.shared or room == len(slot.view.devices) else 0

    def _leaving_on(self, nodes: Sequence[Slot]) -> list[Running]:
        found = {
            running.run_id: running
            for slot in nodes
            for running, _ in slot.residents.values()
            if running.stopping and slot.leaving
        }
        return list(found.values())

    def _keep(self, nodes: Sequence[Slot], want: Waiting, pool: str) -> None:
        """Promise devices that others are leaving: nobody later in the queue may count on them."""
        self._count(want, pool)
        names = tuple(slot.view.name for slot in nodes)
        count = want.devices_per_node
        self.kept.append(Hold(run_id=want.run_id, nodes=names, devices_per_node=count, from_ms=self.now_ms))
        until_ms = self.now_ms + min(want.expected_ms, want.bound_ms)
        for slot in nodes:
            of_free = self.book.nodes.promise(slot, want.devices_per_node, until_ms)
            if of_free:
                self.kept_free[slot.view.name] = self.kept_free.get(slot.view.name, 0) + of_free
            self.holds.given(slot, want.devices_per_node, self.now_ms + want.bound_ms)

    def _promise(self, want: Waiting, pools: dict[str, list[Kind]]) -> bool:
        """Hold devices in time for one of the first blocked runs of a pool. False when there are enough of them."""
        for pool, kinds in pools.items():
            if self.promised.get(pool, 0) >= self.book.pool(pool).reservations:
                continue
            opens = (lambda slot, at_ms: self._opens(slot, want, at_ms)) if self.book.barred else None
            held = self.holds.hold(kinds, want, opens)
            if held is not None:
                self.promised[pool] = self.promised.get(pool, 0) + 1
                # What was found to fit before this promise may not fit beside it; what did not, does not now.
                self.window = {shape: window for shape, window in self.window.items() if not window}
                return True
        return False

    def _opens(self, slot: Slot, want: Waiting, at_ms: int) -> int:
        """Return the first time from ``at_ms`` on at which no reservation bars the run from the node."""
        for one in self.book.barred.get(slot.view.name, ()):
            if one.bars(slot.view.name, want.project, at_ms, at_ms + _stays_ms(want)):
                at_ms = one.to_ms
        return at_ms

    def _why(self, want: Waiting, pools: dict[str, list[Kind]]) -> Refusal:
        """Return why nothing of the shape starts. Cost: once a shape, and its nodes only where promises matter."""
        index = self.book.nodes
        if self.holds.made or self.book.barred or self.kept_free:
            for kinds in pools.values():
                held = self._held_for(want, kinds)
                if held is not None:
                    return held
        open_ones = (kinds for kinds in pools.values() if index.ready(kinds, 0) >= want.nodes)
        kinds = next(open_ones, next(iter(pools.values())))
        return reasons.no_room(want, index, kinds, index.ready(kinds, want.devices_per_node))

    def _held_for(self, want: Waiting, kinds: Sequence[Kind]) -> Refusal | None:
        """Return for whom a place that the run could have is held, if there is one."""
        count = want.devices_per_node
        ready = [s for s in self.book.nodes.open_ones(kinds) if self._ready_but_kept(s) >= count]
        if gang(ready, want.nodes, same_fabric=want.same_fabric) is None:
            return None
        names = {
            s.view.name for s in ready if s.ready < count or self.holds.window_ms(s, count) < want.bound_ms
        }
        barred = [s.view.name for s in ready if not self._may_stand(s, want, self.now_ms)]
        if not names and not barred:
            return None
        ahead = [hold for hold in (*self.kept, *self.holds.made) if names.intersection(hold.nodes)]
        now = [name for name in barred if self.book.barred_now(name, want.project, self.now_ms)]
        return reasons.held_for(want, len(ready), len(names), ahead, barred, now)

    def _ready_but_kept(self, slot: Slot) -> int:
        """Return the devices of a node that are free, those included that are kept for somebody."""
        kept = self.kept_free.get(slot.view.name, 0)
        if not kept or not (slot.shared or (not slot.residents and len(slot.given) == 1)):
            return slot.ready
        return len(slot.free) + kept

    # When to look again.

    def _wake_at(self, at_ms: int) -> None:
        if at_ms > self.now_ms and (self.wake_ms is None or at_ms < self.wake_ms):
            self.wake_ms = at_ms

    def _wakes(self) -> int | None:
        if self.evictions.wake_ms is not None:
            self._wake_at(self.evictions.wake_ms)
        if self.refusals or self.of_runs:
            for of_node in self.book.barred.values():
                for one in of_node:
                    self._wake_at(one.from_ms)
                    self._wake_at(one.to_ms)
        return self.wake_ms


def _stays_ms(want: Waiting) -> int:
    """Return how long a node must not be reserved for a run to be placed on it.

    Who may be there when a reservation begins is asked to leave its grace before: by then it is to be gone.
    """
    return want.bound_ms + want.grace_ms + CLEARING_MS
