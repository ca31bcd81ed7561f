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


@dataclass(slots=True)
class _Promise:
    """Of one node: ``devices`` from ``from_ms`` on; ``spare`` are expected to be free beside all promises then."""

    from_ms: int
    devices: int
    spare: int


class Holds:
    """The promises made so far in one plan."""

    def __init__(self, index: NodeIndex, now_ms: int) -> None:
        self._index = index
        self._now_ms = now_ms
        self._of_node: dict[str, list[_Promise]] = {}
        self.made: list[Hold] = []

    def hold(
        self, kinds: Sequence[Kind], want: Waiting, may_stand: Callable[[Slot, int], bool]
    ) -> Hold | None:
        """Promise a blocked run the nodes that come free for it first; None when no end in sight frees enough.

        ``may_stand(slot, from_ms)`` says whether the run may be on the node from then on.
        Cost: about the nodes of its kinds.
        """
        count = want.devices_per_node
        ahead: dict[str, list[tuple[int, int, int]]] = {}
        slots = [slot for slot in self._index.of_kinds(kinds) if slot.open]
        now_ms, of_node = self._now_ms, self._of_node
        for place, slot in enumerate(slots):
            held = sum(one.devices for one in of_node[slot.view.name]) if slot.view.name in of_node else 0
            at_ms = slot.available_ms(count + held)
            if at_ms < FAR_MS:
                fabric = slot.view.fabric if want.same_fabric else ""
                entry = (max(at_ms, now_ms), len(slot.view.devices) - len(slot.free), place)
                ahead.setdefault(fabric, []).append(entry)
        best: list[tuple[int, int, int]] | None = None
        for entries in ahead.values():
            first = heapq.nsmallest(want.nodes, entries)
            if len(first) == want.nodes and (best is None or first[-1] < best[-1]):
                best = first
        if best is None:
            return None
        from_ms = best[-1][0]
        chosen = [slots[place] for _, _, place in best]
        if not all(may_stand(slot, from_ms) for slot in chosen):
            return None
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

    def _promise(self, slot: Slot, count: int, from_ms: int) -> None:
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
        return min((one.from_ms - self._now_ms for one in promises if one.spare < count), default=FAR_MS)

    def given(self, slot: Slot, count: int, until_ms: int) -> None:
        """Note that devices of a node were given away until a time: what stays beyond a promise uses its spare."""
        for one in self._of_node.get(slot.view.name, ()):
            if until_ms > one.from_ms:
                one.spare -= count
