"""Housekeeping: free space, verify the journal, messages to people, stop the server.

Owns: the wire side. Must not know: what is kept how long, or how a journal is verified.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from fastapi.concurrency import run_in_threadpool

from airyard.app.notice_views import notification_document
from airyard.ports.notice_store import MessageState
from airyard.server.housekeeping import collect_garbage, verify_journal
from airyard.server.requests import PREFIX, Caller, Context
from airyard.server.shutdown import shut_down
from airyard.wire import native
from airyard.wire.explain import NotificationsAnswer

router = APIRouter(prefix=f"{PREFIX}/admin", tags=["admin"])


@router.post("/gc")
async def gc(context: Context, body: native.CollectRequest) -> dict[str, Any]:
    """Remove what retention no longer keeps; with ``dry_run`` only say what would go."""

    def run() -> dict[str, Any]:
        return collect_garbage(context, dry_run=body.dry_run)

    return await run_in_threadpool(run)


@router.post("/verify")
async def verify(context: Context) -> dict[str, Any]:
    """Replay the journal from the oldest kept event and compare state, snapshots and read tables."""
    return await run_in_threadpool(verify_journal, context)


@router.get("/notifications", responses={200: {"model": NotificationsAnswer}})
async def notifications(
    context: Context,
    state: Annotated[Literal["waiting", "delivered", "given_up", "all"], Query()] = "all",
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> dict[str, Any]:
    """Return the newest messages to people, of runs and of the yard, and how many there are in each state."""
    store = context.notices
    if store is None:
        return {"notifications": [], "counts": {}}
    wanted = None if state == "all" else MessageState(state.upper())

    def read() -> dict[str, Any]:
        newest, counts = store.newest(wanted, limit), store.counts()
        return {
            "notifications": [notification_document(one) for one in newest],
            "counts": {each.value: counts.get(each.value, 0) for each in MessageState},
        }

    return await run_in_threadpool(read)


@router.post("/shutdown")
async def shutdown(context: Context, caller: Caller, body: native.ShutdownRequest) -> dict[str, Any]:
    """Stop the server. ``runs``: ``refuse`` while any is live, ``keep`` them running, or ``cancel`` them first."""
    return await shut_down(context, body.runs, caller.name)
