"""The yard: nodes and their devices, pools.

Owns: the wire side of these reads. Must not know: how plans are made. The loop's state is asked, because only it
knows who holds a device at this moment.
"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from fastapi.concurrency import run_in_threadpool

from airyard.app.control import Control
from airyard.app.policy_views import pool_documents
from airyard.app.views import Document, node_document
from airyard.core.cluster import Machine, Node
from airyard.core.policy import Reservation
from airyard.core.scheduling.nodes import natural
from airyard.server.context import ServerContext
from airyard.server.requests import PREFIX, Context, query
from airyard.wire import native, policy

router = APIRouter(prefix=PREFIX, tags=["yard"])


@router.get("/nodes", responses={200: {"model": native.NodesAnswer}})
async def nodes(context: Context) -> dict[str, Any]:
    """Return the nodes with what each device is doing."""
    return {"nodes": await _nodes(context)}


@router.get("/pools", responses={200: {"model": policy.PoolsAnswer}})
async def pools(context: Context) -> dict[str, Any]:
    """Return the pools: what of them is free, guaranteed and borrowed, and their rules."""
    state = await query(context, lambda control: control.state.copy())
    return {"pools": await run_in_threadpool(pool_documents, state)}


async def _nodes(context: ServerContext) -> list[Document]:
    now_ms = context.clock.now_ms()

    def read(
        control: Control,
    ) -> tuple[list[tuple[Node, str]], dict[str, Machine], dict[str, dict[int, int]], list[Reservation]]:
        state = control.state
        placed = [(node, state.policy.pool_of(node)) for node in state.nodes.values()]
        return placed, dict(state.machines), state.bookings(), list(state.reservations.values())

    found, machines, booked, reservations = await query(context, read)
    found.sort(key=lambda placed: natural(placed[0].name))
    active = [each for each in reservations if each.from_ms <= now_ms < each.to_ms]
    reserved = {name: each.reservation_id for each in active for name in each.nodes}
    return [
        node_document(
            node, machines.get(node.machine), booked.get(node.name, {}), pool, reserved.get(node.name)
        )
        for node, pool in found
    ]
