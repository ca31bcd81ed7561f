"""What people ask: submit with keys, cancel in every state, resume, remove, cordon."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airyard.core import commands as c
from airyard.core.decide import Cancelled, Submitted, asks
from airyard.core.errors import Conflict, Fix, NotFound, Unavailable, UserError
from airyard.core.run import Cause, Outcome, RunState, StopReason
from airyard.core.workload import PreemptionRules, Timeouts
from core_yard import Yard, acts, kinds, node, workload


def submit(yard: Yard, key: str = "k", **fields: object) -> c.SubmitRun:
    return c.SubmitRun(owner="ada", workload=workload(**fields), idempotency_key=key)  # type: ignore[arg-type]  # keywords of workload()


def cancel(yard: Yard, run_id: int) -> Cancelled:
    reply = yard.do(c.CancelRun(run_id=run_id, by="ada")).reply
    assert isinstance(reply, Cancelled)
    return reply


def test_the_same_key_and_workload_find_the_first_run() -> None:
    yard = Yard(node("a"))
    first = yard.do(submit(yard))
    again = yard.do(submit(yard))
    assert first.reply == Submitted(run_id=1, existing=False)
    assert again.reply == Submitted(run_id=1, existing=True)
    assert again.events == ()


def test_a_key_of_another_owner_is_another_key() -> None:
    yard = Yard(node("a"))
    yard.do(submit(yard))
    other = c.SubmitRun(owner="bob", workload=workload(nodes=1), idempotency_key="k")
    assert yard.do(other).reply == Submitted(run_id=2, existing=False)


def test_a_key_for_another_workload_is_a_conflict_naming_the_field() -> None:
    yard = Yard(node("a"), node("b"))
    yard.do(submit(yard))
    with pytest.raises(Conflict, match=r"key 'k' already made run 1 .* compute.nodes") as caught:
        yard.do(submit(yard, nodes=2))
    assert caught.value.code == "IDEMPOTENCY_CONFLICT"
    assert caught.value.details == {"run_id": 1, "field": "compute.nodes"}


def test_keys_are_forgotten_after_a_week() -> None:
    yard = Yard(node("a"))
    yard.do(submit(yard))
    assert "KeysExpired" not in kinds(yard.tick(7 * 86_400))
    assert "KeysExpired" in kinds(yard.tick(86_401))
    assert yard.do(submit(yard)).reply == Submitted(run_id=2, existing=False)


@pytest.mark.parametrize(
    ("accelerator", "nodes", "code"),
    [
        ("GPU_8xB200", 1, "NO_SUCH_ACCELERATOR"),
        ("GPU_8xH100", 3, "EXCEEDS_POOL"),
        ("GPU_16xH100", 1, "EXCEEDS_POOL"),
    ],
)
def test_what_the_yard_can_never_place_is_refused_at_once(accelerator: str, nodes: int, code: str) -> None:
    yard = Yard(node("a"), node("b"))
    with pytest.raises(UserError) as caught:
        yard.submit(workload(accelerator, nodes))
    assert caught.value.code == code
    assert caught.value.fix is not None
    assert yard.state.runs == {}


def test_a_pool_without_such_nodes_is_what_to_change_not_the_accelerator() -> None:
    yard = Yard(node("a"))
    asked = workload()
    asked = replace(asked, compute=replace(asked.compute, pool="elsewhere"))
    with pytest.raises(UserError, match="in pool elsewhere") as caught:
        yard.submit(asked)
    assert isinstance(caught.value.fix, Fix)
    assert "leave pool elsewhere out" in caught.value.fix.text
    assert caught.value.fix.patch == {"compute": {"pool_id": None}}


def test_a_full_queue_refuses_with_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asks, "MAX_RUNS_IN_MEMORY", 1)
    yard = Yard(node("a"))
    yard.submit(workload())
    with pytest.raises(Unavailable, match=r"1 runs are queued or active \(limit 1\)"):
        yard.submit(workload())


def test_cancel_while_queued_ends_and_archives_at_once() -> None:
    yard = Yard(node("a"))
    run_id = yard.submit(workload())
    decision = yard.do(c.CancelRun(run_id=run_id, by="ada"))
    assert kinds(decision) == ["RunEnded", "RunArchived"]
    assert run_id not in yard.state.runs


@pytest.mark.parametrize("steps", range(4))
def test_cancel_stops_a_live_attempt_in_every_state(steps: int) -> None:
    yard = Yard(node("a"))
    run_id = yard.submit(workload(preemption=PreemptionRules(grace_s=7)))
    yard.place()
    if steps > 0:
        yard.poll("1.0.0")
    if steps > 1:
        yard.report("1.0.0", "READY", address="a")
    if steps > 2:
        yard.report("1.0.0", "STARTED")
    assert cancel(yard, run_id) == Cancelled(run_id=run_id, already_ended=False)
    stop = yard.attempt(run_id).stop
    assert stop is not None
    assert (stop.reason, stop.by, stop.grace_s) == (StopReason.CANCELLED, "ada", 7)
    yard.exit("1.0.0", Cause.CANCELLED, stop_reason="CANCELLED")
    run = yard.run(run_id)
    assert (run.state, run.outcome) == (RunState.ENDED, Outcome.CANCELLED)
    assert cancel(yard, run_id).already_ended
    yard.close("1.0.0")
    assert run_id not in yard.state.runs


def test_cancel_twice_is_one_stop_and_beats_a_preemption() -> None:
    yard = Yard(node("a"))
    run_id = yard.submit(workload())
    yard.place()
    yard.start("1.0.0")
    cancel(yard, run_id)
    cancel(yard, run_id)
    assert [order.kind for order in yard.attempt(run_id).orders] == ["GO", "STOP"]


def test_cancel_between_attempts_ends_the_run() -> None:
    yard = Yard(node("a"))
    run_id = yard.submit(workload())
    yard.place()
    yard.start("1.0.0")
    yard.exit("1.0.0", Cause.USER_CODE)
    yard.close("1.0.0")
    assert yard.run(run_id).state is RunState.QUEUED
    assert kinds(yard.do(c.CancelRun(run_id=run_id, by="ada"))) == ["RunEnded", "RunArchived"]


def test_cancel_of_what_is_not_here() -> None:
    with pytest.raises(NotFound):
        cancel(Yard(node("a")), 99)


def test_resume_gives_a_further_attempt_fresh_budgets() -> None:
    yard = Yard(node("a"))
    run_id = yard.submit(workload(max_retries=0, timeouts=Timeouts(total_s=100)))
    yard.place()
    yard.start("1.0.0")
    yard.exit("1.0.0", Cause.USER_CODE)
    stored = yard.run(run_id)
    yard.close("1.0.0")
    assert run_id not in yard.state.runs
    yard.later(500)
    assert kinds(yard.do(c.ResumeRun(run=stored, by="ada"))) == ["RunResumed"]
    run = yard.run(run_id)
    assert (run.state, run.outcome, run.retries_spent, len(run.attempts)) == (RunState.QUEUED, None, 0, 1)
    yard.place()
    yard.start("1.1.0")
    yard.exit("1.1.0")
    assert yard.run(run_id).outcome is Outcome.SUCCEEDED


def test_resume_is_refused_while_live_and_after_success() -> None:
    yard = Yard(node("a"))
    run_id = yard.submit(workload())
    queued = yard.run(run_id)
    with pytest.raises(Conflict, match="only an ended run"):
        yard.do(c.ResumeRun(run=queued, by="ada"))
    yard.place()
    yard.start("1.0.0")
    yard.exit("1.0.0")
    with pytest.raises(Conflict, match="nothing to resume"):
        yard.do(c.ResumeRun(run=yard.run(run_id), by="ada"))


def test_remove_waits_until_everything_is_settled() -> None:
    yard = Yard(node("a"))
    run_id = yard.submit(workload())
    with pytest.raises(Conflict, match="queued"):
        yard.do(c.RemoveRun(run_id=run_id, by="ada"))
    yard.place()
    yard.start("1.0.0")
    yard.exit("1.0.0")
    with pytest.raises(Conflict, match="still being completed"):
        yard.do(c.RemoveRun(run_id=run_id, by="ada"))
    yard.close("1.0.0")
    assert kinds(yard.do(c.RemoveRun(run_id=run_id, by="ada"))) == ["RunRemoved"]


def test_cordon_is_idempotent_and_survives_a_hello() -> None:
    yard = Yard(node("a"))
    close = c.CordonNodes(nodes=("a",), by="op", reason="fan")
    assert kinds(yard.do(close)) == ["NodeCordoned"]
    assert kinds(yard.do(close)) == []
    assert kinds(yard.hello("a")) == []
    assert kinds(yard.hello("a", boot="b2")) == ["MachineJoined"]
    assert yard.state.nodes["a"].cordoned
    run_id = yard.submit(workload())
    assert acts(yard.place()) == []
    assert yard.run(run_id).state is RunState.QUEUED
    assert kinds(yard.do(c.UncordonNodes(nodes=("a",), by="op"))) == ["NodeUncordoned"]
    with pytest.raises(NotFound, match="this yard has a"):
        yard.do(c.CordonNodes(nodes=("z",), by="op"))
