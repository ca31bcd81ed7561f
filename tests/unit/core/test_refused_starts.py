"""A preflight that refuses its member is evidence of the node's health; the run goes on elsewhere for free."""

from __future__ import annotations

from typing import Any

import pytest

from airyard.core import commands as c
from airyard.core.decide.operating import HEALTH
from airyard.core.health.states import HealthState
from airyard.core.run import Cause, Outcome, RunState, StopReason
from core_yard import Yard, ended, kinds, node, workload

SAID = "preflight: node a failed gpu.rows: GPU 3 has rows to remap (measured 1, limit 0); next: reset it"
REFUSED: dict[str, Any] = {"fault": "preflight", "fault_message": SAID}


def refused(yard: Yard, cause: Cause = Cause.DEVICE) -> tuple[int, str]:
    """A run whose first member was refused, and by which node."""
    run_id = yard.submit(workload("GPU_8xH100"))
    yard.place()
    where = yard.attempt(run_id).members[0].node
    yard.poll(f"{run_id}.0.0")
    yard.exit(f"{run_id}.0.0", cause, started=False, **REFUSED)
    return run_id, where


@pytest.mark.parametrize("cause", [Cause.DEVICE, Cause.NODE])
def test_the_node_is_taken_out_by_its_health_and_the_run_is_elsewhere_at_once(cause: Cause) -> None:
    yard = Yard(node("a"), node("b"))
    run_id, where = refused(yard, cause=cause)
    health = yard.state.health[where]
    assert (health.state, health.rule) == (HealthState.DRAINING, "check.gpu.rows")
    assert yard.state.cordons[where].by == HEALTH
    run = yard.run(run_id)
    assert (run.attempts[0].outcome, run.attempts[0].cause) == (Outcome.FAILED, cause)
    assert (run.state, run.retries_spent, run.avoid_nodes) == (RunState.QUEUED, 0, (where,))
    yard.place()
    assert yard.attempt(run_id).members[0].node != where
    yard.tick(1)
    assert yard.state.health[where].state is HealthState.QUARANTINED


@pytest.mark.parametrize("started", [True, False])
def test_a_command_that_runs_cannot_say_that_its_node_refused_it(started: bool) -> None:
    yard = Yard(node("a"), node("b"))
    run_id = yard.submit(workload("GPU_8xH100"))
    yard.place()
    yard.poll(f"{run_id}.0.0")
    yard.start(f"{run_id}.0.0")
    yard.exit(f"{run_id}.0.0", Cause.DEVICE, started=started, **REFUSED)
    assert (yard.state.health, yard.state.cordons) == ({}, {})


def test_a_command_that_runs_cannot_speak_of_its_gangs_sum() -> None:
    said = "preflight: net.all_reduce: the sum over the run's nodes did not end: rank 1 hangs [suspect: b]; next: x"
    yard = Yard(node("a"), node("b"))
    run_id = yard.submit(workload("GPU_8xH100", 2))
    yard.place()
    for member in range(2):
        yard.poll(f"{run_id}.0.{member}")
    yard.start(f"{run_id}.0.0", f"{run_id}.0.1")
    yard.exit(f"{run_id}.0.0", Cause.NETWORK, started=False, message=said)
    assert yard.state.health == {}


def test_the_others_of_a_gang_are_stopped_for_the_failed_member_not_for_the_drain() -> None:
    yard = Yard(node("a"), node("b"), node("c"))
    run_id = yard.submit(workload("GPU_8xH100", 2))
    yard.place()
    for member in range(2):
        yard.poll(f"{run_id}.0.{member}")
    yard.exit(f"{run_id}.0.0", Cause.NODE, started=False, **REFUSED)
    stop = yard.attempt(run_id).stop
    assert stop is not None
    assert stop.reason is StopReason.MEMBER_FAILED
    yard.exit(f"{run_id}.0.1", Cause.CANCELLED, started=False)
    assert yard.run(run_id).attempts[0].cause is Cause.NODE


def test_the_last_node_that_works_stays_and_the_run_avoids_it_while_it_can() -> None:
    yard = Yard(node("a"))
    run_id, where = refused(yard)
    assert (yard.state.health[where].state, yard.state.cordons) == (HealthState.SUSPECT, {})
    assert yard.run(run_id).avoid_nodes == (where,)


@pytest.mark.parametrize("check", ["storage.writes", "host.mounts", "net.peers", "host.names"])
def test_what_machines_share_makes_a_suspect_and_takes_nothing_out(check: str) -> None:
    yard = Yard(node("a"), node("b"))
    said = f"preflight: node a failed {check}: /mnt/checkpoints: does not answer; next: look at its server"
    run_id = yard.submit(workload("GPU_8xH100"))
    yard.place()
    where = yard.attempt(run_id).members[0].node
    yard.poll(f"{run_id}.0.0")
    yard.exit(f"{run_id}.0.0", Cause.NODE, started=False, fault="preflight", fault_message=said)
    assert (yard.state.health[where].state, yard.state.cordons) == (HealthState.SUSPECT, {})
    run = yard.run(run_id)
    assert (run.state, run.retries_spent, run.avoid_nodes) == (RunState.QUEUED, 0, (where,))


