"""Reservations: nodes set aside for a time, for maintenance or for a project.

Owns: the wire side of these requests. Must not know: which reservations may be made. The loop's state is asked: there
are few, and they are in no read table.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path

from airyard.app.control import Control
from airyard.app.views import Document, rfc3339
from airyard.core.commands import EndReservation, MakeReservation
from airyard.core.decide import Reserved
from airyard.core.errors import UserError
from airyard.core.policy import Reservation
from airyard.server.requests import PREFIX, Caller, Context, ask, query
from airyard.wire.changes import ReservationsAnswer, ReserveAnswer, ReserveRequest, UnreserveAnswer

router = APIRouter(prefix=PREFIX, tags=["yard"])
Number = Annotated[int, Path(ge=1, le=10**15, description="The number of a reservation.")]


@router.get("/reservations", responses={200: {"model": ReservationsAnswer}})
async def reservations(context: Context) -> dict[str, Any]:
    """Return the reservations that are not over, by their begin."""

    def read(control: Control) -> list[Reservation]:
        return list(control.state.reservations.values())

    found = await query(context, read)
    now_ms = context.clock.now_ms()
    # One that is over stays until the next tick.
    found = sorted((r for r in found if r.to_ms > now_ms), key=lambda r: (r.from_ms, r.reservation_id))
    return {"reservations": [_document(reservation, now_ms) for reservation in found]}


@router.post("/reservations", responses={200: {"model": ReserveAnswer}})
async def reserve(context: Context, caller: Caller, body: ReserveRequest) -> dict[str, Any]:
    """Set nodes aside; ``warnings`` says what becomes of runs that may still be on them when it begins."""
    now_ms = context.clock.now_ms()
    from_ms = now_ms if body.from_at is None else body.from_at
    wanted = Reservation(
        reservation_id=0,
        nodes=tuple(body.nodes),
        from_ms=from_ms,
        to_ms=_end_ms(body, max(from_ms, now_ms)),
        by=caller.name,
        maintenance=body.maintenance,
        project=body.project,
        note=body.note,
    )
    reply = await ask(context, MakeReservation(reservation=wanted, evict=body.evict))
    assert isinstance(reply, Reserved)
    return {
        "reservation": _document(reply.reservation, context.clock.now_ms()),
        "warnings": list(reply.warnings),
    }


@router.delete("/reservations/{number}", responses={200: {"model": UnreserveAnswer}})
async def unreserve(context: Context, caller: Caller, number: Number) -> dict[str, Any]:
    """Take a reservation back."""
    await ask(context, EndReservation(reservation_id=number, by=caller.name))
    return {"reservation_id": number}


def _end_ms(body: ReserveRequest, from_ms: int) -> int:
    if body.to_at is not None and body.duration_s is None:
        return body.to_at
    if body.to_at is None and body.duration_s is not None:
        return from_ms + body.duration_s * 1000
    raise UserError(
        "a reservation ends at to_at or lasts duration_s: name one of the two", code="BAD_RESERVATION"
    )


def _document(reservation: Reservation, now_ms: int) -> Document:
    return {
        "reservation_id": reservation.reservation_id,
        "nodes": list(reservation.nodes),
        "from_at": rfc3339(reservation.from_ms),
        "to_at": rfc3339(reservation.to_ms),
        "active": reservation.from_ms <= now_ms < reservation.to_ms,
        "maintenance": reservation.maintenance,
        "project": reservation.project,
        "by": reservation.by,
        "note": reservation.note,
    }
