"""Which reservations are made, what they refuse, and how their nodes become free and stay free."""

from __future__ import annotations

from typing import Any

import pytest

from airyard.core import commands as c
from airyard.core.decide import Reserved
from airyard.core.decide.clearing import CLEARING_MS
from airyard.core.errors import AiryardError, Conflict, NotFound, UserError
from airyard.core.policy import DAY_MS, HOUR_MS, Policy, ProjectPolicy, Reservation, UserPolicy
from airyard.core.run import Cause, RunState, StopReason
from airyard.core.workload import PreemptionRules
from core_yard import START_MS, Yard, kinds, node, workload

LATER_MS = START_MS + HOUR_MS


def ask(*nodes: str, evict: bool = False, **fields: Any) -> c.MakeReservation:
    times = {"from_ms": LATER_MS, "to_ms": LATER_MS + HOUR_MS, "maintenance": "project" not in fields}
    wanted = Reservation(reservation_id=0, nodes=nodes, by="op", **{**times, **fields})
    return c.MakeReservation(reservation=wanted, evict=evict)


def reserve(yard: Yard, *nodes: str, **fields: Any) -> Reserved:
    reply = yard.do(ask(*nodes, **fields)).reply
    assert isinstance(reply, Reserved)
    return reply


def refused(yard: Yard, kind: type[AiryardError], *nodes: str, **fields: Any) -> AiryardError:
    with pytest.raises(kind) as caught:
        reserve(yard, *nodes, **fields)
    assert caught.value.fix is not None
    assert yard.state.reservations == {}
    return caught.value


def running(**fields: Any) -> Yard:
    """A run of 8 devices on node a, another such node b free."""
    yard = Yard(node("a"), node("b"))
    yard.submit(workload(**fields))
    yard.place()
    yard.start("1.0.0")
    return yard


def drained(yard: Yard) -> bool:
    stop = yard.attempt(1).stop
    return stop is not None and stop.reason is StopReason.DRAIN


# --- what is refused


def test_unknown_nodes_are_named_with_what_was_meant() -> None:
    yard = Yard(node("gamma-1"), node("gamma-2"))
    error = refused(yard, NotFound, "gama-1", "gamma-2")
    assert error.code == "NODE_NOT_FOUND"
    assert "did you mean 'gamma-1'?" in error.message
    assert "gamma-2" not in error.message
    assert refused(yard, UserError).code == "BAD_RESERVATION"


@pytest.mark.parametrize(
    ("from_ms", "to_ms", "why"),
    [
        (LATER_MS, LATER_MS, "is not after its begin"),
        (LATER_MS, LATER_MS - 1, "is not after its begin"),
        (START_MS - 2, START_MS, "has passed"),
        (LATER_MS, LATER_MS + 367 * DAY_MS, "over 366 days"),
        (START_MS + 367 * DAY_MS, START_MS + 368 * DAY_MS, "over 366 days away"),
    ],
)
def test_times_that_cannot_be(from_ms: int, to_ms: int, why: str) -> None:
    assert why in refused(Yard(node("a")), UserError, "a", from_ms=from_ms, to_ms=to_ms).message


def test_it_is_for_maintenance_or_for_a_project_and_for_ones_own_when_nothing_is_said() -> None:
    yard = Yard(node("a"))
    assert "not for both" in refused(yard, UserError, "a", maintenance=True, project="nlp").message
    users = (UserPolicy(name="op", default_project="infra"),)
    projects = (ProjectPolicy(name="infra"), ProjectPolicy(name="nlp"))
    yard.do(c.DeclarePolicy(policy=Policy(projects=projects, users=users), by="op"))
    assert refused(yard, UserError, "a", project="npl").code == "UNKNOWN_PROJECT"
    made = reserve(yard, "a", maintenance=False).reservation
    assert (made.reservation_id, made.project, made.maintenance) == (1, "infra", False)


def test_an_overlap_names_the_other_one() -> None:
    yard = Yard(node("a"), node("b"))
    reserve(yard, "a", "a", note="fans")
    with pytest.raises(Conflict) as caught:
        reserve(yard, "b", "a", from_ms=LATER_MS + HOUR_MS - 1, to_ms=LATER_MS + 2 * HOUR_MS)
    error = caught.value
    assert error.code == "ALREADY_RESERVED"
    assert error.message.startswith("a is reserved already for maintenance from 1970-01-01 01:16:40 UTC")
    assert "(reservation 1, by op)" in error.message
    assert reserve(yard, "a", from_ms=LATER_MS + HOUR_MS, to_ms=LATER_MS + 2 * HOUR_MS).warnings == ()
    assert reserve(yard, "b").reservation.reservation_id == 3
    assert yard.state.reservations[1].nodes == ("a",)


# --- running work


