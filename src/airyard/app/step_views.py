"""The steps of a running attempt, or other signs of its progress, as ``explain`` shows them.

Owns: their document and its words. Must not know: HTTP, how verdicts are found.
"""

from __future__ import annotations

from collections.abc import Sequence

from airyard.app.gang_signs import GangSigns
from airyard.app.gang_steps import GangSteps
from airyard.app.views import Document
from airyard.core.health import clock_reasons, slowing
from airyard.core.health.hangs import Stall
from airyard.core.health.signs import Source, Watched, watched
from airyard.core.health.slowing import Effect
from airyard.core.health.stragglers import Straggler
from airyard.core.run import Attempt, Run, RunState, StallNote
from airyard.core.workload import HangAction


def progress_document(
    steps: GangSteps, signs: GangSigns, run: Run, now_ms: int, effects: Sequence[Effect] = ()
) -> Document | None:
    """Return what a live attempt tells of its steps, or by what else it is watched; None where there is nothing yet.

    ``effects``: which slow ranks a throttled GPU explains.
    """
    attempt = run.attempt
    if run.state is not RunState.ACTIVE or attempt is None or not attempt.live:
        return None
    step = steps.newest_step(attempt.key)
    if step is None:
        return _by_signs(signs, run, attempt, now_ms)
    stall = steps.stall(attempt.key, attempt, now_ms)
    by_rank = {one.slow.rank: one for one in effects}
    return {
        "step": step,
        "stall": _stall(stall) if stall is not None else None,
        "stragglers": [
            _straggler(one, by_rank.get(one.rank)) for one in steps.stragglers(attempt.key, attempt)
        ],
    }


def _by_signs(signs: GangSigns, run: Run, attempt: Attempt, now_ms: int) -> Document | None:
    if run.workload.hang.action is HangAction.OFF:
        return None
    seen = signs.seen(attempt, now_ms, own_ms=1000 * (run.workload.hang.timeout_s or 0))
    by = watched(seen) if seen is not None else None
    noted = attempt.stall
    told = noted is not None and not noted.over_ms and noted.source != Source.STEPS.value
    if seen is None or (by is None and not told):
        return None
    return {
        "step": seen.step,
        "source": by.source.value if by is not None else noted.source if noted is not None else "",
        "age_ms": by.age_ms if by is not None else None,
        "limit_ms": by.limit_ms if by is not None else None,
        "stall": _noted(noted, by) if noted is not None and told else None,
        "stragglers": [],
    }


def _noted(noted: StallNote, by: Watched | None) -> Document:
    """Return the journalled verdict: what is only suspected is not shown."""
    return {
        "source": noted.source,
        "case": noted.case,
        "ranks": list(noted.ranks),
        "nodes": list(noted.nodes),
        "confidence": noted.confidence,
        "silent_ms": by.age_ms if by is not None else 0,
        "limit_ms": by.limit_ms if by is not None else 0,
        "step": noted.step,
        "text": noted.message,
        "suspect_node": noted.suspect_node or None,
        "evidence": list(noted.evidence),
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


def _straggler(one: Straggler, effect: Effect | None) -> Document:
    whole = "; so are all ranks of this node" if one.whole_node else ""
    why = f": {slowing.in_words(effect)}" if effect is not None else ""
    return {
        "rank": one.rank,
        "node": one.node,
        "level": one.level.value,
        "score": round(one.score, 3),
        "compute_ms": round(one.compute_ms, 3),
        "median_ms": round(one.median_ms, 3),
        "whole_node": one.whole_node,
        "text": f"rank {one.rank} on {one.node} computes {one.compute_ms:.0f} ms a step, the usual is "
        f"{one.median_ms:.0f} ms{whole}{why}",
        "throttled": _throttled(effect) if effect is not None else None,
    }


def _throttled(effect: Effect) -> Document:
    throttle = effect.throttle
    return {
        "device": effect.device,
        "rule": throttle.rule,
        "reasons": clock_reasons.in_words(throttle.reasons),
        "share": throttle.share,
        "facility": throttle.brake_alone,
    }
