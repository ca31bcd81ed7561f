"""A failure of what machines share: whose it is, the node's or the server's, by what other machines pass and fail."""

from __future__ import annotations

from typing import Any

import pytest

from airyard.core import commands as c
from airyard.core.decide.elsewhere import to_pass_afresh
from airyard.core.health import shared
from airyard.core.health.facility import QUIET_MS, Supply
from airyard.core.health.facts import Component, HealthEvent, Severity, Source
from airyard.core.health.states import HealthState
from airyard.core.run import Cause, RunState
from core_yard import Yard, node, workload

FOLDER = "/shared/runs/7/output (on /shared, nfs4)"
OUT = {HealthState.CORDONED, HealthState.DRAINING, HealthState.QUARANTINED}
PASSES = {"passed.storage.writes": 1}


def yard(*names: str) -> Yard:
    return Yard(*(node(name) for name in names))


def seated(one: Yard, run_id: int) -> tuple[str, str]:
    """Place a run; return its member's key and node."""
    one.place()
    attempt = one.attempt(run_id)
    key = f"{run_id}.{attempt.number}.0"
    one.poll(key)
    return key, attempt.members[0].node


def refuse(one: Yard, key: str, where: str, check: str = "storage.writes", said: str = "") -> None:
    what = said or f"{FOLDER}: does not answer"
    message = f"preflight: node {where} failed {check}: {what}; next: look at its server"
    one.exit(key, Cause.NODE, started=False, fault="preflight", fault_message=message)


def refused_on(one: Yard, wanted: str) -> int:
    """A run that ``wanted`` has refused; the others were held by somebody meanwhile."""
    others = [name for name in one.state.nodes if name != wanted]
    one.do(c.CordonNodes(nodes=tuple(others), by="op", reason="test"))
    run_id = one.submit(workload("GPU_8xH100"))
    key, where = seated(one, run_id)
    assert where == wanted
    refuse(one, key, where)
    one.do(c.UncordonNodes(nodes=tuple(others), by="op"))
    return run_id


def passes_elsewhere(one: Yard, run_id: int, prepared: dict[str, int] | None = None) -> str:
    one.later(2)
    key, where = seated(one, run_id)
    one.report(key, "READY", address="x", prepared=PASSES if prepared is None else prepared)
    one.report(key, "STARTED")
    return where


def end(one: Yard, run_id: int) -> None:
    one.exit(f"{run_id}.{one.attempt(run_id).number}.0")


def test_a_node_that_goes_on_refusing_what_others_pass_is_taken_out() -> None:
    one = yard("a", "b", "c")
    first = refused_on(one, "a")
    assert to_pass_afresh(one.run(first), 1) == ("storage.writes",)
    there = passes_elsewhere(one, first)
    assert there != "a"
    # Once may be chance: the server was back a moment later.
    assert one.state.health["a"].state is HealthState.SUSPECT
    assert {hit.rule for hit in one.state.health["a"].hits} == {"check.storage.writes", shared.ALONE}
    end(one, first)
    one.later(60)
    second = refused_on(one, "a")
    assert one.state.health["a"].state is HealthState.SUSPECT
    passes_elsewhere(one, second)
    health = one.state.health["a"]
    assert (health.state in OUT, health.rule) == (True, "check.storage.writes")
    assert any("not for the first time" in step.why for step in one.state.stories["a"])
    assert one.state.facility.incidents == ()
    assert (one.run(second).retries_spent, set(one.state.health)) == (0, {"a"})


def test_two_refusals_of_one_moment_are_one_chance() -> None:
    one = yard("a", "b")
    one.do(c.CordonNodes(nodes=("b",), by="op", reason="test"))
    runs = [one.submit(workload("GPU_4xH100")) for _ in range(2)]
    for key, where in [seated(one, run_id) for run_id in runs]:
        refuse(one, key, where)
    one.do(c.UncordonNodes(nodes=("b",), by="op"))
    for run_id in runs:
        assert passes_elsewhere(one, run_id) == "b"
    assert one.state.health["a"].state is HealthState.SUSPECT
    assert {hit.rule for hit in one.state.health["a"].hits} == {"check.storage.writes", shared.ALONE}


@pytest.mark.parametrize(
    "prepared",
    [{}, {"environment_ms": 3}, {"passed.host.mounts": 1}],
    ids=["nothing", "older runner", "other"],
)
def test_a_start_that_did_not_pass_the_check_itself_says_nothing(prepared: dict[str, int]) -> None:
    one = yard("a", "b", "c")
    for _ in range(3):
        run_id = refused_on(one, "a")
        passes_elsewhere(one, run_id, prepared)
        end(one, run_id)
    assert one.state.health["a"].state is HealthState.SUSPECT


def test_another_node_of_the_same_machine_says_nothing() -> None:
    one = Yard(node("a1", machine="a"), node("a2", machine="a"))
    for _ in range(3):
        run_id = refused_on(one, "a1")
        passes_elsewhere(one, run_id)
        end(one, run_id)
    assert shared.ALONE not in {hit.rule for hit in one.state.health["a1"].hits}


def test_a_pass_long_after_says_nothing() -> None:
    one = yard("a", "b", "c")
    run_id = refused_on(one, "a")
    one.later(shared.WITHIN_MS / 1000 + 1)
    passes_elsewhere(one, run_id)
    assert shared.ALONE not in {hit.rule for hit in one.state.health["a"].hits}


