"""The choice among nodes that could serve: packing for part nodes, fabrics and racks for gangs.

Owns: which nodes a gang gets. Must not know: queue, shares, why a node is allowed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice

from airyard.core.scheduling.nodes import Kind, NodeIndex, Slot
from airyard.core.scheduling.plan import Waiting

Allowed = Callable[[Slot], bool]


LOOKED_AT = 64
"""So many nodes in use are compared for a run of part of one, those with the fewest free devices first."""

DELAY_STEP_MS = 3_600_000
"""Delays that differ by less than this are alike: expected ends are no better known."""


def choose(
    index: NodeIndex,
    kinds: Sequence[Kind],
    want: Waiting,
    allowed: Allowed,
    *,
    until_ms: int,
    opening: bool = True,
) -> list[Slot] | None:
    """Return a node for each member in rank order, or None when the gang does not fit these kinds now.

    A run of part of one node goes to the smallest kind, and there to the node in use that becomes free as a whole no
    later for it, as far as ends are expected (its own at ``until_ms``); then where the fewest devices are free; then
    into the fabric with the fewest whole free nodes. A gang of several nodes goes inside one fabric when one can hold
    it, the fullest that can; else over the fewest fabrics, unless it must not. Nodes to avoid are taken when nothing
    else serves. Without ``opening`` a run of part of a node keeps to nodes that are in use already.
    """
    if index.ready(kinds, want.devices_per_node) < want.nodes:
        return None
    if not opening:
        if index.ready(kinds, want.devices_per_node) - index.whole(kinds, want.devices_per_node) < want.nodes:
            return None
        anywhere = allowed
        allowed = lambda slot: not opens(slot, want) and anywhere(slot)  # noqa: E731  # short, and used below
    if want.avoid_nodes:
        found = _choose(
            index,
            kinds,
            want,
            lambda slot: slot.view.name not in want.avoid_nodes and allowed(slot),
            until_ms,
        )
        if found is not None:
            return found
    return _choose(index, kinds, want, allowed, until_ms)


def opens(slot: Slot, want: Waiting) -> bool:
    """True when the run would take a part of a node that is free as a whole."""
    return slot.ready == slot.kind.total > want.devices_per_node


def _choose(
    index: NodeIndex, kinds: Sequence[Kind], want: Waiting, allowed: Allowed, until_ms: int
) -> list[Slot] | None:
    if want.nodes == 1:
        for kind in kinds:
            one = _one(index, kind, want, allowed, until_ms)
            if one is not None:
                return [one]
        return None
    ready = [slot for slot in packed(index, kinds, want.devices_per_node) if allowed(slot)]
    return gang(ready, want.nodes, same_fabric=want.same_fabric)


def _one(index: NodeIndex, kind: Kind, want: Waiting, allowed: Allowed, until_ms: int) -> Slot | None:
    """Return the node of a kind on which the run keeps the fewest devices from gangs for the shortest time."""
    best: tuple[int, int] | None = None
    found: Slot | None = None
    able = (slot for slot in packed(index, (kind,), want.devices_per_node) if allowed(slot))
    for number, slot in enumerate(islice(able, LOOKED_AT)):
        if slot.ready == kind.total:
            return found or slot  # nodes free as a whole come last
        delay = max(until_ms - slot.available()[len(slot.view.devices)], 0) // DELAY_STEP_MS
        if best is None or (delay, number) < best:
            best, found = (delay, number), slot
        if not delay:
            break
    return found


def packed(index: NodeIndex, kinds: Sequence[Kind], count: int) -> Iterator[Slot]:
    """Yield the nodes with ``count`` devices ready, best first: the smallest kind, then the fewest ready."""
    slots = index.slots
    for kind in kinds:
        shelf = index.shelves.get(kind)
        if shelf is None:
            continue
        fabrics = sorted(shelf.by_free, key=lambda name: (len(shelf.by_free[name][-1]), name))
        for ready in range(max(count, 1), kind.total + 1):
            if shelf.counts[ready]:
                for fabric in fabrics:
                    for _, name in tuple(shelf.by_free[fabric][ready]):
                        yield slots[name]


def gang(ready: Sequence[Slot], nodes: int, *, same_fabric: bool) -> list[Slot] | None:
    """Choose ``nodes`` of the nodes that are ready, in rank order: fabric, rack, name.

    None when they do not suffice.
    """
    if len(ready) < nodes:
        return None
    fabrics: dict[str, list[Slot]] = {}
    for slot in ready:
        fabrics.setdefault(slot.view.fabric, []).append(slot)
    # The fullest fabric that holds it whole leaves the largest block elsewhere.
    whole = [block for block in fabrics.values() if len(block) >= nodes]
    if whole:
        return _in_rank_order(_by_rack(min(whole, key=lambda block: (len(block), block[0].key)), nodes))
    if same_fabric:
        return None
    chosen: list[Slot] = []
    left = sorted(fabrics.values(), key=lambda block: (-len(block), block[0].key))
    while len(chosen) < nodes:
        rest = nodes - len(chosen)
        # The last part goes to the smallest block that completes it.
        last = [block for block in left if len(block) >= rest]
        block = min(last, key=lambda one: (len(one), one[0].key)) if last else left[0]
        left.remove(block)
        chosen += _by_rack(block, min(rest, len(block)))
    return _in_rank_order(chosen)


def _by_rack(block: Sequence[Slot], nodes: int) -> list[Slot]:
    """Choose nodes inside one fabric: one rack when one can hold them, the fullest that can, else the fewest racks."""
    racks: dict[str, list[Slot]] = {}
    for slot in block:
        racks.setdefault(slot.view.rack, []).append(slot)
    if len(racks) == 1:
        return list(block[:nodes])
    whole = [rack for rack in racks.values() if len(rack) >= nodes]
    if whole:
        return min(whole, key=lambda rack: (len(rack), rack[0].key))[:nodes]
    chosen: list[Slot] = []
    for rack in sorted(racks.values(), key=lambda one: (-len(one), one[0].key)):
        chosen += rack[: nodes - len(chosen)]
    return chosen


def _in_rank_order(chosen: list[Slot]) -> list[Slot]:
    return sorted(chosen, key=lambda slot: slot.key)
