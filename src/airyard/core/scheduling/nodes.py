"""The index of nodes: which have how many devices free, by pool, kind and fabric.

Owns: the buckets that make a placement cheap, and their undo log. Must not know: queue, projects, priorities.
Derived from the node views and the seats of live attempts: it equals its rebuild at any time.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from airyard.core.scheduling.ends import Staying, releases
from airyard.core.scheduling.plan import NodeView, Running, Shape

FAR_MS = 1 << 55
"""Later than any time."""


def natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """Return a sort key under which ``n10`` comes after ``n9``."""
    return tuple((0, int(p), "") if p.isdigit() else (1, 0, p) for p in re.split(r"(\d+)", name) if p)


def starts_as(run_as: str, unix_user: str) -> bool:
    """True when an agent that starts members as ``run_as`` can start one of this account; empty is anybody's."""
    return not unix_user or run_as in ("*", unix_user)


SlotKey = tuple[
    tuple[tuple[int, int, str], ...], tuple[tuple[int, int, str], ...], tuple[tuple[int, int, str], ...]
]


class Kind(NamedTuple):
    """Nodes of one kind serve the same shapes."""

    pool: str
    kind: str
    total: int
    cpus: float
    memory_bytes: int
    accelerator: str
    run_as: str

    def fits(self, shape: Shape) -> bool:
        """True when such a node, were it empty, could hold a member."""
        return (
            self.kind == shape.kind
            and (shape.pool is None or self.pool.lower() == shape.pool)
            and self.total >= shape.devices
            and self.cpus >= shape.cpus
            and self.memory_bytes >= shape.memory_bytes
            and starts_as(self.run_as, shape.unix_user)
        )


@dataclass(slots=True, eq=False)
class Slot:
    """One node: what of it is free, who stands on which of its devices, and when the next come free."""

    view: NodeView
    key: SlotKey
    kind: Kind
    shared: bool
    free: tuple[int, ...] = ()
    residents: dict[int, tuple[Running, tuple[int, ...]]] = field(default_factory=dict)
    leaving: int = 0
    """Devices of attempts that are on their way out and that are promised to nobody."""
    given: tuple[tuple[int, int], ...] = ()
    """(until, devices) that the plan in the making has given away or promised."""
    going: frozenset[int] = frozenset()
    """Residents that the plan in the making asks to leave."""
    by_rank: tuple[int, ...] = (0, 0, 0)
    """Devices of residents that are not on their way out, by class."""
    open: bool = True
    """New members may be placed on it."""
    ready: int = 0
    """Devices that may be given away now; a node of a pool that does not share gives all or nothing."""
    _avail: tuple[int, ...] | None = None

    def takes(self, count: int) -> int:
        """Return how many devices a member that asks ``count`` keeps from others: of an unshared node all."""
        return count if self.shared else max(count, len(self.view.devices))

    def available(self) -> tuple[int, ...]:
        """Return, for each number of devices from 0 to all, when so many are expected to be free at once.

        0 is now; FAR_MS is never, for what strangers hold too.
        """
        if self._avail is None:
            self._avail = self._releases()
        return self._avail

    def free_at(self, at_ms: int) -> int:
        """Return how many devices are expected to be free at a time."""
        return bisect_right(self.available(), at_ms) - 1

    def _releases(self) -> tuple[int, ...]:
        times = [0] * len(self.free)
        leaving: list[int] = []
        staying: list[Staying] = [Staying(until_ms, until_ms, 0, count) for until_ms, count in self.given]
        for run_id, (running, devices) in self.residents.items():
            if run_id in self.going:
                leaving.extend([0] * len(devices))
            elif running.stopping:
                leaving.extend([running.end_ms] * len(devices))
            else:
                staying.append(Staying(running.end_ms, running.late_end_ms, running.placed_ms, len(devices)))
        leaving.sort()
        times += leaving[len(leaving) - self.leaving :] if self.leaving else ()
        times.extend(releases(staying))
        times.sort()
        if not self.shared and times and (self.residents or self.given):
            ends = [one.end_ms for run_id, (one, _) in self.residents.items() if run_id not in self.going]
            times = [max(times[-1], *ends, 0)] * len(times)
        return (0, *times, *([FAR_MS] * (self.kind.total - len(times))))

    def forget(self) -> None:
        """Note that residents or free devices have changed."""
        self._avail = None