def test_where_two_machines_fail_it_is_the_storage_and_nobody_is_blamed() -> None:
    one = yard("a", "b", "c")
    run_id = one.submit(workload("GPU_8xH100"))
    for place in range(2):
        one.later(15)
        key, where = seated(one, run_id)
        refuse(one, key, where, said=f"/shared/runs/{run_id}/x (on /shared, nfs4): does not answer")
        assert one.run(run_id).state is RunState.QUEUED
        if not place:
            assert one.state.health[where].state is HealthState.SUSPECT
    (incident,) = one.state.facility.incidents
    assert (incident.place, incident.supply, len(incident.nodes)) == ("/shared", Supply.STORAGE, 2)
    assert "2 nodes on 2 machines fail at /shared" in incident.why
    assert {health.state for health in one.state.health.values()} == {HealthState.HEALTHY}
    # The third is one more node of the same incident.
    one.later(15)
    key, where = seated(one, run_id)
    refuse(one, key, where)
    (incident,) = one.state.facility.incidents
    assert len(incident.nodes) == 3
    assert {health.state for health in one.state.health.values()} == {HealthState.HEALTHY}
    one.tick(QUIET_MS / 1000 + 60)
    assert one.state.facility.incidents[0].ended_ms


def said_by(one: Yard, name: str, rule: str, message: str, **changes: Any) -> HealthEvent:
    fields: dict[str, Any] = {
        "event_id": f"{name}.{rule}.{one.now_ms}",
        "rule": rule,
        "machine": one.state.nodes[name].machine,
        "node": name,
        "at_ms": one.now_ms,
        "component": Component.STORAGE,
        "severity": Severity.WARNING,
        "source": Source.HOST,
        "message": message,
    }
    return HealthEvent(**{**fields, **changes})


def tell(one: Yard, *events: HealthEvent) -> None:
    one.do(c.HealthReported(events=events))


def test_checks_and_monitors_of_one_file_server_are_one_thing() -> None:
    """All of them fail at once when it is away: that took the node out, for two suspicions were one too many."""
    one = yard("a", "b", "c")
    tell(
        one,
        said_by(one, "a", "host.mounts", "/shared does not answer"),
        said_by(one, "a", "check.host.mounts", "/shared (nfs4) does not answer", source=Source.CHECK),
        said_by(one, "a", "check.storage.writes", f"{FOLDER}: does not answer", source=Source.CHECK),
    )
    assert (one.state.health["a"].state, one.state.health["a"].score) == (HealthState.SUSPECT, 4.0)


def test_monitors_of_two_machines_make_the_incident_too_and_two_nodes_of_one_machine_do_not() -> None:
    one = Yard(node("a1", machine="a"), node("a2", machine="a"), node("b"))
    tell(one, said_by(one, "a1", "host.mounts", "/shared does not answer"))
    tell(one, said_by(one, "a2", "host.mounts", "/shared does not answer"))
    tell(one, said_by(one, "b", "host.mounts", "/scratch does not answer"))
    assert one.state.facility.incidents == ()
    one.later(120)
    tell(one, said_by(one, "b", "host.mounts", "/shared does not answer"))
    (incident,) = one.state.facility.incidents
    assert (incident.place, incident.nodes) == ("/shared", ("a1", "a2", "b"))


def test_what_a_job_prints_of_storage_makes_no_incident() -> None:
    one = yard("a", "b")
    for name in ("a", "b"):
        tell(one, said_by(one, name, "host.mounts", "/shared does not answer", source=Source.JOB_LOG))
    assert one.state.facility.incidents == ()


def test_the_one_that_goes_on_failing_does_not_keep_the_incident_open_and_is_found_then() -> None:
    one = yard("a", "b", "c")
    for name in ("a", "b"):
        tell(
            one,
            said_by(one, name, "check.host.mounts", "/shared (nfs4) does not answer", source=Source.CHECK),
        )
    assert len(one.state.facility.incidents) == 1
    for _ in range(18):
        one.tick(60)
        tell(
            one, said_by(one, "a", "check.host.mounts", "/shared (nfs4) does not answer", source=Source.CHECK)
        )
    (incident,) = one.state.facility.incidents
    assert incident.ended_ms
    assert one.state.health["a"].state is HealthState.SUSPECT
    for _ in range(2):
        run_id = refused_on(one, "a")
        passes_elsewhere(one, run_id)
        end(one, run_id)
        one.later(30)
    assert one.state.health["a"].state in OUT


@pytest.mark.parametrize(
    ("rule", "message", "place"),
    [
        ("host.mounts", "/shared does not answer", "/shared"),
        ("check.host.mounts", "/mnt/a b (lustre) does not answer", "/mnt/a b"),
        ("check.host.mounts", "/mnt/x (fuse.sshfs) Stale file handle", "/mnt/x"),
        ("check.storage.writes", "/shared/r/1/o (on /shared, nfs4): Input/output error", "/shared"),
        ("check.storage.writes", "/data/runs: No space left on device", "/data/runs"),
        ("check.storage.writes", f"preflight: node n failed storage.writes: {FOLDER}: x; next: y", "/shared"),
        ("check.storage.writes", "it failed", "some folder"),
        ("check.gpu.rows", "/shared does not answer", ""),
        ("check.host.names", "a.b is not found", ""),
    ],
)
def test_which_storage_an_event_is_about(rule: str, message: str, place: str) -> None:
    one = yard("a")
    assert shared.storage_of(said_by(one, "a", rule, message)) == place
