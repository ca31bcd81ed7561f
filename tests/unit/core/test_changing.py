"""What may be changed of a run after its submit, when, and by whom; and what the change then means."""

from __future__ import annotations

from typing import Any

import pytest

from airyard.app.orders import OrderDesk
from airyard.core import commands as c
from airyard.core.decide import Updated
from airyard.core.errors import AiryardError, Conflict, Denied, NotFound, UserError
from airyard.core.policy import DAY_MS, Policy, ProjectPolicy
from airyard.core.run import RunState
from airyard.core.workload import Priority, Timeouts
from core_yard import START_MS, Yard, kinds, node, workload

DESK = OrderDesk(bases={}, secret=lambda *_: ("", False), tracking_uri="http://x/mlflow")
PROJECTS = Policy(
    projects=(
        ProjectPolicy(name="nlp", critical=("ada",)),
        ProjectPolicy(name="vision", members=("bob",)),
        ProjectPolicy(name="speech"),
    )
)


def update(yard: Yard, run_id: int = 1, by: str = "ada", **fields: Any) -> Updated:
    reply = yard.do(c.UpdateRun(run_id=run_id, by=by, **fields)).reply
    assert isinstance(reply, Updated)
    return reply


def refused(yard: Yard, kind: type[AiryardError], **fields: Any) -> AiryardError:
    seq = yard.state.seq
    with pytest.raises(kind) as caught:
        update(yard, **fields)
    assert yard.state.seq == seq
    assert caught.value.fix is not None
    return caught.value


def queued(**fields: Any) -> Yard:
    yard = Yard(node("a"))
    yard.submit(workload(**fields))
    return yard


def running(**fields: Any) -> Yard:
    yard = queued(**fields)
    yard.place()
    yard.start("1.0.0")
    return yard


def limits(yard: Yard) -> list[dict[str, Any]]:
    run, attempt = yard.run(1), yard.attempt(1)
    orders = DESK.orders(run, attempt, attempt.members[0], None, after=1)
    return [order for order in orders if order["kind"] == "LIMIT"]


def test_several_fields_change_at_once() -> None:
    yard = queued()
    reply = update(yard, priority=Priority.BEST_EFFORT, project="nlp", attempt_timeout_s=60)
    assert reply.changed == ("priority", "project", "attempt_timeout_s")
    run = yard.run(1)
    assert (run.workload.compute.priority, run.project) == (Priority.BEST_EFFORT, "nlp")
    assert (run.workload.project, run.workload.attempt_timeout_s) == ("nlp", 60)


def test_what_is_so_already_is_no_news() -> None:
    yard = queued(attempt_timeout_s=60)
    seq = yard.state.seq
    nothing = {"priority": Priority.NORMAL, "project": "default", "attempt_timeout_s": 60, "begin_ms": 0}
    assert update(yard, held=False, **nothing).changed == ()
    assert update(yard).changed == ()
    assert yard.state.seq == seq
    assert update(yard, priority=Priority.NORMAL, held=True).changed == ("held",)


def test_a_refusal_changes_nothing_of_the_rest() -> None:
    yard = running()
    refused(yard, Conflict, priority=Priority.BEST_EFFORT, held=True)
    assert yard.run(1).workload.compute.priority is Priority.NORMAL


def test_only_a_live_run_is_changed() -> None:
    yard = running()
    with pytest.raises(NotFound, match="run 7"):
        update(yard, run_id=7, held=True)
    yard.exit("1.0.0")
    with pytest.raises(NotFound, match="not queued or active"):
        update(yard, priority=Priority.BEST_EFFORT)


# --- class and project


def test_the_class_of_a_running_run_changes() -> None:
    yard = running()
    assert update(yard, priority=Priority.CRITICAL).changed == ("priority",)
    assert yard.run(1).workload.compute.priority is Priority.CRITICAL


def test_critical_needs_the_right_of_the_one_who_asks() -> None:
    yard = queued(project="nlp")
    yard.do(c.DeclarePolicy(policy=PROJECTS, by="op"))
    error = refused(yard, Denied, priority=Priority.CRITICAL, by="eve")
    assert error.code == "CRITICAL_NOT_ALLOWED"
    assert update(yard, priority=Priority.CRITICAL).changed == ("priority",)
    # The right is one of the project: it does not go along.
    assert refused(yard, Denied, project="speech").code == "CRITICAL_NOT_ALLOWED"
    assert update(yard, project="speech", priority=Priority.NORMAL).changed == ("priority", "project")


def test_a_queued_run_moves_to_a_project_that_is_open_to_the_one_who_asks() -> None:
    yard = queued()
    yard.do(c.DeclarePolicy(policy=PROJECTS, by="op"))
    assert refused(yard, UserError, project="npl").code == "UNKNOWN_PROJECT"
    assert refused(yard, Denied, project="vision").code == "NOT_A_MEMBER"
    assert update(yard, project="vision", by="bob").changed == ("project",)


def test_a_run_with_devices_stays_in_its_project() -> None:
    error = refused(running(), Conflict, project="nlp")
    assert error.code == "RUN_NOT_QUEUED"
    assert "its devices are booked to project default" in error.message
    assert error.fix is not None
    assert error.fix.command == "airyard cancel 1"


# --- the time limit


def test_a_limit_below_zero_or_beyond_all_measure_is_refused() -> None:
    for timeout_s in (-1, 10**10):
        error = refused(queued(), UserError, attempt_timeout_s=timeout_s)
        assert error.code == "BAD_TIME_LIMIT"
        assert str(timeout_s) in error.message


def test_a_limit_is_taken_away_by_zero() -> None:
    yard = queued(attempt_timeout_s=60)
    assert update(yard, attempt_timeout_s=0).changed == ("attempt_timeout_s",)
    assert yard.run(1).workload.attempt_timeout_s is None


