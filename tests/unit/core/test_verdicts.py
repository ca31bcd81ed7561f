"""What a verdict of triage changes and what waits for it: in time, late, twice, never; and texts that are forged."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airyard.core import commands as c
from airyard.core.actions import JudgeAttempt
from airyard.core.decide import Decision, outstanding
from airyard.core.decide.verdicts import AFRESH_MS, GIVEN_UP_MS, LATE_MS, TEXT_EXCUSES
from airyard.core.health.facts import Component, HealthEvent, Severity, Source
from airyard.core.health.states import HealthState
from airyard.core.run import Cause, Outcome, RunState
from airyard.core.state import ClusterState
from airyard.core.triage.causes import Action, EvidenceLine, FailureCause, FailureClass, Judgement
from core_yard import Yard, acts, kinds, node, workload

WAIT_MS = 5_000
ECC = FailureCause(
    failure_class=FailureClass.HARDWARE,
    cause=Cause.DEVICE,
    action=Action.CORDON_RESET,
    rule="cuda.ecc",
    message="the GPU met a memory error",
    next_step="reset the GPU",
    confidence=0.9,
    first_rank=0,
    blamed_node="a",
    evidence=(EvidenceLine(file="node 0 stderr", number=3, text="uncorrectable ECC error"),),
)
OOM = replace(
    ECC, failure_class=FailureClass.USER, cause=Cause.USER_CODE, rule="user.cuda_oom", blamed_node=""
)


def judging_yard(names: str = "ab", wait_ms: int = WAIT_MS) -> Yard:
    """A pool of nodes whose server judges attempts."""
    yard = Yard(*(node(name) for name in names))
    yard.do(c.DeclareJudging(wait_ms=wait_ms))
    return yard


def begin(yard: Yard, **fields: Any) -> int:
    """Start a run on ``a``; return its id."""
    run_id = yard.submit(workload(**{"max_retries": 1, **fields}))
    yard.place()
    yard.start(f"{run_id}.0.0")
    assert yard.attempt(run_id).members[0].node == "a"
    return run_id


def fail(
    yard: Yard, run_id: int, attempt: int = 0, cause: Cause = Cause.USER_CODE, **fields: Any
) -> Decision:
    """End the run's only member badly, with its log; return what followed its exit."""
    done = yard.exit(f"{run_id}.{attempt}.0", cause, fingerprint=f"{attempt}", **fields)
    yard.close(f"{run_id}.{attempt}.0")
    return done


def tell(yard: Yard, run_id: int, verdict: FailureCause | None, attempt: int = 0) -> Decision:
    """Triage answers."""
    judgement = Judgement(verdict=verdict, logs=1, members=1)
    return yard.do(c.VerdictReached(run_id=run_id, attempt=attempt, judgement=judgement))


def test_the_end_waits_for_the_verdict_and_is_asked_for_once_the_log_is_there() -> None:
    yard = judging_yard()
    run_id = begin(yard)
    done = yard.exit(f"{run_id}.0.0", Cause.USER_CODE)
    assert kinds(done) == ["MemberExited", "VerdictAwaited"]
    assert "JudgeAttempt" not in acts(done)
    assert yard.run(run_id).state is RunState.ACTIVE
    assert yard.state.bookings() == {}  # the devices are free meanwhile
    yard.close(f"{run_id}.0.0")
    assert yard.actions == [JudgeAttempt(run_id=run_id, attempt=0, until_ms=yard.now_ms + WAIT_MS - 1_000)]
    done = tell(yard, run_id, OOM)
    assert kinds(done) == ["AttemptJudged", "AttemptEnded", "RunQueuedAgain"]
    assert (yard.attempt(run_id).cause, yard.run(run_id).retries_spent) == (Cause.USER_CODE, 1)
    assert yard.run(run_id).avoid_nodes == ()
    assert yard.state.health == {}


