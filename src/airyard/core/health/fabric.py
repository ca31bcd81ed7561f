"""What pair tests say of nodes, edges, leaf switches and rails: the rule for one pair, the vote, the attribution.

Owns: thresholds of a pair, votes, who is certified, suspect or bad. Must not know: schedules, how a pair is measured.
A test that was not finished says nothing: it is left out of every count.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from airyard.core.health.adapters import LaneRead, is_slow, slow_lane
from airyard.core.health.tournament import Pair

BUSBW_SHARE = 0.85
"""Of the median of the round, at least."""
LATENCY_FACTOR = 1.5
"""Times the median of the round, at most."""
LEAF_SHARE = 0.6
"""So many of the failing pairs share one leaf, or of the slow adapters one rail: more than that, and it is to blame."""
LEAF_NODES = 2
"""So many of a leaf's or rail's nodes have to fail before it is looked at; one node's failures all share its leaf."""
RATIOS_FROM = 3
"""Pairs of a round that give a median worth the name."""


class Outcome(Enum):
    """What one pair test came to."""

    PASS = "PASS"
    FAIL = "FAIL"
    UNKNOWN = "UNKNOWN"
    """It was not begun, or stopped for work: neither well nor ill."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What a pair test read. ``hung``: it was killed at its deadline; ``stopped``: it was not begun, or not finished.

    ``problem``: why the two did not come together; of one that was stopped, why it was.
    """

    pair: Pair
    busbw_gb_s: float = 0.0
    latency_p95_us: float = 0.0
    correct: bool = True
    errors_grown: int = 0
    """Link errors that were counted meanwhile, on either node."""
    hung: bool = False
    stopped: bool = False
    problem: str = ""
    method: str = ""
    """How it was measured (``tcp``, ``nccl``, ``gloo``): only what was measured alike is compared."""
    adapters: tuple[LaneRead, ...] = ()
    """What adapters that correspond had one by one, where there are several."""
    due_gb_s: float = 0.0
    """What two such nodes are known to have at least; 0: nobody knows."""
    due_by: str = ""
    """Who says so, where a pool does."""

    @property
    def finished(self) -> bool:
        """True where there are figures."""
        return not (self.hung or self.stopped or self.problem)


@dataclass(frozen=True, slots=True, kw_only=True)
class PairResult:
    """One finished or unfinished test and why it failed.

    ``rails``: each that it measured alone, and whether it is slow.
    """

    pair: Pair
    outcome: Outcome
    why: str = ""
    rails: tuple[tuple[str, bool], ...] = ()


def judged(
    measured: Sequence[Measured],
    *,
    floor_gb_s: float = 0.0,
    compare: bool = True,
    rails: Collection[str] = (),
) -> tuple[PairResult, ...]:
    """Judge the tests of one round, against the floor and, with ``compare``, against each other.

    A pair does not fail by adapters in ``rails``: those are to blame themselves.
    """
    methods = {one.method for one in measured} if compare else set()
    usual = {method: _usual(measured, method, RATIOS_FROM, "the round's median is") for method in methods}
    return tuple(_judged(one, floor_gb_s, usual.get(one.method), rails) for one in measured)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Usual:
    """Medians of what was measured alike."""

    busbw_gb_s: float
    latency_p95_us: float
    words: str


def _usual(measured: Sequence[Measured], method: str, least: int, words: str) -> _Usual | None:
    """Return the medians; None where there is too little for them."""
    read = [one for one in measured if one.method == method and one.finished]
    if len(read) < least:
        return None
    return _Usual(
        busbw_gb_s=statistics.median(one.busbw_gb_s for one in read),
        latency_p95_us=statistics.median(one.latency_p95_us for one in read),
        words=words,
    )


def against(one: Measured, well: Sequence[Measured], *, least: int = 1) -> PairResult:
    """Judge a test by what nodes that are well have between them, where there are ``least`` such tests measured alike.

    Without them, by what is known to be due.
    """
    return _judged(one, 0.0, _usual(well, one.method, least, "between other nodes it is"))


