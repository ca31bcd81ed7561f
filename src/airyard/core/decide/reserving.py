"""Decides which nodes may be set aside, when, and what that means for the runs on them.

Owns: the acceptance of reservations, and their end by a person. Must not know: the wire; how nodes become free
(``clearing.py``).
"""

from __future__ import annotations

from dataclasses import replace

from airyard.core.commands import EndReservation, MakeReservation
from airyard.core.decide.admission import check_project
from airyard.core.decide.clearing import clear_from_ms, limit_end_ms, purpose
from airyard.core.decide.decision import Decision, Reserved
from airyard.core.decide.grace import grace_of
from airyard.core.errors import Conflict, Fix, NotFound, UserError
from airyard.core.events import ReservationEnded, ReservationMade
from airyard.core.policy import DAY_MS, Reservation
from airyard.core.policy_rules import listed, near
from airyard.core.run import Attempt, Run
from airyard.core.state import ClusterState
from airyard.core.wording import moment, span

MAX_SPAN_MS = 366 * DAY_MS


def reserve(state: ClusterState, command: MakeReservation, now_ms: int) -> Decision:
    """Set nodes aside. What is not for maintenance is for a project: the maker's own unless one is named.

    Raises: NotFound for unknown nodes; UserError for times and purposes that cannot be; Conflict for nodes that are
    reserved already, or from now on while runs are on them; what ``admission`` refuses.
    """
    asked = command.reservation
    if asked.maintenance and asked.project is not None:
        raise UserError(
            f"a reservation is for maintenance or for a project, not for both; this one names project {asked.project}",
            code="BAD_RESERVATION",
            fix="leave one of the two out",
        )
    _check_nodes(state, asked)
    _check_times(asked, now_ms)
    wanted = replace(
        asked,
        reservation_id=state.next_reservation_id,
        nodes=tuple(dict.fromkeys(asked.nodes)),
        from_ms=max(asked.from_ms, now_ms),
        project=None if asked.maintenance else asked.project or state.policy.project_for(asked.by),
    )
    if wanted.project is not None:
        check_project(state.policy, wanted.by, wanted.project)
    _check_overlap(state, wanted)
    warnings = _check_running(state, wanted, now_ms, evict=command.evict)
    reply = Reserved(reservation=wanted, warnings=warnings)
    return Decision(events=(ReservationMade(reservation=wanted),), reply=reply)


def end(state: ClusterState, command: EndReservation, now_ms: int) -> Decision:
    """Take a reservation back. Raises: NotFound."""
    if command.reservation_id not in state.reservations:
        known = listed(map(str, state.reservations))
        raise NotFound(
            f"there is no reservation {command.reservation_id}; "
            + (f"this yard has {known}" if known else "this yard has none"),
            code="RESERVATION_NOT_FOUND",
            fix=Fix(text="`airyard reservations` lists them", command="airyard reservations"),
        )
    return Decision(events=(ReservationEnded(reservation_id=command.reservation_id, by=command.by),))


def _check_nodes(state: ClusterState, asked: Reservation) -> None:
    if not asked.nodes:
        raise UserError(
            "a reservation needs nodes; this one names none",
            code="BAD_RESERVATION",
            fix=Fix(text="`airyard nodes` lists the nodes", command="airyard nodes"),
        )
    unknown = [name for name in asked.nodes if name not in state.nodes]
    if unknown:
        raise NotFound(
            "; ".join(f"there is no node {name!r}{near(name, state.nodes)}" for name in unknown[:5]),
            code="NODE_NOT_FOUND",
            details={"nodes": unknown},
            fix=Fix(text="`airyard nodes` lists the nodes", command="airyard nodes"),
        )


def _check_times(asked: Reservation, now_ms: int) -> None:
    problem = None
    if asked.from_ms >= asked.to_ms:
        problem = f"its end {moment(asked.to_ms)} is not after its begin {moment(asked.from_ms)}"
    elif asked.to_ms <= now_ms:
        problem = f"its end {moment(asked.to_ms)} has passed; it is {moment(now_ms)}"
    elif asked.from_ms > now_ms + MAX_SPAN_MS:
        problem = f"its begin {moment(asked.from_ms)} is over {MAX_SPAN_MS // DAY_MS} days away"
    elif asked.to_ms - max(asked.from_ms, now_ms) > MAX_SPAN_MS:
        problem = f"it would last over {MAX_SPAN_MS // DAY_MS} days"
    if problem is not None:
        raise UserError(
            f"this reservation cannot be: {problem}",
            code="BAD_RESERVATION",
            fix="give a begin, and an end after it, both within a year",
        )


def _check_overlap(state: ClusterState, wanted: Reservation) -> None:
    for other in state.reservations.values():
        shared = [name for name in wanted.nodes if name in other.nodes]
        if shared and wanted.from_ms < other.to_ms and other.from_ms < wanted.to_ms:
            raise Conflict(
                f"{listed(shared)} {'is' if len(shared) == 1 else 'are'} reserved already {purpose(other)} from "
                f"{moment(other.from_ms)} to {moment(other.to_ms)} (reservation {other.reservation_id}, by {other.by})",
                code="ALREADY_RESERVED",
                details={"reservation_id": other.reservation_id, "nodes": shared},
                fix=Fix(
                    text="choose another time or other nodes, or take that one back",
                    command=f"airyard unreserve {other.reservation_id}",
                ),
            )


def _check_running(state: ClusterState, wanted: Reservation, now_ms: int, *, evict: bool) -> tuple[str, ...]:
    """Return what will happen to the runs that may still be on the nodes when the reservation begins.

    Raises: Conflict when it begins now and nobody said that they are to leave.
    """
    there = [(run, attempt) for run, attempt in state.live_attempts() if _stays(wanted, run, attempt, now_ms)]
    if not there:
        return ()
    if wanted.from_ms > now_ms or evict:
        return tuple(_warning(wanted, run, attempt, now_ms) for run, attempt in there)
    ids = [run.run_id for run, _ in there]
    grace = span(max(grace_of(run) for run, _ in there) * 1000)
    raise Conflict(
        f"run{'s' if len(ids) > 1 else ''} {listed(map(str, ids))} {'are' if len(ids) > 1 else 'is'} on these nodes "
        "now",
        code="NODES_IN_USE",
        details={"runs": ids},
        fix=f"let it begin later: they are then asked to leave in time (grace {grace}); or say --evict: they are asked "
        "to leave now. Either way they keep their place in the queue and go on elsewhere",
    )


def _stays(wanted: Reservation, run: Run, attempt: Attempt, now_ms: int) -> bool:
    """True when the attempt may still hold one of the nodes at the begin, unless it is asked to leave."""
    nodes = [member.node for member in attempt.members if not member.released]
    if not any(wanted.bars(node, run.project, wanted.from_ms, wanted.to_ms) for node in nodes):
        return False
    end_ms = limit_end_ms(run, now_ms if attempt.running_ms is None else attempt.running_ms)
    return end_ms is None or end_ms > wanted.from_ms


def _warning(wanted: Reservation, run: Run, attempt: Attempt, now_ms: int) -> str:
    nodes = listed(member.node for member in attempt.members if member.node in wanted.nodes)
    leave_ms = clear_from_ms(wanted, run)
    when = "now" if leave_ms <= now_ms else f"at {moment(leave_ms)}"
    return (
        f"run {run.run_id} ({run.owner}) on {nodes} may still run then: it is asked to leave {when}, with a grace of "
        f"{span(grace_of(run) * 1000)}; it keeps its place in the queue and goes on elsewhere"
    )
