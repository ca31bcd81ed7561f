"""Why an attempt failed: what was found at its end, or what its logs say when somebody asks.

Owns: the wire side, and which attempt is meant. Must not know: how a verdict is found.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.concurrency import run_in_threadpool

from airyard.app.triaging import health_events, triage
from airyard.app.views import Document, rfc3339
from airyard.core.errors import Conflict, Fix, NotFound
from airyard.core.run import Attempt, Outcome, Run, RunState
from airyard.server.requests import PREFIX, Caller, Context, Ref, run_of
from airyard.wire.triage import TriageAnswer

router = APIRouter(prefix=PREFIX, tags=["runs"])
LATEST = -1
_FAILED = (Outcome.FAILED, Outcome.LOST, Outcome.TIMED_OUT)


@router.get("/runs/{ref}/triage", responses={200: {"model": TriageAnswer}})
async def triage_run(
    context: Context,
    caller: Caller,
    ref: Ref,
    attempt: Annotated[int, Query(ge=LATEST, description="-1: the latest that failed")] = LATEST,
    fresh: Annotated[bool, Query(description="Read the logs again, 64 MiB a member at most.")] = False,
) -> Document:
    """Say why an attempt failed: class, first failing rank, evidence, next step.

    It is what was found at the attempt's end; ``fresh``, or where there is none, the logs are read now.
    """
    run = await run_of(context, caller, ref)
    chosen = _attempt(run, attempt)
    judgement, judged_at = chosen.judgement, rfc3339(chosen.judged_ms)
    if judgement is None or judgement.verdict is None or fresh:
        events = context.loop.peek(lambda control: health_events(control.state, chosen))
        judgement, judged_at = await run_in_threadpool(triage, context.logs, chosen, events), None
    assert judgement.verdict is not None
    return {
        "run_id": run.run_id,
        "attempt": chosen.number,
        "verdict": judgement.verdict.as_json(),
        "judged_at": judged_at,
        "logs": judgement.logs,
        "members": judgement.members,
        "missing": judgement.missing,
    }


def _attempt(run: Run, number: int) -> Attempt:
    """Return the attempt that is meant. Raises: NotFound, Conflict for one that did not fail."""
    if number >= len(run.attempts):
        raise NotFound(
            f"run {run.run_id} has no attempt {number}; it has {len(run.attempts)}",
            code="NO_ATTEMPT",
            fix="attempts count from 0; without --attempt the last that failed is meant",
        )
    if number != LATEST:
        chosen = run.attempts[number]
        if chosen.outcome in _FAILED:
            return chosen
        what = chosen.outcome.value if chosen.outcome is not None else chosen.state.value
        raise Conflict(
            f"attempt {number} of run {run.run_id} did not fail: it is {what}",
            code="NOT_FAILED",
            fix=_look(run),
        )
    failed = [one for one in run.attempts if one.outcome in _FAILED]
    if not failed:
        raise Conflict(
            f"no attempt of run {run.run_id} has failed",
            code="NOT_FAILED",
            fix=_look(run),
        )
    return failed[-1]


def _look(run: Run) -> Fix:
    if run.state is RunState.ENDED:
        return Fix(text="look at how it ended", command=f"airyard get {run.run_id}")
    return Fix(text="look at what it is doing", command=f"airyard explain {run.run_id}")
