"""Chooses whom to evict so that a run can be placed at once.

Owns: by what right one run may evict another, what a victim would lose, and the cheapest set of victims.
Must not know: how the victims are told, the order of the queue.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from airyard.core.scheduling.book import Book
from airyard.core.scheduling.nodes import Kind, Slot
from airyard.core.scheduling.plan import Running, Waiting

SAFE_MS = 60_000
"""A run is safe for its first minute: starting and killing it would be all that it was good for."""

SPARED_MS = 3_600_000
"""A run that was evicted within the last hour is evicted again only when there is no other choice."""

BEST_EFFORT_RANK = 2
PRIORITY = "priority"
RECLAIM = "reclaim"
SLICE = "slice"


@dataclass(frozen=True, slots=True, kw_only=True)
class Victim:
    """An attempt that may be evicted, by what right, and the device-milliseconds of work it would lose."""

    running: Running
    rule: str
    lost_ms: int
    spared: bool
    """It is taken only when there is no other choice."""

    @property
    def price(self) -> tuple[bool, int, float, int, int]:
        """What it costs for each device it frees: lower is taken first.

        Nobody who is spared before all others, the lowest class first, then the least work lost a device, then the
        youngest.
        """
        running = self.running
        return (
            self.spared,
            -running.rank,
            self.lost_ms / max(running.devices, 1),
            -running.placed_ms,
            -running.run_id,
        )


@dataclass(slots=True)
class _Choice:
    """Victims taken so far, and how many devices each node gains by them."""

    slots: Mapping[str, Slot]
    victims: list[Victim] = field(default_factory=list)
    gained: dict[str, int] = field(default_factory=dict)

    def take(self, victim: Victim) -> None:
        self.victims.append(victim)
        run_id = victim.running.run_id
        for seat in victim.running.seats:
            slot = self.slots.get(seat.node)
            if slot is not None:
                self.gained[seat.node] = self.gained.get(seat.node, 0) + len(slot.residents[run_id][1])


class Evictions:
    """The rights of one plan."""

    def __init__(self, book: Book, now_ms: int) -> None:
        self._book = book
        self._now_ms = now_ms
        self._gone: set[int] = set()
        self._given_back: dict[tuple[str, str], int] = {}
        """(project, pool) → devices that count against its guarantee and that this plan takes from it."""
        self.wake_ms: int | None = None
        """When a right that is refused for the time being comes to be."""
        self._lower: dict[tuple[str, int], bool] = {}
        self._slices: set[str] | None = None
        self._sliced_projects = False

    def power(self, want: Waiting, pool: str, *, sliced: bool) -> str | None:
        """Return by what kind of right the run might evict somebody in the pool: None when by none at all.

        Runs of one shape and class with the same answer have the same rights. Cost: constant.
        """
        if self.beyond_class(want, pool, sliced=sliced):
            return f"{want.project} {sliced}"
        lower = self._lower.get((pool, want.rank))
        if lower is None:
            of_rank = self._book.shares.of_rank
            below = range(want.rank + 1, BEST_EFFORT_RANK + 1)
            lower = self._lower[pool, want.rank] = any(of_rank.get((pool, rank), 0) for rank in below)
        return "" if lower else None

    def beyond_class(self, want: Waiting, pool: str, *, sliced: bool) -> bool:
        """True when the run may have a right against others of its own class: to reclaim, or to its first slice."""
        if self._slices is None:
            self._slices = {p.name for p in self._book.policy.pools if p.slicing is not None}
            self._sliced_projects = any(p.slicing for p in self._book.policy.projects)
        if not sliced and (self._sliced_projects or pool in self._slices):
            return True
        return self._book.shares.within_guarantee(want, pool)

    def right(self, want: Waiting, running: Running, *, sliced: bool) -> str | None:
        """Return the rule by which ``want`` may evict ``running`` now; None when it may not."""
        if running.run_id in self._gone:
            return None
        due = self.due(want, running, sliced=sliced)
        return self._after(*due) if due is not None else None

    def due(self, want: Waiting, running: Running, *, sliced: bool) -> tuple[int, str] | None:
        """Return from when on ``want`` may evict ``running`` and by which rule, as things are; None when never."""
        if running.stopping or want.rank > running.rank:
            return None
        if want.rank < running.rank:
            return running.placed_ms + SAFE_MS, PRIORITY
        if (
            want.project != running.project
            and self._book.shares.within_guarantee(want, running.pool)
            and self._beyond(running) > 0
        ):
            return running.placed_ms + SAFE_MS, RECLAIM
        if sliced or not running.acknowledges:
            return None
        slicing = self._book.slicing(running.pool, running.project)
        if slicing is None or self._would_reclaim(running, want):
            return None
        due_ms = running.placed_ms + max(slicing.first_slice_ms - running.served_ms, SAFE_MS)
        if running.evicted_ms is not None:
            due_ms = max(due_ms, running.evicted_ms + slicing.apart_ms)
        return due_ms, SLICE

    def send_away(self, running: Running) -> None:
        """Note that an attempt was asked to leave: it cannot be asked again, and its project has less."""
        self._gone.add(running.run_id)
        if running.rank != BEST_EFFORT_RANK:
            key = running.project, running.pool
            self._given_back[key] = self._given_back.get(key, 0) + running.devices

    def _beyond(self, running: Running) -> int:
        """Return how many devices the attempt's project has borrowed; of BEST_EFFORT everything is borrowed."""
        if running.rank == BEST_EFFORT_RANK:
            return running.devices
        key = running.project, running.pool
        return self._book.shares.beyond(*key) - self._given_back.get(key, 0)

    def _would_reclaim(self, running: Running, want: Waiting) -> bool:
        """True when the attempt, sent away, could ask its devices back at once: it is guaranteed, the other is not."""
        if running.project == want.project or self._beyond(running) > 0:
            return False
        return not self._book.shares.within_guarantee(want, running.pool)

    def _after(self, at_ms: int, rule: str) -> str | None:
        if at_ms <= self._now_ms:
            return rule
        self.wake_ms = at_ms if self.wake_ms is None else min(self.wake_ms, at_ms)
        return None

    def victim(self, want: Waiting, running: Running, *, sliced: bool) -> Victim | None:
        """Return what evicting an attempt would cost; None when the run has no right to it."""
        rule = self.right(want, running, sliced=sliced)
        if rule is None:
            return None
        lost_ms = max(self._now_ms - running.safe_ms, 0)
        too_much = running.max_loss_ms is not None and lost_ms > running.max_loss_ms and running.rank == 1
        lately = running.evicted_ms is not None and self._now_ms - running.evicted_ms < SPARED_MS
        return Victim(
            running=running, rule=rule, lost_ms=lost_ms * running.devices, spared=too_much or lately
        )

    def choose(
        self,
        kinds: Sequence[Kind],
        want: Waiting,
        may_stand: Callable[[Slot], bool],
        *,
        sliced: bool,
    ) -> tuple[list[Victim], list[Slot]] | None:
        """Return the victims and the nodes that the gang then gets; None when evicting could not place it.

        Node by node the cheapest is taken, what was already paid for counted as free; a victim that turns out not to be
        needed is spared. Cost: nodes and residents of the kinds.
        """
        beyond_class = self.beyond_class(want, kinds[0].pool, sliced=sliced)
        blocks: dict[str, list[Slot]] = {}
        by_right = slice(want.rank if beyond_class else want.rank + 1, None)
        for slot in self._book.nodes.open_ones(kinds):
            most = len(slot.free) + slot.leaving + sum(slot.by_rank[by_right])
            if most >= slot.takes(want.devices_per_node) and may_stand(slot):
                blocks.setdefault(slot.view.fabric if want.same_fabric else "", []).append(slot)
        asked: dict[int, Victim | None] = {}

        def price(running: Running) -> Victim | None:
            if running.run_id not in asked:
                asked[running.run_id] = self.victim(want, running, sliced=sliced)
            return asked[running.run_id]

        best: tuple[tuple[bool, int, int, int], _Choice, list[Slot]] | None = None
        for slots in blocks.values():
            found = self._in_block(slots, want, price) if len(slots) >= want.nodes else None
            if found is not None and (best is None or found[0] < best[0]):
                best = found
        if best is None or not best[1].victims:
            return None
        _, choice, nodes = best
        return choice.victims, nodes

    def _in_block(
        self, slots: Sequence[Slot], want: Waiting, price: Callable[[Running], Victim | None]
    ) -> tuple[tuple[bool, int, int, int], _Choice, list[Slot]] | None:
        choice, nodes = _Choice(self._book.nodes.slots), []
        left = list(slots)
        costs = {slot.view.name: self._cost(slot, want, choice, price) for slot in left}
        for _ in range(want.nodes):
            open_ones = [slot for slot in left if costs[slot.view.name] is not None]
            if not open_ones:
                return None
            best = min(open_ones, key=lambda slot: (_sum(costs[slot.view.name] or ()), slot.key))
            left.remove(best)
            nodes.append(best)
            touched: set[str] = set()
            for victim in costs[best.view.name] or ():
                choice.take(victim)
                touched.update(seat.node for seat in victim.running.seats)
            for slot in left if touched else ():
                # A project that has lost some may have nothing more to give back.
                reclaims = any(victim.rule == RECLAIM for victim in costs[slot.view.name] or ())
                if slot.view.name in touched or reclaims:
                    costs[slot.view.name] = self._cost(slot, want, choice, price)
        nodes = self._spare(slots, want, nodes, choice)
        nodes.sort(key=lambda slot: slot.key)
        return _sum(choice.victims), choice, nodes

    def _cost(
        self, slot: Slot, want: Waiting, choice: _Choice, price: Callable[[Running], Victim | None]
    ) -> tuple[Victim, ...] | None:
        """Return whom a node costs beyond the present choice: nobody, the cheapest that suffice, or None."""
        taken = {victim.running.run_id for victim in choice.victims}
        have = _without_evicting(slot) + choice.gained.get(slot.view.name, 0)
        needed = slot.takes(want.devices_per_node)
        if have >= needed:
            return ()
        victims: list[tuple[int, Victim]] = []
        for running, devices in slot.residents.values():
            if running.run_id not in taken and (victim := price(running)) is not None:
                victims.append((len(devices), victim))
        victims.sort(key=lambda item: item[1].price)
        missing = needed - have
        alone = [
            (victim,)
            for count, victim in victims
            if count >= missing and self._still_borrows(victim, choice.victims)
        ]
        together = self._together(victims, missing, choice)
        return min((*alone, *([together] if together else [])), key=_sum, default=None)

    def _together(
        self, victims: Sequence[tuple[int, Victim]], missing: int, choice: _Choice
    ) -> tuple[Victim, ...] | None:
        """Return the first of the victims that leave enough, without those that turn out not to be needed."""
        have, needed = 0, missing
        chosen: list[tuple[int, Victim]] = []
        for count, victim in victims:
            if have >= needed:
                break
            if not self._still_borrows(victim, (*choice.victims, *(one for _, one in chosen))):
                continue
            chosen.append((count, victim))
            have += count
        if have < needed:
            return None
        for count, victim in sorted(chosen, key=lambda item: item[1].price, reverse=True):
            if have - count >= needed:
                chosen.remove((count, victim))
                have -= count
        return tuple(victim for _, victim in chosen)

    def _spare(self, slots: Sequence[Slot], want: Waiting, nodes: list[Slot], choice: _Choice) -> list[Slot]:
        """Take back victims without whom there is place enough all the same, the dearest first, and return the nodes.

        One that leaves several nodes may do for what another was taken before it.
        """
        free = [slot for slot in slots if _without_evicting(slot) >= slot.takes(want.devices_per_node)]
        touched = [slot for slot in slots if slot.view.name in choice.gained and slot not in free]

        def enough(slot: Slot, gained: Mapping[str, int]) -> bool:
            have = _without_evicting(slot) + gained.get(slot.view.name, 0)
            return have >= slot.takes(want.devices_per_node)

        for victim in sorted(choice.victims, key=lambda one: one.price, reverse=True):
            without = _Choice(choice.slots)
            for other in choice.victims:
                if other is not victim:
                    without.take(other)
            if len(free) + sum(enough(slot, without.gained) for slot in touched) >= want.nodes:
                choice.victims, choice.gained = without.victims, without.gained
        kept = [slot for slot in nodes if enough(slot, choice.gained)]
        rest = [slot for slot in (*free, *touched) if slot not in kept and enough(slot, choice.gained)]
        return (kept + rest)[: want.nodes]

    def _still_borrows(self, victim: Victim, before: Iterable[Victim]) -> bool:
        """True unless the right is to reclaim and the victim's project would have given back enough already."""
        running = victim.running
        if victim.rule != RECLAIM or running.rank == BEST_EFFORT_RANK:
            return True
        key = running.project, running.pool
        given_back = sum(
            one.running.devices
            for one in before
            if (one.running.project, one.running.pool) == key and one.running.rank != BEST_EFFORT_RANK
        )
        return self._beyond(running) > given_back


def _without_evicting(slot: Slot) -> int:
    return len(slot.free) + slot.leaving


def _sum(victims: Iterable[Victim]) -> tuple[bool, int, int, int]:
    """Return what a set costs: whether it has a spared one, its highest class, the work lost, how many they are."""
    spared, rank, lost, count = False, -99, 0, 0
    for victim in victims:
        spared |= victim.spared
        rank = max(rank, -victim.running.rank)
        lost += victim.lost_ms
        count += 1
    return spared, rank, lost, count
