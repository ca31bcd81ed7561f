"""Why runs wait or run: the queue page by page, and all there is to say of one run.

Owns: the wire side of these requests. Must not know: how anything of it is found out.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse

from airyard.app import explain_views, explaining, facility_views
from airyard.app.control import Control
from airyard.app.notice_views import notification_document
from airyard.app.step_views import progress_document
from airyard.app.views import Document, Lights, explanation, run_document
from airyard.core.run import Run, RunState
from airyard.ports.notice_store import MessageState
from airyard.server.access import sight
from airyard.server.context import ServerContext
from airyard.server.redaction import redacted
from airyard.server.requests import PREFIX, Caller, Context, Ref, inquire, plain, query, run_of, tracking_url
from airyard.server.slow_ranks import effects_of
from airyard.wire import explain as wire

router = APIRouter(prefix=PREFIX)
MAX_PAGE = 1000


@router.get("/queue", tags=["yard"], responses={200: {"model": wire.QueueAnswer}})
async def queue(
    context: Context,
    caller: Caller,
    limit: Annotated[int, Query(ge=1)] = 100,
    offset: Annotated[int, Query(ge=0)] = 0,
) -> JSONResponse:
    """Return waiting runs in the order in which they are considered, each with ``position`` and ``pending``.

    ``waiting`` counts all of them; ``next_offset`` asks for the page after this one. Of a run that the caller may not
    see there is only where it stands and what it asks (``hidden``).
    """
    now_ms, size = context.clock.now_ms(), min(limit, MAX_PAGE)
    page = await inquire(context, lambda planning: explaining.page(planning, offset, size, now_ms))

    def read(control: Control) -> dict[int, Run]:
        found = ((run_id, control.state.runs.get(run_id)) for run_id, _ in page.rows)
        return {run_id: run for run_id, run in found if run is not None and run.state is RunState.QUEUED}

    runs = await query(context, read)
    lights = Lights(
        refusals={run_id: seen.refusal for run_id, seen in page.rows if seen.refusal is not None},
        positions={run_id: seen.position for run_id, seen in page.rows},
        etas={run_id: seen.eta for run_id, seen in page.rows if seen.eta is not None},
        tracking_url=lambda found: tracking_url(context, found),
    )
    sees = sight(context, caller.principal)

    def row(run: Run) -> Document:
        shown = run_document(run, lights)
        return shown if sees is None or sees(run) else redacted(shown)

    rows = [
        {**row(runs[run_id]), "position": position}
        for position, (run_id, _) in enumerate(page.rows, start=offset + 1)
        if run_id in runs
    ]
    after = offset + len(page.rows)
    return plain(
        {
            "runs": rows,
            "waiting": page.waiting,
            "next_offset": after if after < page.waiting and page.rows else None,
            "estimates": explain_views.figures_document(page.figures),
        }
    )


@router.get("/runs/{ref}/explain", tags=["runs"], responses={200: {"model": wire.ExplainAnswer}})
async def explain_run(context: Context, caller: Caller, ref: Ref) -> Document:
    """Say why a run is where it is, with the evidence and what would help."""
    run = await run_of(context, caller, ref)
    parts = await _parts(context, run)
    away = await query(context, _away) if run.state is RunState.ACTIVE else ()
    now_ms = context.clock.monotonic_ms()
    slowed = effects_of(context, run.attempt, now_ms) if run.state is RunState.ACTIVE and run.attempt else ()
    progress = {"progress": progress_document(context.steps, context.signs, run, now_ms, slowed)}
    told = {"notifications": await _not_arrived(context, run), "slowed": await _slowed(context, run)}
    return {**explain_views.NO_PARTS, **explanation(run, away=away), **parts, **progress, **told}


async def _slowed(context: ServerContext, run: Run) -> list[Document]:
    """Return what power and cooling do to the nodes of a live attempt."""
    if run.state is not RunState.ACTIVE or run.attempt is None or not run.attempt.live:
        return []
    nodes = {member.node for member in run.attempt.members}
    known = await query(context, lambda control: control.state.facility)
    return facility_views.slowed(known, nodes, context.clock.now_ms())


async def _not_arrived(context: ServerContext, run: Run) -> list[Document]:
    store = context.notices
    if store is None or not run.workload.notify:
        return []
    kept = await run_in_threadpool(store.of_run, run.run_id)
    failing = (one for one in kept if one.state is not MessageState.DELIVERED and one.error)
    return [notification_document(one) for one in failing]


def _away(control: Control) -> frozenset[str]:
    return frozenset(name for name, machine in control.state.machines.items() if not machine.alive)


async def _parts(context: ServerContext, run: Run) -> Document:
    """Return what the planner's side knows of a live run; nothing of one that it does not know (any more)."""
    now_ms = context.clock.now_ms()
    if run.state is RunState.QUEUED:
        waits = await inquire(context, lambda planning: explaining.waits(planning, run, now_ms))
        return explain_views.waiting_parts(waits) if waits is not None else {}
    if run.state is RunState.ACTIVE and run.attempt is not None:
        acknowledged = run.attempt.checkpoint is not None
        runs = await inquire(context, lambda planning: explaining.runs(planning, run.run_id, now_ms))
        return explain_views.running_parts(runs, acknowledged=acknowledged) if runs is not None else {}
    return {}
