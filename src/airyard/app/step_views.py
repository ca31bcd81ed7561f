"""The steps of a running attempt as ``explain`` shows them.

Owns: their document and its words. Must not know: HTTP, how verdicts are found.
"""

from __future__ import annotations

from airyard.app.gang_steps import GangSteps
from airyard.app.views import Document
from airyard.core.health.hangs import Stall
from airyard.core.health.stragglers import Straggler
from airyard.core.run import Run, RunState


def progress_document(steps: GangSteps, run: Run, now_ms: int) -> Document | None:
    """Return what a live attempt tells of its steps; None where it tells nothing."""
    attempt = run.attempt
    if run.state is not RunState.ACTIVE or attempt is None or not attempt.live:
        return None
    step = steps.newest_step(attempt.key)
    if step is None:
        return None
    stall = steps.stall(attempt.key, attempt, now_ms)
    return {
        "step": step,
        "stall": _stall(stall) if stall is not None else None,
        "stragglers": [_straggler(one) for one in steps.stragglers(attempt.key, attempt)],
    }


def _stall(stall: Stall) -> Document:
    return {
        "case": stall.case.value,
        "ranks": list(stall.ranks),
        "nodes": list(stall.nodes),
        "confidence": stall.confidence,
        "silent_ms": stall.silent_ms,
        "limit_ms": stall.limit_ms,
        "step": stall.step,
        "text": stall.message,
        "suspect_node": stall.suspect_node or None,
        "evidence": list(stall.evidence),
    }


def _straggler(one: Straggler) -> Document:
    whole = "; so are all ranks of this node" if one.whole_node else ""
    return {
        "rank": one.rank,
        "node": one.node,
        "level": one.level.value,
        "score": round(one.score, 3),
        "compute_ms": round(one.compute_ms, 3),
        "median_ms": round(one.median_ms, 3),
        "whole_node": one.whole_node,
        "text": f"rank {one.rank} on {one.node} computes {one.compute_ms:.0f} ms a step, the usual is "
        f"{one.median_ms:.0f} ms{whole}",
    }
