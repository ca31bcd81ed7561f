"""How reserved nodes become free in time, and stay free: who has to leave when, and who may not come.

Owns: the moment at which a run is asked to leave, the end of reservations by the clock.
Must not know: which reservations may be made.
"""

from __future__ import annotations

from airyard.core.decide.grace import grace_of
from airyard.core.events import ReservationEnded
from airyard.core.policy import Reservation
from airyard.core.run import Attempt, Run, StopReason, StopRequest
from airyard.core.state import ClusterState
from airyard.core.wording import moment

CLEARING_MS = 10_000
"""What leaving takes beside the grace: the order has to arrive, the rest to be killed, the end to be reported."""


def clear_from_ms(reservation: Reservation, run: Run) -> int:
    """Return when the run has to be asked to leave so that it is gone when the reservation begins."""
    return reservation.from_ms - grace_of(run) * 1000 - CLEARING_MS


def limit_end_ms(run: Run, begun_ms: int) -> int | None:
    """Return when an attempt that began then is gone by its own time limit; None without one."""
    limit_s = run.workload.attempt_timeout_s
    return None if limit_s is None else begun_ms + (limit_s + grace_of(run)) * 1000


def in_the_way(reservation: Reservation, run: Run, node: str, begun_ms: int, now_ms: int) -> bool:
    """True when the run may not be on the node any more (or yet): a reservation for others is on, or about to begin.

    Before the begin, a run whose own limit ends it in time is left alone.
    """
    own = not reservation.bars(node, run.project, reservation.from_ms, reservation.to_ms)
    if own or now_ms >= reservation.to_ms:
        return False
    if now_ms >= reservation.from_ms:
        return True
    end_ms = limit_end_ms(run, begun_ms)
    return clear_from_ms(reservation, run) <= now_ms and (end_ms is None or end_ms > reservation.from_ms)


def barring(state: ClusterState, run: Run, node: str, now_ms: int) -> Reservation | None:
    """Return the reservation for which the run may not start on the node now, if there is one."""
    found = (r for r in state.reservations.values() if in_the_way(r, run, node, now_ms, now_ms))
    return next(found, None)


def leaving(state: ClusterState, run: Run, attempt: Attempt, now_ms: int) -> StopRequest | None:
    """Return the request to leave that an attempt gets for a reservation of one of its nodes.

    Its cause is OPERATOR: the run keeps its place in the queue and its retries, and goes on elsewhere.
    """
    begun_ms = now_ms if attempt.running_ms is None else attempt.running_ms
    for reservation in state.reservations.values():
        for member in attempt.members:
            if not member.released and in_the_way(reservation, run, member.node, begun_ms, now_ms):
                return StopRequest(
                    reason=StopReason.DRAIN,
                    by=reservation.by,
                    at_ms=now_ms,
                    grace_s=grace_of(run),
                    message=f"node {member.node} is reserved {purpose(reservation)} from "
                    f"{moment(reservation.from_ms)} (reservation {reservation.reservation_id})",
                )
    return None


def purpose(reservation: Reservation) -> str:
    """Say for what nodes are reserved."""
    return "for maintenance" if reservation.maintenance else f"for project {reservation.project}"


def expired(state: ClusterState, now_ms: int) -> list[ReservationEnded]:
    """Return the ends of reservations whose time is over."""
    return [
        ReservationEnded(reservation_id=reservation.reservation_id, by="clock")
        for reservation in state.reservations.values()
        if reservation.to_ms <= now_ms
    ]
