"""A preflight that refuses its member is evidence of the node's health; the run goes on elsewhere for free."""

from __future__ import annotations

from typing import Any

import pytest

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
