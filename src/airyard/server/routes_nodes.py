"""Nodes: what they do, and what operators do with them: cordon, uncordon, drain, the word that a machine is dead.

Owns: the wire side of these requests. Must not know: what may be done. The loop's state is asked, because only it
knows who holds a device at this moment.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path
from fastapi.concurrency import run_in_threadpool

from airyard.app.control import Control
from airyard.app.node_views import inside, node_documents, operated_document
from airyard.app.views import Document
from airyard.core.commands import ConfirmDead, CordonNodes, DrainNodes, UncordonNodes
from airyard.core.decide import Operated
from airyard.core.decide.operating import unknown_node
from airyard.core.errors import UserError
from airyard.core.state import ClusterState
from airyard.server.access import sight
from airyard.server.context import ServerContext
from airyard.server.requests import PREFIX, Caller, Context, ask, query
from airyard.wire import nodes as wire

router = APIRouter(prefix=PREFIX, tags=["yard"])
NodeName = Annotated[str, Path(max_length=200, description="The name of a node.")]


@router.get("/nodes", responses={200: {"model": wire.NodesAnswer}})
async def nodes(context: Context) -> dict[str, Any]:
    """Return the nodes with what each device is doing."""
    return {"nodes": list((await _nodes(context)).values())}


@router.get("/nodes/{name}", responses={200: {"model": wire.NodeAnswer}})
async def node(context: Context, caller: Caller, name: NodeName) -> dict[str, Any]:
    """Return one node, its machine, and the runs on it; of those that the caller may not see no name and owner."""
    state = await query(context, _copy)
    found = await run_in_threadpool(inside, state, name, context.clock.now_ms())
    if found is None:
        raise unknown_node([name], state.nodes, "node")
    sees = sight(context, caller.principal)
    if sees is not None:
        for resident in found["runs"]:
            if not sees(state.runs[resident["run_id"]]):
                resident.update(name="", owner="", project="")
    return found


@router.post("/nodes/cordon", responses={200: {"model": wire.OperatedAnswer}})
async def cordon(context: Context, caller: Caller, body: wire.CordonRequest) -> dict[str, Any]:
    """Close nodes for new members; who is on them stays."""
    command = CordonNodes(nodes=tuple(body.nodes), by=caller.name, reason=body.reason)
    return await _operate(context, command)


@router.post("/nodes/uncordon", responses={200: {"model": wire.OperatedAnswer}})
async def uncordon(context: Context, caller: Caller, body: wire.UncordonRequest) -> dict[str, Any]:
    """Open nodes again; a drain of them is called off."""
    return await _operate(context, UncordonNodes(nodes=tuple(body.nodes), by=caller.name))


@router.post("/nodes/drain", responses={200: {"model": wire.OperatedAnswer}})
async def drain(context: Context, caller: Caller, body: wire.DrainRequest) -> dict[str, Any]:
    """Close nodes and ask who is on them to leave: at once, or so as to be gone by the deadline."""
    deadline_ms = body.deadline_at
    if body.deadline_s is not None:
        if deadline_ms is not None:
            raise UserError("a drain has deadline_at or deadline_s, not both", code="BAD_DEADLINE")
        deadline_ms = context.clock.now_ms() + body.deadline_s * 1000
    command = DrainNodes(nodes=tuple(body.nodes), by=caller.name, reason=body.reason, deadline_ms=deadline_ms)
    return await _operate(context, command)


@router.post("/nodes/{name}/confirm-dead", responses={200: {"model": wire.ConfirmDeadAnswer}})
async def confirm_dead(
    context: Context, caller: Caller, name: NodeName, body: wire.ConfirmDeadRequest
) -> dict[str, Any]:
    """Take the caller's word that nothing runs any more on a machine that is away; ``name`` is it, or a node of it."""
    command = ConfirmDead(name=name, by=caller.name, reason=body.reason, boot_id=body.boot_id)
    reply = await ask(context, command)
    assert isinstance(reply, Operated)
    (note,) = reply.notes
    return {"machine": note.node, "changed": note.changed, "message": note.message}


async def _operate(
    context: ServerContext, command: CordonNodes | UncordonNodes | DrainNodes
) -> dict[str, Any]:
    reply = await ask(context, command)
    assert isinstance(reply, Operated)
    return operated_document(reply, await _nodes(context))


async def _nodes(context: ServerContext) -> dict[str, Document]:
    state = await query(context, _copy)
    found = await run_in_threadpool(node_documents, state, context.clock.now_ms())
    return {each["name"]: each for each in found}


def _copy(control: Control) -> ClusterState:
    return control.state.copy()
