"""What tests of idle nodes have come to: the record of each node and pool, which outlives the server that tested.

Owns: the notes and how they add up. Must not know: when a test is due, who runs it, what a failure does to a node.
A test that was stopped leaves no note.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from airyard.core.health.fabric_faults import Blamed, FabricFault, Standing, faults_of, taken_in
from airyard.core.health.facts import CheckStatus
from airyard.core.health.idle import IdleTest

SWEEPS_KEPT = 10
PARTS_KEPT = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class TestNote:
    """One test of a node that was finished. ``version``: the boot that was tested; ``values``: check → what it read.

    ``part``: the part of a deep test that it is, of those in ``parts``; empty: it is the whole.
    """

    kind: IdleTest
    at_ms: int
    status: CheckStatus
    message: str = ""
    version: str = ""
    took_ms: int = 0
    values: Mapping[str, float] = field(default_factory=dict)
    part: str = ""
    parts: tuple[str, ...] = ()

    __test__ = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepNote:
    """One sweep that was finished. ``doubtful``: suspects that the second pass neither confirmed nor cleared.

    ``unknown``: too few tests of them were finished. ``spared``: the fault of their leaf switch explains theirs.
    ``why``: node → what was seen. ``well``: faults between nodes that stood before, and were looked at and not found.
    """

    number: int
    at_ms: int
    tests: int
    took_ms: int = 0
    certified: tuple[str, ...] = ()
    bad: tuple[str, ...] = ()
    doubtful: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    spared: tuple[str, ...] = ()
    edges: tuple[tuple[str, str], ...] = ()
    leaves: tuple[str, ...] = ()
    rails: tuple[str, ...] = ()
    why: Mapping[str, str] = field(default_factory=dict)
    well: tuple[FabricFault, ...] = ()

    @property
    def faults(self) -> tuple[FabricFault, ...]:
        """What is at fault but nodes."""
        return faults_of(self.edges, self.leaves, self.rails)

    @property
    def blamed(self) -> tuple[Blamed, ...]:
        """What is at fault; NOTHING alone where nothing is."""
        found = {
            Blamed.NODE: self.bad,
            Blamed.EDGE: self.edges,
            Blamed.LEAF: self.leaves,
            Blamed.RAIL: self.rails,
        }
        return tuple(what for what, which in found.items() if which) or (Blamed.NOTHING,)

    @property
    def nodes(self) -> int:
        """How many nodes were to be tested."""
        return sum(map(len, (self.certified, self.bad, self.doubtful, self.unknown, self.spared)))

    def in_words(self) -> str:
        """Say what came of it, in a line."""
        parts = [f"{len(self.certified)} of {self.nodes} nodes passed {self.tests} pair tests"]
        for word, names in (
            ("bad", self.bad),
            ("suspects", self.doubtful),
            ("not told", self.unknown),
            ("edges", tuple(f"{a} - {b}" for a, b in self.edges)),
            ("leaf switches", self.leaves),
            ("rails", self.rails),
            ("well again", tuple(map(str, self.well))),
        ):
            if names:
                more = f" and {len(names) - 5} more" if len(names) > 5 else ""
                parts.append(f"{word}: {', '.join(names[:5])}{more}")
        return "; ".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTests:
    """The newest test of each kind, and when the node passed last. ``passed_ms``: a test of its own, light or deep."""

    light: TestNote | None = None
    deep: TestNote | None = None
    fabric: TestNote | None = None
    passed_ms: int | None = None
    deep_ms: int | None = None
    paired_ms: int | None = None
    version: str = ""
    """The boot with which it passed last."""
    parts: tuple[TestNote, ...] = ()
    """The newest test of each part of a deep test that is not whole yet, all with one boot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSweeps:
    """The sweeps of a pool: how many, what was blamed how often, and the newest, the last one last."""

    number: int = 0
    counts: Mapping[str, int] = field(default_factory=dict)
    last: tuple[SweepNote, ...] = ()
    standing: tuple[Standing, ...] = ()
    """Faults between nodes that were found and not found well since."""


def with_test(before: NodeTests | None, note: TestNote) -> NodeTests:
    """Return a node's record with a test taken in."""
    found = before or NodeTests()
    passed = note.status is CheckStatus.PASS
    if note.kind is IdleTest.FABRIC:
        return replace(found, fabric=note, paired_ms=note.at_ms if passed else found.paired_ms)
    if note.part:
        return replace(found, parts=with_part(found.parts, note))
    if note.kind is IdleTest.DEEP:
        found = replace(found, parts=(), deep=note, deep_ms=note.at_ms if passed else found.deep_ms)
    else:
        found = replace(found, light=note)
    return replace(found, passed_ms=note.at_ms, version=note.version) if passed else found


def with_part(before: Sequence[TestNote], note: TestNote) -> tuple[TestNote, ...]:
    """Return the parts that were tested, with one more: those of another boot are void, whatever they said."""
    kept = [one for one in before if one.part != note.part and one.version == note.version]
    return (*kept, note)[-PARTS_KEPT:]


def with_sweep(before: PoolSweeps | None, note: SweepNote) -> PoolSweeps:
    """Return a pool's record with a sweep taken in."""
    found = before or PoolSweeps()
    counts = dict(found.counts)
    for what in note.blamed:
        counts[what.value] = counts.get(what.value, 0) + 1
    last = (*found.last, note)[-SWEEPS_KEPT:]
    standing = taken_in(found.standing, note.faults, note.well, note.at_ms).standing
    return PoolSweeps(number=max(found.number, note.number + 1), counts=counts, last=last, standing=standing)


def notes_of(sweep: SweepNote) -> dict[str, TestNote]:
    """Return what a sweep says of each of its nodes."""
    said = (
        (sweep.certified, CheckStatus.PASS, "passed its pair tests"),
        (sweep.bad, CheckStatus.FAIL, ""),
        (sweep.doubtful, CheckStatus.UNKNOWN, "a suspect: no test against certified nodes decided it"),
        (sweep.unknown, CheckStatus.UNKNOWN, "too few of its pair tests were finished"),
        (sweep.spared, CheckStatus.UNKNOWN, "its leaf switch is to blame"),
    )
    return {
        name: TestNote(
            kind=IdleTest.FABRIC,
            at_ms=sweep.at_ms,
            status=status,
            message=text or sweep.why.get(name, ""),
            took_ms=sweep.took_ms,
        )
        for names, status, text in said
        for name in names
    }
