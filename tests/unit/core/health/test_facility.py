"""Power and cooling: one node alone is noted, several of one place are one incident with a beginning and an end."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airyard.core import commands as c
from airyard.core import events as e
from airyard.core.health import clock_reasons, facility
from airyard.core.health.facility import Facility, Incident, Supply
from airyard.core.health.facts import Component, HealthEvent, Severity, Source
from airyard.core.health.states import HealthState
from airyard.core.state import ClusterState
from core_yard import Yard, node

RACK = {"rack": "r3", "fabric": "f1"}
PLACE = "rack r3 of fabric f1"


def yard(count: int = 4, labels: dict[str, str] | None = None) -> Yard:
    return Yard(*(replace(node(f"n{one}"), labels=labels or RACK) for one in range(count)))


def brake(one: Yard, name: str, *, ago_s: float = 0, **changes: Any) -> HealthEvent:
    at_ms = one.now_ms - int(ago_s * 1000)
    event = HealthEvent(
        event_id=f"{name}.{at_ms}",
        rule="gpu.throttled_long",
        machine=name,
        node=name,
        at_ms=at_ms,
        component=Component.FACILITY,
        severity=Severity.HIGH,
        source=Source.NVML,
        message="GPU 2 was slowed down in 80% of the last minute at work by the power brake",
        device=2,
        clock_reasons=clock_reasons.POWER_BRAKE,
    )
    return replace(event, **changes)


def heat(one: Yard, name: str, **changes: Any) -> HealthEvent:
    return brake(one, name, component=Component.GPU, clock_reasons=clock_reasons.HW_THERMAL, **changes)


def tell(one: Yard, *events: HealthEvent) -> list[str]:
    return [type(event).__name__ for event in one.do(c.HealthReported(events=events)).events]


def test_a_lone_brake_is_noted_and_speaks_against_nobody() -> None:
    one = yard()
    assert tell(one, brake(one, "n0")) == ["SlowdownSeen"]
    (kept,) = one.state.facility.slowdowns
    assert (kept.node, kept.place, kept.supply, kept.device) == ("n0", PLACE, Supply.POWER, 2)
    assert one.state.facility.incidents == ()
    assert one.state.health == {}


def test_three_of_a_rack_within_five_minutes_are_one_incident_that_ends_once() -> None:
    one = yard()
    tell(one, brake(one, "n0"))
    one.later(120)
    tell(one, brake(one, "n1"))
    one.later(120)
    assert tell(one, brake(one, "n2")) == ["SlowdownSeen", "FacilityIncidentBegan"]
    (incident,) = one.state.facility.incidents
    assert (incident.at, incident.nodes, incident.ended_ms) == ((PLACE, Supply.POWER), ("n0", "n1", "n2"), 0)
    assert "the power brake is on at 3 of 4 nodes of rack r3" in incident.why
    one.later(120)
    assert tell(one, brake(one, "n3"), brake(one, "n2")) == ["SlowdownSeen", "SlowdownSeen"]
    assert one.state.facility.incidents[0].nodes == ("n0", "n1", "n2", "n3")
    assert one.state.health == {}
    assert one.tick(facility.QUIET_MS / 1000 - 1).events == ()
    (over,) = one.tick(2).events
    assert isinstance(over, e.FacilityIncidentEnded)
    assert over.incident.nodes == ("n0", "n1", "n2", "n3")
    assert one.tick(600).events == ()
    assert one.state.facility.incidents == (over.incident,)
    began = [one.event for one in one.journal if isinstance(one.event, e.FacilityIncidentBegan)]
    assert len(began) == 1


def test_brakes_far_apart_or_of_other_racks_or_of_nodes_without_one_are_no_incident() -> None:
    one = yard()
    for name in ("n0", "n1", "n2"):
        tell(one, brake(one, name))
        one.later(facility.WINDOW_MS / 1000 + 1)
    racks = Yard(*(replace(node(f"n{i}"), labels={"rack": f"r{i}"}) for i in range(4)))
    bare = yard(labels={"zone": "a"})
    for other in (racks, bare):
        tell(other, *(brake(other, f"n{i}") for i in range(4)))
    assert [each.state.facility.incidents for each in (one, racks, bare)] == [(), (), ()]


def test_what_lasts_meets_what_begins_later() -> None:
    one = yard()
    tell(one, brake(one, "n0"), brake(one, "n1"))
    one.later(600)
    tell(one, brake(one, "n0"), brake(one, "n1"))
    one.later(240)
    assert tell(one, brake(one, "n2")) == ["SlowdownSeen", "FacilityIncidentBegan"]
    assert one.state.facility.incidents[0].began_ms == one.now_ms - 840_000


def test_a_power_domain_goes_before_racks_and_of_two_nodes_both_are_enough() -> None:
    labels = {"power": "pdu7"}
    one = Yard(*(replace(node(f"n{i}"), labels={"rack": f"r{i}", **labels}) for i in range(2)))
    tell(one, brake(one, "n0"), heat(one, "n0"))
    tell(one, brake(one, "n1"), heat(one, "n1"))
    assert [incident.at for incident in one.state.facility.incidents] == [("power domain pdu7", Supply.POWER)]


def test_heat_that_slows_one_node_is_its_own_and_that_of_a_rack_is_taken_back() -> None:
    one = yard()
    tell(one, heat(one, "n0"), heat(one, "n0", rule="gpu.slowing", event_id="slow"))
    assert one.state.health["n0"].state is HealthState.SUSPECT
    one.later(60)
    slow = heat(one, "n1", rule="gpu.slowing", severity=Severity.WARNING)
    link = replace(slow, event_id="link", rule="gpu.nvlink_errors", component=Component.NVLINK)
    tell(one, heat(one, "n1", event_id="hot"), slow, link)
    assert one.state.health["n1"].score == 4
    one.later(60)
    assert "FacilityIncidentBegan" in tell(one, heat(one, "n2"))
    (incident,) = one.state.facility.incidents
    assert (incident.at, incident.nodes) == ((PLACE, Supply.COOLING), ("n0", "n1", "n2"))
    n0, n1 = one.state.health["n0"], one.state.health["n1"]
    assert (n0.state, n0.hits, n0.score) == (HealthState.HEALTHY, (), 0)
    # What else speaks against a node stays.
    assert (n1.score, [hit.rule for hit in n1.hits]) == (2, ["gpu.nvlink_errors"])
    assert "n2" not in one.state.health
    one.later(60)
    tell(one, heat(one, "n0", rule="gpu.slowing"), heat(one, "n3"))
    assert one.state.health["n0"].hits == ()
    assert "n3" not in one.state.health


def test_a_node_that_is_out_already_is_mended_as_ever() -> None:
    one = yard()
    tell(
        one,
        heat(one, "n0"),
        *(heat(one, "n0", rule="gpu.slowing", device=i, event_id=f"{i}") for i in (2, 3)),
    )
    out = one.state.health["n0"]
    assert out.state is HealthState.DRAINING
    tell(one, heat(one, "n1"), heat(one, "n2"))
    assert len(one.state.facility.incidents) == 1
    assert one.state.health["n0"] == out


def test_brake_and_heat_are_incidents_of_their_own() -> None:
    one = yard()
    both = clock_reasons.POWER_BRAKE | clock_reasons.HW_THERMAL
    tell(one, *(heat(one, f"n{i}", event_id=f"e{i}") for i in range(3)))
    tell(one, *(brake(one, f"n{i}", component=Component.GPU, clock_reasons=both) for i in range(3)))
    assert {incident.supply for incident in one.state.facility.incidents} == {Supply.POWER, Supply.COOLING}


def test_the_same_again_in_any_order_says_nothing_new_also_after_the_end() -> None:
    one = yard()
    events = [brake(one, f"n{i}", ago_s=10 * i) for i in (2, 0, 1)]
    for event in events:
        tell(one, event)
    assert tell(one, *reversed(events)) == []
    one.tick(facility.QUIET_MS / 1000 + 1)
    assert one.state.facility.incidents[0].ended_ms
    one.later(facility.KEPT_MS / 1000)
    tell(one, brake(one, "n3"))  # what is older than a day is forgotten
    assert [each.node for each in one.state.facility.slowdowns] == ["n3"]
    assert tell(one, *events) == []


def test_what_a_job_prints_makes_no_incident() -> None:
    one = yard()
    tell(one, *(brake(one, f"n{i}", source=Source.JOB_LOG, confirmed=False) for i in range(4)))
    assert one.state.facility == Facility()


@pytest.mark.parametrize("open_", [True, False])
def test_while_it_lasts_slowness_does_not_speak_against_its_nodes(open_: bool) -> None:
    one = yard()
    tell(one, *(brake(one, f"n{i}") for i in range(3 if open_ else 2)))
    slow = brake(one, "n0", rule="gpu.slowing", component=Component.GPU, event_id="slow", clock_reasons=0)
    lost = brake(one, "n1", rule="gpu.nvlink_errors", component=Component.NVLINK, event_id="link")
    tell(one, slow, lost)
    assert ("n0" in one.state.health) is not open_
    assert one.state.health["n1"].state is HealthState.SUSPECT


def test_slowness_after_the_end_speaks_against_the_node_again() -> None:
    one = yard()
    tell(one, *(brake(one, f"n{i}") for i in range(3)))
    one.tick(facility.QUIET_MS / 1000 + 1)
    during = brake(one, "n0", ago_s=600, rule="gpu.slowing", component=Component.GPU, clock_reasons=0)
    tell(one, during)
    assert one.state.health == {}
    one.later(60)
    tell(one, replace(during, event_id="after", at_ms=one.now_ms))
    assert one.state.health["n0"].state is HealthState.SUSPECT


def test_it_outlives_a_snapshot_and_a_state_of_before_has_none() -> None:
    one = yard()
    tell(one, *(brake(one, f"n{i}") for i in range(3)))
    plain = (int, str, dict, type(None))
    stored = {
        name: part if isinstance(part, plain) else list(part) for name, part in one.state.to_json().items()
    }
    assert ClusterState.from_json(stored).facility == one.state.facility
    del stored["facility"]
    assert ClusterState.from_json(stored).facility == Facility()


def test_what_is_kept_is_bounded_and_what_goes_on_stays() -> None:
    first = Incident(place="rack old", supply=Supply.POWER, began_ms=1, nodes=("n",), why="x")
    known = facility.with_incident(Facility(), first)
    for number in range(facility.INCIDENTS_KEPT + 5):
        ended = replace(first, place=f"rack {number}", began_ms=number + 2, ended_ms=number + 3)
        known = facility.with_incident(known, ended)
    assert len(known.incidents) == facility.INCIDENTS_KEPT
    assert first in known.incidents
    assert f"rack {facility.INCIDENTS_KEPT + 4}" in {one.place for one in known.incidents}


def test_a_whole_site_that_is_hot_is_one_incident_a_rack_and_no_node_is_blamed() -> None:
    racks = facility.INCIDENTS_KEPT + 4
    nodes = [(f"r{rack}n{one}", {"rack": f"r{rack}"}) for rack in range(racks) for one in range(3)]
    one = Yard(*(replace(node(name), labels=labels) for name, labels in nodes))
    began = 0
    for _ in range(3):
        for name, _ in nodes:
            began += tell(one, heat(one, name)).count("FacilityIncidentBegan")
        one.now_ms += 600_000
    assert began == racks
    assert sum(not each.ended_ms for each in one.state.facility.incidents) == racks
    assert not any(health.hits for health in one.state.health.values())


def test_a_large_place_makes_no_endless_text() -> None:
    one = yard(40)
    tell(one, *(brake(one, f"n{i}") for i in range(40)))
    (incident,) = one.state.facility.incidents
    assert len(incident.nodes) == 40
    assert len(incident.why) <= 300


@pytest.mark.parametrize(
    ("reasons", "words", "alone"),
    [
        (0x080, "the power brake", True),
        (0x088, "the power brake", True),
        (0x08C, "the power brake", True),
        (0x0C8, "the power brake and heat", False),
        (0x020, "heat", False),
        (0x048, "heat", False),
        (0x008, "the hardware", False),
        (0x005, "", False),
    ],
)
def test_reasons_of_lower_clocks_in_words(reasons: int, words: str, alone: bool) -> None:
    assert clock_reasons.in_words(reasons) == words
    assert clock_reasons.is_brake_alone(reasons) is alone
