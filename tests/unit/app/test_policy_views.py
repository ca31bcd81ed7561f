"""The documents about pools, projects, quotas and history, from a yard driven by commands."""

from __future__ import annotations

from typing import Any

import pytest

from airyard.app import policy_views as views
from airyard.core import commands as c
from airyard.core.events import PolicyDeclared
from airyard.core.policy import (
    Budget,
    Policy,
    PoolOrder,
    PoolPolicy,
    ProjectPolicy,
    Share,
    UserPolicy,
)
from airyard.core.workload import Priority
from airyard.wire import policy as wire
from core_yard import Yard, node, workload

POLICY = Policy(
    pools=(PoolPolicy(name="h100", accelerator="GPU_8xH100", order=PoolOrder.FAIR),),
    projects=(
        ProjectPolicy(
            name="nlp",
            shares=(Share(pool="h100", guarantee=8, ceiling=16, weight=2.0),),
            budget=Budget(gpu_hours=100),
            critical=("ada",),
        ),
        ProjectPolicy(name="vision", shares=(Share(pool="h100", guarantee=16),), members=("bob",)),
    ),
    users=(UserPolicy(name="ada", default_project="nlp"),),
)


@pytest.fixture
def yard() -> Yard:
    one = Yard(node("a"), node("b"), node("c"), node("cpu", None))
    one.do(c.DeclarePolicy(policy=POLICY, by="op"))
    return one


def start(yard: Yard, **fields: Any) -> int:
    run_id = yard.submit(workload(**fields))
    yard.place()
    yard.start(*(f"{run_id}.0.{member.index}" for member in yard.attempt(run_id).members))
    return run_id


def rows(yard: Yard, caller: str = "ada") -> dict[tuple[str, str], dict[str, Any]]:
    found = views.quota_document(yard.state, caller, yard.now_ms)
    wire.QuotaAnswer.model_validate(found)
    return {(row["project"], row["pool"]): row for row in found["rows"]}


def test_pools_show_what_is_free_guaranteed_and_borrowed(yard: Yard) -> None:
    start(yard)
    start(yard, priority=Priority.BEST_EFFORT)
    yard.submit(workload(nodes=3))
    yard.do(c.CordonNodes(nodes=("c",), by="op", reason="fan"))
    pools = views.pool_documents(yard.state)
    wire.PoolsAnswer.model_validate({"pools": pools})
    assert [(pool["name"], pool["declared"], pool["accelerator"]) for pool in pools] == [
        ("h100", True, "GPU_8xH100"),
        ("CPU", False, "CPU"),
    ]
    numbers = ("nodes", "devices", "open_devices", "free_devices", "whole_free_nodes", "guaranteed", "used")
    assert [pools[0][name] for name in numbers] == [3, 24, 16, 0, 0, 24, 16]
    assert pools[0]["guaranteed_now"] <= 16
    # Guarantees of 24 on 16 open devices: nlp has 5 of its 8, so 3 of the first run stand on others' devices.
    assert pools[0]["borrowed"] == 3 + 8
    assert pools[0]["rules"]["order"] == "fair"
    assert [pools[1][name] for name in numbers] == [1, 1, 1, 1, 1, 0, 0]


def test_a_declared_pool_without_nodes_is_listed() -> None:
    yard = Yard(node("a"))
    yard.do(
        c.DeclarePolicy(policy=Policy(pools=(PoolPolicy(name="b200", accelerator="GPU_8xB200"),)), by="op")
    )
    found = {pool["name"]: (pool["nodes"], pool["devices"]) for pool in views.pool_documents(yard.state)}
    assert found == {"b200": (0, 0), "GPU_8xH100": (1, 8)}


