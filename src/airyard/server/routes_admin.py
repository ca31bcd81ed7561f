"""Housekeeping: free space, verify the journal, stop the server.

Owns: the wire side. Must not know: what is kept how long, or how a journal is verified.
"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from fastapi.concurrency import run_in_threadpool

from airyard.server.housekeeping import collect_garbage, verify_journal
from airyard.server.requests import PREFIX, Caller, Context
from airyard.server.shutdown import shut_down
from airyard.wire import native

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


@router.post("/shutdown")
async def shutdown(context: Context, caller: Caller, body: native.ShutdownRequest) -> dict[str, Any]:
    """Stop the server. ``runs``: ``refuse`` while any is live, ``keep`` them running, or ``cancel`` them first."""
    return await shut_down(context, body.runs, caller.name)
