"""What comes with every request: who sends it, the parts of the server, answers of the loop, runs by their name.

Owns: the ways by which routes reach the context. Must not know: any single route.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Path, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse

from airyard.app import explaining
from airyard.app.control import Control
from airyard.app.explaining import Glance
from airyard.app.planning import Planning
from airyard.app.run_lookup import find_run
from airyard.app.views import Document, Lights, run_document
from airyard.core.run import Run, RunState, Tracking
from airyard.core.scheduling.plan import Refusal
from airyard.server.access import Asker, require_run, sight
from airyard.server.context import ServerContext

T = TypeVar("T")
PREFIX = "/api/v1"
PATIENCE_S = 0.3
"""How long an answer waits for places and expected starts; it goes without them when the planner takes longer."""


def _context(request: Request) -> ServerContext:
    found: ServerContext = request.app.state.context
    return found


def _caller(request: Request) -> Asker:
    # Put there by the dependency that every route has before its own (``access.authorise_route``).
    found: Asker = request.scope["asker"]
    return found


Context = Annotated[ServerContext, Depends(_context)]
Caller = Annotated[Asker, Depends(_caller)]
Ref = Annotated[str, Path(description="A run: its number, its name, `@last`, or `tag:key=value`.")]


async def settled(future: Future[T]) -> T:
    """Wait for an answer of the loop; a client that leaves meanwhile changes nothing about it."""
    return await asyncio.shield(asyncio.wrap_future(future))


async def ask(context: ServerContext, command: Any) -> Any:
    """Have the loop decide a command; return its reply after the commit. Raises: the refusal."""
    return await settled(context.ask(command))


async def query(context: ServerContext, read: Callable[[Control], T]) -> T:
    """Read what the newest commit left; quick reads only, they keep every other request waiting."""
    return context.loop.peek(read)


async def inquire(context: ServerContext, read: Callable[[Planning], T]) -> T:
    """Have the planner's side answer, on the newest state."""
    return await settled(context.loop.inquire(read))


async def run_of(context: ServerContext, caller: Asker, ref: str, *, sole: bool = False) -> Run:
    """Return the run that ``ref`` names, as of the last commit, if the caller may do to it what the route does.

    ``sole``: a name that several runs have is refused, where a wrong guess cannot be taken back.
    Raises: NotFound, also for a run that the caller may not see; Conflict (``AMBIGUOUS``); Denied.
    """

    def find() -> Run:
        return find_run(context.reads, ref, caller.name, sole=sole, sees=sight(context, caller.principal))

    run = await run_in_threadpool(find)
    require_run(context, caller, run)
    return run


async def quickly(context: ServerContext, read: Callable[[Planning], T]) -> T | None:
    """Have the planner's side answer; None when it is busy for longer than ``PATIENCE_S``."""
    try:
        return await asyncio.wait_for(inquire(context, read), PATIENCE_S)
    except TimeoutError:
        return None


async def lights_for(context: ServerContext, runs: list[Run], *, outlook: bool = False) -> Lights:
    """Return what is known of the runs beside their records; only queued ones need asking.

    ``outlook``: with their places and expected starts, as far as these are quickly known.
    """
    queued = [run.run_id for run in runs if run.state is RunState.QUEUED]
    seen: Mapping[int, Glance] | None = None
    if queued and outlook:
        now_ms = context.clock.now_ms()
        seen = await quickly(context, lambda planning: explaining.glance(planning, queued, now_ms))
    refusals: dict[int, Refusal] = {}
    if seen is not None:
        refusals = {run_id: one.refusal for run_id, one in seen.items() if one.refusal is not None}
    elif queued:

        def read(control: Control) -> dict[int, Refusal]:
            found = {run_id: control.refusal(run_id) for run_id in queued}
            return {run_id: refusal for run_id, refusal in found.items() if refusal is not None}

        refusals = await query(context, read)
    return Lights(
        refusals=refusals,
        positions={run_id: one.position for run_id, one in (seen or {}).items()},
        etas={run_id: one.eta for run_id, one in (seen or {}).items() if one.eta is not None},
        progress=context.progress,
        tracking_url=lambda found: tracking_url(context, found),
    )


async def documents(context: ServerContext, runs: list[Run], *, outlook: bool = False) -> list[Document]:
    """Return the RunDocs of runs, in order; ``outlook`` as for ``lights_for``."""
    lights = await lights_for(context, runs, outlook=outlook)
    return [run_document(run, lights) for run in runs]


async def document(context: ServerContext, run: Run, *, outlook: bool = False) -> Document:
    """Return the RunDoc of one run."""
    return (await documents(context, [run], outlook=outlook))[0]


def plain(answer: Document) -> JSONResponse:
    """Return an answer of plain JSON values as it is; FastAPI would look at every value of a long page once more."""
    return JSONResponse(answer)


def tracking_url(context: ServerContext, tracking: Tracking) -> str | None:
    """Return the page of a tracked run, as it is reached through this server."""
    if not tracking.run_id:
        return None
    return f"{context.url}/mlflow/#/experiments/{tracking.experiment_id}/runs/{tracking.run_id}"
