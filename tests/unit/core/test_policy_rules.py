"""Which policies are refused, and what is said: every problem at once, with place, numbers and next step."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from airyard.core.cluster import Node
from airyard.core.policy import (
    Budget,
    NodeCommand,
    Policy,
    PoolPolicy,
    ProjectPolicy,
    Share,
    Slicing,
    UserLimits,
    UserPolicy,
)
from airyard.core.policy_fit import LiveRun, problems
from airyard.core.policy_rules import Problem, Rule, inner_problems
from core_yard import node

POOL = PoolPolicy(name="h100", accelerator="GPU_8xH100")
NODES = (node("a"), node("b"), node("c", "A10", 1))


def project(name: str = "nlp", **fields: object) -> ProjectPolicy:
    return ProjectPolicy(name=name, **fields)  # type: ignore[arg-type]  # fields of ProjectPolicy


def sharing(**fields: object) -> Policy:
    return Policy(pools=(POOL,), projects=(project(shares=(Share(pool="h100", **fields),)),))  # type: ignore[arg-type]  # fields of Share


def fit(
    policy: Policy, *runs: LiveRun, before: Policy | None = None, nodes: tuple[Node, ...] = NODES
) -> tuple[Problem, ...]:
    return problems(policy, before=before or Policy(), nodes=nodes, runs=runs)


def only(found: tuple[Problem, ...]) -> Problem:
    (problem,) = found
    assert problem.fix
    return problem


def test_a_policy_that_fits_is_not_complained_about() -> None:
    policy = Policy(
        pools=(POOL,),
        projects=(
            project(shares=(Share(pool="h100", guarantee=8, ceiling=16, weight=2.5),), critical=("ada",)),
        ),
        users=(UserPolicy(name="ada", default_project="nlp"), UserPolicy(name="bob")),
    )
    assert fit(policy) == ()
    assert fit(Policy()) == ()


@pytest.mark.parametrize(
    ("policy", "path", "words"),
    [
        (sharing(guarantee=8, ceiling=4), "projects.nlp.pools.h100.ceiling", "4 devices is under the guarantee of 8"),
        (sharing(guarantee=-1), "projects.nlp.pools.h100.guarantee", "-1 devices"),
        (sharing(ceiling=-2), "projects.nlp.pools.h100.ceiling", "-2 devices"),
        (sharing(weight=-1.0), "projects.nlp.pools.h100.weight", "a weight of -1.0"),
        (sharing(weight=0.0), "projects.nlp.pools.h100.weight", "a weight of 0.0"),
        (sharing(weight=math.nan), "projects.nlp.pools.h100.weight", "a weight of nan"),
        (sharing(weight=math.inf), "projects.nlp.pools.h100.weight", "a weight of inf"),
        (Policy(projects=(project(budget=Budget(gpu_hours=-1.0)),)), "projects.nlp.budget.gpu_hours", "-1.0 GPU-hours"),
        (Policy(projects=(project(budget=Budget(gpu_hours=math.nan)),)), "projects.nlp.budget.gpu_hours", "nan"),
        (Policy(projects=(project(per_user=UserLimits(running=-1)),)), "projects.nlp.per_user.running", "-1 per user"),
        (Policy(projects=(project("a b"),)), "projects.a b", "'a b' is not a project name"),
        (Policy(projects=(project(), project())), "projects.nlp", "project nlp is given twice"),
        (Policy(users=(UserPolicy(name="ada"),) * 2), "users.ada", "user ada is given twice"),
        (Policy(users=(UserPolicy(name="*"),)), "users.*", "'*' is no user"),
        (Policy(half_life_ms=0), "half_life", "longer than nothing"),
        (Policy(pools=(POOL, POOL)), "pools.h100", "pool h100 is given twice"),
        (Policy(pools=(replace(POOL, accelerator="H100"),)), "pools.h100.accelerator", "'H100' is neither"),
        (Policy(pools=(replace(POOL, ageing_ms=-5),)), "pools.h100.ageing", "-0.005 s"),
        (Policy(pools=(replace(POOL, reservations=-1),)), "pools.h100.reservations", "-1 reservations"),
        (Policy(pools=(replace(POOL, slicing=Slicing(first_slice_ms=0)),)), "pools.h100.slicing.first_slice", "0 s"),
        (Policy(pools=(replace(POOL, prolog=NodeCommand(command=" ")),)), "pools.h100.prolog.command", "no command"),
        (
            Policy(pools=(replace(POOL, epilog=NodeCommand(command="x", timeout_ms=0)),)),
            "pools.h100.epilog.timeout",
            "0 s for the epilog",
        ),
        (Policy(pools=(replace(POOL, slicing=Slicing(apart_ms=-1)),)), "pools.h100.slicing.apart", "longer"),
        (Policy(pools=(replace(POOL, name="GPU_8xA10"),)), "pools.GPU_8xA10", "what is left of all nodes"),
        (
            Policy(pools=(replace(POOL, name="GPU_8xH100", nodes=("a",)),)),
            "pools.GPU_8xH100",
            "what is left of all nodes",
        ),
    ],
)  # fmt: skip
def test_each_bad_value_is_named_with_its_place_and_number(policy: Policy, path: str, words: str) -> None:
    problem = only(inner_problems(policy))
    assert (".".join(problem.path), problem.warning) == (path, False)
    assert words in problem.message


def test_pool_names_differ_by_more_than_case() -> None:
    problem = only(inner_problems(Policy(pools=(POOL, replace(POOL, name="H100")))))
    assert problem.rule is Rule.DUPLICATE_NAME
    assert "h100 is the same name" in problem.message


def test_a_pool_may_carry_the_name_of_its_type_when_it_takes_all_of_it() -> None:
    assert fit(Policy(pools=(PoolPolicy(name="GPU_8xH100", accelerator="GPU_8xH100", share=False),))) == ()


def test_guarantees_over_the_pool_are_refused_with_the_sum() -> None:
    projects = tuple(project(name, shares=(Share(pool="h100", guarantee=10),)) for name in ("nlp", "vision"))
    problem = only(fit(Policy(pools=(POOL,), projects=projects)))
    assert problem.rule is Rule.GUARANTEES_EXCEED_POOL
    assert (
        problem.message
        == "pool h100 has 16 devices on 2 nodes; its guarantees come to 20 (nlp 10, vision 10)"
    )
    assert problem.fix == "lower them by 4 in all, or add nodes to the pool"


def test_a_pool_without_nodes_promises_nothing_and_is_warned_about() -> None:
    pool = replace(POOL, labels=(("zone", "b"),))
    problem = only(fit(Policy(pools=(pool,), projects=(project(shares=(Share(pool="h100", guarantee=8),)),))))
    assert (problem.rule, problem.warning) == (Rule.POOL_WITHOUT_NODES, True)
    assert "none is GPU_8xH100 with zone=b; this yard has GPU_1xA10, GPU_8xH100" in problem.message


def test_an_undeclared_pool_is_known_by_its_type_while_it_has_nodes() -> None:
    def shared(pool: str) -> Policy:
        return Policy(projects=(project(shares=(Share(pool=pool, guarantee=1),)),))

    assert fit(shared("GPU_1xA10")) == ()
    problem = only(fit(shared("GPU_1xA1O")))
    assert problem.rule is Rule.UNKNOWN_POOL
    assert "did you mean 'GPU_1xA10'?" in problem.message
    # Once a declared pool takes all nodes of the type, nothing is left of it.
    taken = Policy(pools=(POOL,), projects=shared("GPU_8xH100").projects)
    assert only(fit(taken)).rule is Rule.UNKNOWN_POOL


def test_default_projects_must_exist_and_admit_their_user() -> None:
    projects = (project(members=("bob",)),)
    unknown = only(
        inner_problems(Policy(projects=projects, users=(UserPolicy(name="ada", default_project="npl"),)))
    )
    assert unknown.rule is Rule.UNKNOWN_PROJECT
    assert "did you mean 'nlp'?" in unknown.message
    stranger = only(
        inner_problems(Policy(projects=projects, users=(UserPolicy(name="ada", default_project="nlp"),)))
    )
    assert stranger.rule is Rule.NOT_A_MEMBER
    assert "projects.nlp.members" in stranger.fix
    assert inner_problems(Policy(users=(UserPolicy(name="ada", default_project="any"),))) == ()


def test_people_are_warned_about_projects_nobody_can_use() -> None:
    empty = only(inner_problems(Policy(projects=(project(members=()),))))
    assert (empty.rule, empty.warning) == (Rule.NOBODY_MAY, True)
    outside = only(inner_problems(Policy(projects=(project(members=("bob",), critical=("ada", "bob")),))))
    assert (outside.warning, "ada may use CRITICAL" in outside.message) == (True, True)


def test_names_of_nodes_that_are_not_there_or_do_not_fit_are_warned_about() -> None:
    pool = replace(POOL, nodes=("a", "bb", "c"))
    found = fit(Policy(pools=(pool,)))
    assert [(problem.rule, problem.warning) for problem in found] == [(Rule.UNKNOWN_NODE, True)] * 2
    assert "node 'bb', which is not there" in found[0].message
    assert "node c, which is GPU_1xA10, not GPU_8xH100" in found[1].message


def test_nodes_claimed_twice_are_named_but_the_rest_is_a_pool_too() -> None:
    first, rest = replace(POOL, name="first", nodes=("a",)), replace(POOL, name="rest")
    assert fit(Policy(pools=(first, rest))) == ()
    twice = only(fit(Policy(pools=(first, replace(rest, nodes=("a", "b"))))))
    assert (twice.rule, twice.warning) == (Rule.NODES_CLAIMED_TWICE, True)
    assert "1 node of pool rest (a) is claimed by an earlier pool too, which has it: first" in twice.message
    behind = only(fit(Policy(pools=(rest, first))))
    assert behind.rule is Rule.POOL_WITHOUT_NODES
    assert "rest before it has all" in behind.message


def test_a_pool_is_not_removed_under_its_runs() -> None:
    before = Policy(pools=(POOL,))
    runs = (
        LiveRun(run_id=3, project="default", pool="h100", nodes=("a",)),
        LiveRun(run_id=4, project="default", pool="H100"),
        LiveRun(run_id=5, project="default", pool=None),
        LiveRun(run_id=6, project="default", pool="GPU_1xA10", nodes=("c",)),
    )
    found = fit(Policy(), *runs, before=before)
    assert [problem.rule for problem in found] == [Rule.POOL_IN_USE, Rule.POOL_IN_USE]
    assert "run 4 waits for it" in found[0].message
    assert "pool h100 would be gone, but run 3 stands in it" in found[1].message
    assert all("cancel" in problem.fix for problem in found)
    assert fit(Policy(), *runs[2:], before=before) == ()


def test_what_was_the_rest_of_a_type_is_not_taken_from_runs_that_ask_for_it() -> None:
    waits = LiveRun(run_id=4, project="default", pool="GPU_8xH100")
    stands = LiveRun(run_id=5, project="default", pool="GPU_8xH100", nodes=("a",))
    assert "run 4 waits for it" in only(fit(Policy(pools=(POOL,)), waits)).message
    assert fit(Policy(pools=(POOL,)), stands) == ()


def test_runs_on_nodes_that_leave_a_pool_are_named() -> None:
    stands = LiveRun(run_id=5, project="default", pool="h100", nodes=("a",))
    problem = only(fit(Policy(pools=(replace(POOL, nodes=("b",)),)), stands, before=Policy(pools=(POOL,))))
    assert (problem.rule, problem.warning) == (Rule.NODES_LEAVE_POOL, True)
    assert "run 5 stands on nodes that leave pool h100" in problem.message


def test_a_project_is_not_removed_under_its_runs_and_undeclared_ones_are_named() -> None:
    before = Policy(projects=(project(), project("vision")))
    runs = tuple(LiveRun(run_id=number, project="nlp", pool=None) for number in range(1, 12))
    gone = only(fit(Policy(projects=before.projects[1:]), *runs, before=before))
    assert gone.rule is Rule.PROJECT_IN_USE
    assert "runs 1, 2, 3, 4, 5, 6, 7, 8 and 3 more are charged to it" in gone.message
    assert "airyard update ID --project" in gone.fix
    assert only(fit(Policy(), *runs, before=before)).rule is Rule.PROJECT_IN_USE
    new = only(fit(Policy(projects=(project("vision"),)), *runs))
    assert (new.rule, new.warning) == (Rule.PROJECT_NOT_DECLARED, True)


def test_all_problems_are_told_at_once() -> None:
    policy = Policy(
        pools=(POOL, replace(POOL, ageing_ms=0)),
        projects=(project(shares=(Share(pool="h100", guarantee=99, ceiling=1, weight=-1), Share(pool="x"))),),
        users=(UserPolicy(name="ada", default_project="none"),),
        half_life_ms=-1,
    )
    assert {problem.rule for problem in fit(policy)} >= {
        Rule.DUPLICATE_NAME,
        Rule.BAD_VALUE,
        Rule.CEILING_UNDER_GUARANTEE,
        Rule.UNKNOWN_POOL,
        Rule.UNKNOWN_PROJECT,
        Rule.GUARANTEES_EXCEED_POOL,
    }
    assert all(problem.fix and problem.message for problem in fit(policy))
