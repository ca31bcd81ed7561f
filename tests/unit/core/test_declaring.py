"""Declaring a policy: what becomes a fact, what is refused, what a dry run says."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airyard.core import commands as c
from airyard.core.decide import Declared
from airyard.core.errors import UserError
from airyard.core.events import PolicyDeclared
from airyard.core.policy import Policy, PoolPolicy, ProjectPolicy, Share
from core_yard import Yard, kinds, node, workload

POLICY = Policy(
    pools=(PoolPolicy(name="h100", accelerator="GPU_8xH100"),),
    projects=(
        ProjectPolicy(name="vision"),
        ProjectPolicy(name="nlp", shares=(Share(pool="h100", guarantee=8),)),
    ),
)


def declare(yard: Yard, policy: Policy, **fields: object) -> tuple[Declared, list[str]]:
    decision = yard.do(c.DeclarePolicy(policy=policy, by="ada", **fields))  # type: ignore[arg-type]  # fields of DeclarePolicy
    assert isinstance(decision.reply, Declared)
    return decision.reply, kinds(decision)


def test_a_policy_becomes_a_fact_with_who_and_whence() -> None:
    yard = Yard(node("a"))
    reply, events = declare(yard, POLICY)
    assert (reply.changed, reply.warnings, events) == (True, (), ["PolicyDeclared"])
    event = yard.journal[-1].event
    assert isinstance(event, PolicyDeclared)
    assert (event.by, event.source, yard.journal[-1].at_ms) == ("ada", "api", yard.now_ms)
    assert [project.name for project in yard.state.policy.projects] == ["nlp", "vision"]


def test_the_same_again_is_no_news_in_whatever_order() -> None:
    yard = Yard(node("a"))
    declare(yard, POLICY)
    reply, events = declare(yard, replace(POLICY, projects=POLICY.projects[::-1]))
    assert (reply.changed, events) == (False, [])


def test_a_dry_run_says_all_and_changes_nothing() -> None:
    yard = Yard(node("a"))
    pool = replace(POLICY.pools[0], nodes=("a", "b"))
    reply, events = declare(yard, replace(POLICY, pools=(pool,)), dry_run=True)
    assert (reply.changed, events, yard.state.policy) == (True, [], Policy())
    assert [warning.rule.value for warning in reply.warnings] == ["UNKNOWN_NODE"]
    with pytest.raises(UserError):
        declare(yard, replace(POLICY, half_life_ms=0), dry_run=True)


def test_a_bad_policy_is_refused_whole_with_every_problem() -> None:
    yard = Yard(node("a"))
    share = Share(pool="h100", guarantee=99, ceiling=1)
    bad = replace(POLICY, projects=(ProjectPolicy(name="nlp", shares=(share,)),), half_life_ms=0)
    with pytest.raises(UserError) as caught:
        declare(yard, bad)
    assert caught.value.code == "POLICY_INVALID"
    assert caught.value.message.startswith("the policy has 3 problems; nothing was changed:\n")
    paths = [problem["path"] for problem in caught.value.details["problems"]]
    assert paths == ["projects.nlp.pools.h100.ceiling", "half_life", "projects.nlp.pools.h100.guarantee"]
    assert "next: lower them by 91 in all" in caught.value.message
    assert yard.state.policy == Policy()


def test_one_problem_brings_its_own_next_step() -> None:
    with pytest.raises(UserError) as caught:
        declare(Yard(node("a")), replace(POLICY, half_life_ms=0))
    assert caught.value.fix is not None
    assert "7d" in caught.value.fix.text


def test_a_pool_with_runs_stays_until_they_have_ended() -> None:
    yard = Yard(node("a"))
    declare(yard, POLICY)
    run_id = yard.submit(workload())
    yard.place()
    with pytest.raises(UserError, match=rf"pool h100 would be gone, but run {run_id} stands in it"):
        declare(yard, replace(POLICY, pools=(), projects=()))
    yard.start(f"{run_id}.0.0")
    yard.exit(f"{run_id}.0.0")
    yard.close(f"{run_id}.0.0")
    reply, _ = declare(yard, replace(POLICY, pools=(), projects=()))
    assert reply.changed
    assert ("default", "GPU_8xH100") in yard.state.usage


def test_a_project_with_runs_stays_until_they_have_ended() -> None:
    yard = Yard(node("a"))
    declare(yard, POLICY)
    run_id = yard.submit(workload(project="vision"))
    with pytest.raises(UserError, match=rf"project vision would be gone, but run {run_id} is charged to it"):
        declare(yard, replace(POLICY, projects=POLICY.projects[1:]))
    yard.do(c.CancelRun(run_id=run_id, by="ada"))
    declare(yard, replace(POLICY, projects=POLICY.projects[1:]))


def test_a_configured_file_is_told_from_a_restart_by_its_digest() -> None:
    yard = Yard(node("a"))
    assert declare(yard, POLICY, source="config", digest="d1")[1] == ["PolicyDeclared"]
    assert declare(yard, POLICY, source="config", digest="d1")[1] == []
    # An edit of comments alone is noted, or every restart would take the file for edited.
    reply, events = declare(yard, POLICY, source="config", digest="d2")
    assert (reply.changed, events, yard.state.policy_digest) == (False, ["PolicyDeclared"], "d2")
    # What was declared by hand since outlives a restart, whatever became of the nodes; an edit of the file wins.
    declare(yard, Policy())
    assert declare(yard, replace(POLICY, half_life_ms=0), source="config", digest="d2")[1] == []
    assert (yard.state.policy, yard.state.policy_digest) == (Policy(), "d2")
    assert declare(yard, POLICY, source="config", digest="d3")[1] == ["PolicyDeclared"]


def test_a_new_guarantee_holds_at_once() -> None:
    yard = Yard(node("a"))
    declare(yard, POLICY)
    grown = replace(POLICY.projects[1], shares=(Share(pool="h100", guarantee=4),))
    reply, _ = declare(yard, replace(POLICY, projects=(POLICY.projects[0], grown)))
    assert [change.to_json() for change in reply.changes] == [
        {"kind": "changed", "path": "projects.nlp.pools.h100.guarantee", "before": "8", "after": "4"}
    ]
    nlp = yard.state.policy.project("nlp")
    assert nlp is not None
    assert nlp.share_of("h100").guarantee == 4