def test_others_are_placed_on_the_devices_while_the_verdict_is_waited_for() -> None:
    yard = judging_yard("a")
    run_id = begin(yard)
    other = yard.submit(workload())
    fail(yard, run_id)
    yard.place()
    assert yard.attempt(other).members[0].node == "a"
    tell(yard, run_id, OOM)


def test_a_verdict_in_time_excuses_the_run_and_it_goes_elsewhere() -> None:
    yard = judging_yard()
    run_id = begin(yard)
    fail(yard, run_id)
    yard.later(2)
    tell(yard, run_id, replace(ECC, confirmed=True))
    run, failure = yard.run(run_id), yard.attempt(run_id).failure
    assert (run.retries_spent, run.text_excuses, run.avoid_nodes) == (0, 0, ("a",))
    assert failure is not None
    assert (failure.cause, failure.node, failure.member) == (Cause.DEVICE, "a", 0)
    assert failure.message == "it ended: the GPU met a memory error (cuda.ecc)"
    yard.later(1).place()
    assert yard.attempt(run_id).members[0].node == "b"
    assert yard.state.health == {}  # what is confirmed the monitors say themselves


def test_a_late_verdict_is_kept_and_changes_nothing() -> None:
    yard = judging_yard()
    run_id = begin(yard)
    fail(yard, run_id)
    assert kinds(yard.tick(4.9)) == []
    assert kinds(yard.tick(0.2)) == ["AttemptEnded", "RunQueuedAgain"]
    assert acts(yard.tick(1)) == ["JudgeAttempt"]
    before = yard.run(run_id)
    assert kinds(tell(yard, run_id, replace(ECC, confirmed=True))) == ["AttemptJudged"]
    after = yard.run(run_id)
    assert after.attempts[0].judgement is not None
    assert (after.retries_spent, after.avoid_nodes, after.attempts[0].cause) == (1, (), Cause.USER_CODE)
    assert after.not_before_ms == before.not_before_ms


def test_a_second_verdict_says_nothing() -> None:
    yard = judging_yard()
    run_id = begin(yard)
    fail(yard, run_id)
    tell(yard, run_id, OOM)
    assert kinds(tell(yard, run_id, replace(ECC, confirmed=True))) == []
    assert kinds(tell(yard, 99, OOM)) == []
    assert kinds(tell(yard, run_id, OOM, attempt=7)) == []


def test_a_run_whose_verdict_never_comes_ends_and_leaves_memory_in_the_end() -> None:
    yard = judging_yard()
    run_id = begin(yard, max_retries=0)
    fail(yard, run_id)
    assert kinds(yard.tick(5)) == ["AttemptEnded", "RunEnded"]
    assert acts(yard.tick(60)) == ["JudgeAttempt"]
    assert kinds(yard.tick(GIVEN_UP_MS / 1000)) == ["RunArchived"]


def test_what_could_not_be_judged_ends_as_it_would_have() -> None:
    yard = judging_yard()
    run_id = begin(yard, max_retries=0)
    fail(yard, run_id)
    assert kinds(tell(yard, run_id, None)) == ["AttemptJudged", "AttemptEnded", "RunEnded", "RunArchived"]


def test_logs_that_do_not_come_are_not_waited_for_to_the_end() -> None:
    yard = judging_yard()
    run_id = begin(yard)
    yard.exit(f"{run_id}.0.0", Cause.USER_CODE)
    assert acts(yard.tick(1)) == []
    assert acts(yard.tick(1)) == ["JudgeAttempt"]


