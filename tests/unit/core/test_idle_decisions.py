"""What tests of idle nodes lead to: who is taken out, who is cleared, who is not blamed, and what is remembered."""

from __future__ import annotations

from typing import Any

import pytest

from airyard.core import commands as c
from airyard.core.events import FabricTested
from airyard.core.health.fabric_faults import Blamed, edge_fault
from airyard.core.health.facts import (
    CheckStatus,
    Component,
    HealthEvent,
    Remedy,
    Retest,
    Severity,
    Source,
)
from airyard.core.health.idle import IdleTest
from airyard.core.health.idle_records import SweepNote, TestNote
from airyard.core.health.states import HealthState
from airyard.core.state import ClusterState
from core_yard import Yard, node

NODES = [f"n{number}" for number in range(8)]


def yard() -> Yard:
    return Yard(*(node(name) for name in NODES))


def state_of(made: Yard, name: str) -> HealthState:
    health = made.state.health.get(name)
    return health.state if health is not None else HealthState.HEALTHY


def event(made: Yard, name: str, severity: Severity, **more: Any) -> HealthEvent:
    return HealthEvent(
        event_id=f"e-{name}-{made.now_ms}",
        rule=more.pop("rule", "gpu.slowing"),
        machine=name,
        node=name,
        at_ms=made.now_ms,
        component=Component.GPU,
        severity=severity,
        source=more.pop("source", Source.NVML),
        message="as seen",
        **more,
    )


def say(
    made: Yard, name: str, kind: IdleTest, status: CheckStatus, *events: HealthEvent, took_s: int = 10
) -> None:
    test = TestNote(kind=kind, at_ms=made.now_ms, status=status, version="b1", took_ms=took_s * 1000)
    made.do(c.IdleTestDone(node=name, test=test, events=events))


def swept(made: Yard, number: int = 0, **found: Any) -> None:
    said = {name for key in ("bad", "doubtful", "unknown", "spared") for name in found.get(key, ())}
    certified = tuple(name for name in NODES if name not in said)
    note = SweepNote(
        number=number, at_ms=made.now_ms, tests=20, took_ms=1000, **{"certified": certified, **found}
    )
    made.do(c.SweepDone(pool="GPU_8xH100", sweep=note))


def test_a_bad_node_goes_out_by_the_state_machine_and_is_tested_by_pairs_again() -> None:
    made = yard()
    swept(made, bad=("n3",), why={"n3": "5 of 5 pair tests failed"})
    health = made.state.health["n3"]
    assert (health.state, health.rule, health.retest) == (HealthState.DRAINING, "fabric.node", Retest.T4)
    assert "5 of 5" in made.state.stories["n3"][0].why
    assert set(made.state.health) == {"n3"}
    assert (made.state.tests["n3"].paired_ms, made.state.tests["n2"].paired_ms) == (None, made.now_ms)


@pytest.mark.parametrize(
    "found",
    [
        {"edges": (("n0", "n1"),)},
        {"leaves": ("f/r1",), "spared": ("n0", "n1")},
        {"rails": ("10.1.3.0/24",)},
        {"unknown": ("n4", "n5")},
    ],
)
def test_an_edge_a_leaf_a_rail_or_what_was_stopped_blames_no_node(found: dict[str, Any]) -> None:
    made = yard()
    swept(made, **found)
    assert made.state.health == {}
    (known,) = made.state.sweeps.values()
    what = {"edges": Blamed.EDGE, "leaves": Blamed.LEAF, "rails": Blamed.RAIL}.get(
        next(iter(found)), Blamed.NOTHING
    )
    assert (known.number, dict(known.counts)) == (1, {what.value: 1})