def test_over_running_work_from_now_on_it_is_refused_unless_the_runs_are_to_leave() -> None:
    yard = running()
    error = refused(yard, Conflict, "a", "b", from_ms=START_MS - 5)
    assert (error.code, error.details["runs"]) == ("NODES_IN_USE", [1])
    assert error.message == "run 1 is on these nodes now"
    assert reserve(yard, "b", from_ms=START_MS).reservation.from_ms == START_MS
    reply = reserve(yard, "a", from_ms=START_MS, evict=True)
    assert "run 1 (ada) on a may still run then: it is asked to leave now" in reply.warnings[0]
    assert kinds(yard.tick(1)) == ["StopOrdered"]


def test_over_running_work_later_it_says_what_will_happen() -> None:
    yard = running()
    (warning,) = reserve(yard, "a").warnings
    assert "asked to leave at 1970-01-01 01:14:30 UTC, with a grace of 2 min" in warning
    assert reserve(running(project="nlp"), "a", project="nlp").warnings == ()
    # Its own limit ends it before.
    assert reserve(running(attempt_timeout_s=600), "a").warnings == ()


def test_a_run_leaves_in_time_keeps_its_place_and_goes_on_elsewhere() -> None:
    yard = running()
    reserve(yard, "a")
    leave_s = 3600 - 120 - CLEARING_MS // 1000
    assert kinds(yard.tick(leave_s - 1)) == []
    assert kinds(yard.tick(1)) == ["StopOrdered"]
    stop = yard.attempt(1).stop
    assert stop is not None
    assert (stop.reason, stop.by, stop.grace_s) == (StopReason.DRAIN, "op", 120)
    assert "node a is reserved for maintenance from 1970-01-01 01:16:40 UTC (reservation 1)" in stop.message
    yard.exit("1.0.0", Cause.OPERATOR, stop_reason="DRAIN")
    run = yard.run(1)
    assert (run.state, run.queued_ms, run.retries_spent) == (RunState.QUEUED, START_MS, 0)
    assert run.attempts[0].cause is Cause.OPERATOR
    yard.place()
    assert all(member.node == "b" for attempt in yard.run(1).attempts[1:] for member in attempt.members)


def test_the_grace_is_the_runs_own() -> None:
    yard = running(preemption=PreemptionRules(grace_s=600))
    reserve(yard, "a")
    yard.tick(3600 - 600 - 11)
    assert not drained(yard)
    yard.tick(1)
    assert drained(yard)


def test_a_run_whose_limit_ends_it_in_time_is_left_alone_until_the_begin() -> None:
    yard = running(attempt_timeout_s=3400)
    reserve(yard, "a")
    yard.tick(3599)
    assert not drained(yard)
    yard.tick(1)  # it has outstayed its own limit: its runner is late
    assert drained(yard)


def test_runs_of_the_project_stay_and_others_leave() -> None:
    yard = running(project="nlp")
    reserve(yard, "a", project="nlp")
    assert kinds(yard.tick(3700)) == []
    yard = running(project="vision")
    reserve(yard, "a", project="nlp")
    assert kinds(yard.tick(3700)) == ["StopOrdered"]


def test_nobody_is_asked_twice_and_a_gang_leaves_whole() -> None:
    yard = Yard(node("a"), node("b"))
    yard.submit(workload(nodes=2))
    yard.place()
    yard.start("1.0.0", "1.0.1")
    reserve(yard, "b")
    assert kinds(yard.tick(3500)) == ["StopOrdered"]
    assert kinds(yard.tick(1)) == []


# --- who may come


def commits(yard: Yard) -> bool:
    """Commit a plan for run 1 that was made before anything was reserved."""
    return kinds(yard.do(c.CommitPlan(plan=yard.kept))) == ["AttemptPlaced"]


def planned(**fields: Any) -> Yard:
    yard = Yard(node("a"))
    yard.submit(workload(**fields))
    yard.kept = yard.plan()
    return yard


def test_nobody_starts_on_a_node_that_is_reserved_for_others() -> None:
    yard = planned()
    reserve(yard, "a", from_ms=START_MS)
    assert not commits(yard)
    yard = planned(project="nlp")
    reserve(yard, "a", from_ms=START_MS, project="nlp")
    assert commits(yard)


def test_nor_shortly_before_unless_its_limit_ends_it_in_time() -> None:
    for seconds, limit_s, starts in ((3_460, None, True), (3_480, None, False), (3_400, 60, True)):
        yard = planned(attempt_timeout_s=limit_s)
        reserve(yard, "a")
        assert commits(yard.later(seconds)) is starts, (seconds, limit_s)
        assert kinds(yard.tick()) == []


def test_the_clock_ends_a_reservation_and_a_person_does() -> None:
    yard = planned()
    reserve(yard, "a")
    assert kinds(yard.tick(7199)) == []
    assert kinds(yard.tick(1)) == ["ReservationEnded"]
    assert commits(yard)
    yard = planned()
    reserve(yard, "a", from_ms=START_MS)
    assert kinds(yard.do(c.EndReservation(reservation_id=1, by="op"))) == ["ReservationEnded"]
    assert commits(yard)
    with pytest.raises(NotFound, match="there is no reservation 1; this yard has none"):
        yard.do(c.EndReservation(reservation_id=1, by="op"))
