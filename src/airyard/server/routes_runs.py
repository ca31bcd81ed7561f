"""Runs: list, look at, wait for, cancel, resume, remove.

Owns: the wire side of these requests. Must not know: how runs are decided or stored.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse
from pydantic import BeforeValidator

from airyard.app.run_lookup import LIVE, run_from, seen_rows
from airyard.core.commands import CancelRun, RemoveRun, ResumeRun
from airyard.core.errors import Conflict, Fix, NotFound, UserError
from airyard.core.run import Run, RunState
from airyard.ports.journal import RunRow
from airyard.ports.read_store import RunFilter
from airyard.server import run_removal, sources
from airyard.server.access import Asker, sight
from airyard.server.context import ServerContext
from airyard.server.pool_rights import check_pool
from airyard.server.requests import PREFIX, Caller, Context, Ref, ask, document, documents, plain, run_of
from airyard.server.wakeups import SAFETY_S, Wakeups
from airyard.wire import native

router = APIRouter(prefix=PREFIX, tags=["runs"])
MAX_PAGE = 500
MAX_WAITED = 1000
MAX_WAIT_S = 60.0
# A burst of changes (many runs, or log records) is looked at once.
WAIT_PAUSE_S = 0.05
_STATES: dict[str, tuple[str, ...]] = {
    "all": (),
    "queued": ("QUEUED",),
    "active": ("ACTIVE",),
    "live": LIVE,
    "ended": ("ENDED",),
}


def _in_lower_case(value: object) -> object:
    return value.lower() if isinstance(value, str) else value


StateWanted = Annotated[
    Literal[
        "active", "queued", "live", "ended", "all",
        "preparing", "running", "stopping", "succeeded", "failed", "timed_out", "cancelled",
    ],
    BeforeValidator(_in_lower_case),
    Query(description="a state, or the status that people see; upper and lower case are the same"),
]  # fmt: skip
Timeout = Annotated[float, Query(ge=0, le=MAX_WAIT_S)]


@router.get("/runs", responses={200: {"model": native.RunsAnswer}})
async def list_runs(
    context: Context,
    caller: Caller,
    state: StateWanted = "all",
    limit: Annotated[int, Query(ge=1)] = 100,
    before: Annotated[int | None, Query(ge=1)] = None,
    tag: Annotated[list[str] | None, Query(description="key=value; all of several must hold")] = None,
    experiment: str | None = None,
    owner: Annotated[str | None, Query(description="a user; `@me` is the caller")] = None,
    ids: str | None = None,
) -> JSONResponse:
    """Return the runs that the caller may see, newest first; ``next_before`` asks for the page after this one."""
    size = min(limit, MAX_PAGE)
    wanted = RunFilter(
        states=_STATES.get(state, ()),
        statuses=() if state in _STATES else (state.upper(),),
        tags=tuple(_tag(text) for text in tag or ()),
        experiment=experiment,
        owner=caller.name if owner == "@me" else owner,
        ids=_numbers(ids) if ids is not None else (),
        before=before,
        limit=size + 1,
    )
    if ids is not None and not wanted.ids:
        return plain({"runs": [], "next_before": None})
    rows, behind = await run_in_threadpool(_rows, context, caller, wanted)
    runs = await run_in_threadpool(lambda: [run_from(row) for row in rows[:size]])
    if len(rows) > size:
        behind = runs[-1].run_id
    shown = await documents(context, runs, outlook=True)
    return plain({"runs": shown, "next_before": behind})


def _rows(context: ServerContext, caller: Asker, wanted: RunFilter) -> tuple[Sequence[RunRow], int | None]:
    """Return runs, and behind which one to go on where not all of them were looked at."""
    sees = sight(context, caller.principal)
    if sees is None:
        return context.reads.runs(wanted), None
    return seen_rows(context.reads, wanted, sees)


def _tag(text: str) -> tuple[str, str]:
    key, sign, value = text.partition("=")
    if not key or not sign:
        raise UserError(f"tag {text!r} is not key=value")
    return key, value


def _numbers(text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not all(part.isascii() and part.isdigit() and len(part) < 19 for part in parts):
        raise UserError(f"ids={text!r} is not a list of run numbers such as 1,2,3")
    if len(parts) > MAX_WAITED:
        raise UserError(f"ids names {len(parts)} runs; {MAX_WAITED} is the limit of one request")
    return tuple(dict.fromkeys(int(part) for part in parts))


@router.get("/runs/{ref}", responses={200: {"model": native.RunAnswer}})
async def get_run(
    context: Context,
    caller: Caller,
    ref: Ref,
    wait_version: Annotated[int | None, Query(ge=0)] = None,
    timeout_s: Timeout = 20.0,
) -> dict[str, Any]:
    """Return one run; with ``wait_version`` as soon as its ``version`` is above that, or the time is over."""
    run = await run_of(context, caller, ref)
    if wait_version is not None and run.version <= wait_version:
        run = await _newer(context, run, wait_version, timeout_s)
    return {"run": await document(context, run, outlook=True)}


async def _newer(context: ServerContext, run: Run, version: int, timeout_s: float) -> Run:
    clock = asyncio.get_running_loop().time
    deadline = clock() + timeout_s
    with Wakeups(context.changes, [run.run_id]) as wakeups:
        while True:
            wakeups.clear()
            row = await run_in_threadpool(context.reads.run, run.run_id)
            if row is None:
                raise NotFound(f"run {run.run_id} has been removed", code="RUN_NOT_FOUND")
            left_s = deadline - clock()
            if row.version > version or left_s <= 0 or wakeups.over:
                return run_from(row)
            await wakeups.wait(min(left_s, SAFETY_S))
            await asyncio.sleep(min(WAIT_PAUSE_S, left_s / 10))


@router.get("/wait", tags=["runs"], responses={200: {"model": native.WaitAnswer}})
async def wait(
    context: Context,
    caller: Caller,
    ids: str,
    any_: Annotated[bool, Query(alias="any")] = False,
    timeout_s: Timeout = 20.0,
) -> dict[str, Any]:
    """Return as soon as all (or any) of the runs have ended, or the time is over."""
    numbers = _numbers(ids)
    if not numbers:
        raise UserError("ids names no run")
    clock = asyncio.get_running_loop().time
    deadline = clock() + timeout_s
    with Wakeups(context.changes, numbers) as wakeups:
        while True:
            wakeups.clear()
            wanted = RunFilter(ids=numbers, limit=len(numbers))
            rows, _ = await run_in_threadpool(_rows, context, caller, wanted)
            if len(rows) < len(numbers):
                missing = sorted(set(numbers) - {row.run_id for row in rows})
                raise NotFound(
                    f"there is no run {', '.join(map(str, missing))}",
                    code="RUN_NOT_FOUND",
                    details={"runs": missing},
                )
            ended = sum(row.state == RunState.ENDED.value for row in rows)
            done = ended > 0 if any_ else ended == len(rows)
            left_s = deadline - clock()
            if done or left_s <= 0 or wakeups.over:
                place = {run_id: index for index, run_id in enumerate(numbers)}
                runs = sorted(map(run_from, rows), key=lambda run: place[run.run_id])
                return {"done": done, "runs": await documents(context, runs)}
            await wakeups.wait(min(left_s, SAFETY_S))
            await asyncio.sleep(min(WAIT_PAUSE_S, left_s / 10))


@router.post("/runs/{ref}/cancel", responses={200: {"model": native.CancelAnswer}})
async def cancel_run(context: Context, caller: Caller, ref: Ref) -> dict[str, Any]:
    """Ask a run to stop; returns at once. An ended run is left as it is."""
    run = await run_of(context, caller, ref, sole=True)
    if run.state is RunState.ENDED:
        return {"run_id": run.run_id, "already_ended": True}
    try:
        answer = await ask(context, CancelRun(run_id=run.run_id, by=caller.name))
    except NotFound:
        # It ended and left the loop's memory since it was looked up.
        return {"run_id": run.run_id, "already_ended": True}
    return {"run_id": answer.run_id, "already_ended": answer.already_ended}


@router.post("/runs/{ref}/resume", responses={200: {"model": native.RunAnswer}})
async def resume_run(context: Context, caller: Caller, ref: Ref) -> dict[str, Any]:
    """Queue an ended run for one more attempt, with fresh budgets."""
    run = await run_of(context, caller, ref)
    check_pool(context, caller.principal, run.workload, run.project, account=run.unix_user)
    await ask(context, ResumeRun(run=run, by=caller.name, token_id=caller.principal.token_id))
    return {"run": await document(context, await run_of(context, caller, str(run.run_id)))}


@router.get("/runs/{ref}/source", responses={200: {"model": native.SourceAnswer}})
async def run_source(context: Context, caller: Caller, ref: Ref) -> dict[str, Any]:
    """Return the workload as submitted: its file's text and its code's git diff, when sent, and its normalised form."""
    run = await run_of(context, caller, ref)
    text, diff = await run_in_threadpool(_load_sources, context.home / sources.FOLDER, run)
    return {"source_yaml": text, "git_diff": diff, "workload": run.workload.to_json()}


def _load_sources(folder: Path, run: Run) -> tuple[str | None, str | None]:
    """Return the text of a run's workload file and its git diff."""
    diff = sources.load(folder, sources.Kind.DIFF, run.workload.diff_hash or "")
    return sources.load(folder, sources.Kind.WORKLOAD, run.source_hash), diff


@router.delete("/runs/{ref}")
async def delete_run(context: Context, caller: Caller, ref: Ref) -> dict[str, Any]:
    """Remove an ended run: its logs, output, tracked runs, and its code snapshot when no other run has it."""
    run = await run_of(context, caller, ref, sole=True)
    if run.state is not RunState.ENDED:
        raise Conflict(
            f"run {run.run_id} is {run.state.value.lower()}; only an ended run can be removed",
            code="RUN_IS_LIVE",
            fix=Fix(text="cancel it first", command=f"airyard cancel {run.run_id}"),
        )
    await ask(context, RemoveRun(run_id=run.run_id, by=caller.name))
    removed = await run_in_threadpool(run_removal.remove_remains, context, run)
    return {"run_id": run.run_id, **removed}
