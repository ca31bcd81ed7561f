"""The documents about nodes' health: where a node is, and its story.

Owns: HealthDoc, HealthStepDoc. Pure; must not know: HTTP, stores, clocks.
"""

from __future__ import annotations

from airyard.app.views import Document, rfc3339
from airyard.core.health.states import NodeHealth, Step
from airyard.core.state import ClusterState


def health_document(health: NodeHealth | None) -> Document | None:
    """Return where a node is; None for one that was always well."""
    if health is None:
        return None
    return {
        "state": health.state.value,
        "since": rfc3339(health.since_ms or None),
        "rule": health.rule,
        "score": health.score,
        "attempt": health.attempt,
        "remedy": health.remedy.value,
        "retest": health.retest.value,
        "strikes": health.strikes,
        "waits_for": health.waits_for,
        "not_before": rfc3339(health.not_before_ms or None),
    }


def story(state: ClusterState, node: str) -> list[Document]:
    """Return what became of one node, the newest last."""
    return [_step(node, step) for step in state.stories.get(node, ())]


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
        "breakers": [
            {"pool": pool, "at": rfc3339(breaker.at_ms), "why": breaker.why}
            for pool, breaker in sorted(state.breakers.items())
        ],
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
