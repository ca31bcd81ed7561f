"""apply, projects, quota and pools against scripted answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airyard.core.errors import UserError
from airyard.core.policy_json import policy_from_json
from airyard.spec.yard import load_yard_text

CHANGES = [
    {"kind": "added", "path": "pools.h100", "before": "", "after": ""},
    {"kind": "removed", "path": "users.bob", "before": "", "after": ""},
    {"kind": "changed", "path": "projects.nlp.pools.h100.guarantee", "before": "8", "after": "16"},
]
WARNING = {
    "rule": "POOL_WITHOUT_NODES",
    "path": "pools.h100",
    "message": "pool h100 has no nodes",
    "fix": "wait for some",
}


def answer(**changes: Any) -> dict[str, list[Any]]:
    document = {"changed": True, "applied": True, "changes": CHANGES, "warnings": [], **changes}
    return {"PUT /policy": [document]}


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "yard.yaml"
    path.write_text("pools:\n  h100: {accelerator: GPU_8xH100}\nhalf_life: 1d\n")
    return str(path)


def test_apply_sends_the_policy_and_prints_what_changed(airyard: Any, file: str) -> None:
    code, out, err = airyard("apply", "-f", file, answers=answer(warnings=[WARNING]))
    assert code == 0
    assert out.splitlines() == [
        "+ pools.h100",
        "- users.bob",
        "~ projects.nlp.pools.h100.guarantee: 8 -> 16",
    ]
    assert f"warning: {file}:2:3  pool h100 has no nodes; wait for some" in err
    assert "3 changes applied" in err
    body = airyard.transport.asked[-1].body
    assert body["dry_run"] is False
    assert policy_from_json(body["policy"]) == load_yard_text(Path(file).read_text()).policy


@pytest.mark.parametrize("option", ["--diff", "--dry-run"])
def test_diff_applies_nothing(airyard: Any, file: str, option: str) -> None:
    code, _, err = airyard("apply", "-f", file, option, answers=answer(applied=False))
    assert (code, "nothing was applied" in err) == (0, True)
    assert airyard.transport.asked[-1].body["dry_run"] is True


def test_apply_of_the_same_says_so(airyard: Any, file: str) -> None:
    code, out, _ = airyard("apply", "-f", file, answers=answer(changed=False, applied=False, changes=[]))
    assert (code, out) == (0, "no changes\n")


def test_apply_in_json_carries_the_document(airyard: Any, file: str) -> None:
    code, out, _ = airyard("apply", "-f", file, "-o", "json", answers=answer())
    assert code == 0
    assert json.loads(out)["data"] == {"file": file, **answer()["PUT /policy"][0]}


def test_apply_shows_the_line_of_each_problem_of_the_server(airyard: Any, file: str) -> None:
    problems = [
        {"rule": "BAD_VALUE", "path": "pools.h100.ageing", "message": "no", "fix": "mend it"},
        {"rule": "POOL_IN_USE", "path": "pools.old", "message": "run 4 stands in it", "fix": "wait"},
    ]
    error = UserError("the policy has 2 problems", code="POLICY_INVALID", details={"problems": problems})
    code, _, err = airyard("apply", "-f", file, answers={"PUT /policy": [error]})
    assert code == 2
    assert f"{file}:2:3  pools.h100.ageing  no\n  next: mend it" in err
    assert f"{file}:1:1  pools.old  run 4 stands in it" in err


def test_what_only_the_yard_knows_is_told_with_the_problems_of_the_file(airyard: Any, tmp_path: Path) -> None:
    text = (
        "pools:\n  h100: {accelerator: GPU_8xH100}\n  odd: {accelerator: GPU}\n"
        "projects:\n  nlp: {pools: {h100: {guarantee: 99}, none: {guarantee: 1}, odd: {guarantee: 1}}}\n"
    )
    path = tmp_path / "yard.yaml"
    path.write_text(text)
    problems = [
        {"rule": "r", "path": f"projects.nlp.pools.{pool}", "message": f"no {pool}", "fix": "mend it"}
        for pool in ("none", "odd")
    ] + [{"rule": "r", "path": "pools.odd", "message": "no nodes", "fix": "mend it"}]
    error = UserError("no", code="POLICY_INVALID", details={"problems": problems})
    code, out, err = airyard("apply", "-f", str(path), answers={"PUT /policy": [error]})
    assert (code, out) == (2, "")
    assert f"{path} has 1 problem:" in err
    assert "Without these it would not fit this yard:" in err
    assert f"{path}:5:" in err
    assert "  projects.nlp.pools.none  no none" in err
    # What follows from the file's own problem would only confuse.
    assert "no odd" not in err
    assert "no nodes" not in err
    assert airyard.transport.asked[-1].body["dry_run"] is True
    _, out, _ = airyard("-o", "json", "apply", "-f", str(path), answers={"PUT /policy": [error]})
    paths = [each["path"] for each in json.loads(out)["error"]["details"]["problems"]]
    assert paths == ["pools.odd.accelerator", "projects.nlp.pools.none"]


def test_apply_of_a_broken_or_missing_file_asks_nobody(airyard: Any, tmp_path: Path) -> None:
    (tmp_path / "yard.yaml").write_text("pols: {}\n")
    code, _, err = airyard("apply", "-f", str(tmp_path / "yard.yaml"))
    assert (code, 'did you mean "pools"?' in err) == (2, True)
    code, _, err = airyard("apply", "-f", str(tmp_path / "none.yaml"))
    assert (code, "airyard apply --show" in err) == (2, True)
    assert airyard.transport.asked == []


def test_show_prints_a_file_that_is_read_as_the_same_policy(airyard: Any) -> None:
    policy = {"projects": [{"name": "nlp", "pools": [{"pool": "h100", "guarantee": 8}]}]}
    answers = {"GET /policy": [{"policy": policy, "declared": None}]}
    code, out, _ = airyard("apply", "--show", answers=answers)
    assert code == 0
    assert load_yard_text(out).policy == policy_from_json(policy)
    assert (
        json.loads(airyard("apply", "--show", "-o", "json", answers=answers)[1])["data"]["policy"] == policy
    )
    assert airyard("apply", "--show", "--diff", answers=answers)[0] == 2


PROJECT = {
    "name": "nlp",
    "declared": True,
    "mine": True,
    "members": ["ada"],
    "critical": [],
    "active": 2,
    "queued": 1,
    "gpu_hours_this_month": 12.34,
    "budget": {"gpu_hours": 100.0, "over": "pause"},
}


def test_projects_say_who_may_what(airyard: Any) -> None:
    other = {**PROJECT, "name": "default", "declared": False, "members": ["*"], "budget": None, "mine": False}
    answers = {"GET /projects": [{"projects": [PROJECT, other]}]}
    code, out, _ = airyard("projects", answers=answers)
    lines = [line.split("  ") for line in out.splitlines()]
    cells = [[cell.strip() for cell in line if cell.strip()] for line in lines]
    assert code == 0
    assert cells[1:] == [
        ["nlp", "yes", "ada", "nobody", "2", "1", "12.3 of 100 (pause)"],
        ["default (not declared)", "no", "everybody", "nobody", "2", "1", "12.3"],
    ]
    assert json.loads(airyard("projects", "-o", "json", answers=answers)[1])["data"]["projects"][0] == PROJECT


def test_history_says_who_when_and_what(airyard: Any) -> None:
    entry = {"seq": 4, "at": "2026-01-31T12:00:00Z", "by": "ada", "source": "config", "changes": CHANGES}
    same = {**entry, "source": "api", "changes": []}
    code, out, _ = airyard(
        "projects", "--history", answers={"GET /policy/history": [{"history": [entry, same]}]}
    )
    assert code == 0
    assert out.splitlines() == [
        "2026-01-31 12:00:00 +00:00  ada  by the configured file",
        "  + pools.h100",
        "  - users.bob",
        "  ~ projects.nlp.pools.h100.guarantee: 8 -> 16",
        "2026-01-31 12:00:00 +00:00  ada  by airyard apply or the API",
        "  no changes",
    ]
    assert "limit=20" in airyard.transport.asked[-1].path
    code, out, err = airyard("projects", "--history", answers={"GET /policy/history": [{"history": []}]})
    assert (code, out, "Nobody has declared" in err) == (0, "", True)


def test_quota_shows_rows_budgets_and_what_is_mine(airyard: Any) -> None:
    row = {
        "project": "nlp", "pool": "h100", "mine": 8, "used": 16, "guarantee": 16, "guarantee_now": 10,
        "ceiling": None, "borrowed": 6, "weight": 2.5, "decayed_share": 0.335,
    }  # fmt: skip
    document = {
        "user": "ada",
        "rows": [row, {**row, "pool": "a10", "guarantee_now": 16, "ceiling": 24}],
        "budgets": [{"project": "nlp", "used_gpu_hours": 12.34, "gpu_hours": 100.0, "over": "refuse"}],
        "month_ends_at": "2026-02-01T00:00:00Z",
        "mine": {"projects": ["nlp"], "default_project": "nlp", "devices": 16, "queued": 0, "active": 1},
    }
    code, out, err = airyard("quota", "--project", "nlp", answers={"GET /quota": [document]})
    assert code == 0
    lines = out.splitlines()
    assert lines[1].split() == ["nlp", "h100", "8", "16", "10", "of", "16", "-", "6", "2.5", "34", "%"]
    assert lines[2].split() == ["nlp", "a10", "8", "16", "16", "24", "6", "2.5", "34", "%"]
    assert lines[3] == (
        "nlp: 12.3 of 100 GPU-hours used this month (refuse when spent), until 2026-02-01 00:00:00 +00:00"
    )
    assert "ada: 16 devices in use" in err
    assert airyard.transport.asked[-1].path.endswith("/quota?project=nlp")


def test_pools_show_guarantees_and_order(airyard: Any) -> None:
    pool = {
        "name": "h100", "accelerator": "GPU_8xH100", "nodes": 2, "free_devices": 3, "devices": 16,
        "whole_free_nodes": 0, "guaranteed": 8, "borrowed": 5, "declared": True, "rules": {"order": "fair"},
    }  # fmt: skip
    code, out, _ = airyard("pools", answers={"GET /pools": [{"pools": [pool]}]})
    assert code == 0
    assert out.splitlines()[1].split() == ["h100", "GPU_8xH100", "2", "3/16", "0", "8", "5", "fair", "yes"]


def test_a_pool_without_its_nodes_guarantees_less(airyard: Any) -> None:
    pool = {
        "name": "h100", "accelerator": "GPU_8xH100", "nodes": 0, "free_devices": 0, "devices": 0, "borrowed": 0,
        "whole_free_nodes": 0, "guaranteed": 24, "guaranteed_now": 0, "declared": True, "rules": {"order": "fair"},
    }  # fmt: skip
    assert " 0 of 24 " in airyard("pools", answers={"GET /pools": [{"pools": [pool]}]})[1]


def test_the_schema_of_the_yard_is_another_one(airyard: Any) -> None:
    assert json.loads(airyard("schema", "--yard")[1])["$id"] == "urn:airyard:yard:1"
    assert json.loads(airyard("schema")[1])["$id"] == "urn:airyard:workload:1"


def test_nodes_show_labels_where_there_are_any(airyard: Any) -> None:
    plain = {"name": "n1", "accelerator": "CPU", "pool": "CPU", "devices": [], "labels": {}}
    rack = {**plain, "name": "n2", "labels": {"zone": "a", "rack": "7"}}
    _, out, _ = airyard("nodes", answers={"GET /nodes": [{"nodes": [plain, rack]}]})
    assert [line.split()[-2:] for line in out.splitlines()] == [
        ["BY", "LABELS"],
        ["-", "-"],
        ["rack=7,", "zone=a"],
    ]
    _, out, _ = airyard("nodes", answers={"GET /nodes": [{"nodes": [plain]}]})
    assert "LABELS" not in out