def test_quota_rows_count_use_borrowing_and_the_callers_own_part(yard: Yard) -> None:
    start(yard)
    start(yard, priority=Priority.BEST_EFFORT)
    yard.later(3600)
    row = rows(yard)["nlp", "h100"]
    assert (row["guarantee"], row["guarantee_now"], row["ceiling"], row["weight"]) == (8, 8, 16, 2.0)
    assert (row["used"], row["best_effort"], row["borrowed"], row["mine"]) == (16, 8, 8, 16)
    assert (row["decayed_share"], row["decayed_share_per_weight"]) == (1.0, 0.5)
    assert row["decayed_device_hours"] == pytest.approx(16, rel=0.01)
    assert rows(yard, "bob")["nlp", "h100"]["mine"] == 0
    assert rows(yard)["vision", "h100"]["used"] == 0


def test_decayed_shares_of_a_pool_come_to_one(yard: Yard) -> None:
    start(yard)
    start(yard, project="default", nodes=2)
    yard.later(3600)
    found = rows(yard)
    assert found["default", "h100"]["guarantee"] == 0
    shares = [row["decayed_share"] for key, row in found.items() if key[1] == "h100"]
    assert shares == [pytest.approx(2 / 3, abs=1e-3), pytest.approx(1 / 3, abs=1e-3), 0.0]


def test_quota_of_one_project_and_what_is_mine(yard: Yard) -> None:
    start(yard)
    yard.submit(workload("CPU", project="default"))
    yard.later(3600)
    found = views.quota_document(yard.state, "ada", yard.now_ms, "nlp")
    assert {row["project"] for row in found["rows"]} == {"nlp"}
    assert found["budgets"] == [{"project": "nlp", "used_gpu_hours": 8.0, "gpu_hours": 100, "over": "refuse"}]
    assert found["month_ends_at"] == "1970-02-01T00:00:00.000Z"
    assert found["mine"] == {
        "projects": ["nlp"],
        "default_project": "nlp",
        "devices": 8,
        "queued": 0,
        "active": 1,
    }
    assert views.quota_document(yard.state, "ada", yard.now_ms)["mine"]["queued"] == 1
    assert views.quota_document(yard.state, "bob", yard.now_ms)["mine"]["projects"] == [
        "nlp",
        "vision",
        "default",
    ]


def test_projects_say_who_may_what(yard: Yard) -> None:
    start(yard)
    yard.submit(workload(project="default"))
    found = views.project_documents(yard.state, "ada", yard.now_ms)
    wire.ProjectsAnswer.model_validate({"projects": found})
    shown = [(each["name"], each["declared"], each["mine"], each["active"], each["queued"]) for each in found]
    assert shown == [("nlp", True, True, 1, 0), ("vision", True, False, 0, 0), ("default", False, True, 0, 1)]
    assert [each["critical"] for each in found] == [["ada"], [], []]
    assert found[0]["default_for"] == ["ada"]
    assert found[1]["pools"] == [{"pool": "h100", "guarantee": 16, "ceiling": None, "weight": 1.0}]


def test_where_nothing_is_declared_everybody_has_every_right() -> None:
    yard = Yard(node("a"))
    yard.submit(workload(project="anything"))
    found = views.project_documents(yard.state, "ada", yard.now_ms)
    assert [(each["name"], each["mine"], each["critical"]) for each in found] == [
        ("anything", True, ["*"]),
        ("default", True, ["*"]),
    ]


def test_history_says_who_when_and_what(yard: Yard) -> None:
    yard.later(60).do(c.DeclarePolicy(policy=Policy(), by="ada", source="config", digest="d1"))
    declared = [each for each in yard.journal if isinstance(each.event, PolicyDeclared)][::-1]
    found = views.history_documents(declared, 10)
    wire.HistoryAnswer.model_validate({"history": found})
    assert [(each["by"], each["source"], each["digest"]) for each in found] == [
        ("ada", "config", "d1"),
        ("op", "api", None),
    ]
    assert found[0]["at"] == "1970-01-01T00:17:40.000Z"
    assert [change["path"] for change in found[0]["changes"]] == [
        "pools.h100",
        "projects.nlp",
        "projects.vision",
        "users.ada",
    ]
    assert found[1]["changes"][0] == {"kind": "added", "path": "pools.h100", "before": "", "after": ""}
    # With one more asked than shown, the last one shown is compared with the one before it.
    assert len(views.history_documents(declared, 1)) == 1
