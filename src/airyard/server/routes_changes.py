"""Changing a run after its submit: class, project, time limit, begin, hold.

Owns: the wire side of this request. Must not know: which change is possible when.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fastapi import APIRouter

from airyard.core.commands import UpdateRun
from airyard.core.decide import Updated
from airyard.core.errors import Conflict, Denied, Fix, NotFound, UserError
from airyard.core.run import Run, RunState
from airyard.core.workload import Priority
from airyard.server.access import Asker
from airyard.server.context import ServerContext
from airyard.server.pool_rights import check_pool
from airyard.server.requests import PREFIX, Caller, Context, Ref, ask, document, run_of
from airyard.wire.changes import UpdateAnswer, UpdateRequest

router = APIRouter(prefix=PREFIX, tags=["runs"])
_WIRE_NAMES = {"attempt_timeout_s": "timeout_s", "begin_ms": "begin_at"}


@router.post("/runs/{ref}/update", responses={200: {"model": UpdateAnswer}})
async def update_run(context: Context, caller: Caller, ref: Ref, body: UpdateRequest) -> dict[str, Any]:
    """Change a queued or active run: all that is named, or on a refusal nothing."""
    named = body.model_fields_set
    if not named:
        raise UserError(
            "the request names nothing to change",
            fix=f"name one of {', '.join(UpdateRequest.model_fields)}",
        )
    run = await run_of(context, caller, ref, sole=True)
    if body.project is not None:
        _check_project(context, caller, run, body.project)
    if run.state is RunState.ENDED:
        raise _ended(run)
    command = UpdateRun(
        run_id=run.run_id,
        by=caller.name,
        priority=Priority[body.priority] if body.priority is not None else None,
        project=body.project,
        attempt_timeout_s=(body.timeout_s or 0) if "timeout_s" in named else None,
        begin_ms=(body.begin_at or 0) if "begin_at" in named else None,
        held=body.held,
    )
    try:
        reply = await ask(context, command)
    except NotFound as error:
        run = await run_of(context, caller, str(run.run_id))
        # It ended since it was looked up.
        raise (_ended(run) if run.state is RunState.ENDED else error) from error
    assert isinstance(reply, Updated)
    now = await run_of(context, caller, str(run.run_id))
    changed = [_WIRE_NAMES.get(name, name) for name in reply.changed]
    return {"run": await document(context, now), "changed": changed, "warnings": list(reply.warnings)}


def _check_project(context: ServerContext, caller: Asker, run: Run, project: str) -> None:
    """Refuse to take a run out of the token's project, or into one that may not use its pool. Raises: Denied."""
    confined = caller.principal.project
    if confined not in (None, project):
        raise Denied(f"this token is for project {confined}", code="OUT_OF_SCOPE")
    workload = run.workload
    if run.attempt is not None and run.attempt.live and run.attempt.pool:
        workload = replace(workload, compute=replace(workload.compute, pool=run.attempt.pool))
    check_pool(context, caller.principal, workload, project, account=run.unix_user)


def _ended(run: Run) -> Conflict:
    outcome = f" ({run.outcome.value})" if run.outcome is not None else ""
    return Conflict(
        f"run {run.run_id} has ended{outcome}; nothing of it can be changed any more",
        code="RUN_HAS_ENDED",
        fix=Fix(text="submit it again, changed", command=f"airyard rerun {run.run_id} --override K=V"),
        details={"run_id": run.run_id},
    )
