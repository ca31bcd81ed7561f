"""What must hold of every plan: checked in simulation at every step, in tests, and by whoever doubts a plan.

Owns: the rules, counted anew from the nodes and attempts of a book, not from its indexes. Must not know: how a plan
is made. The book must be as it was when the plan was made.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from airyard.core.placement import Seat
from airyard.core.scheduling.book import Book
from airyard.core.scheduling.feasible import fits_pool, fits_size
from airyard.core.scheduling.plan import Eviction, Hold, NodeView, Plan, Running, Waiting
from airyard.core.scheduling.preempt import BEST_EFFORT_RANK, PRIORITY, RECLAIM, SAFE_MS, SLICE


def violations(book: Book, plan: Plan, now_ms: int) -> list[str]:
    """Return every broken promise of a plan in words; an empty list is a sound plan. Cost: about the whole book."""
    yard = _Yard(book, plan, now_ms)
    return [
        *_starts(yard),
        *_kept(yard),
        *_quotas(yard),
        *_evictions(yard),
        *_holds(yard),
        *_in_time(yard),
        *_answers(yard),
    ]


def drift(book: Book, rebuilt: Book, now_ms: int) -> list[str]:
    """Return what a book that took in changes one by one has otherwise than one made from the whole state.

    How long runs are expected to last is left out: it is reckoned anew as time passes.
    """
    for run_id, running in list(rebuilt.running.items()):
        kept = book.running.get(run_id)
        if kept is not None:
            rebuilt.put_running(replace(running, end_ms=kept.end_ms, late_end_ms=kept.late_end_ms))
    for run_id, want in list(rebuilt.queue.runs.items()):
        known = book.queue.runs.get(run_id)
        if known is not None:
            expected = replace(want, expected_ms=known.expected_ms, likely_ms=known.likely_ms)
            rebuilt.put_waiting(expected, now_ms)
    ours, theirs = book.picture(), rebuilt.picture()
    return [f"{part}: {_difference(ours[part], theirs[part])}" for part in ours if ours[part] != theirs[part]]


def _difference(ours: Any, theirs: Any) -> str:
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for key in [*ours, *theirs]:
            if ours.get(key) != theirs.get(key):
                return f"{key} is {ours.get(key)}, and should be {theirs.get(key)}"
    return f"{ours} should be {theirs}"


@dataclass(slots=True)
class _Counts:
    """What runs hold."""

    held: dict[tuple[str, str], int] = field(default_factory=dict)
    """(project, pool) → devices."""
    firm: dict[tuple[str, str], int] = field(default_factory=dict)
    """The same without BEST_EFFORT."""
    users: dict[tuple[str, str], tuple[int, int]] = field(default_factory=dict)
    """(project, user) → runs, devices."""

    def add(self, run: Running | Waiting, pool: str) -> None:
        """Count a run."""
        key, devices = (run.project, pool), run.devices
        self.held[key] = self.held.get(key, 0) + devices
        if run.rank != BEST_EFFORT_RANK:
            self.firm[key] = self.firm.get(key, 0) + devices
        runs, of_user = self.users.get((run.project, run.owner), (0, 0))
        self.users[run.project, run.owner] = runs + 1, of_user + devices


@dataclass(slots=True)
class _Yard:
    """A book and its plan, counted anew. ``leaving`` are the attempts that are on their way out, or asked to leave."""

    book: Book
    plan: Plan
    now_ms: int
    taken: dict[tuple[str, int], int] = field(default_factory=dict)
    """(node, device) → run."""
    on_node: dict[str, dict[int, int]] = field(default_factory=dict)
    """Node → run → devices."""
    leaving: set[int] = field(default_factory=set)
    before: _Counts = field(default_factory=_Counts)
    after: _Counts = field(default_factory=_Counts)

    def __post_init__(self) -> None:
        evicted = {eviction.run_id for eviction in self.plan.evictions}
        for running in self.book.running.values():
            for counts in (self.before, self.after):
                counts.add(running, running.pool)
            self.seat(running.run_id, running.seats)
            if running.stopping or running.run_id in evicted:
                self.leaving.add(running.run_id)

    def seat(self, run_id: int, seats: Iterable[Seat]) -> None:
        """Let a run take its seats; a device that is taken stays with whom it is, one of a stranger with nobody."""
        for seat in seats:
            view = self.view(seat.node)
            if view is None:
                continue
            devices = [device for device in seat.devices if device in view.devices]
            if devices:
                self.on_node.setdefault(seat.node, {})[run_id] = len(devices)
            for device in devices:
                self.taken.setdefault((seat.node, device), run_id)

    def view(self, node: str) -> NodeView | None:
        """Return a node."""
        slot = self.book.nodes.slots.get(node)
        return slot.view if slot is not None else None

    def shares(self, view: NodeView) -> bool:
        """True when several runs may be on a node."""
        return self.book.pool(view.pool).share

    def waiting(self, run_id: int) -> Waiting | None:
        """Return a waiting run that may be considered now."""
        want = self.book.queue.runs.get(run_id)
        if want is None or want.held or max(want.not_before_ms, want.begin_ms) > self.now_ms:
            return None
        return want

    def serves(self, view: NodeView, want: Waiting, from_ms: int) -> str:
        """Return why a node may not serve a run from a time on; nothing when it may."""
        if not view.alive or view.cordoned:
            return "which is not open"
        if not (fits_pool(view, want) and fits_size(view, want)):
            return "which does not serve it"
        to_ms, barred = from_ms + want.bound_ms, self.book.barred.get(view.name, ())
        if any(one.bars(view.name, want.project, from_ms, to_ms) for one in barred):
            return "which is reserved before it would be over"
        return ""


def _starts(yard: _Yard) -> Iterator[str]:
    seen: set[int] = set()
    for start in yard.plan.starts:
        want = yard.waiting(start.run_id)
        if want is None or start.run_id in seen:
            yield f"run {start.run_id} is started and does not wait"
            continue
        seen.add(start.run_id)
        yield from _gang(yard, want, [seat.node for seat in start.seats], yard.now_ms, "gets")
        for seat in start.seats:
            yield from _seat(yard, want, seat)
        view = yard.view(start.seats[0].node) if start.seats else None
        if view is not None:
            yard.after.add(want, view.pool)
            yard.seat(want.run_id, start.seats)


def _gang(yard: _Yard, want: Waiting, nodes: Sequence[str], from_ms: int, verb: str) -> Iterator[str]:
    """The nodes of a gang are as many as it asks, and serve it together."""
    name = f"run {want.run_id}"
    views = [view for view in map(yard.view, nodes) if view is not None]
    if len(set(nodes)) != want.nodes or len(nodes) != want.nodes or len(views) != want.nodes:
        yield f"{name} {verb} nodes {', '.join(nodes)} and asks {want.nodes}"
    for what, values in (("pools", {v.pool for v in views}), ("fabrics", {v.fabric for v in views})):
        if len(values) > 1 and (what == "pools" or want.same_fabric):
            yield f"{name} {verb} nodes of several {what}: {', '.join(sorted(values))}"
    for view in views:
        wrong = yard.serves(view, want, from_ms)
        if wrong:
            yield f"{name} {verb} {view.name}, {wrong}"


def _seat(yard: _Yard, want: Waiting, seat: Seat) -> Iterator[str]:
    name, view = f"run {want.run_id}", yard.view(seat.node)
    if view is None:
        return
    if seat.machine != view.machine:
        yield f"{name} gets {seat.node} of machine {seat.machine}, which is {view.machine}'s"
    if len(set(seat.devices)) != want.devices_per_node or not set(seat.devices) <= set(view.devices):
        yield f"{name} gets devices {seat.devices} of {seat.node} and asks {want.devices_per_node}"
    for device in seat.devices:
        if (seat.node, device) in yard.taken:
            yield f"{name} gets device {device} of {seat.node}, which run {yard.taken[seat.node, device]} has"
    if not yard.shares(view) and yard.on_node.get(seat.node):
        yield f"{name} gets {seat.node}, where others are, and pool {view.pool} does not share nodes"


def _kept(yard: _Yard) -> Iterator[str]:
    """Once everybody has left who is leaving, there is room for all runs together that something is kept for."""
    seen = {start.run_id for start in yard.plan.starts}
    for hold in yard.plan.kept:
        want = yard.waiting(hold.run_id)
        if want is None or hold.run_id in seen or hold.run_id not in yard.plan.of_runs:
            yield f"run {hold.run_id} is kept nodes and does not wait for them"
            continue
        seen.add(hold.run_id)
        yield from _gang(yard, want, hold.nodes, yard.now_ms, "is kept")
        view = yard.view(hold.nodes[0])
        if view is not None:
            yard.after.add(want, view.pool)
    for node, holds in _by_node(yard.plan.kept):
        view = yard.view(node)
        stay = [n for run_id, n in yard.on_node.get(node, {}).items() if run_id not in yard.leaving]
        stay += [hold.devices_per_node for hold in holds]
        if view is not None and (sum(stay) > len(view.devices) or (len(stay) > 1 and not yard.shares(view))):
            runs = ", ".join(str(hold.run_id) for hold in holds)
            yield f"{node} is kept for {runs}; with who stays that is {stay} of {len(view.devices)} devices"


def _by_node(holds: Iterable[Hold]) -> list[tuple[str, list[Hold]]]:
    on_node: dict[str, list[Hold]] = {}
    for hold in holds:
        for node in hold.nodes:
            on_node.setdefault(node, []).append(hold)
    return sorted(on_node.items())


def _quotas(yard: _Yard) -> Iterator[str]:
    """What starts, and what others leave for, goes over no limit."""
    served = [start.run_id for start in yard.plan.starts] + [hold.run_id for hold in yard.plan.kept]
    wants = [want for want in map(yard.waiting, served) if want is not None]
    for name in sorted({want.project for want in wants if want.model is not None}):
        if name in yard.book.spent:
            yield f"project {name} has runs started, and its budget is spent"
    for (name, pool), held in sorted(yard.after.held.items()):
        project = yard.book.policy.project(name)
        ceiling = project.share_of(pool).ceiling if project is not None else None
        if ceiling is not None and held > max(ceiling, yard.before.held.get((name, pool), 0)):
            yield f"project {name} gets {held} devices in pool {pool}, over its ceiling of {ceiling}"
    for (name, user), (runs, devices) in sorted(yard.after.users.items()):
        project = yard.book.policy.project(name)
        if project is None:
            continue
        had_runs, had_devices = yard.before.users.get((name, user), (0, 0))
        limits = project.per_user
        if limits.running is not None and runs > max(limits.running, had_runs):
            yield f"{user} gets {runs} runs in project {name}, over the limit of {limits.running}"
        if limits.devices is not None and devices > max(limits.devices, had_devices):
            yield f"{user} gets {devices} devices in project {name}, over the limit of {limits.devices}"


def _evictions(yard: _Yard) -> Iterator[str]:
    kept = {hold.run_id for hold in yard.plan.kept}
    staying = dict(yard.after.firm)
    for running in yard.book.running.values():
        if running.stopping and running.rank != BEST_EFFORT_RANK:
            staying[running.project, running.pool] -= running.devices
    asked: dict[tuple[str, str], dict[int, int]] = {}
    seen: set[int] = set()
    for eviction in yard.plan.evictions:
        name = f"the eviction of run {eviction.run_id} for run {eviction.for_run}"
        victim, want = yard.book.running.get(eviction.run_id), yard.waiting(eviction.for_run)
        gone = victim is None or victim.attempt != eviction.attempt or victim.stopping
        if victim is None or gone or eviction.run_id in seen:
            yield f"{name}: it is not there to be evicted"
            continue
        seen.add(eviction.run_id)
        if want is None or eviction.for_run not in kept:
            yield f"{name}: nothing is kept for that run"
            continue
        if victim.placed_ms + SAFE_MS > yard.now_ms:
            yield f"{name}: it is in its first minute"
        wanted = asked.setdefault((want.project, victim.pool), {})
        wanted[want.run_id] = want.devices
        yield from _right(yard, eviction, victim, want, sum(wanted.values()))
        key = victim.project, victim.pool
        if victim.rank != BEST_EFFORT_RANK:
            if eviction.rule == RECLAIM and staying[key] <= yard.book.shares.guarantee(*key):
                yield f"{name}: project {victim.project} does not borrow in pool {victim.pool} any more"
            staying[key] -= victim.devices


def _right(yard: _Yard, one: Eviction, victim: Running, want: Waiting, asked: int) -> Iterator[str]:
    name = f"the eviction of run {one.run_id} for run {one.for_run}"
    if one.rule == PRIORITY:
        if want.rank >= victim.rank:
            yield f"{name}: its class is not lower"
    elif want.rank != victim.rank:
        yield f"{name}: {one.rule} is a right within a class"
    elif one.rule == RECLAIM:
        key = want.project, victim.pool
        has, guarantee = yard.before.firm.get(key, 0), yard.book.shares.guarantee(*key)
        if want.project == victim.project or has + asked > guarantee:
            yield f"{name}: project {want.project} has {has} and asks back {asked} of {guarantee} guaranteed"
    elif one.rule == SLICE:
        slicing = yard.book.slicing(victim.pool, victim.project)
        if slicing is None or not victim.acknowledges:
            yield f"{name}: it is not sliced"
        elif yard.now_ms - victim.placed_ms + victim.served_ms < slicing.first_slice_ms:
            yield f"{name}: it has not had its first slice"
        elif victim.evicted_ms is not None and yard.now_ms < victim.evicted_ms + slicing.apart_ms:
            yield f"{name}: it was evicted too short a time ago"
    else:
        yield f"{name}: {one.rule} is no rule"


def _holds(yard: _Yard) -> Iterator[str]:
    seen = {start.run_id for start in yard.plan.starts} | {hold.run_id for hold in yard.plan.kept}
    for hold in yard.plan.holds:
        want = yard.waiting(hold.run_id)
        if want is None or hold.run_id in seen or hold.from_ms < yard.now_ms:
            yield f"run {hold.run_id} is promised nodes and does not wait for them"
            continue
        seen.add(hold.run_id)
        yield from _gang(yard, want, hold.nodes, hold.from_ms, "is promised")


def _in_time(yard: _Yard) -> Iterator[str]:
    """What is promised is there in time, by the ends that are expected, whatever the plan starts."""
    for node, holds in _by_node(yard.plan.holds):
        view, until = yard.view(node), list(_until(yard, node))
        if view is None:
            continue
        for hold in holds:
            busy = [devices for devices, until_ms in until if until_ms > hold.from_ms]
            due = [one.devices_per_node for one in holds if one.from_ms <= hold.from_ms]
            alone = yard.shares(view) or (not busy and len(due) == 1)
            if sum(busy) + sum(due) > len(view.devices) or not alone:
                yield (
                    f"run {hold.run_id} is promised {hold.devices_per_node} on {node} at {hold.from_ms}: then "
                    f"{sum(due)} of {len(view.devices)} are due and {sum(busy)} still in use"
                )


def _until(yard: _Yard, node: str) -> Iterator[tuple[int, int]]:
    """Yield who stands on a node, or is about to: devices, until when. Who is asked to leave is taken to have left."""
    leaving: list[int] = []
    for run_id, devices in yard.on_node.get(node, {}).items():
        running, want = yard.book.running.get(run_id), yard.waiting(run_id)
        if running is not None and running.stopping:
            leaving += [running.end_ms] * devices
        elif running is not None and run_id not in yard.leaving:
            yield devices, running.end_ms
        elif running is None and want is not None:
            yield devices, yard.now_ms + min(want.expected_ms, want.bound_ms)
    kept = 0
    for hold in yard.plan.kept:
        want = yard.waiting(hold.run_id)
        if want is not None and node in hold.nodes:
            kept += hold.devices_per_node
            yield hold.devices_per_node, yard.now_ms + min(want.expected_ms, want.bound_ms)
    # What leaves first is kept first.
    for until_ms in sorted(leaving)[kept:]:
        yield 1, until_ms


def _answers(yard: _Yard) -> Iterator[str]:
    """Every run that may be considered is started or has a reason."""
    plan = yard.plan
    answered = {start.run_id for start in plan.starts} | plan.of_runs.keys()
    for run_id in yard.book.queue.runs:
        want = yard.waiting(run_id)
        if want is None or run_id in answered:
            continue
        if yard.book.group_of(want) not in plan.refusals and want.shape not in plan.of_shapes:
            yield f"run {run_id} is neither started nor refused"