@pytest.mark.parametrize(
    ("cause", "fields"),
    [
        (Cause.USER_LIMIT, {"out_of_memory": True}),
        (Cause.ENVIRONMENT, {}),
        (Cause.NODE, {"fault": "preflight", "fault_message": "no"}),
        (Cause.USER_CODE, {"permanent": True}),
    ],
)
def test_what_no_verdict_could_change_does_not_wait_and_is_judged_after(
    cause: Cause, fields: dict[str, Any]
) -> None:
    yard = judging_yard()
    run_id = begin(yard)
    done = yard.exit(f"{run_id}.0.0", cause, **fields)
    said = [kind for kind in kinds(done) if kind != "NodeCordoned"]
    assert said[:3] == ["MemberExited", "AttemptEnded", "VerdictAwaited"]
    yard.close(f"{run_id}.0.0")
    (asked,) = [action for action in yard.actions if isinstance(action, JudgeAttempt)]
    assert asked.until_ms == yard.now_ms + LATE_MS - 1_000
    before = yard.run(run_id)
    tell(yard, run_id, replace(ECC, confirmed=True))
    after = yard.state.runs.get(run_id)
    if after is not None:
        assert after.attempts[0].cause is cause
        assert (after.retries_spent, after.avoid_nodes) == (before.retries_spent, before.avoid_nodes)


def test_a_lost_runner_is_judged_after_its_end() -> None:
    yard = judging_yard()
    run_id = begin(yard)
    assert kinds(yard.gone(f"{run_id}.0.0"))[:3] == ["MemberLost", "AttemptEnded", "VerdictAwaited"]
    assert yard.attempt(run_id).outcome is Outcome.LOST


def test_success_and_a_cancel_are_not_judged() -> None:
    yard = judging_yard()
    run_id = begin(yard)
    assert "VerdictAwaited" not in kinds(yard.exit(f"{run_id}.0.0"))
    other = begin(yard)
    yard.do(c.CancelRun(run_id=other, by="ada"))
    done = yard.exit(f"{other}.0.0", Cause.USER_CODE, stop_reason="CANCELLED")
    assert "VerdictAwaited" not in kinds(done)


def test_a_cancel_while_the_verdict_is_waited_for_ends_the_run_at_once() -> None:
    yard = judging_yard()
    run_id = begin(yard)
    fail(yard, run_id)
    done = yard.do(c.CancelRun(run_id=run_id, by="ada"))
    assert kinds(done) == ["StopOrdered", "AttemptEnded", "RunEnded"]
    assert yard.run(run_id).outcome is Outcome.CANCELLED
    assert kinds(tell(yard, run_id, OOM)) == ["AttemptJudged", "RunArchived"]


def test_nobody_waits_where_nobody_judges_or_the_wait_is_none() -> None:
    plain = Yard(node("a"))
    assert kinds(fail(plain, begin(plain)))[:2] == ["MemberExited", "AttemptEnded"]
    yard = judging_yard(wait_ms=0)
    assert kinds(fail(yard, begin(yard)))[:3] == ["MemberExited", "AttemptEnded", "VerdictAwaited"]
    assert kinds(yard.do(c.DeclareJudging(wait_ms=0))) == []
    assert kinds(yard.do(c.DeclareJudging(wait_ms=7))) == ["JudgingDeclared"]


def test_after_a_restart_the_verdict_is_asked_for_again() -> None:
    yard = judging_yard()
    run_id = begin(yard)
    yard.exit(f"{run_id}.0.0", Cause.USER_CODE)
    assert outstanding(yard.state) == []  # the end of its log is: then it is asked for
    yard.close(f"{run_id}.0.0")
    back = ClusterState.from_json(yard.state.to_json())
    assert back == yard.state
    assert outstanding(back) == list(yard.actions)
    tell(yard, run_id, OOM)
    assert outstanding(yard.state) == []


def test_a_server_that_begins_gives_the_verdicts_that_are_due_their_time_again() -> None:
    yard = judging_yard()
    run_id = begin(yard)
    fail(yard, run_id)
    yard.later(60)  # nobody was there
    assert kinds(yard.do(c.BeginEpoch(version="1"))) == ["EpochBegan", "VerdictAwaited"]
    assert kinds(yard.tick()) == []
    assert kinds(yard.tick(AFRESH_MS / 1000 - 1)) == []
    tell(yard, run_id, replace(ECC, confirmed=True))
    assert (yard.attempt(run_id).cause, yard.run(run_id).retries_spent) == (Cause.DEVICE, 0)
    assert kinds(yard.do(c.BeginEpoch(version="1"))) == ["EpochBegan"]