def test_a_fault_between_nodes_is_told_once_and_again_when_it_is_over() -> None:
    made, edge = yard(), edge_fault(("n0", "n1"))
    swept(made, edges=(("n0", "n1"),))
    swept(made.later(60), number=1, edges=(("n0", "n1"),))
    swept(made.later(60), number=2)  # it did not look at the edge
    swept(made.later(60), number=3, well=(edge,))
    swept(made.later(60), number=4, well=(edge,))
    told = [one.event for one in made.journal if isinstance(one.event, FabricTested)]
    assert [(one.begun, one.ended) for one in told] == [
        ((edge,), ()),
        ((), ()),
        ((), ()),
        ((), (edge,)),
        ((), ()),
    ]
    assert made.state.sweeps["GPU_8xH100"].standing == ()


def test_a_doubtful_node_counts_only_with_something_else() -> None:
    made = yard()
    swept(made, doubtful=("n2",))
    assert (state_of(made, "n2"), made.state.health["n2"].score) == (HealthState.HEALTHY, 2.0)
    made.later(60).do(c.HealthReported(events=(event(made, "n2", Severity.WARNING),)))
    assert state_of(made, "n2") is HealthState.SUSPECT


def test_many_bad_nodes_at_once_open_the_breaker_instead() -> None:
    made = yard()
    swept(made, bad=tuple(NODES[:5]))
    assert "GPU_8xH100" in made.state.breakers
    out = [name for name in NODES if state_of(made, name) is HealthState.DRAINING]
    assert len(out) <= 2


def test_a_deep_pass_clears_a_suspect_and_a_light_one_or_an_older_one_does_not() -> None:
    made = yard()
    made.do(c.HealthReported(events=(event(made, "n1", Severity.HIGH),)))
    assert state_of(made, "n1") is HealthState.SUSPECT
    say(made.later(5), "n1", IdleTest.DEEP, CheckStatus.PASS)  # it was begun before the suspicion
    say(made.later(60), "n1", IdleTest.LIGHT, CheckStatus.PASS)
    say(made.later(60), "n1", IdleTest.DEEP, CheckStatus.UNKNOWN)
    assert state_of(made, "n1") is HealthState.SUSPECT
    say(made.later(60), "n1", IdleTest.DEEP, CheckStatus.PASS)
    assert (state_of(made, "n1"), made.state.health["n1"].hits) == (HealthState.HEALTHY, ())
    assert made.state.stories["n1"][-1].by == "idle test"


def test_a_fault_that_asks_for_pairs_is_cleared_by_pairs() -> None:
    made = yard()
    made.do(c.HealthReported(events=(event(made, "n1", Severity.HIGH, retest=Retest.T4),)))
    say(made.later(60), "n1", IdleTest.DEEP, CheckStatus.PASS)
    assert state_of(made, "n1") is HealthState.SUSPECT
    swept(made.later(60))
    assert state_of(made, "n1") is HealthState.HEALTHY


def test_pairs_without_the_nodes_own_test_clear_nothing() -> None:
    made = yard()
    made.do(c.HealthReported(events=(event(made, "n1", Severity.HIGH, retest=Retest.T4),)))
    swept(made.later(60))
    assert state_of(made, "n1") is HealthState.SUSPECT


def test_a_node_that_only_the_budget_kept_is_not_cleared_by_a_test() -> None:
    made = Yard(node("n0"))  # the last of its pool stays
    fault = event(made, "n0", Severity.CRITICAL, rule="gpu.lost", remedy=Remedy.REBOOT)
    made.do(c.HealthReported(events=(fault,)))
    assert state_of(made, "n0") is HealthState.SUSPECT
    say(made.later(60), "n0", IdleTest.DEEP, CheckStatus.PASS)
    assert state_of(made, "n0") is HealthState.SUSPECT


def test_what_failed_is_evidence_and_a_node_that_is_gone_says_nothing() -> None:
    made = yard()
    fault = event(made, "n5", Severity.HIGH, rule="check.gpu.rows", source=Source.CHECK)
    say(made, "n5", IdleTest.LIGHT, CheckStatus.FAIL, fault)
    assert state_of(made, "n5") is HealthState.DRAINING
    assert made.state.tests["n5"].passed_ms is None
    before = len(made.journal)
    say(made, "nowhere", IdleTest.LIGHT, CheckStatus.PASS)
    assert len(made.journal) == before


