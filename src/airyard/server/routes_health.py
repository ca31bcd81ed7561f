"""Nodes' health: what became of them, and what persons and monitors of their own say.

Owns: the wire side of these requests. Must not know: what follows from them. The loop's state is asked, as for nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from fastapi.concurrency import run_in_threadpool

from airyard.app.control import Control
from airyard.app.health_views import events_document
from airyard.app.node_views import node_documents, operated_document
from airyard.app.views import Document
from airyard.checks.contract import Profile
from airyard.checks.preflight.results import result_to_json
from airyard.core.commands import AcquitNodes, HealthReported, ResetBreaker, SetMaintenance
from airyard.core.decide import Operated
from airyard.core.decide.operating import unknown_node
from airyard.core.decide.reporting import located
from airyard.core.health import reports
from airyard.core.health.facts import HealthEvent
from airyard.server.context import ServerContext
from airyard.server.requests import PREFIX, Caller, Context, ask, query
from airyard.wire import health as wire
from airyard.wire.nodes import OperatedAnswer

router = APIRouter(prefix=PREFIX + "/health", tags=["yard"])


@router.get("/events", responses={200: {"model": wire.HealthEventsAnswer}})
async def events(
    context: Context,
    node: Annotated[str | None, Query(max_length=200, description="Only of this node.")] = None,
    since_s: Annotated[int | None, Query(ge=1, le=10**9, description="Only of so many seconds.")] = None,
) -> Document:
    """Return what became of nodes by their health, the newest last; fifty steps a node are kept here."""
    since_ms = context.clock.now_ms() - since_s * 1000 if since_s is not None else 0

    def read(control: Control) -> Document:
        state = control.state
        # A node that left has its story still.
        if node is not None and node not in state.nodes and node not in state.stories:
            raise unknown_node([node], state.nodes, "node")
        return events_document(state, node, since_ms)

    return await query(context, read)


@router.post("/maintenance", responses={200: {"model": OperatedAnswer}})
async def maintenance(context: Context, caller: Caller, body: wire.MaintenanceRequest) -> dict[str, Any]:
    """Take nodes over, or give them back to be tested."""
    command = SetMaintenance(nodes=tuple(body.nodes), by=caller.name, on=body.on, reason=body.reason)
    return await _operate(context, command)


@router.post("/acquit", responses={200: {"model": OperatedAnswer}})
async def acquit(context: Context, caller: Caller, body: wire.AcquitRequest) -> dict[str, Any]:
    """Take the caller's word that it was a false alarm: suspects are healthy, nodes that were out are on probation."""
    return await _operate(context, AcquitNodes(nodes=tuple(body.nodes), by=caller.name, reason=body.reason))


@router.post("/breaker/reset", responses={200: {"model": OperatedAnswer}})
async def reset_breaker(context: Context, caller: Caller, body: wire.ResetBreakerRequest) -> dict[str, Any]:
    """Let nodes of a pool be taken out again; of all pools without a name."""
    return await _operate(context, ResetBreaker(by=caller.name, pool=body.pool))


@router.post("/report", responses={200: {"model": wire.HealthReportAnswer}})
async def report(context: Context, caller: Caller, body: wire.HealthReportRequest) -> dict[str, Any]:
    """Take what monitors of one's own saw; the same event again says nothing new."""
    now_ms = context.clock.now_ms()
    said = [reports.read(one, now_ms, place=place) for place, one in enumerate(body.events)]

    def place(control: Control) -> tuple[HealthEvent, ...]:
        return located(control.state, said)

    found = await query(context, place)
    await ask(context, HealthReported(events=found, by=caller.name))
    context.throttles.put(found, context.clock.monotonic_ms())
    notes = [note for place, one in enumerate(body.events) if (note := reports.left_out(one, place=place))]
    return {"taken": len(found), "notes": notes}


@router.post("/check", responses={200: {"model": wire.CheckBegun}})
async def check(context: Context, caller: Caller, body: wire.CheckRequest) -> dict[str, Any]:
    """Have a node checked by its agent; what fails is reported as its health, on the caller's word."""
    await query(context, partial(_check_known, [body.node]))
    begin = partial(context.rounds.begin, body.node, Profile(body.profile), caller.name)
    return {"round": await run_in_threadpool(begin)}


@router.get("/check/{name}", responses={200: {"model": wire.CheckAnswer}})
async def checked(
    context: Context,
    name: Annotated[str, Path(max_length=64, description="The round, as it was begun.")],
    wait_s: Annotated[float, Query(ge=0, le=20, description="Wait so long for its end.")] = 0.0,
) -> dict[str, Any]:
    """Return what a round of checks came to, once it is over; one that nobody asks for is ended."""
    found = await run_in_threadpool(context.rounds.wait, name, wait_s)
    if found is None:
        return {"done": False}
    return {
        "done": True,
        "problem": found.problem.as_json() if found.problem is not None else None,
        "node": found.node,
        "profile": found.profile.value,
        "simulated": found.simulated,
        "reported": found.reported,
        "checks": [result_to_json(one) for one in found.results],
    }


@router.post("/pair", responses={200: {"model": wire.CheckBegun}})
async def pair(context: Context, caller: Caller, body: wire.PairRequest) -> dict[str, Any]:
    """Have two nodes tested against each other. Nothing is reported: it does not say which of the two it is."""
    await query(context, partial(_check_known, body.nodes))
    return {"round": await run_in_threadpool(partial(context.pairs.begin, *body.nodes))}


@router.get("/pair/{name}", responses={200: {"model": wire.PairAnswer}})
async def paired(
    context: Context,
    name: Annotated[str, Path(max_length=64, description="The test, as it was begun.")],
    wait_s: Annotated[float, Query(ge=0, le=20, description="Wait so long for its end.")] = 0.0,
) -> dict[str, Any]:
    """Return what a test of two nodes came to, once it is over; one that nobody asks for is ended."""
    found = await run_in_threadpool(context.pairs.wait, name, wait_s)
    return {"done": False} if found is None else {"done": True, **found.as_json()}


def _check_known(names: Sequence[str], control: Control) -> None:
    """Refuse names that are no nodes, with the nearest. Raises: NotFound."""
    nodes = control.state.nodes
    if unknown := [name for name in names if name not in nodes]:
        raise unknown_node(unknown, nodes, "node")


async def _operate(
    context: ServerContext, command: SetMaintenance | AcquitNodes | ResetBreaker
) -> dict[str, Any]:
    reply = await ask(context, command)
    assert isinstance(reply, Operated)
    now_ms = context.clock.now_ms()

    def read(control: Control) -> dict[str, Document]:
        return {each["name"]: each for each in node_documents(control.state, now_ms)}

    return operated_document(reply, await query(context, read))