def test_a_live_attempt_is_told_of_its_new_limit() -> None:
    yard = running(attempt_timeout_s=60)
    update(yard.later(50), attempt_timeout_s=600)
    (order,) = limits(yard)
    assert (order["attempt_timeout_s"], order["number"]) == (600, 3)
    update(yard, attempt_timeout_s=0)
    (order,) = limits(yard)
    assert (order["attempt_timeout_s"], order["number"]) == (None, 4)
    yard.do(c.CancelRun(run_id=1, by="ada"))
    assert yard.attempt(1).orders[-1].number == 5


def test_a_limit_that_the_attempt_has_used_up_is_refused_with_the_time_it_took() -> None:
    yard = running(attempt_timeout_s=6_000)
    yard.later(200)
    error = refused(yard, Conflict, attempt_timeout_s=200)
    assert error.code == "TIME_LIMIT_PASSED"
    assert "running for 3 min 20 s" in error.message
    assert update(yard, attempt_timeout_s=201).changed == ("attempt_timeout_s",)


def test_the_limit_of_a_run_that_prepares_counts_from_its_start() -> None:
    yard = queued()
    yard.place()
    update(yard.later(100), attempt_timeout_s=60)
    assert len(limits(yard)) == 1


def test_an_attempt_that_is_being_stopped_is_past_all_limits() -> None:
    yard = running()
    yard.do(c.CancelRun(run_id=1, by="ada"))
    reply = update(yard, attempt_timeout_s=5)
    assert "attempt 0 is being stopped" in reply.warnings[0]
    assert limits(yard) == []


# --- hold and begin


def test_a_held_run_is_not_started_until_it_is_released() -> None:
    yard = queued()
    plan = yard.plan()
    assert update(yard, held=True).changed == ("held",)
    assert kinds(yard.do(c.CommitPlan(plan=plan))) == []
    assert update(yard, held=False).changed == ("held",)
    assert kinds(yard.place()) == ["AttemptPlaced"]


def test_only_a_queued_run_is_held() -> None:
    error = refused(running(), Conflict, held=True)
    assert "run 1 is running" in error.message
    assert update(running(), held=False).changed == ()


def test_a_run_does_not_start_before_its_begin() -> None:
    yard = queued()
    plan = yard.plan()
    update(yard, begin_ms=yard.now_ms + 60_000)
    assert kinds(yard.later(59).do(c.CommitPlan(plan=plan))) == []
    assert kinds(yard.later(1).place()) == ["AttemptPlaced"]


def test_a_begin_lies_in_the_future_and_within_a_year() -> None:
    yard = queued()
    assert refused(yard, UserError, begin_ms=START_MS).code == "BEGIN_HAS_PASSED"
    assert refused(yard, UserError, begin_ms=START_MS + 367 * DAY_MS).code == "BEGIN_TOO_FAR"
    assert "1970-01-01 00:16:40 UTC" in refused(yard, UserError, begin_ms=START_MS).message
    assert refused(running(), Conflict, begin_ms=START_MS + 1_000).code == "RUN_NOT_QUEUED"


def test_a_begin_is_taken_back_and_one_that_has_come_is_no_news() -> None:
    yard = queued()
    update(yard, begin_ms=START_MS + 60_000)
    assert update(yard, begin_ms=0).changed == ("begin_ms",)
    update(yard, begin_ms=START_MS + 60_000)
    yard.later(60)
    assert update(yard, begin_ms=0).changed == ()


def test_a_run_may_be_submitted_held_or_for_later_and_a_resume_forgets_both() -> None:
    yard = Yard(node("a"))
    ask = {"owner": "ada", "workload": workload()}
    with pytest.raises(UserError, match="has passed, less than a second ago"):
        yard.do(c.SubmitRun(idempotency_key="k0", begin_ms=START_MS, **ask))
    yard.do(c.SubmitRun(idempotency_key="k1", held=True, begin_ms=START_MS + 5_000, **ask))
    assert (yard.run(1).held, yard.run(1).begin_ms) == (True, START_MS + 5_000)
    run = yard.run(1)
    yard.do(c.CancelRun(run_id=1, by="ada"))
    yard.do(c.ResumeRun(run=replaced_end(yard, run), by="ada"))
    assert (yard.run(1).held, yard.run(1).begin_ms) == (False, 0)


def replaced_end(yard: Yard, run: Any) -> Any:
    """The record as the read tables have it: it was cancelled while it was held."""
    gone = yard.state.departed[run.run_id]
    assert gone.state is RunState.ENDED
    assert gone.held
    return gone


# --- what limits a wait


def test_neither_a_hold_nor_a_begin_uses_up_the_queue_limit() -> None:
    yard = queued(timeouts=Timeouts(queue_s=60))
    update(yard.later(50), held=True)
    assert kinds(yard.tick(1_000)) == []
    update(yard, held=False)
    assert kinds(yard.tick(59)) == []
    update(yard, begin_ms=yard.now_ms + 500_000)
    assert kinds(yard.tick(559)) == []
    assert "RunEnded" in kinds(yard.tick(1))


def test_a_begin_taken_back_starts_the_wait() -> None:
    yard = queued(timeouts=Timeouts(queue_s=60))
    update(yard, begin_ms=yard.now_ms + 500_000)
    update(yard.later(100), begin_ms=0)
    assert kinds(yard.tick(59)) == []
    assert "RunEnded" in kinds(yard.tick(1))


def test_the_total_limit_counts_from_the_submit_held_or_not() -> None:
    yard = queued(timeouts=Timeouts(total_s=60))
    update(yard, held=True)
    assert "RunEnded" in kinds(yard.tick(60))
