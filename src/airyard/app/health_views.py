"""The documents about nodes' health: where a node is, and its story.

Owns: HealthDoc, HealthStepDoc, IdleTestDoc. Pure; must not know: HTTP, stores, clocks.
"""

from __future__ import annotations

from airyard.app import facility_views
from airyard.app.views import Document, rfc3339
from airyard.core.health.fabric_faults import Blamed
from airyard.core.health.facts import CheckStatus
from airyard.core.health.idle import IdleTest
from airyard.core.health.idle_records import NodeTests, SweepNote, TestNote
from airyard.core.health.states import NodeHealth, Step
from airyard.core.health.waiting import Wait
from airyard.core.state import ClusterState


def health_document(health: NodeHealth | None, wait: Wait | None = None) -> Document | None:
    """Return where a node is, and what it waits for; None for one that was always well."""
    if health is None:
        return None
    return {
        "state": health.state.value,
        "since": rfc3339(health.since_ms or None),
        "rule": health.rule,
        "score": health.score,
        "attempt": health.remedies,
        "remedy": health.remedy.value,
        "retest": health.retest.value,
        "strikes": health.strikes,
        "waits_for": health.waits_for,
        "not_before": rfc3339(health.not_before_ms or None),
        "waits": None
        if wait is None
        else {"what": wait.what.value, "text": wait.text, "until": rfc3339(wait.until_ms)},
    }


def story(state: ClusterState, node: str) -> list[Document]:
    """Return what became of one node, the newest last."""
    return [_step(node, step) for step in state.stories.get(node, ())]


def tests(state: ClusterState, node: str) -> list[Document]:
    """Return the newest test of each kind that a node had while it was idle, and parts so far, the newest last."""
    found = state.tests.get(node)
    notes = _own(found, every=True) if found else []
    pool = state.policy.pool_of(state.nodes[node]) if node in state.nodes else ""
    return [_test(node, pool, note) for note in sorted(notes, key=lambda note: note.at_ms)]


def events_document(state: ClusterState, node: str | None, since_ms: int) -> Document:
    """Return the stories of all nodes (or one) in the order of time, and the open breakers."""
    steps = [
        (step.at_ms, place, name, step)
        for name, known in state.stories.items()
        if node in (None, name)
        for place, step in enumerate(known)
        if step.at_ms >= since_ms
    ]
    return {
        "events": [_step(name, step) for _, _, name, step in sorted(steps, key=lambda each: each[:3])],
        "tests": _tests(state, node, since_ms),
        "faults": _faults(state) if node is None else [],
        "breakers": [
            {"pool": pool, "at": rfc3339(breaker.at_ms), "why": breaker.why}
            for pool, breaker in sorted(state.breakers.items())
        ],
        "incidents": facility_views.incidents(state.facility, node, since_ms),
        "slowdowns": facility_views.slowdowns(state.facility, node, since_ms),
    }


def _faults(state: ClusterState) -> list[Document]:
    """Return what stands between nodes, the oldest first, whenever it began."""
    standing = [(one, pool) for pool, its in state.sweeps.items() for one in its.standing]
    return [
        {
            "pool": pool,
            "what": one.fault.what.value,
            "where": one.fault.where,
            "since": rfc3339(one.since_ms),
            "seen": rfc3339(one.seen_ms),
            "next_step": one.fault.next_step,
        }
        for one, pool in sorted(standing, key=lambda each: (each[0].since_ms, each[1], str(each[0].fault)))
    ]


def _tests(state: ClusterState, node: str | None, since_ms: int) -> list[Document]:
    """Return the newest light and deep test of each node, and the newest sweeps of each pool (of a node: its own)."""
    found: list[tuple[int, str, Document]] = []
    for name, known in state.tests.items():
        if node not in (None, name) or name not in state.nodes:
            continue
        pool = state.policy.pool_of(state.nodes[name])
        found += [(note.at_ms, name, _test(name, pool, note)) for note in _own(known, every=node is not None)]
    if node is None:
        found += [
            (sweep.at_ms, pool, _sweep(pool, sweep))
            for pool, its in state.sweeps.items()
            for sweep in its.last
        ]
    return [document for at_ms, _, document in sorted(found, key=lambda each: each[:2]) if at_ms >= since_ms]


def _own(known: NodeTests, *, every: bool) -> list[TestNote]:
    found = (known.light, known.deep, *((known.fabric, *known.parts) if every else ()))
    return [note for note in found if note is not None]


def _test(node: str, pool: str, note: TestNote) -> Document:
    return {
        "node": node,
        "pool": pool,
        "at": rfc3339(note.at_ms),
        "kind": note.kind.value,
        "status": note.status.value,
        "message": f"part {note.part}: {note.message}" if note.part else note.message,
        "took_ms": note.took_ms,
        "values": dict(note.values),
        "blamed": [],
    }


def _sweep(pool: str, sweep: SweepNote) -> Document:
    status = CheckStatus.PASS if sweep.blamed == (Blamed.NOTHING,) else CheckStatus.FAIL
    return {
        "node": "",
        "pool": pool,
        "at": rfc3339(sweep.at_ms),
        "kind": IdleTest.FABRIC.value,
        "status": status.value,
        "message": sweep.in_words(),
        "took_ms": sweep.took_ms,
        "values": {},
        "blamed": [what.value for what in sweep.blamed if what is not Blamed.NOTHING],
    }


def _step(node: str, step: Step) -> Document:
    return {
        "node": node,
        "at": rfc3339(step.at_ms),
        "before": step.before.value,
        "after": step.after.value,
        "why": step.why,
        "by": step.by,
        "rule": step.rule,
        "score": step.score,
        "attempt": step.attempt,
        "evidence": list(step.evidence),
        "budget": step.budget,
    }
