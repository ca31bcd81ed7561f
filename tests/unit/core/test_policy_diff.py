"""What two policies differ in, in the words of yard.yaml, and their JSON form."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airyard.core.policy import (
    Budget,
    NodeCommand,
    OverBudget,
    Policy,
    PoolOrder,
    PoolPolicy,
    ProjectPolicy,
    Share,
    Slicing,
    UserLimits,
    UserPolicy,
)
from airyard.core.policy_diff import changes, duration_text, normal, number_text
from airyard.core.policy_json import policy_from_json, policy_to_json

POOL = PoolPolicy(name="h100", accelerator="GPU_8xH100")
WHOLE = Policy(
    pools=(
        replace(
            POOL,
            labels=(("rack", "r1"), ("zone", "a")),
            nodes=("n1", "n2"),
            order=PoolOrder.FIFO,
            share=False,
            slicing=Slicing(first_slice_ms=60_000, apart_ms=90_000),
            ageing_ms=3_600_000,
            reservations=2,
            prolog=NodeCommand(command="check", timeout_ms=5_000),
            epilog=NodeCommand(command="clean"),
        ),
        PoolPolicy(name="cpu", accelerator="CPU"),
    ),
    projects=(
        ProjectPolicy(
            name="nlp",
            shares=(Share(pool="h100", guarantee=8, ceiling=16, weight=2.5), Share(pool="cpu")),
            budget=Budget(gpu_hours=1000, over=OverBudget.PAUSE),
            per_user=UserLimits(waiting=3, running=2, devices=8),
            members=("ada", "bob"),
            critical=("ada",),
            slicing=False,
        ),
        ProjectPolicy(name="vision"),
    ),
    users=(UserPolicy(name="ada", default_project="nlp"),),
    half_life_ms=86_400_000,
)


def shown(before: Policy, after: Policy) -> list[str]:
    return [
        f"{each.kind.value} {'.'.join(each.path)}: {each.before}>{each.after}"
        for each in changes(before, after)
    ]


@pytest.mark.parametrize("policy", [Policy(), WHOLE], ids=["empty", "whole"])
def test_the_json_form_comes_back(policy: Policy) -> None:
    assert policy_from_json(policy_to_json(policy)) == policy
    assert changes(policy, policy) == ()


def test_what_the_json_leaves_out_keeps_its_default() -> None:
    data = {
        "pools": [{"name": "h100", "accelerator": "GPU_8xH100", "slicing": {}}],
        "projects": [{"name": "nlp", "pools": [{"pool": "h100"}], "budget": {"gpu_hours": 5}}],
    }
    found = policy_from_json(data)
    assert found.pools == (replace(POOL, slicing=Slicing()),)
    assert found.projects == (
        ProjectPolicy(name="nlp", shares=(Share(pool="h100"),), budget=Budget(gpu_hours=5)),
    )
    assert found.half_life_ms == Policy().half_life_ms


def test_a_changed_field_has_both_values() -> None:
    project = replace(WHOLE.projects[0], shares=(Share(pool="h100", guarantee=16, ceiling=None, weight=2.5),))
    after = replace(
        WHOLE,
        pools=(
            replace(WHOLE.pools[0], order=PoolOrder.FAIR, slicing=None, ageing_ms=5_400_000),
            WHOLE.pools[1],
        ),
        projects=(project, WHOLE.projects[1]),
    )
    assert shown(WHOLE, after) == [
        "changed pools.h100.ageing: 1h>1h30m",
        "changed pools.h100.order: fifo>fair",
        "changed pools.h100.slicing: first_slice 1m, apart 1m30s>none",
        "removed projects.nlp.pools.cpu: >",
        "changed projects.nlp.pools.h100.ceiling: 16>none",
        "changed projects.nlp.pools.h100.guarantee: 8>16",
    ]


def test_what_is_new_comes_with_what_is_not_its_default_and_what_goes_takes_all_along() -> None:
    added = shown(Policy(), replace(WHOLE, pools=(POOL,), projects=(WHOLE.projects[0],)))
    assert added == [
        "added pools.h100: >",
        "added pools.h100.accelerator: >GPU_8xH100",
        "added projects.nlp: >",
        "added projects.nlp.budget: >gpu_hours 1000, over pause",
        "added projects.nlp.critical: >ada",
        "added projects.nlp.members: >ada, bob",
        "added projects.nlp.per_user.devices: >8",
        "added projects.nlp.per_user.running: >2",
        "added projects.nlp.per_user.waiting: >3",
        "added projects.nlp.pools.cpu: >",
        "added projects.nlp.pools.h100: >",
        "added projects.nlp.pools.h100.ceiling: >16",
        "added projects.nlp.pools.h100.guarantee: >8",
        "added projects.nlp.pools.h100.weight: >2.5",
        "added projects.nlp.slicing: >false",
        "added users.ada: >",
        "added users.ada.project: >nlp",
        "changed half_life: 7d>1d",
    ]
    assert shown(WHOLE, Policy(half_life_ms=WHOLE.half_life_ms)) == [
        "removed pools.cpu: >",
        "removed pools.h100: >",
        "removed projects.nlp: >",
        "removed projects.vision: >",
        "removed users.ada: >",
    ]


def test_the_order_of_pools_matters_and_no_other() -> None:
    turned = replace(WHOLE, pools=WHOLE.pools[::-1], projects=WHOLE.projects[::-1], users=WHOLE.users[::-1])
    assert shown(WHOLE, turned) == ["changed pools: h100, cpu>cpu, h100"]
    assert normal(replace(turned, pools=WHOLE.pools)) == normal(WHOLE)
    assert normal(turned) != normal(WHOLE)


def test_the_normal_form_loses_nothing_but_repetition() -> None:
    project = replace(WHOLE.projects[0], members=("bob", "ada", "bob"))
    assert normal(replace(WHOLE, projects=(project, WHOLE.projects[1]))) == normal(WHOLE)
    doubled = replace(WHOLE, users=WHOLE.users * 2)
    assert len(normal(doubled).users) == 2
    assert changes(WHOLE, normal(WHOLE)) == ()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (59, "59s"), (90, "1m30s"), (7200, "2h"), (7 * 86_400, "7d"), (90_061, "1d1h1m1s")],
)
def test_durations_read_as_in_the_file(seconds: int, text: str) -> None:
    assert duration_text(seconds) == text


def test_numbers_have_no_idle_fraction() -> None:
    assert [number_text(value) for value in (8, 8.0, 2.5, 1e20)] == ["8", "8", "2.5", "1e+20"]


def test_limits_of_checks_read_as_numbers_whatever_their_names() -> None:
    plain = PoolPolicy(name="p", accelerator="CPU")
    pool = replace(plain, thresholds=(("H100", "copy_gb_s", 48.0), ("all", "cpus_least", 8.0)))
    (found,) = changes(Policy(pools=(plain,)), Policy(pools=(pool,)))
    assert (found.before, found.after) == ("none", "H100.copy_gb_s 48, all.cpus_least 8")