def test_servers_that_begin_again_and_again_keep_no_end_open_for_ever() -> None:
    yard = judging_yard()
    run_id = begin(yard)
    fail(yard, run_id)
    began = yard.now_ms
    while yard.attempt(run_id).live:
        yard.do(c.BeginEpoch(version="1"))
        yard.tick(7)
    assert GIVEN_UP_MS < yard.now_ms - began < GIVEN_UP_MS + AFRESH_MS + 8_000
    assert yard.attempt(run_id).cause is Cause.USER_CODE


def test_a_verdict_that_only_is_to_be_kept_gets_time_for_its_logs_too() -> None:
    yard = judging_yard()
    run_id = begin(yard)
    yard.exit(f"{run_id}.0.0", Cause.USER_CODE)
    yard.tick(WAIT_MS / 1000)
    assert not yard.attempt(run_id).live
    yard.later(60)
    yard.do(c.BeginEpoch(version="1"))
    assert acts(yard.tick(1)) == []
    assert acts(yard.tick(AFRESH_MS / 1000)) == ["JudgeAttempt"]


# --- what a job prints


def again(yard: Yard, run_id: int, attempt: int, verdict: FailureCause) -> None:
    """Fail attempt after attempt with the same verdict; time enough passes for the next one."""
    if attempt:
        yard.later(400).place()
        yard.start(f"{run_id}.{attempt}.0")
    fail(yard, run_id, attempt)
    where = yard.attempt(run_id).members[0].node
    tell(yard, run_id, replace(verdict, blamed_node=where if verdict.blamed_node else ""), attempt)


def test_printed_texts_excuse_a_run_a_few_times_and_then_no_more() -> None:
    yard = judging_yard("abcdef")
    run_id = begin(yard, max_retries=3)
    for attempt in range(TEXT_EXCUSES):
        again(yard, run_id, attempt, ECC)
        assert yard.run(run_id).attempts[attempt].cause is Cause.DEVICE
    assert (yard.run(run_id).retries_spent, yard.run(run_id).text_excuses) == (0, TEXT_EXCUSES)
    again(yard, run_id, TEXT_EXCUSES, ECC)
    assert yard.run(run_id).attempts[-1].cause is Cause.USER_CODE
    assert yard.run(run_id).retries_spent == 1
    # What is confirmed still excuses it.
    again(yard, run_id, TEXT_EXCUSES + 1, replace(ECC, confirmed=True))
    assert (yard.run(run_id).retries_spent, yard.run(run_id).text_excuses) == (1, TEXT_EXCUSES)


def test_texts_never_cordon_however_many_runs_print_them() -> None:
    """Forty runs print every rule there is; their nodes are suspects at most, and work on."""
    yard = judging_yard("a")
    rules = [f"forged.{number}" for number in range(40)]
    for rule in rules:
        run_id = begin(yard, max_retries=0)
        fail(yard, run_id)
        tell(yard, run_id, replace(ECC, rule=rule))
        yard.later(1)
        if yard.run(run_id).state is RunState.QUEUED:
            yard.do(c.CancelRun(run_id=run_id, by="ada"))
    health = yard.state.health["a"]
    assert health.state is HealthState.SUSPECT
    assert health.score <= 5
    assert not any(hit.confirmed for hit in health.hits)
    assert yard.state.cordons == {}
    assert yard.state.breakers == {}


def test_one_text_alone_does_not_even_make_a_suspect() -> None:
    yard = judging_yard()
    run_id = begin(yard)
    fail(yard, run_id)
    done = tell(yard, run_id, ECC)
    assert kinds(done) == ["AttemptJudged", "AttemptEnded", "RunQueuedAgain", "NodeHealthChanged"]
    health = yard.state.health["a"]
    assert (health.state, [hit.rule for hit in health.hits]) == (HealthState.HEALTHY, ["job.cuda.ecc"])
    assert health.hits[0].evidence == ()  # who may see the node need not be allowed to see the run's log


