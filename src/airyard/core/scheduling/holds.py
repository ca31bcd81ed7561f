"""Reservations in time: what the first blocked runs are promised, and what may still start beside them.

Owns: the promises of one plan. Must not know: how a place is chosen now, the order of the queue.
A promise rests on expected ends: predicted by the forecast, never later than a time limit. An attempt that is overdue
counts as ending now, so that its devices stay promised.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from airyard.core.scheduling.nodes import FAR_MS, Kind, NodeIndex, Slot
from airyard.core.scheduling.plan import Hold, Waiting

_BUSY_BITS = 10


@dataclass(slots=True)
class _Promise:
    """Of one node: ``devices`` from ``from_ms`` on; ``spare`` are expected to be free beside all promises then."""

    from_ms: int
    devices: int
    spare: int


class _Ends:
    """When nodes are expected to have a number of devices free, kept while one plan is made."""

    __slots__ = ("places", "seen", "slots", "when")

    def __init__(self, slots: list[Slot], when: list[int]) -> None:
        self.slots = slots
        self.when = when
        self.places = {slot.view.name: place for place, slot in enumerate(slots)}
        self.seen = 0
        """Changes of the plan that are taken in."""


class Holds:
    """The promises made so far in one plan."""

    def __init__(self, index: NodeIndex, now_ms: int) -> None:
        self._index = index
        self._now_ms = now_ms
        self._of_node: dict[str, list[_Promise]] = {}
        self._ends: dict[tuple[tuple[Kind, ...], int], _Ends] = {}
        self.made: list[Hold] = []

    def hold(
        self, kinds: Sequence[Kind], want: Waiting, opens: Callable[[Slot, int], int] | None
    ) -> Hold | None:
        """Promise a blocked run the nodes that come free for it first; None when no end in sight frees enough.

        ``opens(slot, at_ms)`` is the first time from ``at_ms`` on at which no reservation bars the run from the node
        for as long as it may stay; None when nothing is reserved.
        Cost: about the nodes of its kinds.
        """
        count = want.devices_per_node
        ends = self._ends_of(kinds, count)
        slots, when = ends.slots, self._when(ends, count)
        if opens is not None:
            for place, slot in enumerate(slots):
                at_ms = when[place] >> _BUSY_BITS
                if at_ms < FAR_MS and (later_ms := opens(slot, at_ms)) != at_ms:
                    when[place] = later_ms << _BUSY_BITS
        blocks: dict[str, list[int]] = {}
        if want.same_fabric:
            for place, slot in enumerate(slots):
                blocks.setdefault(slot.view.fabric, []).append(place)
        best: list[int] = []
        for places in blocks.values() or (range(len(slots)),):
            first = heapq.nsmallest(want.nodes, places, key=when.__getitem__)
            if len(first) == want.nodes and (not best or when[first[-1]] < when[best[-1]]):
                best = first
        if not best or when[best[-1]] >= FAR_MS << _BUSY_BITS:
            return None
        from_ms = when[best[-1]] >> _BUSY_BITS
        chosen = [slots[place] for place in best]
        if opens is not None and any(opens(slot, from_ms) != from_ms for slot in chosen):
            return None  # rare: the nodes are open one after the other, but not together
        for slot in chosen:
            self._promise(slot, count, from_ms)
        hold = Hold(
            run_id=want.run_id,
            nodes=tuple(slot.view.name for slot in sorted(chosen, key=lambda one: one.key)),
            devices_per_node=count,
            from_ms=from_ms,
        )
        self.made.append(hold)
        return hold

    def _ends_of(self, kinds: Sequence[Kind], count: int) -> _Ends:
        """Return when each node has ``count`` devices free, as it is at this point of the plan."""
        key = tuple(kinds), count
        ends = self._ends.get(key)
        if ends is None:
            slots = list(self._index.open_ones(kinds))
            ends = self._ends[key] = _Ends(slots, [self._end(slot, count) for slot in slots])
            ends.seen, _ = self._index.changed(0)
            return ends
        ends.seen, changed = self._index.changed(ends.seen)
        for slot in changed:
            place = ends.places.get(slot.view.name)
            if place is not None:
                ends.when[place] = self._end(slot, count)
        return ends

    def _end(self, slot: Slot, count: int) -> int:
        """Return when a node has so many devices free, and in the lowest bits how many are in use.

        One number, because a long queue on a large yard compares very many of them.
        """
        at_ms = slot.available()[count]
        busy = slot.kind.total - len(slot.free)
        return ((at_ms if at_ms > self._now_ms else self._now_ms) << _BUSY_BITS) + busy

    def _when(self, ends: _Ends, count: int) -> list[int]:
        """Return for each node when it has ``count`` devices for one more promise, as in ``_end``."""
        when = ends.when.copy()
        for name, promises in self._of_node.items():
            place = ends.places.get(name)
            if place is not None:
                slot = ends.slots[place]
                held = slot.takes(count) + sum(one.devices for one in promises)
                at_ms = slot.available()[held] if held <= slot.kind.total else FAR_MS
                when[place] = max(at_ms, self._now_ms) << _BUSY_BITS
        return when

    def _promise(self, slot: Slot, count: int, from_ms: int) -> None:
        count = slot.takes(count)
        promises = self._of_node.setdefault(slot.view.name, [])
        held = sum(one.devices for one in promises) + count
        for one in promises:
            if one.from_ms >= from_ms:
                one.spare -= count
        promises.append(_Promise(from_ms, count, slot.free_at(from_ms) - held))

    def window_ms(self, slot: Slot, count: int) -> int:
        """Return how long ``count`` devices of a node may be given away from now on: FAR_MS when for ever."""
        promises = self._of_node.get(slot.view.name)
        if promises is None:
            return FAR_MS
        count = slot.takes(count)
        return min((one.from_ms - self._now_ms for one in promises if one.spare < count), default=FAR_MS)

    def given(self, slot: Slot, count: int, until_ms: int) -> None:
        """Note that devices of a node were given away until a time: what stays beyond a promise uses its spare."""
        for one in self._of_node.get(slot.view.name, ()):
            if until_ms > one.from_ms:
                one.spare -= slot.takes(count)
