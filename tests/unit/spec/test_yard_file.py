"""yard.yaml: what it comes to, every problem with its line, and the way back to text."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airyard.core.errors import UserError
from airyard.core.policy import (
    DAY_MS,
    HOUR_MS,
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
from airyard.core.policy_diff import normal
from airyard.core.policy_json import policy_from_json, policy_to_json
from airyard.spec.schema import yard_schema
from airyard.spec.yard import load_yard, load_yard_text
from airyard.spec.yard_text import yard_text

EXAMPLE = Path(__file__).parents[3] / "examples" / "yard.yaml"


def refused(text: str) -> UserError:
    with pytest.raises(UserError) as caught:
        load_yard_text(text)
    assert caught.value.code == "YARD_FILE_INVALID"
    return caught.value


def problems(text: str) -> list[tuple[int, str, str]]:
    found = refused(text).details["problems"]
    return [(problem["line"], problem["code"], problem["path"]) for problem in found]


def test_every_field_is_read() -> None:
    text = """\
pools:
  h100: {accelerator: GPU_8xH100, labels: {rack: 7, zone: a}, nodes: [n1], order: FAIR, share: false,
         slicing: {first_slice: 90m, apart: 10m}, ageing: 3d, reservations: 2,
         prolog: {command: check-gpus, timeout: 30s}, epilog: {command: clean-up}}
  cpu: {accelerator: CPU, slicing: true}
  a10: {accelerator: a10, slicing: false}
projects:
  nlp:
    pools: {h100: {guarantee: 8, ceiling: 16, weight: 2}, cpu: }
    budget: {gpu_hours: 1000, over: pause}
    per_user: {waiting: 1, running: 2, devices: 3}
    members: [ada, bob]
    critical: ["*"]
    slicing: true
  empty:
users: {alice: {project: nlp}, "12": {project: default}}
half_life: 2d
"""
    assert load_yard_text(text.replace("members: [ada, bob]", "members: [ada, bob, alice]")).policy == Policy(
        pools=(
            PoolPolicy(
                name="h100",
                accelerator="GPU_8xH100",
                labels=(("rack", "7"), ("zone", "a")),
                nodes=("n1",),
                order=PoolOrder.FAIR,
                share=False,
                slicing=Slicing(first_slice_ms=90 * 60_000, apart_ms=10 * 60_000),
                ageing_ms=3 * DAY_MS,
                reservations=2,
                prolog=NodeCommand(command="check-gpus", timeout_ms=30_000),
                epilog=NodeCommand(command="clean-up"),
            ),
            PoolPolicy(name="cpu", accelerator="CPU", slicing=Slicing()),
            PoolPolicy(name="a10", accelerator="GPU_1xA10"),
        ),
        projects=(
            ProjectPolicy(
                name="nlp",
                shares=(Share(pool="h100", guarantee=8, ceiling=16, weight=2.0), Share(pool="cpu")),
                budget=Budget(gpu_hours=1000.0, over=OverBudget.PAUSE),
                per_user=UserLimits(waiting=1, running=2, devices=3),
                members=("ada", "bob", "alice"),
                critical=("*",),
                slicing=True,
            ),
            ProjectPolicy(name="empty"),
        ),
        users=(UserPolicy(name="alice", default_project="nlp"), UserPolicy(name="12")),
        half_life_ms=2 * DAY_MS,
    )


@pytest.mark.parametrize("text", ["{}", "pools:\nprojects:\nusers:\n"])
def test_nothing_declared_is_the_empty_policy(text: str) -> None:
    assert load_yard_text(text).policy == Policy()


def test_all_problems_come_at_once_with_their_lines() -> None:
    text = """\
pools:
  h100: {acelerator: GPU_8xH100, order: shortest}
  slow: {accelerator: CPU, ageing: 5, slicing: {first: 2h}}
  slow2: {accelerator: 8xh100, slicing: {apart: 0h}, share: maybe}
projects:
  nlp:
    pools:
      h100: {guarantee: 8, ceiling: 4, wieght: 2}
      slow: {guarantee: -1, weight: .nan}
      cpu: [8]
    budget: {over: stop}
    members: ada
  nlp: {slicing: 1}
