"""Which idle nodes to test next, and when a test has to make room: by risk and age, a few at a time, never in the way.

Owns: the order, the shares, the spans. Must not know: what a test does, how it is begun or stopped.
A test that was stopped for work says nothing: neither that the node is well nor that it is ill.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
SLICE_MS = 3 * MINUTE_MS
"""As long as one light test, or one of a pair, takes at most."""
YIELD_MS = 30_000
"""A test that is in the way of work is over after this."""
IDLE_SHARE = 0.2
"""Of the idle nodes at most this share is tested at a time; one node, or one pair, always may be."""
LIGHT_AFTER_MS = 30 * MINUTE_MS
"""A node has to have been idle for so long: between two runs of a queue there is no time for tests."""
LIGHT_EVERY_MS = 4 * HOUR_MS
DEEP_EVERY_MS = 24 * HOUR_MS
SWEEP_FROM = 4
"""Idle nodes of one pool that are worth a sweep of pairs."""
SWEEP_MOST = 64
"""Nodes of one sweep: the riskiest; the others are in the next one."""
SPAN_MS = 16 * MINUTE_MS
"""As long as a deep test takes at most where an agent does it whole; others do it in parts (``deep_parts``)."""
NEVER_H = 24.0 * 7
"""What a node that has never passed counts as, in hours since its last pass."""
STRIKE_H, SIGNAL_H, CHANGE_H = 24.0, 12.0, 24.0
"""What a strike, a soft signal and a changed driver or firmware weigh, in hours since the last pass."""


class IdleTest(Enum):
    """What is run on an idle node."""

    LIGHT = "LIGHT"
    """Static reading, a product of matrices, copies: within one slice."""
    DEEP = "DEEP"
    """All that one node can be tested for: with all-reduce, adapters and burn-in."""
    FABRIC = "FABRIC"
    """A pair test with another idle node of the pool."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleRules:
    """How often and how much: what a yard may set."""

    after_ms: int = LIGHT_AFTER_MS
    light_every_ms: int = LIGHT_EVERY_MS
    deep_every_ms: int = DEEP_EVERY_MS
    sweep_every_ms: int = DEEP_EVERY_MS
    share: float = IDLE_SHARE
    sweep_from: int = SWEEP_FROM


