"""Which events tell what."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airyard.core import events as e
from airyard.core.events import Recorded
from airyard.core.health.fabric_faults import Blamed, FabricFault, edge_fault
from airyard.core.health.facility import Incident, Supply
from airyard.core.health.idle_records import SweepNote
from airyard.core.health.states import HealthState, NodeHealth
from airyard.core.notices import SOURCES, Notice, notice_of
from airyard.core.run import Cause, Failure, Outcome, StallNote
from core_samples import SAMPLES

AT_MS = 1_700_000_000_000
FAILURE = Failure(cause=Cause.USER_CODE, message="exit code 1", next_step="read the log", node="n1")


def told(event: Any, seq: int = 7) -> Notice | None:
    return notice_of(Recorded(seq=seq, at_ms=AT_MS, epoch=2, event=event))


def words(event: Any) -> list[str]:
    notice = told(event)
    return [] if notice is None else [kind.value for kind in notice.kinds]


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        (Outcome.SUCCEEDED, ["done"]),
        (Outcome.CANCELLED, ["done"]),
        (Outcome.FAILED, ["failed", "done"]),
        (Outcome.TIMED_OUT, ["failed", "done"]),
    ],
)
def test_the_end_of_a_run(outcome: Outcome, expected: list[str]) -> None:
    assert words(e.RunEnded(run_id=5, outcome=outcome, cause=None, failure=None)) == expected


def test_an_end_says_how_and_why() -> None:
    notice = told(e.RunEnded(run_id=5, outcome=Outcome.FAILED, cause=Cause.USER_CODE, failure=FAILURE))
    assert notice is not None
    assert (notice.run_id, notice.outcome, notice.cause) == (5, "FAILED", "USER_CODE")
    assert (notice.message, notice.next_step, notice.node) == ("exit code 1", "read the log", "n1")


@pytest.mark.parametrize("outcome", list(Outcome))
def test_of_attempts_only_the_preempted_are_told(outcome: Outcome) -> None:
    event = e.AttemptEnded(run_id=5, attempt=1, outcome=outcome, cause=None, failure=None)
    assert words(event) == (["preempted"] if outcome is Outcome.PREEMPTED else [])


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (HealthState.QUARANTINED, ["node_quarantined"]),
        (HealthState.RETIRED, ["node_retired"]),
        (HealthState.PROBATION, ["node_back"]),
        (HealthState.HEALTHY, []),
        (HealthState.SUSPECT, []),
        (HealthState.RETESTING, []),
    ],
)
def test_a_node_s_health_is_told_when_its_state_changes(state: HealthState, expected: list[str]) -> None:
    health = NodeHealth(state=state, since_ms=AT_MS, rule="xid.79", waits_for="look at it")
    event = e.NodeHealthChanged(node="n1", health=health, why="off the bus", by="agent")
    assert words(event) == expected
    assert words(replace(event, health=replace(health, since_ms=AT_MS - 1))) == []


def test_the_yard_s_other_events() -> None:
    assert words(e.NodeCordoned(node="n1", by="op", reason="dust")) == ["node_cordoned"]
    assert words(e.BreakerOpened(pool="h100", why="3 of 8")) == ["breaker_open"]
    assert words(e.LeadBegan(epoch=2, version="1.0")) == ["server_takeover"]


def test_faults_between_nodes_are_told_when_they_begin_and_when_they_end() -> None:
    edge, leaf = edge_fault(("n1", "n2")), FabricFault(what=Blamed.LEAF, where="f/r1")
    sweep = SweepNote(number=1, at_ms=AT_MS, tests=9, edges=(("n1", "n2"),))
    same = e.FabricTested(pool="a", sweep=sweep)
    assert told(same) is None
    assert words(replace(same, begun=(edge,))) == ["fabric_fault"]
    assert words(replace(same, ended=(leaf,))) == ["fabric_well"]
    notice = told(replace(same, begun=(edge,), ended=(leaf,)))
    assert notice is not None
    assert [kind.value for kind in notice.kinds] == ["fabric_fault", "fabric_well"]
    assert notice.message == "edge n1 - n2; well again: leaf switch f/r1"
    assert (notice.pool, notice.node, notice.cause) == ("a", None, "fabric.edge")
    assert "cables" in str(notice.next_step)


def test_an_incident_of_the_facility_is_told_with_its_begin_and_its_end() -> None:
    incident = Incident(
        place="rack r3", supply=Supply.POWER, began_ms=AT_MS, nodes=("n1", "n2"), why="2 of 2 nodes"
    )
    begun = told(e.FacilityIncidentBegan(incident=incident))
    over = told(e.FacilityIncidentEnded(incident=replace(incident, ended_ms=AT_MS + 900_000)))
    assert begun is not None
    assert over is not None
    assert [one.value for one in (*begun.kinds, *over.kinds)] == ["facility_incident", "facility_well"]
    for notice in (begun, over):
        assert (notice.place, notice.node, notice.cause) == ("rack r3", None, "facility.power")
    assert begun.next_step is not None
    assert "not at its nodes" in begun.next_step
    assert over.message.endswith("it began 15 minutes ago")
    assert all(told(one) is None for one in SAMPLES if isinstance(one, e.SlowdownSeen))


def test_a_stall_is_one_occasion_however_often_its_verdict_changes() -> None:
    stall = StallNote(
        case="ABSENT",
        ranks=(3,),
        nodes=("n3",),
        step=40,
        at_ms=12,
        message="rank 3 waits in no collective",
        suspect_node="n3",
    )
    one = told(e.AttemptStalled(run_id=5, attempt=1, stall=stall), 7)
    other = told(e.AttemptStalled(run_id=5, attempt=1, stall=replace(stall, ranks=(3, 4), at_ms=13)), 9)
    later = told(e.AttemptStalled(run_id=5, attempt=1, stall=replace(stall, step=41)), 10)
    assert one is not None
    assert other is not None
    assert later is not None
    assert [kind.value for kind in one.kinds] == ["stalled"]
    assert (one.key, one.node, one.message) == (other.key, "n3", "rank 3 waits in no collective")
    assert later.key != one.key
    by_logs = told(e.AttemptStalled(run_id=5, attempt=1, stall=replace(stall, source="logs")), 11)
    assert by_logs is not None
    assert by_logs.key not in (one.key, later.key)


def test_events_at_another_place_or_time_are_other_occasions() -> None:
    event = e.NodeCordoned(node="n1", by="op", reason="dust")
    first = Recorded(seq=7, at_ms=AT_MS, epoch=2, event=event)
    others = [replace(first, seq=8), replace(first, at_ms=AT_MS + 1), replace(first, epoch=3)]
    keys = {notice.key for each in [first, *others] if (notice := notice_of(each)) is not None}
    assert len(keys) == 4


def test_every_source_reads_the_events_of_its_name() -> None:
    names = {type(event).__name__ for event in SAMPLES}
    assert set(SOURCES) <= names
    for event in SAMPLES:
        assert told(event) is None or type(event).__name__ in SOURCES
