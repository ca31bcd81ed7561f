"""Housekeeping: free space, verify the journal, stop the server.

Owns: the wire side. Must not know: what is kept how long, or how a journal is verified.
"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from airyard.server.requests import PREFIX, Caller, Context
from airyard.server.shutdown import shut_down
from airyard.wire import native

router = APIRouter(prefix=f"{PREFIX}/admin", tags=["admin"])


@router.post("/shutdown")
async def shutdown(context: Context, caller: Caller, body: native.ShutdownRequest) -> dict[str, Any]:
    """Stop the server. ``runs``: ``refuse`` while any is live, ``keep`` them running, or ``cancel`` them first."""
    return await shut_down(context, body.runs, caller.name)