def test_texts_do_not_count_among_the_nodes_that_show_a_fault() -> None:
    """Forged lines on many nodes must not open the breaker before a node that really is broken."""
    yard = judging_yard("abcdef")
    for _ in range(5):
        run_id = yard.submit(workload(max_retries=0))
        yard.place()
        yard.start(f"{run_id}.0.0")
        fail(yard, run_id)
        where = yard.attempt(run_id).members[0].node
        tell(yard, run_id, replace(ECC, rule="xid.79", blamed_node=where))
    real = HealthEvent(
        event_id="r", rule="xid.79", machine="a", node="a", at_ms=yard.now_ms, component=Component.GPU,
        severity=Severity.CRITICAL, source=Source.KERNEL, message="off the bus", device=0, code=79,
    )  # fmt: skip
    yard.do(c.HealthReported(events=(real,)))
    assert yard.state.breakers == {}
    assert "a" in yard.state.cordons


def test_no_log_blames_a_node_that_its_run_was_not_on() -> None:
    yard = judging_yard()
    run_id = begin(yard)
    fail(yard, run_id)
    tell(yard, run_id, replace(ECC, blamed_node="b"))
    assert yard.state.health == {}
    assert yard.run(run_id).avoid_nodes == ()


def test_a_run_without_gpus_knows_nothing_of_them() -> None:
    yard = Yard(node("a", None))
    yard.do(c.DeclareJudging(wait_ms=WAIT_MS))
    run_id = begin(yard, accelerator="CPU")
    fail(yard, run_id)
    tell(yard, run_id, ECC)
    assert (yard.attempt(run_id).cause, yard.run(run_id).retries_spent) == (Cause.USER_CODE, 1)
    assert yard.state.health == {}


def test_a_doubtful_verdict_excuses_nobody_and_effects_blame_nobody() -> None:
    yard = judging_yard()
    run_id = begin(yard, max_retries=5)
    fail(yard, run_id)
    tell(yard, run_id, replace(ECC, confidence=0.5))
    assert yard.attempt(run_id).cause is Cause.USER_CODE
    effect = replace(
        ECC, failure_class=FailureClass.UNKNOWN, cause=Cause.PLATFORM, rule="collective.timeout",
        confidence=0.3, blamed_node="",
    )  # fmt: skip
    again(yard, run_id, 1, effect)
    run, failure = yard.run(run_id), yard.attempt(run_id).failure
    assert failure is not None
    assert (failure.cause, failure.node, run.text_excuses) == (Cause.PLATFORM, None, 1)
    again(yard, run_id, 2, replace(effect, rule="nothing.found"))
    assert yard.attempt(run_id).cause is Cause.USER_CODE


def test_of_a_network_nobody_is_avoided() -> None:
    yard = judging_yard()
    run_id = begin(yard)
    fail(yard, run_id)
    tell(yard, run_id, replace(ECC, failure_class=FailureClass.NETWORK, cause=Cause.NETWORK, blamed_node=""))
    assert (yard.attempt(run_id).cause, yard.run(run_id).avoid_nodes) == (Cause.NETWORK, ())
    assert yard.state.health == {}


def test_fresh_budgets_of_a_resumed_run_are_fresh() -> None:
    yard = judging_yard("abc")
    run_id = begin(yard, max_retries=0)
    for attempt in range(TEXT_EXCUSES):
        again(yard, run_id, attempt, ECC)
    last = yard.run(run_id)
    again(yard, run_id, TEXT_EXCUSES, OOM)
    assert run_id not in yard.state.runs
    over = replace(last, state=RunState.ENDED, outcome=Outcome.FAILED)
    assert over.text_excuses == TEXT_EXCUSES
    yard.do(c.ResumeRun(run=over, by="ada"))
    assert yard.run(run_id).text_excuses == 0