def _judged(
    one: Measured, floor_gb_s: float, usual: _Usual | None, rails: Collection[str] = ()
) -> PairResult:
    if one.stopped:
        why = f"it was stopped: {one.problem}" if one.problem else "it was stopped"
        return PairResult(pair=one.pair, outcome=Outcome.UNKNOWN, why=why)
    floor_gb_s = max(floor_gb_s, one.due_gb_s)
    why = ""
    if one.hung:
        why = "it did not end in time"
    elif one.problem:
        why = one.problem
    elif not one.correct:
        why = "a result was wrong"
    elif one.errors_grown:
        why = f"{one.errors_grown} link errors were counted meanwhile"
    elif slow := slow_lane(one.adapters, one.pair.a, one.pair.b, rails):
        why = slow
    elif one.busbw_gb_s < floor_gb_s:
        by = f" ({one.due_by})" if one.due_by and floor_gb_s == one.due_gb_s else ""
        why = f"{one.busbw_gb_s:.3g} GB/s, at least {floor_gb_s:.3g} are due{by}"
    elif usual is not None and one.busbw_gb_s < BUSBW_SHARE * usual.busbw_gb_s:
        why = f"{one.busbw_gb_s:.3g} GB/s, {usual.words} {usual.busbw_gb_s:.3g}"
    elif usual is not None and one.latency_p95_us > LATENCY_FACTOR * usual.latency_p95_us:
        why = f"p95 of {one.latency_p95_us:.3g} µs, {usual.words} {usual.latency_p95_us:.3g}"
    outcome = Outcome.FAIL if why else Outcome.PASS
    return PairResult(pair=one.pair, outcome=outcome, why=why, rails=_rails(one))