def test_what_was_tested_outlives_snapshots() -> None:
    made = yard()
    say(made, "n0", IdleTest.LIGHT, CheckStatus.PASS)
    say(made.later(9), "n0", IdleTest.DEEP, CheckStatus.PASS)
    for number in range(12):
        swept(made.later(60), number=number, edges=(("n0", "n1"),))
    assert ClusterState.from_json(made.state.to_json()) == made.state
    found = made.state.tests["n0"]
    assert found.deep is not None
    assert (found.passed_ms, found.deep_ms, found.version) == (found.deep.at_ms, found.deep.at_ms, "b1")
    known = made.state.sweeps["GPU_8xH100"]
    assert (known.number, len(known.last), dict(known.counts)) == (12, 10, {"EDGE": 12})
    assert "edges: n0 - n1" in known.last[-1].in_words()


PARTS = ("reading", "memory", "burn")


def say_part(made: Yard, name: str, part: str, status: CheckStatus, *events: HealthEvent) -> None:
    test = TestNote(
        kind=IdleTest.DEEP,
        at_ms=made.now_ms,
        status=status,
        message=f"said of {part}",
        version="b1",
        took_ms=10_000,
        part=part,
        parts=PARTS,
    )
    made.do(c.IdleTestDone(node=name, test=test, events=events))


def suspect(made: Yard, name: str) -> None:
    made.do(c.HealthReported(events=(event(made, name, Severity.HIGH),), by="agent"))
    assert state_of(made, name) is HealthState.SUSPECT


def test_a_deep_test_in_parts_is_passed_with_the_last_and_clears_a_suspect_then() -> None:
    made = yard()
    suspect(made, "n2")
    assert state_of(made, "n2") is HealthState.SUSPECT
    made.later(60)
    for part in PARTS[:-1]:
        say_part(made, "n2", part, CheckStatus.PASS)
        made.later(60)
        assert state_of(made, "n2") is HealthState.SUSPECT
        assert made.state.tests["n2"].deep_ms is None
    say_part(made, "n2", PARTS[-1], CheckStatus.PASS)
    assert state_of(made, "n2") is HealthState.HEALTHY
    assert (made.state.tests["n2"].deep_ms, made.state.tests["n2"].parts) == (made.now_ms, ())
    assert ClusterState.from_json(made.state.copy().to_json()).tests == made.state.tests


def test_parts_from_before_a_suspicion_do_not_clear_it() -> None:
    made = yard()
    for part in PARTS[:-1]:
        say_part(made, "n2", part, CheckStatus.PASS)
        made.later(60)
    suspect(made, "n2")
    made.later(60)
    say_part(made, "n2", PARTS[-1], CheckStatus.PASS)
    assert state_of(made, "n2") is HealthState.SUSPECT
    assert made.state.tests["n2"].deep_ms is None
    made.later(60)
    for part in PARTS[:-1]:
        say_part(made, "n2", part, CheckStatus.PASS)
        made.later(60)
    assert state_of(made, "n2") is HealthState.HEALTHY


def test_a_part_that_fails_takes_the_node_out_at_once() -> None:
    made = yard()
    say_part(made, "n2", "reading", CheckStatus.PASS)
    made.later(60)
    fault = event(made, "n2", Severity.HIGH, rule="check.compute.memory", source=Source.CHECK)
    say_part(made, "n2", "memory", CheckStatus.FAIL, fault)
    assert state_of(made, "n2") is HealthState.DRAINING
    deep = made.state.tests["n2"].deep
    assert deep is not None
    assert (deep.status, made.state.tests["n2"].parts) == (CheckStatus.FAIL, ())
