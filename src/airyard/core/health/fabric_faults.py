"""Faults between nodes that stand: an edge, a leaf switch or a rail that sweeps found bad, until one finds it well.

Owns: when such a fault begins and ends, how long it is remembered. Must not know: votes, who is told, nodes' health.
Nodes are not here: their own state machine remembers them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from airyard.core.health.fabric import LEAF_NODES, Outcome, PairResult, Verdict

KEPT = 64
"""Faults of a pool that are remembered: those that were seen last."""
FORGOTTEN_MS = 30 * 86_400_000
"""One that no sweep could look at for so long is forgotten: as a rule its nodes are gone."""
LOOKS = 2
"""Finished tests without a failure, one each way, that say of an edge that it is well again; so many of a rail."""
NAMED = 5


class Blamed(Enum):
    """What a sweep found to be at fault; it may find several."""

    NOTHING = "NOTHING"
    NODE = "NODE"
    EDGE = "EDGE"
    LEAF = "LEAF"
    RAIL = "RAIL"


_WORDS = {Blamed.EDGE: "edge", Blamed.LEAF: "leaf switch", Blamed.RAIL: "rail"}
_STEPS = {
    Blamed.EDGE: "look at cables, transceivers and routes between the two nodes",
    Blamed.LEAF: "look at the leaf switch, its links upwards and its counters",
    Blamed.RAIL: "look at the switches of the rail and at the adapters that hang on it",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricFault:
    """What is at fault between nodes. ``where``: both names of an edge, a leaf switch's name, a rail's subnet."""

    what: Blamed
    where: str

    def __str__(self) -> str:
        return f"{_WORDS.get(self.what, self.what.value.lower())} {self.where}"

    @property
    def rule(self) -> str:
        """Its name beside those of nodes: ``fabric.edge``."""
        return f"fabric.{self.what.value.lower()}"

    @property
    def next_step(self) -> str:
        """What a person may do."""
        return _STEPS.get(self.what, "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """A fault that was found and not found well since."""

    fault: FabricFault
    since_ms: int
    seen_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What a sweep does to the faults that stand: all of them after it, those that began, those that ended."""

    standing: tuple[Standing, ...] = ()
    begun: tuple[FabricFault, ...] = ()
    ended: tuple[FabricFault, ...] = ()


def edge_fault(edge: tuple[str, str]) -> FabricFault:
    """Return the fault of an edge."""
    return FabricFault(what=Blamed.EDGE, where=" - ".join(sorted(edge)))


def faults_of(
    edges: Iterable[tuple[str, str]], leaves: Iterable[str], rails: Iterable[str]
) -> tuple[FabricFault, ...]:
    """Return what a verdict blames but nodes."""
    return (
        *(edge_fault(edge) for edge in edges),
        *(FabricFault(what=Blamed.LEAF, where=leaf) for leaf in leaves),
        *(FabricFault(what=Blamed.RAIL, where=rail) for rail in rails),
    )


def taken_in(
    before: Sequence[Standing], found: Sequence[FabricFault], well: Sequence[FabricFault], at_ms: int
) -> Change:
    """Take in what a sweep found, and what it found well. One that it could not look at goes on to stand."""
    after = {one.fault: one for one in before if at_ms - one.seen_ms < FORGOTTEN_MS}
    ended = tuple(fault for fault in dict.fromkeys(well) if fault in after and fault not in found)
    for fault in ended:
        del after[fault]
    begun = tuple(fault for fault in dict.fromkeys(found) if fault not in after)
    for fault in found:
        known = after.pop(fault, Standing(fault=fault, since_ms=at_ms, seen_ms=at_ms))
        after[fault] = replace(known, seen_ms=at_ms)
    return Change(standing=tuple(after.values())[-KEPT:], begun=begun, ended=ended)


def edges_to_see(standing: Iterable[FabricFault], nodes: Collection[str]) -> tuple[tuple[str, str], ...]:
    """Return the edges that stand between nodes of a sweep: it looks at them whether its rounds meet them or not."""
    found = []
    for fault in standing:
        one, _, other = fault.where.partition(" - ")
        if fault.what is Blamed.EDGE and one in nodes and other in nodes:
            found.append((one, other))
    return tuple(found)


def found_well(
    standing: Iterable[FabricFault],
    tests: Sequence[PairResult],
    verdict: Verdict,
    leaf_of: Mapping[str, str],
) -> tuple[FabricFault, ...]:
    """Return which of the faults that stand a sweep has found well."""
    bad = set(faults_of(verdict.edges, verdict.leaves, verdict.rails))
    return tuple(fault for fault in standing if fault not in bad and _is_well(fault, tests, verdict, leaf_of))


def _is_well(
    fault: FabricFault, tests: Sequence[PairResult], verdict: Verdict, leaf_of: Mapping[str, str]
) -> bool:
    known = [test for test in tests if test.outcome is not Outcome.UNKNOWN]
    if fault.what is Blamed.LEAF:
        there = {name for test in known for name in test.pair.edge if leaf_of.get(name) == fault.where}
        well = there.intersection(verdict.certified)
        return len(well) >= LEAF_NODES and 2 * len(well) >= len(there)
    if fault.what is Blamed.EDGE:
        mine = [test for test in known if edge_fault(test.pair.edge) == fault]
        return len(mine) >= LOOKS and all(test.outcome is Outcome.PASS for test in mine)
    slow = [is_slow for test in known for rail, is_slow in test.rails if rail == fault.where]
    return len(slow) >= LOOKS and not any(slow)


def in_words(faults: Sequence[FabricFault]) -> str:
    """Name some faults, the first few of many."""
    more = f" and {len(faults) - NAMED} more" if len(faults) > NAMED else ""
    return ", ".join(str(fault) for fault in faults[:NAMED]) + more