users: {alice: {project: npl}, bob: }
halflife: 7d
"""
    assert problems(text) == [
        (2, "UNKNOWN_FIELD", "pools.h100.acelerator"),
        (2, "INVALID_VALUE", "pools.h100.order"),
        (3, "INVALID_VALUE", "pools.slow.ageing"),
        (3, "UNKNOWN_FIELD", "pools.slow.slicing.first"),
        (4, "INVALID_VALUE", "pools.slow2.accelerator"),
        (4, "INVALID_VALUE", "pools.slow2.slicing.apart"),
        (4, "WRONG_TYPE", "pools.slow2.share"),
        (13, "DUPLICATE_KEY", "projects.nlp"),
        (13, "WRONG_TYPE", "projects.nlp.slicing"),
        (14, "INVALID_VALUE", "users.alice.project"),
        (14, "WRONG_TYPE", "users.bob"),
        (15, "UNKNOWN_FIELD", "halflife"),
    ]
    once = text.replace("  nlp: {slicing: 1}\n", "")
    assert problems(once)[7:13] == [
        (8, "CONFLICTING_FIELDS", "projects.nlp.pools.h100.ceiling"),
        (8, "UNKNOWN_FIELD", "projects.nlp.pools.h100.wieght"),
        (9, "INVALID_VALUE", "projects.nlp.pools.slow.guarantee"),
        (9, "INVALID_VALUE", "projects.nlp.pools.slow.weight"),
        (10, "WRONG_TYPE", "projects.nlp.pools.cpu"),
        (11, "MISSING_FIELD", "projects.nlp.budget.gpu_hours"),
    ]


def test_limits_of_a_pool_are_read_and_what_is_wrong_with_them_is_told_with_its_line() -> None:
    good = "pools:\n  p:\n    accelerator: CPU\n    thresholds: {all: {cpus_least: 8}, H100: {nvlinks: 12}}\n"
    policy = load_yard_text(good).policy
    assert policy.pools[0].thresholds == (("H100", "nvlinks", 12.0), ("all", "cpus_least", 8.0))
    assert load_yard_text(yard_text(policy)).policy == policy
    bad = """\
pools:
  p:
    accelerator: CPU
    thresholds:
      all:
        cpu_least: 8
        nvlinks: -1
        copy_gb_s: many
        disk_free_share_fail: 5
      H10: {nvlinks: 12}
