"""Joining and leaving a fleet, over HTTP: for ``airyard node``, which holds the fleet's token and no person's.

Owns: the wire side. Must not know: what is checked (``fleet``). Outside ``/api``, whose gate asks for a person's token.
"""

from __future__ import annotations

import time
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request
from fastapi.concurrency import run_in_threadpool
from pydantic import BaseModel, ConfigDict, Field

import airyard
from airyard.core.access.roles import Thing, Verb
from airyard.server.audit import note_of
from airyard.server.fleet import Applicant, FleetDesk

PREFIX = "/fleet/v1"
Text = Annotated[str, Field(max_length=4096)]
Name = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")]


Bearer = Annotated[str | None, Header()]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class JoinRequest(_Body):
    """A machine's description of itself."""

    name: Name
    machine_id: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
    version: Text
    ray: Text
    python: Text
    address: Annotated[str, Field(max_length=256)]
    port: Annotated[int, Field(ge=1, le=65535)]
    nonce: Annotated[str, Field(min_length=16, max_length=128)]


class UntilRequest(_Body):
    """When a machine leaves, in Unix ms; 0: it stays."""

    name: Name
    until_ms: Annotated[int, Field(ge=0, lt=2**53)]


class LeaveRequest(_Body):
    """A machine that leaves; ``force``: though members of it live on; ``within_s``: they are to be gone by then."""

    name: Name
    force: bool = False
    within_s: Annotated[int, Field(ge=1, le=31 * 86_400)] | None = None


def router(desk: FleetDesk) -> APIRouter:
    """Return the routes over one desk."""
    routes = APIRouter(prefix=PREFIX, tags=["fleet"])

    @routes.get("/identify")
    async def identify(nonce: Annotated[str, Query(min_length=16, max_length=128)]) -> dict[str, Any]:
        """Prove that this server holds the fleet's token, and tell its time. Needs no token."""
        return {
            "service": "airyard",
            "version": airyard.__version__,
            "proof": desk.proof(nonce),
            "time_ns": time.time_ns(),
        }

    @routes.post("/join")
    async def join(request: Request, body: JoinRequest, authorization: Bearer = None) -> dict[str, Any]:
        """Check a machine that wants to join; say where Ray is."""
        desk.authorise(authorization)
        _note(request, body.name)
        return await run_in_threadpool(desk.join, Applicant(**body.model_dump()))

    @routes.get("/machines/{name}")
    async def machine(name: str, machine_id: str, authorization: Bearer = None) -> dict[str, Any]:
        """Say whether a machine has arrived."""
        desk.authorise(authorization)
        return await run_in_threadpool(desk.is_in, name, machine_id)

    @routes.post("/until")
    async def until(request: Request, body: UntilRequest, authorization: Bearer = None) -> dict[str, Any]:
        """Set the end of a machine's stay."""
        desk.authorise(authorization)
        _note(request, body.name)
        return await run_in_threadpool(desk.until, body.name, body.until_ms)

    @routes.post("/leave")
    async def leave(request: Request, body: LeaveRequest, authorization: Bearer = None) -> dict[str, Any]:
        """Say whether a machine may leave."""
        desk.authorise(authorization)
        _note(request, body.name)
        return await run_in_threadpool(
            lambda: desk.leave(body.name, force=body.force, within_s=body.within_s)
        )

    return routes


def _note(request: Request, machine: str) -> None:
    """Have the audit name the machine that a holder of the fleet's token speaks for."""
    note = note_of(request.scope)
    if note is not None:
        note.verb, note.thing, note.object = Verb.MANAGE, Thing.NODE, machine