DEFAULT = IdleRules()


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleNode:
    """A node as the idle tester sees it. Times are ms; None: never.

    ``open``: it is alive, takes runs, is not in repair. ``wanted``: a reservation holds it, or a run is placed there.
    ``resting``: it could not be asked a moment ago, and is let alone for a while.
    """

    name: str
    pool: str
    idle_since_ms: int | None
    like: str = ""
    """Only nodes that are alike in this are tested in pairs: what they have decides how fast they are."""
    open: bool = True
    wanted: bool = False
    resting: bool = False
    strikes: int = 0
    signals: int = 0
    """Soft signals since its last test."""
    changed: bool = False
    """Driver or firmware is not the one that the last pass was with."""
    passed_ms: int | None = None
    deep_ms: int | None = None
    """When it passed the deep test last."""
    paired_ms: int | None = None
    """When it was certified by pair tests last."""
    tried_ms: int | None = None
    """When a test of it ended last, whatever came of it. What could not be told is not asked for again at once."""
    deep_tried_ms: int | None = None
    paired_tried_ms: int | None = None
    doubted: bool = False
    """A sum over a gang that it was in failed, and it was not tested in pairs since."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ongoing:
    """A test under way. ``asked_ms``: when it was asked to make room; None: not yet."""

    node: str
    kind: IdleTest
    began_ms: int
    asked_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """Nodes of a pool to pair with each other, ``at_once`` of them at a time (an even number)."""

    pool: str
    nodes: tuple[str, ...]
    at_once: int


@dataclass(frozen=True, slots=True, kw_only=True)
class IdlePlan:
    """What to do now."""

    begin: tuple[tuple[str, IdleTest], ...] = ()
    ask: tuple[str, ...] = ()
    """Tests that have to make room."""
    kill: tuple[str, ...] = ()
    """Tests that were asked ``YIELD_MS`` ago, or take longer than their slice."""
    sweep: Sweep | None = None


def risk(node: IdleNode, now_ms: int) -> float:
    """Return how much a test of the node is due, in hours: since its last pass, and what speaks against it."""
    hours = NEVER_H if node.passed_ms is None else max(now_ms - node.passed_ms, 0) / HOUR_MS
    return hours + STRIKE_H * node.strikes + SIGNAL_H * node.signals + CHANGE_H * node.changed


def due(node: IdleNode, now_ms: int, rules: IdleRules = DEFAULT) -> IdleTest | None:
    """Return which test of the node alone is due; None while there is none."""
    ended_ms = _latest(node.passed_ms, node.tried_ms)
    if node.signals or node.changed or _is_over(ended_ms, rules.light_every_ms, now_ms):
        return IdleTest.LIGHT
    if _is_over(_latest(node.deep_ms, node.deep_tried_ms), rules.deep_every_ms, now_ms):
        return IdleTest.DEEP
    return None


def plan(
    nodes: Iterable[IdleNode],
    ongoing: Sequence[Ongoing],
    now_ms: int,
    rules: IdleRules = DEFAULT,
    *,
    sweeping: Collection[str] = (),
    resting_pools: Collection[str] = (),
) -> IdlePlan:
    """Return which tests to begin, to ask for room and to end. The same facts in any order give the same plan.

    ``sweeping``: the nodes of a sweep under way, each with or without a test at the moment; there is one at a time.
    ``resting_pools``: those whose last sweep was broken off a moment ago; meanwhile it is the turn of others.
    Cost: nodes, sorted once.
    """
    known = {node.name: node for node in nodes}
    busy = {test.node for test in ongoing}
    ask, kill = _endings(known, ongoing, now_ms)
    idle = sorted((node for node in known.values() if _may(node, now_ms, rules)), key=lambda node: node.name)
    room = max(1, int(len(idle) * rules.share)) - len(busy) if idle else 0
    free = [node for node in idle if node.name not in busy and node.name not in sweeping]
    free.sort(key=lambda node: (-risk(node, now_ms), node.name))
    begin: list[tuple[str, IdleTest]] = []
    for node in free:
        kind = due(node, now_ms, rules)
        if kind is not None and len(begin) < room:
            begin.append((node.name, kind))
    sweep = None
    if not begin and not sweeping and (not busy or room >= 2):
        awake = [node for node in free if node.pool not in resting_pools]
        sweep = _sweep(awake, max(room // 2 * 2, 2), now_ms, rules)
    return IdlePlan(begin=tuple(begin), ask=ask, kill=kill, sweep=sweep)


def _may(node: IdleNode, now_ms: int, rules: IdleRules) -> bool:
    return (
        node.open
        and not node.wanted
        and not node.resting
        and node.idle_since_ms is not None
        and now_ms - node.idle_since_ms >= rules.after_ms
    )


def _is_over(since_ms: int | None, span_ms: int, now_ms: int) -> bool:
    return since_ms is None or now_ms - since_ms >= span_ms


def _latest(*times_ms: int | None) -> int | None:
    return max((at_ms for at_ms in times_ms if at_ms is not None), default=None)


def _endings(
    known: dict[str, IdleNode], ongoing: Sequence[Ongoing], now_ms: int
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    ask, kill = [], []
    for test in sorted(ongoing, key=lambda test: test.node):
        node = known.get(test.node)
        in_the_way = node is None or node.wanted or not node.open
        late = now_ms - test.began_ms >= (SPAN_MS if test.kind is IdleTest.DEEP else SLICE_MS)
        if late or (test.asked_ms is not None and now_ms - test.asked_ms >= YIELD_MS):
            kill.append(test.node)
        elif in_the_way and test.asked_ms is None:
            ask.append(test.node)
    return tuple(ask), tuple(kill)


def _sweep(free: Sequence[IdleNode], at_once: int, now_ms: int, rules: IdleRules) -> Sweep | None:
    """Return the pool of which most idle nodes have not been paired for a day; None where there are too few.

    One with doubted nodes goes first, and does not wait for its day: these, and as many others to compare them with.
    """
    pools: dict[tuple[str, str], list[IdleNode]] = {}
    for node in free:
        pools.setdefault((node.pool, node.like), []).append(node)
    # Of several the one that was swept longest ago: what stays in doubt keeps no other from its turn.
    swept_ms = {key: _latest(*(node.paired_tried_ms for node in nodes)) or 0 for key, nodes in pools.items()}
    for key, nodes in sorted(pools.items(), key=lambda pool: (swept_ms[pool[0]], pool[0])):
        doubted = sum(node.doubted for node in nodes)
        if doubted and len(nodes) >= rules.sweep_from:
            count = min(max(2 * doubted, rules.sweep_from), SWEEP_MOST)
            first = sorted(nodes, key=lambda node: not node.doubted)[:count]
            return Sweep(pool=key[0], nodes=tuple(sorted(node.name for node in first)), at_once=at_once)
    again_ms = min(rules.light_every_ms, rules.sweep_every_ms)
    stale = {
        key: [
            node.name
            for node in nodes
            if _is_over(node.paired_ms, rules.sweep_every_ms, now_ms)
            and _is_over(node.paired_tried_ms, again_ms, now_ms)
        ]
        for key, nodes in pools.items()
    }
    most = min(stale, key=lambda pool: (-len(stale[pool]), pool), default=("", ""))
    if len(stale.get(most, ())) < rules.sweep_from:
        return None
    return Sweep(pool=most[0], nodes=tuple(sorted(stale[most][:SWEEP_MOST])), at_once=at_once)
