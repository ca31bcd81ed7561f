"""A node that a command of its pool finds unfit is cordoned by that command, with what it said."""

from __future__ import annotations

import pytest

from airyard.core import commands as c
from airyard.core.cluster import Cordon
from airyard.core.policy import NodeCommand, Policy, PoolPolicy
from airyard.core.run import Cause, Outcome, RunState
from core_yard import Yard, acts, ended, kinds, node, workload

COMMAND = NodeCommand(command="look", timeout_ms=40_000)


def commanded(yard: Yard, *, prolog: bool = True, epilog: bool = True) -> None:
    """Have the pool have these commands."""
    pool = PoolPolicy(
        name="h100",
        accelerator="GPU_8xH100",
        prolog=COMMAND if prolog else None,
        epilog=COMMAND if epilog else None,
    )
    yard.do(c.DeclarePolicy(policy=Policy(pools=(pool,)), by="op"))


def placed(yard: Yard) -> tuple[int, str]:
    """A run that is placed, and where."""
    run_id = yard.submit(workload("GPU_8xH100"))
    yard.place()
    return run_id, yard.attempt(run_id).members[0].node


def test_a_failing_prolog_moves_the_run_and_cordons_the_node() -> None:
    yard = Yard(node("a"), node("b"))
    commanded(yard)
    run_id, where = placed(yard)
    yard.poll(f"{run_id}.0.0")
    done = yard.exit(
        f"{run_id}.0.0", Cause.NODE, started=False,
        fault="prolog", fault_message="the prolog exited with 3: Xid 79",
    )  # fmt: skip
    assert "NodeCordoned" in kinds(done)
    assert yard.state.cordons == {
        where: Cordon(by="prolog", at_ms=yard.now_ms, reason="the prolog exited with 3: Xid 79")
    }
    run = yard.run(run_id)
    assert (run.attempts[0].outcome, run.attempts[0].cause) == (Outcome.FAILED, Cause.NODE)
    assert (run.state, run.retries_spent, run.avoid_nodes) == (RunState.QUEUED, 0, (where,))
    yard.place()
    assert yard.attempt(run_id).members[0].node != where


def test_a_failing_epilog_cordons_the_node_and_leaves_the_run_as_it_is() -> None:
    yard = Yard(node("a"))
    commanded(yard)
    run_id, where = placed(yard)
    yard.start(f"{run_id}.0.0")
    yard.exit(f"{run_id}.0.0", fault="epilog", fault_message="the epilog was not done within 60 s")
    assert yard.run(run_id).outcome is Outcome.SUCCEEDED
    assert yard.state.cordons[where].by == "epilog"


@pytest.mark.parametrize("closed", [True, False])
def test_an_exit_record_says_it_too_and_a_cordon_keeps_its_first_reason(closed: bool) -> None:
    yard = Yard(node("a"))
    commanded(yard)
    run_id, where = placed(yard)
    yard.start(f"{run_id}.0.0")
    if closed:
        yard.do(c.CordonNodes(nodes=(where,), by="op", reason="fan"))
    gone = ended(fault="epilog", fault_message="dirty", at_ms=yard.now_ms)
    assert ("NodeCordoned" in kinds(yard.gone(f"{run_id}.0.0", "exited", gone))) is not closed
    assert yard.state.cordons[where].by == ("op" if closed else "epilog")


@pytest.mark.parametrize("fault", ["prolog", "epilog", "whatever"])
def test_a_run_with_its_runners_token_closes_no_node_in_the_name_of_commands_that_are_not_there(
    fault: str,
) -> None:
    yard = Yard(node("a"))
    commanded(yard, prolog=True, epilog=False)
    run_id, _ = placed(yard)
    yard.start(f"{run_id}.0.0")
    yard.exit(f"{run_id}.0.0", fault=fault, fault_message="the run says so")
    assert yard.state.cordons == {}, "a prolog was over before the run's command began"


def test_a_runner_has_the_time_of_its_epilog_before_it_is_taken_for_deaf() -> None:
    yard = Yard(node("a"))
    slow = NodeCommand(command="clean-up", timeout_ms=40_000)
    pool = PoolPolicy(name="h100", accelerator="GPU_8xH100", epilog=slow)
    yard.do(c.DeclarePolicy(policy=Policy(pools=(pool,)), by="op"))
    run_id, _ = placed(yard)
    yard.start(f"{run_id}.0.0")
    yard.do(c.CancelRun(run_id=run_id, by="ada"))
    assert acts(yard.tick(30 + 15 + 39)) == []
    assert acts(yard.tick(1)) == ["KillMember"]