"""
    assert [(line, path) for line, _, path in problems(bad)] == [
        (6, "pools.p.thresholds.all.cpu_least"),
        (7, "pools.p.thresholds.all.nvlinks"),
        (8, "pools.p.thresholds.all.copy_gb_s"),
        (9, "pools.p.thresholds.all.disk_free_share_fail"),
        (10, "pools.p.thresholds.H10"),
    ]
    said = refused(bad).message
    assert "did you mean 'cpus_least'?" in said
    assert "no limits for 'H10' in pool p" in said


def test_folders_of_file_servers_are_whole_paths() -> None:
    good = "pools:\n  p:\n    accelerator: CPU\n    storage: [/mnt/checkpoints, /mnt/data]\n"
    policy = load_yard_text(good).policy
    assert policy.pools[0].storage == ("/mnt/checkpoints", "/mnt/data")
    assert load_yard_text(yard_text(policy)).policy == policy
    for folder in ("mnt/checkpoints", "/mnt/../etc"):
        bad = f"pools:\n  p:\n    accelerator: CPU\n    storage: [{folder}]\n"
        assert [(line, path) for line, _, path in problems(bad)] == [(4, "pools.p.storage")]
        assert f"'{folder}' of pool p is no whole path of a folder" in refused(bad).message
    many = ", ".join(f"/mnt/{number}" for number in range(17))
    assert (
        "17 folders of file servers; 16 are possible" in refused(good.replace("/mnt/data", many[9:])).message
    )


def test_words_name_the_near_miss_the_fields_and_the_repair() -> None:
    message = refused("pools: {h100: {acelerator: GPU_8xH100}}").message
    assert 'yard.yaml:1:16  pools.h100.acelerator  unknown field; did you mean "accelerator"?' in message
    assert "valid: accelerator, labels, nodes, order" in message
    assert "is required" not in message
    message = refused("projects: {nlp: {pools: {h100: {guarantee: 8, ceiling: 4}}}}").message
    assert "the ceiling of 4 devices is under the guarantee of 8: raise the ceiling to 8 or more" in message
    assert "5 has no unit; write 5s, 5m or 5h" in refused("half_life: 5").message
    assert (
        "is none of predicted, fair and fifo" in refused("pools: {x: {accelerator: CPU, order: x}}").message
    )


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "EMPTY_FILE"),
        ("- a", "WRONG_TYPE"),
        ("pools: [", "YAML_SYNTAX"),
        ("pools: {x: {accelerator: CPU, nodes: [1]}}", "WRONG_TYPE"),
        ("pools: {CPU: {accelerator: GPU_8xH100}}", "RESERVED_NAME"),
        ("pools: {Fast: {accelerator: CPU}, fast: {accelerator: CPU}}", "DUPLICATE_KEY"),
        ("projects: {'a b': }", "INVALID_VALUE"),
        ("projects: {nlp: {pools: {h100: {guarantee: 1.5}}}}", "WRONG_TYPE"),
        ("projects: {nlp: {pools: {h100: {guarantee: true}}}}", "WRONG_TYPE"),
        ("projects: {nlp: {budget: {gpu_hours: .inf}}}", "INVALID_VALUE"),
        ("projects: {nlp: {per_user: {running: -1}}}", "INVALID_VALUE"),
        ("half_life: 0s", "INVALID_VALUE"),
    ],
)
def test_each_kind_of_mistake_has_its_code(text: str, code: str) -> None:
    assert [problem["code"] for problem in refused(text).details["problems"]] == [code]


def test_a_file_that_is_not_there_or_not_text_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot read") as caught:
        load_yard(tmp_path / "none.yaml")
    assert caught.value.code == "FILE_NOT_FOUND"
    (tmp_path / "yard.yaml").write_bytes(b"pools:\n  \xff: 1\n")
    with pytest.raises(UserError, match="is not UTF-8 text: byte 0xff on line 2"):
        load_yard(tmp_path / "yard.yaml")


def test_a_path_of_the_api_is_found_in_the_file() -> None:
    loaded = load_yard_text("projects:\n  nlp:\n    pools: {h100: {guarantee: 8}}\n")
    assert str(loaded.place("projects.nlp.pools.h100.guarantee")) == "yard.yaml:3:20"
    assert str(loaded.place("projects.nlp.pools.h100.weight")) == "yard.yaml:3:13"
    assert str(loaded.place("users.ada")) == "yard.yaml:1:1"
    assert (
        loaded.digest == hashlib.sha256(b"projects:\n  nlp:\n    pools: {h100: {guarantee: 8}}\n").hexdigest()
    )


def test_the_example_loads_and_is_complete() -> None:
    policy = load_yard(EXAMPLE).policy
    assert [pool.name for pool in policy.pools] == ["h100", "small"]
    assert [project.name for project in policy.projects] == ["nlp", "vision"]
    text = EXAMPLE.read_text()
    missing = [name for name in _field_names(yard_schema()) if f"{name}:" not in text]
    assert missing == []


def _field_names(schema: dict[str, object]) -> list[str]:
    blocks = [schema, *schema["$defs"].values()]  # type: ignore[attr-defined]  # a JSON Schema
    return [name for block in blocks for name in block.get("properties", {})]


names = st.from_regex(r"[a-z][a-z0-9_.-]{0,8}", fullmatch=True)
users = st.sampled_from(["ada", "007", "true", "null", "a@b.example", "ä b", "*"])
counts = st.integers(0, 9999)
seconds_ms = st.integers(1, 10**6).map(lambda value: value * 1000)
pools = st.builds(
    PoolPolicy,
    name=names,
    accelerator=st.sampled_from(["CPU", "GPU_8xH100"]),
    labels=st.dictionaries(names, st.text("ab1: #", max_size=5), max_size=2).map(
        lambda found: tuple(sorted(found.items()))
    ),
    nodes=st.lists(names, max_size=2, unique=True).map(tuple),
    order=st.sampled_from(PoolOrder),
    share=st.booleans(),
    slicing=st.none() | st.builds(Slicing, first_slice_ms=seconds_ms, apart_ms=seconds_ms),
    ageing_ms=seconds_ms,
    reservations=st.integers(0, 50),
)
shares = st.builds(
    lambda pool, guarantee, more, weight: Share(
        pool=pool, guarantee=guarantee, ceiling=None if more is None else guarantee + more, weight=weight
    ),
    names,
    counts,
    st.none() | counts,
    st.floats(0.001, 1e9),
)
projects = st.builds(
    ProjectPolicy,
    name=names,
    shares=st.lists(shares, max_size=2, unique_by=lambda share: share.pool).map(tuple),
    budget=st.none() | st.builds(Budget, gpu_hours=st.floats(0, 1e9), over=st.sampled_from(OverBudget)),
    per_user=st.builds(
        UserLimits, waiting=st.none() | counts, running=st.none() | counts, devices=st.none() | counts
    ),
    members=st.lists(users, max_size=3, unique=True).map(tuple),
    critical=st.lists(users, max_size=3, unique=True).map(tuple),
    slicing=st.none() | st.booleans(),
)
policies = st.builds(
    Policy,
    pools=st.lists(pools, max_size=2, unique_by=lambda pool: pool.name).map(tuple),
    projects=st.lists(projects, max_size=2, unique_by=lambda project: project.name).map(tuple),
    users=st.lists(users.filter(lambda name: name != "*"), max_size=2, unique=True).map(
        lambda found: tuple(UserPolicy(name=name) for name in found)
    ),
    half_life_ms=seconds_ms,
)


@given(policies)
def test_text_and_json_of_a_policy_are_read_as_the_same_policy(policy: Policy) -> None:
    policy = normal(policy)
    assert load_yard_text(yard_text(policy)).policy == policy
    assert policy_from_json(json.loads(json.dumps(policy_to_json(policy)))) == policy


def test_the_text_of_the_empty_policy_says_so_and_is_read_back() -> None:
    assert yard_text(Policy()).startswith("# Nothing is declared")
    assert load_yard_text(yard_text(Policy())).policy == Policy()
    assert "half_life: 1h" in yard_text(replace(Policy(), half_life_ms=HOUR_MS))


def test_the_schema_names_every_block_and_no_idle_titles() -> None:
    schema = yard_schema()
    assert schema["$id"] == "urn:airyard:yard:1"
    assert set(schema["properties"]) == {"pools", "projects", "users", "half_life"}
    assert schema["$defs"]["PoolBlock"]["properties"]["order"]["anyOf"][0] == {
        "enum": ["fifo", "fair", "predicted"]
    }
    assert schema["$defs"]["ShareBlock"]["additionalProperties"] is False
