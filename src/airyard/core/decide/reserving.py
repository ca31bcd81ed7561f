"""Decides which nodes may be set aside, and when.

Owns: the acceptance and the end of reservations. Must not know: the wire.
"""

from __future__ import annotations

from dataclasses import replace

from airyard.core.commands import EndReservation, MakeReservation
from airyard.core.decide.decision import Decision
from airyard.core.errors import NotFound
from airyard.core.events import ReservationEnded, ReservationMade
from airyard.core.state import ClusterState


def reserve(state: ClusterState, command: MakeReservation, now_ms: int) -> Decision:
    """Set nodes aside."""
    made = replace(command.reservation, reservation_id=state.next_reservation_id)
    return Decision(events=(ReservationMade(reservation=made),))


def end(state: ClusterState, command: EndReservation, now_ms: int) -> Decision:
    """Take a reservation back. Raises: NotFound."""
    if command.reservation_id not in state.reservations:
        raise NotFound(f"there is no reservation {command.reservation_id}", code="RESERVATION_NOT_FOUND")
    return Decision(events=(ReservationEnded(reservation_id=command.reservation_id, by=command.by),))