def test_an_exit_record_says_it_too_and_said_again_it_says_nothing_new() -> None:
    yard = Yard(node("a"), node("b"))
    run_id = yard.submit(workload("GPU_8xH100"))
    yard.place()
    where = yard.attempt(run_id).members[0].node
    yard.poll(f"{run_id}.0.0")
    gone = ended(Cause.NODE, started=False, at_ms=yard.now_ms, **REFUSED)
    first = yard.gone(f"{run_id}.0.0", "exited", gone)
    assert "NodeHealthChanged" in kinds(first)
    assert yard.state.health[where].state is HealthState.DRAINING
    assert "NodeHealthChanged" not in kinds(yard.gone(f"{run_id}.0.0", "exited", gone))


SUM = "preflight: net.all_reduce: the sum over the run's nodes did not end: it was not done 30 s after all had come "


def gang_fails(yard: Yard, message: str, cause: Cause = Cause.NETWORK) -> int:
    run_id = yard.submit(workload("GPU_8xH100", 3))
    yard.place()
    for member in range(3):
        yard.poll(f"{run_id}.0.{member}")
    yard.exit(f"{run_id}.0.1", cause, started=False, message=message)
    return run_id


def test_a_sum_that_hangs_is_a_hint_against_the_node_that_it_singles_out() -> None:
    yard = Yard(*(node(name) for name in "abcd"))
    text = "rank 2 on node {} told that it came, and got no further, unlike the others [suspect: {}]"
    run_id = yard.submit(workload("GPU_8xH100", 3))
    yard.place()
    names = [member.node for member in yard.attempt(run_id).members]
    for member in range(3):
        yard.poll(f"{run_id}.0.{member}")
    said = f"{SUM}together: {text.format(names[2], names[2])}; next: test the nodes in pairs"
    yard.exit(f"{run_id}.0.1", Cause.NETWORK, started=False, message=said)
    assert {name: health.state for name, health in yard.state.health.items()} == {
        names[2]: HealthState.HEALTHY
    }
    assert [hit.rule for hit in yard.state.health[names[2]].hits] == ["fabric.gang"]
    assert yard.state.cordons == {}
    yard.tick(1)
    for member in (0, 2):
        yard.exit(f"{run_id}.0.{member}", Cause.CANCELLED, started=False)
    assert (yard.run(run_id).attempts[0].cause, yard.run(run_id).retries_spent) == (Cause.NETWORK, 0)


def test_a_sum_that_hangs_for_all_is_a_hint_against_each_and_blames_none() -> None:
    yard = Yard(*(node(name) for name in "abcd"))
    run_id = gang_fails(yard, f"{SUM}together: no rank got to a first sum; next: test the nodes in pairs")
    names = {member.node for member in yard.attempt(run_id).members}
    assert set(yard.state.health) == names
    assert {health.state for health in yard.state.health.values()} == {HealthState.HEALTHY}
    assert {hit.rule for health in yard.state.health.values() for hit in health.hits} == {"fabric.gang"}


def test_two_gangs_that_fail_with_one_node_in_common_make_it_a_suspect() -> None:
    yard = Yard(*(node(name) for name in "abcde"))
    first = gang_fails(yard, f"{SUM}together: no rank got to a first sum")
    gangs = [{member.node for member in yard.attempt(first).members}]
    yard.tick(1)
    for member in (0, 2):
        yard.exit(f"{first}.0.{member}", Cause.CANCELLED, started=False)
    yard.do(c.CancelRun(run_id=first, by="ada"))
    yard.do(c.CordonNodes(nodes=tuple(sorted(gangs[0])[:2]), by="ada"))
    second = gang_fails(yard, f"{SUM}together: no rank got to a first sum")
    gangs.append({member.node for member in yard.attempt(second).members})
    (common,) = gangs[0] & gangs[1]
    suspects = [name for name, health in yard.state.health.items() if health.state is HealthState.SUSPECT]
    assert suspects == [common]
    assert {hit.rule for hit in yard.state.health[common].hits} == {"fabric.gang", "fabric.gang_again"}


def test_other_ends_say_nothing_of_the_gangs_nodes() -> None:
    yard = Yard(*(node(name) for name in "abcd"))
    gang_fails(yard, f"{SUM}together", cause=Cause.USER_CODE)
    gang_fails(yard, "member 0 on ma cannot reach member 1 on mb")
    assert yard.state.health == {}