class _Given(NamedTuple):
    """What a plan changes of a node."""

    free: tuple[int, ...]
    leaving: int
    given: tuple[tuple[int, int], ...]
    going: frozenset[int]


class Shelf:
    """The open nodes of one kind: ``by_free[fabric][n]`` are those with ``n`` devices ready, in key order."""

    __slots__ = ("by_free", "counts", "kind")

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.by_free: dict[str, list[list[tuple[SlotKey, str]]]] = {}
        self.counts = [0] * (kind.total + 1)

    def add(self, slot: Slot, ready: int) -> None:
        """Put a node in."""
        rows = self.by_free.get(slot.view.fabric)
        if rows is None:
            rows = self.by_free[slot.view.fabric] = [[] for _ in range(self.kind.total + 1)]
        insort(rows[ready], (slot.key, slot.view.name))
        self.counts[ready] += 1

    def remove(self, slot: Slot, ready: int) -> None:
        """Take a node out of the place where it stands."""
        rows = self.by_free[slot.view.fabric]
        row = rows[ready]
        del row[bisect_left(row, (slot.key, slot.view.name))]
        self.counts[ready] -= 1
        if not any(rows):
            del self.by_free[slot.view.fabric]

    def having(self, count: int) -> int:
        """Return how many nodes have at least ``count`` devices ready."""
        return sum(self.counts[count:])


