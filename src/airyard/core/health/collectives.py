"""Which ranks hold up a collective, by how far each of them has come in each communicator.

Owns: the decision table over (enqueued, started, completed, operation, sizes). Must not know: how the figures are got,
steps, processes. Sequence numbers count the collectives of one communicator from 1.

What one rank alone says proves nothing: it takes three ranks of a communicator, of which more than half agree.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

FEWEST_RANKS = 3
APART = 100
"""Programs of which one has completed so many collectives more than another do not do the same thing."""
SAME_SIZES = frozenset({"all_reduce", "allreduce", "broadcast", "all_gather", "reduce_scatter"})
"""Operations for which all ranks have to give tensors of one size."""


class CollectiveCase(Enum):
    """What tells the ranks of a communicator apart, in the order in which it counts."""

    MISMATCH = "MISMATCH"
    """Another operation, size or type at the same place: the program's own fault."""
    DESYNC = "DESYNC"
    """They have completed very different numbers: the program's own fault."""
    NOT_ENQUEUED = "NOT_ENQUEUED"
    """A minority has not come to the collective: it is busy, or hangs, on the CPU."""
    NOT_STARTED = "NOT_STARTED"
    """All have come to it, and a minority's GPU has not begun with it: that GPU is held up."""
    NOT_COMPLETED = "NOT_COMPLETED"
    """All have begun, and none is done: the way between them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One collective as a rank recorded it."""

    seq: int
    name: str
    sizes: str = ""
    types: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """How far one rank is in one communicator. ``started`` None: not recorded. ``last``: newest operations."""

    group: str
    enqueued: int
    completed: int
    started: int | None = None
    last: tuple[Operation, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What one case says. ``ranks``: who holds the others up; none where nobody can be named."""

    case: CollectiveCase
    group: str
    seq: int
    operation: str
    ranks: tuple[int, ...]


def judge(places: Mapping[int, Sequence[Place]], nodes: Mapping[int, str]) -> Finding | None:
    """Return what holds up the communicators of a gang; None when they say nothing. ``nodes``: of each rank."""
    groups: dict[str, dict[int, Place]] = {}
    for rank in sorted(places):
        for place in places[rank]:
            groups.setdefault(place.group, {})[rank] = place
    found = [
        finding
        for name in sorted(groups)
        if len(groups[name]) >= FEWEST_RANKS and (finding := _of_group(name, groups[name])) is not None
    ]
    if not found:
        return None
    order = list(CollectiveCase)
    first = min(found, key=lambda one: order.index(one.case)).case
    same = [one for one in found if one.case is first]
    if first is CollectiveCase.NOT_ENQUEUED:
        return _free_ones(same, places)
    if first is CollectiveCase.NOT_COMPLETED:
        return _common_node(same, groups, nodes)
    return same[0]


def _of_group(name: str, group: Mapping[int, Place]) -> Finding | None:
    mismatch = _mismatch(name, group)
    if mismatch is not None:
        return mismatch
    newest = max(place.enqueued for place in group.values())
    if all(place.completed >= newest for place in group.values()):
        return None
    completed = [place.completed for place in group.values()]
    if max(completed) - min(completed) > APART:
        return _finding(CollectiveCase.DESYNC, name, group, min(completed) + 1, ())
    behind = [rank for rank, place in group.items() if place.enqueued < newest]
    if behind:
        named = behind if 2 * len(behind) < len(group) else []
        seq = min(group[rank].enqueued for rank in behind) + 1
        return _finding(CollectiveCase.NOT_ENQUEUED, name, group, seq, named) if named else None
    waiting = [rank for rank, place in group.items() if place.started is not None and place.started < newest]
    begun = [rank for rank, place in group.items() if place.started is not None and place.started >= newest]
    if waiting and begun:
        named = waiting if 2 * len(waiting) < len(group) else []
        return _finding(CollectiveCase.NOT_STARTED, name, group, newest, named) if named else None
    if len(begun) == len(group) and all(place.completed < newest for place in group.values()):
        return _finding(CollectiveCase.NOT_COMPLETED, name, group, newest, ())
    return None


def _mismatch(name: str, group: Mapping[int, Place]) -> Finding | None:
    """Return the first place at which two ranks do not do the same."""
    seen: dict[int, dict[int, Operation]] = {}
    for rank, place in group.items():
        for operation in place.last:
            seen.setdefault(operation.seq, {})[rank] = operation
    for seq in sorted(seen):
        kinds = {rank: _kind(operation) for rank, operation in seen[seq].items()}
        counts = Counter(kinds.values()).most_common()
        if len(counts) > 1:
            usual, count = counts[0]
            named = [rank for rank, kind in kinds.items() if kind != usual] if 2 * count > len(kinds) else []
            return _finding(CollectiveCase.MISMATCH, name, group, seq, named)
    return None


def _kind(operation: Operation) -> tuple[str, str, str]:
    plain = operation.name.rpartition(":")[2]
    same = plain in SAME_SIZES
    return plain, operation.sizes if same else "", operation.types if same else ""


def _finding(
    case: CollectiveCase, name: str, group: Mapping[int, Place], seq: int, ranks: Iterable[int]
) -> Finding:
    names = {operation.name for place in group.values() for operation in place.last if operation.seq == seq}
    return Finding(
        case=case, group=name, seq=seq, operation=", ".join(sorted(names)), ranks=tuple(sorted(ranks))
    )


def _free_ones(found: Sequence[Finding], places: Mapping[int, Sequence[Place]]) -> Finding:
    """Of those that have not come to a collective leave out who may itself wait for another one."""
    named = {rank for one in found for rank in one.ranks}
    free = {
        rank for rank in named if all(place.completed >= place.enqueued for place in places[rank])
    } or named
    first = next(one for one in found if free.intersection(one.ranks))
    return Finding(
        case=first.case,
        group=first.group,
        seq=first.seq,
        operation=first.operation,
        ranks=tuple(sorted(free)),
    )


def _common_node(
    found: Sequence[Finding], groups: Mapping[str, Mapping[int, Place]], nodes: Mapping[int, str]
) -> Finding:
    """Name the ranks of the one node that all stuck communicators share, where there are several of these."""
    first = found[0]
    sets = [{nodes[rank] for rank in groups[one.group] if rank in nodes} for one in found]
    common = set.intersection(*sets) if len(sets) > 1 else set()
    if len(common) != 1:
        return first
    ranks = {rank for one in found for rank in groups[one.group] if nodes.get(rank) in common}
    return Finding(
        case=first.case,
        group=first.group,
        seq=first.seq,
        operation=first.operation,
        ranks=tuple(sorted(ranks)),
    )