def _rails(one: Measured) -> tuple[tuple[str, bool], ...]:
    """Return which rails a test measured alone, each with whether it is slow."""
    if not one.finished:
        return ()
    read = ((lane.rail, is_slow(lane, one.adapters)) for lane in one.adapters if lane.rail)
    return tuple((rail, slow) for rail, slow in read if slow is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Voting:
    """How many rounds, and what follows from how many failures.

    ``bad_from`` failures of ``rounds`` make a node bad, ``suspect_from`` have it tested again, in ``again`` tests of
    which ``again_from`` failures are enough.
    """

    rounds: int = 5
    bad_from: int = 4
    suspect_from: int = 2
    again: int = 3
    again_from: int = 2


CERTIFY = Voting()
QUICK = Voting(rounds=1, bad_from=2, suspect_from=1, again=1, again_from=1)
"""Two passes, for a gate that has no time: one round, then whoever failed against a node that did not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstPass:
    """What the rounds say. ``edges``: only this pair failed, so it is tested again. ``leaves``: explain their nodes."""

    certified: tuple[str, ...] = ()
    bad: tuple[str, ...] = ()
    suspects: tuple[str, ...] = ()
    edges: tuple[tuple[str, str], ...] = ()
    leaves: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    """Too few of their tests were finished."""


def first_pass(
    nodes: Iterable[str],
    tests: Sequence[PairResult],
    *,
    voting: Voting = CERTIFY,
    leaf_of: Mapping[str, str] | None = None,
) -> FirstPass:
    """Count the rounds' failures. A failure that a bad partner explains does not count against a node.

    Cost: tests.
    """
    names = sorted(nodes)
    counts = _Counts(names, tests)
    leaves = blamed_leaves(tests, leaf_of or {})
    explained = {node for node in names if (leaf_of or {}).get(node) in leaves}
    candidates = {node for node in names if counts.failed(node) >= voting.bad_from} - explained
    alone = {node: counts.failed(node, candidates | explained) for node in names}
    # One whose failures are nearly all with other candidates may be their victim: it is tested again.
    bad = {node for node in candidates if alone[node] * 2 >= voting.bad_from}
    alone = {node: counts.failed(node, bad | explained) for node in names}
    suspects = {
        node for node in names if node not in bad | explained and alone[node] >= voting.suspect_from
    } | (candidates - bad)
    unknown = {
        node
        for node in set(names) - bad - suspects - explained
        if counts.known(node) < max(voting.rounds - 1, 1)
    }
    spoken_for = bad | suspects | explained
    edges = {
        test.pair.edge
        for test in tests
        if test.outcome is Outcome.FAIL and not spoken_for.intersection(test.pair.edge)
    }
    return FirstPass(
        certified=tuple(node for node in names if node not in spoken_for | unknown),
        bad=tuple(sorted(bad)),
        suspects=tuple(sorted(suspects)),
        edges=tuple(sorted(edges)) if voting.rounds > 1 else (),
        leaves=tuple(sorted(leaves)),
        unknown=tuple(sorted(unknown)),
    )


class _Counts:
    """Failures and finished tests of each node; of whom."""

    def __init__(self, nodes: Iterable[str], tests: Sequence[PairResult]) -> None:
        self._failed: dict[str, list[str]] = {node: [] for node in nodes}
        self._known: Counter[str] = Counter()
        for test in tests:
            if test.outcome is Outcome.UNKNOWN:
                continue
            a, b = test.pair.edge
            self._known.update((a, b))
            if test.outcome is Outcome.FAIL:
                self._failed.setdefault(a, []).append(b)
                self._failed.setdefault(b, []).append(a)

    def failed(self, node: str, but_with: Iterable[str] = ()) -> int:
        left_out = set(but_with) - {node}
        return sum(other not in left_out for other in self._failed[node])

    def known(self, node: str) -> int:
        return self._known[node]


def blamed_leaves(tests: Sequence[PairResult], leaf_of: Mapping[str, str]) -> frozenset[str]:
    """Return the leaf switches to blame rather than their nodes.

    More than ``LEAF_SHARE`` of all failing pairs touch it, two of its nodes or more fail half of their tests, and these
    are at least half of its nodes; where all nodes hang on one leaf nothing can be said of it.
    """
    if len(set(leaf_of.values())) < 2:
        return frozenset()
    failing = [test.pair for test in tests if test.outcome is Outcome.FAIL]
    touched = Counter(leaf for pair in failing for leaf in {leaf_of.get(pair.a), leaf_of.get(pair.b)} if leaf)
    known: Counter[str] = Counter()
    failed: Counter[str] = Counter()
    for test in tests:
        if test.outcome is not Outcome.UNKNOWN:
            known.update(test.pair.edge)
            failed.update(test.pair.edge if test.outcome is Outcome.FAIL else ())
    blamed = set()
    for leaf, count in touched.items():
        mine = [node for node, its in leaf_of.items() if its == leaf and known[node]]
        ailing = sum(failed[node] * 2 >= known[node] for node in mine)
        if count > LEAF_SHARE * len(failing) and ailing >= LEAF_NODES and ailing * 2 >= len(mine):
            blamed.add(leaf)
    return frozenset(blamed)


def blamed_rails(measured: Sequence[Measured]) -> frozenset[str]:
    """Return the rails to blame rather than the adapters in them, by what adapters had one by one.

    More than ``LEAF_SHARE`` of all that are slow lie in it, two of its nodes or more are slow there in half of their
    tests, and these are at least half of its nodes. An adapter that is bad itself is slow with everybody, its partners
    only with it.
    """
    known: dict[str, Counter[str]] = {}
    slow: dict[str, Counter[str]] = {}
    for one in measured:
        for rail, is_bad in _rails(one):
            known.setdefault(rail, Counter()).update(one.pair.edge)
            slow.setdefault(rail, Counter()).update(one.pair.edge if is_bad else ())
    counts = {rail: sum(nodes.values()) for rail, nodes in slow.items()}
    blamed = set()
    for rail, nodes in known.items():
        ailing = sum(slow[rail][node] * 2 >= count for node, count in nodes.items())
        most = counts[rail] > LEAF_SHARE * sum(counts.values())
        if most and ailing >= LEAF_NODES and ailing * 2 >= len(nodes):
            blamed.add(rail)
    return frozenset(blamed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a sweep came to. ``rails``: subnets of adapters; ``why``: node → what was seen."""

    certified: tuple[str, ...]
    bad: tuple[str, ...]
    edges: tuple[tuple[str, str], ...] = ()
    leaves: tuple[str, ...] = ()
    rails: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    why: Mapping[str, str] = field(default_factory=dict)


def concluded(
    first: FirstPass, tests: Sequence[PairResult], again: Sequence[PairResult], *, voting: Voting = CERTIFY
) -> Verdict:
    """Return the verdict of a sweep after its second pass: suspects against certified nodes, and edges once more."""
    bad, cleared, unknown = list(first.bad), [], list(first.unknown)
    for suspect in first.suspects:
        mine = [test for test in again if suspect in test.pair.edge]
        fails = sum(test.outcome is Outcome.FAIL for test in mine)
        known = sum(test.outcome is not Outcome.UNKNOWN for test in mine)
        if fails >= voting.again_from:
            bad.append(suspect)
        elif known - fails > voting.again - voting.again_from:
            cleared.append(suspect)
        else:
            unknown.append(suspect)  # too few tests were finished, or nobody is certified to test it against
    repeated = {test.pair.edge for test in again if test.outcome is Outcome.FAIL}
    return Verdict(
        certified=tuple(sorted((*first.certified, *cleared))),
        bad=tuple(sorted(bad)),
        edges=tuple(edge for edge in first.edges if edge in repeated),
        leaves=first.leaves,
        unknown=tuple(sorted(unknown)),
        why={node: _why(node, (*tests, *again)) for node in bad},
    )


def _why(node: str, tests: Sequence[PairResult]) -> str:
    """Return how many of a node's tests failed, and the reason that was said most often."""
    mine = [test for test in tests if node in test.pair.edge and test.outcome is not Outcome.UNKNOWN]
    fails = [test for test in mine if test.outcome is Outcome.FAIL]
    reasons = Counter(test.why for test in fails if test.why)
    said = f": {reasons.most_common(1)[0][0]}" if reasons else ""
    return f"{len(fails)} of {len(mine)} pair tests failed{said}"
