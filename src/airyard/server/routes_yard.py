"""The yard's pools.

Owns: the wire side of this read. Must not know: how plans are made. The loop's state is asked, because only it
knows who holds a device at this moment.
"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from fastapi.concurrency import run_in_threadpool

from airyard.app.policy_views import pool_documents
from airyard.server.requests import PREFIX, Context, query
from airyard.wire import policy

router = APIRouter(prefix=PREFIX, tags=["yard"])


@router.get("/pools", responses={200: {"model": policy.PoolsAnswer}})
async def pools(context: Context) -> dict[str, Any]:
    """Return the pools: what of them is free, guaranteed and borrowed, and their rules."""
    state = await query(context, lambda control: control.state.copy())
    return {"pools": await run_in_threadpool(pool_documents, state)}
