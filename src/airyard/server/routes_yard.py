"""The yard: what waits, nodes and their devices, pools.

Owns: the wire side of these reads. Must not know: how plans are made. The loop's state is asked, because only it
knows who holds a device at this moment.
"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from airyard.app.control import Control
from airyard.app.views import Document, Lights, node_document, pool_documents, run_document
from airyard.core.cluster import Machine, Node
from airyard.core.run import Run, RunState
from airyard.core.scheduling.feasible import natural
from airyard.core.scheduling.plan import Refusal
from airyard.core.scheduling.planner import order_key
from airyard.core.scheduling.snapshot import waiting_of
from airyard.server.context import ServerContext
from airyard.server.requests import PREFIX, Context, query
from airyard.wire import native

router = APIRouter(prefix=PREFIX, tags=["yard"])


@router.get("/queue", responses={200: {"model": native.RunsAnswer}})
async def queue(context: Context) -> dict[str, Any]:
    """Return the waiting runs in the order in which they are considered, each with ``position`` and ``pending``."""

    def read(control: Control) -> tuple[list[Run], dict[int, Refusal]]:
        waiting = [run for run in control.state.runs.values() if run.state is RunState.QUEUED]
        refusals = {run.run_id: control.refusal(run.run_id) for run in waiting}
        return waiting, {run_id: refusal for run_id, refusal in refusals.items() if refusal is not None}

    waiting, refusals = await query(context, read)
    waiting.sort(key=lambda run: order_key(waiting_of(run)))
    lights = Lights(refusals=refusals)
    runs = [
        {**run_document(run, lights), "position": position} for position, run in enumerate(waiting, start=1)
    ]
    return {"runs": runs}


@router.get("/nodes", responses={200: {"model": native.NodesAnswer}})
async def nodes(context: Context) -> dict[str, Any]:
    """Return the nodes with what each device is doing."""
    return {"nodes": await _nodes(context)}


@router.get("/pools", responses={200: {"model": native.PoolsAnswer}})
async def pools(context: Context) -> dict[str, Any]:
    """Return the pools: accelerator types, and what of them is free."""
    return {"pools": pool_documents(await _nodes(context))}


async def _nodes(context: ServerContext) -> list[Document]:
    def read(control: Control) -> tuple[list[Node], dict[str, Machine], dict[str, dict[int, int]]]:
        state = control.state
        return list(state.nodes.values()), dict(state.machines), state.bookings()

    found, machines, booked = await query(context, read)
    found.sort(key=lambda node: natural(node.name))
    return [node_document(node, machines.get(node.machine), booked.get(node.name, {})) for node in found]
