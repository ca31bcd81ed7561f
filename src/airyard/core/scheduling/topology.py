"""The choice among nodes that could serve: packing for part nodes, fabrics and racks for gangs.

Owns: which nodes a gang gets. Must not know: queue, shares, why a node is allowed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import islice

from airyard.core.scheduling.nodes import FAR_MS, Kind, NodeIndex, Slot
from airyard.core.scheduling.plan import Waiting

Allowed = Callable[[Slot], bool]


LOOKED_AT = 64
"""So many nodes in use are compared for a run of part of one, those with the fewest free devices first."""


def choose(
    index: NodeIndex,
    kinds: Sequence[Kind],
    want: Waiting,
    allowed: Allowed,
    *,
    opening: bool = True,
) -> list[Slot] | None:
    """Return a node for each member in rank order, or None when the gang does not fit these kinds now.

    A run of part of one node goes to the smallest kind, and there where the fewest devices are free, then where
    somebody has run for longest, then into the fabric with the fewest whole free nodes. A gang of several nodes goes
    inside one fabric when one can hold it, the fullest that can; else over the fewest fabrics, unless it must not.
    Nodes to avoid, and for a gang those whose health is in doubt, are taken when nothing else serves. Without
    ``opening`` a run of part of a node keeps to nodes that are in use already.
    """
    if index.ready(kinds, want.devices_per_node) < want.nodes:
        return None
    if not opening:
        if index.ready(kinds, want.devices_per_node) - index.whole(kinds, want.devices_per_node) < want.nodes:
            return None
        anywhere = allowed
        allowed = lambda slot: not opens(slot, want) and anywhere(slot)  # noqa: E731  # short, and used below
    for avoided in _avoided(index, want):
        found = _choose(index, kinds, want, _without(avoided, allowed))
        if found is not None:
            return found
    return _choose(index, kinds, want, allowed)


def _without(avoided: Collection[str], allowed: Allowed) -> Allowed:
    return lambda slot: slot.view.name not in avoided and allowed(slot)


def _avoided(index: NodeIndex, want: Waiting) -> Iterator[Collection[str]]:
    """Return what the run keeps away from, the longest list first: a gang also from nodes whose health is in doubt."""
    if want.nodes > 1 and index.doubted:
        yield index.doubted.union(want.avoid_nodes)
    if want.avoid_nodes:
        yield want.avoid_nodes


def opens(slot: Slot, want: Waiting) -> bool:
    """True when the run would take a part of a node that is free as a whole."""
    return slot.ready == slot.kind.total > want.devices_per_node


def _choose(index: NodeIndex, kinds: Sequence[Kind], want: Waiting, allowed: Allowed) -> list[Slot] | None:
    if want.nodes == 1:
        for kind in kinds:
            one = _one(index, kind, want, allowed)
            if one is not None:
                return [one]
        return None
    ready = [slot for slot in packed(index, kinds, want.devices_per_node) if allowed(slot)]
    return gang(ready, want.nodes, same_fabric=want.same_fabric)


def _one(index: NodeIndex, kind: Kind, want: Waiting, allowed: Allowed) -> Slot | None:
    """Return the fullest node of a kind that serves, and of these the one that is in use for longest.

    Who has run for long is likely to stay for long: small runs gather where a node is lost to gangs anyway.
    """
    found: Slot | None = None
    oldest_ms = 0
    able = (slot for slot in packed(index, (kind,), want.devices_per_node) if allowed(slot))
    for slot in islice(able, LOOKED_AT):
        if found is not None and slot.ready > found.ready:
            break
        since_ms = min((running.placed_ms for running, _ in slot.residents.values()), default=FAR_MS)
        if found is None or since_ms < oldest_ms:
            found, oldest_ms = slot, since_ms
        if slot.ready == kind.total:
            break  # nodes that are free as a whole are all alike
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
