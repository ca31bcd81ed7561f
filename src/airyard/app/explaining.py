"""What is asked of the planning side about runs that wait or run: explanations, the queue page by page, dry runs.

Owns: the questions, and that what was said of starts is remembered. Runs on the planner's thread.
Must not know: HTTP, documents.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from airyard.app.estimates import Figures
from airyard.app.outlook import find_ways_out
from airyard.app.planning import Planning
from airyard.core.forecast.predictor import Prediction
from airyard.core.run import Run
from airyard.core.scheduling.eta import Eta, etas
from airyard.core.scheduling.explain import NAMED, Explanation, WaysOut
from airyard.core.scheduling.exposure import Exposure, exposure
from airyard.core.scheduling.overtakes import Overtake, passed_by
from airyard.core.scheduling.places import all_places
from airyard.core.scheduling.plan import Refusal, Start
from airyard.core.scheduling.planner import plan
from airyard.core.scheduling.sandbox import Sandbox
from airyard.core.scheduling.snapshot import served, waiting_of
from airyard.core.scheduling.waits import refusal_of

GLANCE_WAITING = 200
"""With more runs waiting a look at single runs finds no expected starts out that are not known yet."""
SAMPLED = 20
"""Of so many runs at the front something is said at a time, though nobody asked."""
TRIED_ID = 1 << 53
"""The run of a dry run has this number: no run has it, and it goes last among equals."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """Everything about a waiting run; ``figures``: how good expected starts have been."""

    explanation: Explanation
    prediction: Prediction
    figures: Figures | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """Everything about a live attempt; ``passed``: the first of ``passed_count`` runs that it went before."""

    exposure: Exposure
    passed: tuple[Overtake, ...]
    passed_count: int
    figures: Figures | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Glance:
    """The short of it for one waiting run."""

    refusal: Refusal | None
    position: int | None
    eta: Eta | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A part of the queue in order; ``waiting`` runs wait in all."""

    waiting: int
    rows: tuple[tuple[int, Glance], ...]
    figures: Figures | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """What would become of a run if it were submitted now."""

    start: Start | None
    glance: Glance
    ways_out: WaysOut = field(default_factory=WaysOut)


def waits(planning: Planning, run: Run, now_ms: int) -> Waits | None:
    """Explain a waiting run; None when the planner does not know it as one. Cost: dozens of plans, once a plan."""
    explanation = planning.outlook().explain(run.run_id, now_ms, planning.forecast.lasting(run))
    if explanation is None:
        return None
    _remember(planning, run.run_id, explanation.position, explanation.eta, now_ms)
    return Waits(
        explanation=explanation,
        prediction=planning.forecast.predict(run, served(run)),
        figures=planning.estimates.figures(),
    )


def runs(planning: Planning, run_id: int, now_ms: int) -> Runs | None:
    """Say who may evict a live attempt, and before whom it went; None when the planner does not know it."""
    running = planning.book.running.get(run_id)
    if running is None:
        return None
    begun = next((one for one in planning.begun if one.want.run_id == run_id), None)
    before = passed_by(planning.book, begun, now_ms) if begun is not None else []
    return Runs(
        exposure=exposure(planning.book, running, now_ms),
        passed=tuple(before[:NAMED]),
        passed_count=len(before),
        figures=planning.estimates.figures(),
    )


def page(planning: Planning, offset: int, limit: int, now_ms: int) -> Page:
    """Return the waiting runs from ``offset`` on with their expected starts. Cost: the starts until theirs."""
    outlook = planning.outlook()
    queue = outlook.queue(now_ms)
    ids = queue[offset : offset + limit]
    starts = outlook.etas(now_ms, ids)
    rows = []
    for run_id in ids:
        position = outlook.position(run_id, now_ms)
        eta = starts.get(run_id)
        _remember(planning, run_id, position, eta, now_ms)
        rows.append((run_id, Glance(refusal=outlook.refusal(run_id, now_ms), position=position, eta=eta)))
    return Page(waiting=len(queue), rows=tuple(rows), figures=planning.estimates.figures())


def glance(planning: Planning, run_ids: Sequence[int], now_ms: int) -> dict[int, Glance]:
    """Look at some waiting runs, without finding out what costs much. Runs that do not wait are left out."""
    outlook, waiting = planning.outlook(), planning.book.queue.runs
    ids = [run_id for run_id in run_ids if run_id in waiting]
    positions = {run_id: outlook.position(run_id, now_ms) for run_id in ids}
    short = len(waiting) <= GLANCE_WAITING
    starts = outlook.etas(now_ms, ids) if short else outlook.recent_etas(ids, now_ms)
    return {
        run_id: Glance(
            refusal=outlook.refusal(run_id, now_ms), position=positions[run_id], eta=starts.get(run_id)
        )
        for run_id in ids
    }


def try_out(planning: Planning, run: Run, now_ms: int) -> Tried:
    """Say what would become of a run of which the planner knows nothing. Cost: dozens of plans."""
    want = replace(waiting_of(run, planning.forecast), run_id=TRIED_ID)
    with Sandbox(planning.book, now_ms) as sandbox:
        sandbox.put(want, now_ms)
        made = plan(planning.book, now_ms)
        start = next((one for one in made.starts if one.run_id == TRIED_ID), None)
        if start is not None:
            return Tried(start=start, glance=Glance(refusal=None, position=None, eta=None))
        order = [place.run_id for place in all_places(planning.book, now_ms)]
        eta = etas(planning.book, now_ms, wanted=[TRIED_ID]).get(TRIED_ID)
        ways = find_ways_out(planning.book, made, want, eta, now_ms, planning.forecast.lasting(run))
        return Tried(
            start=None,
            glance=Glance(
                refusal=refusal_of(made, want, now_ms),
                position=order.index(TRIED_ID) + 1 if TRIED_ID in order else None,
                eta=eta,
            ),
            ways_out=ways,
        )


def sample(planning: Planning, now_ms: int) -> None:
    """Say something of the first runs of the queue though nobody asked, so that there is something to compare."""
    front = planning.outlook().queue(now_ms)[:SAMPLED]
    if any(not planning.estimates.has(run_id) for run_id in front):
        page(planning, 0, SAMPLED, now_ms)


def _remember(planning: Planning, run_id: int, position: int | None, eta: Eta | None, now_ms: int) -> None:
    if position is not None and eta is not None:
        planning.estimates.said(run_id, eta, position, now_ms)
