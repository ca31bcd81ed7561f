"""What the declared policy refuses at submit, and the project that a run is charged to."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airyard.core import commands as c
from airyard.core.decide import Submitted, admission, asks
from airyard.core.errors import AiryardError, Denied, Unavailable, UserError
from airyard.core.policy import (
    Budget,
    OverBudget,
    Policy,
    PoolPolicy,
    ProjectPolicy,
    Share,
    UserLimits,
    UserPolicy,
)
from airyard.core.quota import month_end_ms
from airyard.core.run import RunState
from airyard.core.workload import Priority
from core_yard import Yard, node, workload

NLP = ProjectPolicy(name="nlp", members=("ada", "eve"), critical=("eve",))
VISION = ProjectPolicy(name="vision", members=("bob",))
HOME = UserPolicy(name="ada", default_project="nlp")


def yard_with(*projects: ProjectPolicy, users: tuple[UserPolicy, ...] = ()) -> Yard:
    yard = Yard(node("a"), node("cpu", None))
    yard.do(c.DeclarePolicy(policy=Policy(projects=projects, users=users), by="op"))
    return yard


def submit(yard: Yard, owner: str = "ada", **fields: Any) -> int:
    wanted = workload(**fields)
    key = f"key-{yard.state.next_run_id}"
    reply = yard.do(c.SubmitRun(owner=owner, workload=wanted, idempotency_key=key)).reply
    assert isinstance(reply, Submitted)
    return reply.run_id


def refused(yard: Yard, owner: str = "ada", **fields: Any) -> AiryardError:
    before = yard.state.seq
    with pytest.raises(AiryardError) as caught:
        submit(yard, owner, **fields)
    assert yard.state.seq == before
    assert caught.value.fix is not None
    return caught.value


def test_a_run_goes_to_its_own_project_else_to_that_of_its_user() -> None:
    yard = yard_with(NLP, VISION, users=(HOME,))
    runs = [
        submit(yard),
        submit(yard, project="default"),
        submit(yard, owner="bob"),
        submit(yard, "bob", project="vision"),
    ]
    assert [yard.run(run).project for run in runs] == ["nlp", "default", "default", "vision"]


def test_without_declared_projects_every_name_and_class_is_open() -> None:
    yard = Yard(node("a"))
    run_id = submit(yard, project="anything", priority=Priority.CRITICAL)
    assert yard.run(run_id).project == "anything"


def test_an_unknown_project_is_named_with_its_near_miss_and_those_there_are() -> None:
    error = refused(yard_with(NLP, VISION), project="npl")
    assert isinstance(error, UserError)
    assert error.code == "UNKNOWN_PROJECT"
    assert (
        error.message == "there is no project 'npl'; did you mean 'nlp'?; this yard has default, nlp, vision"
    )
    assert error.details["projects"] == ["nlp", "vision"]


def test_only_members_submit() -> None:
    error = refused(yard_with(NLP, VISION), project="vision")
    assert (type(error), error.code) == (Denied, "NOT_A_MEMBER")
    assert "ada is no member of project vision; it has bob" in error.message
    assert error.fix is not None
    assert "submit to default, nlp" in error.fix.text


def test_critical_needs_a_right_and_the_refusal_says_who_gives_it() -> None:
    yard = yard_with(NLP, VISION)
    error = refused(yard, project="nlp", priority=Priority.CRITICAL)
    assert (type(error), error.code) == (Denied, "CRITICAL_NOT_ALLOWED")
    assert error.message == "ada may not use CRITICAL in project nlp; it is for eve"
    assert error.fix is not None
    assert "operator" in error.fix.text
    assert "projects.nlp.critical" in error.fix.text
    assert "nobody has the right" in refused(yard, priority=Priority.CRITICAL).message
    run_id = submit(yard, "eve", project="nlp", priority=Priority.CRITICAL)
    assert yard.run(run_id).workload.compute.priority is Priority.CRITICAL


def test_who_waits_in_numbers_is_asked_to_come_back() -> None:
    yard = yard_with(replace(NLP, per_user=UserLimits(waiting=2)), VISION)
    submit(yard, project="nlp")
    submit(yard, project="nlp")
    error = refused(yard, project="nlp")
    assert (type(error), error.code, error.retryable) == (Unavailable, "TOO_MANY_WAITING", True)
    assert error.message == "ada has 2 runs waiting in project nlp, which allows each user 2"
    submit(yard, "eve", project="nlp")
    submit(yard, project="default")
    yard.place()
    assert yard.run(1).state is RunState.ACTIVE
    submit(yard, project="nlp")


def spend(yard: Yard, hours: float, **fields: Any) -> None:
    """Let a run of 8 devices have its node for some hours."""
    run_id = submit(yard, **fields)
    yard.place()
    yard.start(f"{run_id}.0.0")
    yard.later(hours * 3600)
    yard.exit(f"{run_id}.0.0")


def test_a_spent_budget_refuses_with_hours_and_the_end_of_the_month() -> None:
    yard = yard_with(replace(NLP, budget=Budget(gpu_hours=16)), VISION)
    spend(yard, 1, project="nlp")
    submit(yard, project="nlp")
    yard = yard_with(replace(NLP, budget=Budget(gpu_hours=16)), VISION)
    spend(yard, 2, project="nlp")
    error = refused(yard, project="nlp")
    assert (type(error), error.code, error.exit_code) == (UserError, "BUDGET_SPENT", 8)
    assert error.message == (
        "project nlp has used 16.0 of its 16 GPU-hours of this month, which ends 1970-02-01 00:00 UTC"
    )
    assert error.details["month_ends_ms"] == 31 * 86_400_000
    submit(yard, accelerator="CPU", project="nlp")
    submit(yard, project="default")
    yard.now_ms = month_end_ms(yard.now_ms)
    submit(yard, project="nlp")


def test_a_budget_that_pauses_lets_runs_wait() -> None:
    yard = yard_with(replace(NLP, budget=Budget(gpu_hours=0, over=OverBudget.PAUSE)))
    submit(yard, project="nlp")


def test_time_on_cpu_slots_costs_no_gpu_hours_whatever_their_pool_is_called() -> None:
    yard = Yard(node("a"), node("cpu", None))
    slots = PoolPolicy(name="slots", accelerator="CPU")
    project = replace(NLP, budget=Budget(gpu_hours=1))
    yard.do(c.DeclarePolicy(policy=Policy(pools=(slots,), projects=(project,)), by="op"))
    spend(yard, 5, accelerator="CPU", project="nlp")
    submit(yard, project="nlp")
    yard.do(c.DeclarePolicy(policy=Policy(projects=(project,)), by="op"))
    submit(yard, project="nlp")


def test_the_same_key_finds_its_run_whatever_was_declared_since() -> None:
    yard = Yard(node("a"))
    ask = c.SubmitRun(owner="ada", workload=workload(project="old"), idempotency_key="k")
    yard.do(ask)
    yard.do(c.DeclarePolicy(policy=Policy(projects=(NLP,)), by="op"))
    assert yard.do(ask).reply == Submitted(run_id=1, existing=True)


def test_resume_is_asked_the_same_questions() -> None:
    yard = yard_with(NLP)
    run_id = submit(yard, project="nlp")
    ended = replace(yard.run(run_id), state=RunState.ENDED)
    yard.do(c.CancelRun(run_id=run_id, by="ada"))
    yard.do(c.DeclarePolicy(policy=Policy(projects=(replace(NLP, members=("eve",)),)), by="op"))
    with pytest.raises(Denied, match="no member of project nlp"):
        asks.resume(yard.state, c.ResumeRun(run=ended, by="ada"), yard.now_ms)


def test_a_change_of_project_or_class_can_ask_the_same() -> None:
    policy = Policy(projects=(NLP,))
    admission.check_project(policy, "ada", "nlp")
    admission.check_class(policy, "ada", "nlp", Priority.NORMAL)
    with pytest.raises(UserError, match="no project"):
        admission.check_project(policy, "ada", "vision")
    with pytest.raises(Denied, match="CRITICAL"):
        admission.check_class(policy, "ada", "nlp", Priority.CRITICAL)


def test_a_run_that_its_projects_ceiling_keeps_out_is_told_so() -> None:
    capped = replace(NLP, shares=(Share(pool="GPU_8xH100", ceiling=4),))
    yard = yard_with(capped)
    told = admission.cautions(yard.state, "ada", workload(project="nlp"), yard.now_ms)
    assert len(told) == 1
    assert "asks 8 devices at once, and project nlp may have at most 4 of pool GPU_8xH100" in told[0]
    assert admission.cautions(yard.state, "ada", workload("GPU_4xH100", project="nlp"), yard.now_ms) == []
    assert admission.cautions(yard.state, "ada", workload("CPU", project="nlp"), yard.now_ms) == []


def test_a_run_of_a_paused_project_is_told_so() -> None:
    broke = replace(NLP, budget=Budget(gpu_hours=0, over=OverBudget.PAUSE))
    yard = yard_with(broke)
    told = admission.cautions(yard.state, "ada", workload(project="nlp"), yard.now_ms)
    assert len(told) == 1
    assert "has used up this month's GPU-hours" in told[0]
    assert admission.cautions(yard.state, "ada", workload("CPU", project="nlp"), yard.now_ms) == []