class NodeIndex:
    """All nodes. Changes between ``mark`` and ``rollback`` are undone by it."""

    def __init__(self) -> None:
        self.slots: dict[str, Slot] = {}
        self.shelves: dict[Kind, Shelf] = {}
        self.names: dict[Kind, dict[str, None]] = {}
        self._fitting: dict[Shape, dict[str, list[Kind]]] = {}
        self._leaving: dict[str, None] = {}
        self.doubted: set[str] = set()
        """The open nodes whose health is in doubt: few, as a rule."""
        self._open: dict[Kind, list[Slot]] = {}
        self._log: list[tuple[Slot, _Given]] | None = None

    def put(self, view: NodeView, shared: bool) -> None:
        """Add a node or replace what is known of it; who stands on it stays."""
        old = self.slots.get(view.name)
        residents: dict[int, tuple[Running, tuple[int, ...]]] = {}
        if old is not None:
            if old.view == view and old.shared == shared:
                return
            residents = {run_id: (one, _usable(view, one)) for run_id, (one, _) in old.residents.items()}
            self.drop(view.name)
        kind = Kind(
            view.pool,
            view.model or view.accelerator,
            view.total,
            view.cpus,
            view.memory_bytes,
            view.accelerator,
            view.run_as,
        )
        key = natural(view.fabric), natural(view.rack), natural(view.name)
        slot = Slot(view=view, key=key, kind=kind, shared=shared, residents=residents)
        slot.open = view.alive and not view.cordoned
        self.slots[view.name] = slot
        if kind not in self.names:
            self.names[kind] = {}
            self._fitting.clear()
        self.names[kind][view.name] = None
        self._open.pop(kind, None)
        self._refresh(slot)
        slot.ready = _ready(slot)
        if slot.open:
            self._shelf(kind).add(slot, slot.ready)
            if view.in_doubt:
                self.doubted.add(view.name)

    def drop(self, name: str) -> None:
        """Forget a node."""
        slot = self.slots.pop(name)
        self._open.pop(slot.kind, None)
        self._leaving.pop(name, None)
        self.doubted.discard(name)
        if slot.open:
            self.shelves[slot.kind].remove(slot, slot.ready)
        of_kind = self.names[slot.kind]
        del of_kind[name]
        if not of_kind:
            del self.names[slot.kind]
            self.shelves.pop(slot.kind, None)
            self._fitting.clear()

    def seat(self, running: Running) -> None:
        """Let an attempt stand where its seats are; seats on unknown nodes are passed over."""
        for seat in running.seats:
            slot = self.slots.get(seat.node)
            if slot is not None:
                slot.residents[running.run_id] = (running, _usable(slot.view, running))
                self._refresh(slot)
                self._move(slot)

    def unseat(self, running: Running) -> None:
        """Take an attempt away."""
        for seat in running.seats:
            slot = self.slots.get(seat.node)
            if slot is not None and running.run_id in slot.residents:
                del slot.residents[running.run_id]
                self._refresh(slot)
                self._move(slot)

    def _refresh(self, slot: Slot) -> None:
        taken = {device for _, devices in slot.residents.values() for device in devices}
        slot.free = tuple(device for device in slot.view.devices if device not in taken)
        slot.given, slot.going = (), frozenset()
        slot.leaving = 0
        by_rank = [0, 0, 0]
        for running, devices in slot.residents.values():
            if running.stopping:
                slot.leaving += len(devices)
            else:
                by_rank[running.rank] += len(devices)
        slot.by_rank = tuple(by_rank)
        self._note_leaving(slot)
        slot.forget()

    def _move(self, slot: Slot) -> None:
        before, slot.ready = slot.ready, _ready(slot)
        if slot.open and slot.ready != before:
            shelf = self.shelves[slot.kind]
            shelf.remove(slot, before)
            shelf.add(slot, slot.ready)

    def _shelf(self, kind: Kind) -> Shelf:
        shelf = self.shelves.get(kind)
        if shelf is None:
            shelf = self.shelves[kind] = Shelf(kind)
        return shelf

    # What a plan does and takes back.

    def mark(self) -> None:
        """Begin to note what a plan does."""
        self._log = []

    def changed(self, since: int) -> tuple[int, list[Slot]]:
        """Return how many changes the plan has made, and the nodes of those after the first ``since``."""
        log = self._log or []
        return len(log), [slot for slot, _ in log[since:]]

    def rollback(self) -> None:
        """Undo everything since ``mark``."""
        log, self._log = self._log or [], None
        for slot, before in reversed(log):
            self._set(slot, before)

    def take(self, slot: Slot, count: int, until_ms: int) -> tuple[int, ...]:
        """Give away the first ``count`` free devices of a node and return them; an unshared node gives all."""
        given = slot.free[:count]
        now_given = (*slot.given, (until_ms, count))
        self._change(slot, _Given(slot.free[count:], slot.leaving, now_given, slot.going))
        return given

    def promise(self, slot: Slot, count: int, until_ms: int) -> int:
        """Keep ``count`` devices for somebody: first of those that others are leaving, then of the free ones.

        Returns how many are of the free ones.
        """
        of_leaving = min(slot.leaving, count)
        given = (*slot.given, (until_ms, count))
        free = slot.free[count - of_leaving :]
        self._change(slot, _Given(free, slot.leaving - of_leaving, given, slot.going))
        return count - of_leaving

    def let_go(self, slot: Slot, run_id: int) -> None:
        """Count a resident's devices among those that are being left."""
        leaving = slot.leaving + len(slot.residents[run_id][1])
        self._change(slot, _Given(slot.free, leaving, slot.given, slot.going | {run_id}))

    def _change(self, slot: Slot, after: _Given) -> None:
        if self._log is not None:
            self._log.append((slot, _Given(slot.free, slot.leaving, slot.given, slot.going)))
        self._set(slot, after)

    def _set(self, slot: Slot, after: _Given) -> None:
        slot.free, slot.leaving, slot.given, slot.going = after
        slot.forget()
        self._note_leaving(slot)
        self._move(slot)

    def _note_leaving(self, slot: Slot) -> None:
        if slot.leaving:
            self._leaving[slot.view.name] = None
        else:
            self._leaving.pop(slot.view.name, None)

    # Questions.

    def leaving(self) -> list[Slot]:
        """Return the nodes on which devices are being left that are promised to nobody."""
        return sorted((self.slots[name] for name in self._leaving), key=lambda slot: slot.key)

    def ready(self, kinds: Iterable[Kind], count: int) -> int:
        """Return how many open nodes of the kinds have at least ``count`` devices ready. 0 counts all open ones."""
        return sum(self.shelves[kind].having(count) for kind in kinds if kind in self.shelves)

    def fitting(self, shape: Shape) -> dict[str, list[Kind]]:
        """Return pool → kinds that serve the shape, smallest node first; pools with the smallest nodes first."""
        found = self._fitting.get(shape)
        if found is None:
            kinds = sorted(
                (kind for kind in self.names if kind.fits(shape)),
                key=lambda kind: (kind.total, natural(kind.pool), kind),
            )
            found = {}
            for kind in kinds:
                found.setdefault(kind.pool, []).append(kind)
            self._fitting[shape] = found
        return found

    def of_kinds(self, kinds: Iterable[Kind]) -> Iterator[Slot]:
        """Yield every node of the kinds, closed ones included."""
        for kind in kinds:
            for name in self.names[kind]:
                yield self.slots[name]

    def offers(self) -> list[tuple[NodeView, int]]:
        """Return one node of each kind and fabric, with their number. Cost: nodes."""
        found: dict[tuple[Kind, str], tuple[NodeView, int]] = {}
        for slot in self.slots.values():
            key = slot.kind, slot.view.fabric
            first, count = found.get(key, (slot.view, 0))
            found[key] = first, count + 1
        return list(found.values())

    def largest(self, kinds: Sequence[Kind], *, same_fabric: bool) -> int:
        """Return how many nodes of the kinds there are, closed ones too; with ``same_fabric`` on the largest fabric."""
        if not same_fabric:
            return sum(len(self.names[kind]) for kind in kinds)
        fabrics = Counter(self.slots[name].view.fabric for kind in kinds for name in self.names[kind])
        return max(fabrics.values(), default=0)

    def whole(self, kinds: Iterable[Kind], count: int) -> int:
        """Return how many open nodes are free as a whole, of those with more than ``count`` devices."""
        shelves = (self.shelves[kind] for kind in kinds if kind.total > count and kind in self.shelves)
        return sum(shelf.counts[shelf.kind.total] for shelf in shelves)

    def open_ones(self, kinds: Iterable[Kind]) -> Iterator[Slot]:
        """Yield the open nodes of the kinds, in key order within each."""
        for kind in kinds:
            found = self._open.get(kind)
            if found is None:
                slots = (self.slots[name] for name in self.names[kind])
                found = self._open[kind] = sorted((s for s in slots if s.open), key=lambda slot: slot.key)
            yield from found

    def capacity(self, pool: str) -> int:
        """Return the devices of a pool's open nodes. Cost: its nodes."""
        return sum(
            len(self.slots[name].view.devices)
            for kind, names in self.names.items()
            if kind.pool == pool
            for name in names
            if self.slots[name].open
        )


def _usable(view: NodeView, running: Running) -> tuple[int, ...]:
    """Return the devices that come free when an attempt leaves a node: not those that a stranger has come upon."""
    return tuple(
        device
        for seat in running.seats
        if seat.node == view.name
        for device in seat.devices
        if device in view.devices
    )


def _ready(slot: Slot) -> int:
    return len(slot.free) if slot.shared or not (slot.residents or slot.given) else 0
