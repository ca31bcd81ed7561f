"""The yard: what waits, nodes and their devices, pools.

Owns: the wire side of these reads. Must not know: how plans are made. The loop's state is asked, because only it
knows who holds a device at this moment.
"""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter
from fastapi.concurrency import run_in_threadpool

from airyard.app.control import Control
from airyard.app.policy_views import pool_documents
from airyard.app.views import Document, Lights, node_document, run_document
from airyard.core.cluster import Machine, Node
from airyard.core.policy import Reservation
from airyard.core.run import Run, RunState
from airyard.core.scheduling.listing import in_order
from airyard.core.scheduling.nodes import natural
from airyard.core.scheduling.plan import Refusal
from airyard.server.context import ServerContext
from airyard.server.requests import PREFIX, Context, query
from airyard.wire import native, policy

router = APIRouter(prefix=PREFIX, tags=["yard"])


@router.get("/queue", responses={200: {"model": native.RunsAnswer}})
async def queue(context: Context) -> dict[str, Any]:
    """Return the waiting runs in the order in which they are considered, each with ``position`` and ``pending``."""

    def read(control: Control) -> tuple[list[Run], dict[int, Refusal]]:
        waiting = [run for run in control.state.runs.values() if run.state is RunState.QUEUED]
        refusals = {run.run_id: control.refusal(run.run_id) for run in waiting}
        return waiting, {run_id: refusal for run_id, refusal in refusals.items() if refusal is not None}

    waiting, refusals = await query(context, read)
    places = await order_of_queue(context)
    waiting.sort(key=lambda run: (places.get(run.run_id, len(places)), run.run_id))
    lights = Lights(refusals=refusals)
    runs = [
        {**run_document(run, lights), "position": position} for position, run in enumerate(waiting, start=1)
    ]
    return {"runs": runs}


@router.get("/nodes", responses={200: {"model": native.NodesAnswer}})
async def nodes(context: Context) -> dict[str, Any]:
    """Return the nodes with what each device is doing."""
    return {"nodes": await _nodes(context)}


@router.get("/pools", responses={200: {"model": policy.PoolsAnswer}})
async def pools(context: Context) -> dict[str, Any]:
    """Return the pools: what of them is free, guaranteed and borrowed, and their rules."""
    state = await query(context, lambda control: control.state.copy())
    return {"pools": await run_in_threadpool(pool_documents, state)}


async def order_of_queue(context: ServerContext) -> dict[int, int]:
    """Return run id → place in the queue from 0, as of the newest plan."""
    now_ms = context.clock.now_ms()
    asked = context.loop.inquire(lambda planning: in_order(planning.book, now_ms))
    queue: list[int] = await asyncio.wrap_future(asked)
    return {run_id: place for place, run_id in enumerate(queue)}


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
