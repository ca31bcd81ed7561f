"""Policy, history, projects and quotas over the native API: declared without restart, journalled, refused whole."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from airyard.core.errors import UserError
from airyard.core.events import PolicyDeclared
from airyard.core.state import ClusterState
from airyard.server.config import load_config
from airyard.server.configured_policy import declare_configured, read_configured
from airyard.wire import native
from airyard.wire import policy as wire
from server_yard import Yard, play, submit, workload


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[Yard]:
    one = Yard(tmp_path / "home")
    yield one
    one.stop()


def declared(**fields: Any) -> dict[str, Any]:
    """The policy of most tests: two A10 devices, one of them guaranteed to nlp."""
    project = {"name": "nlp", "pools": [{"pool": "a10", "guarantee": 1}], "members": ["ada"]}
    whole = {"pools": [{"name": "a10", "accelerator": "GPU_1xA10"}], "projects": [project], **fields}
    return {"policy": whole}


async def put(client: httpx.AsyncClient, body: dict[str, Any]) -> dict[str, Any]:
    answer = await client.put("/policy", json=body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    wire.DeclareAnswer.model_validate(found)
    return found


async def refused(client: httpx.AsyncClient, body: dict[str, Any]) -> native.ErrorBody:
    answer = await client.put("/policy", json=body)
    assert answer.status_code == 400, answer.text
    return native.ErrorAnswer.model_validate(answer.json()).error


def test_an_untouched_yard_declares_nothing(yard: Yard) -> None:
    async def scene() -> None:
        async with yard.client() as client:
            found = (await client.get("/policy")).json()
            wire.PolicyAnswer.model_validate(found)
            assert found["declared"] is None
            assert (found["policy"]["pools"], found["policy"]["half_life_s"]) == ([], 7 * 86_400)
            assert (await client.get("/policy/history")).json() == {"history": []}

    play(scene())


def test_a_dry_run_shows_the_changes_and_a_declaration_makes_them(yard: Yard) -> None:
    async def scene() -> None:
        async with yard.client() as client:
            dry = await put(client, {**declared(), "dry_run": True})
            assert (dry["changed"], dry["applied"]) == (True, False)
            assert (await client.get("/policy")).json()["policy"]["pools"] == []
            done = await put(client, declared())
            assert (done["changed"], done["applied"], done["changes"]) == (True, True, dry["changes"])
            found = (await client.get("/policy")).json()
            assert [project["name"] for project in found["policy"]["projects"]] == ["nlp"]
            again = await put(client, {"policy": found["policy"]})
            assert (again["changed"], again["applied"], again["changes"]) == (False, False, [])
            for path, model in (
                ("/projects", wire.ProjectsAnswer), ("/quota", wire.QuotaAnswer), ("/pools", wire.PoolsAnswer)
            ):  # fmt: skip
                model.model_validate((await client.get(path)).json())

    play(scene())


def test_a_new_guarantee_holds_without_restart_and_is_journalled_with_who_and_when(yard: Yard) -> None:
    async def scene() -> None:
        async with yard.client() as client:
            await put(client, declared())
            before_ms = int(time.time() * 1000)
            grown = declared(
                projects=[{"name": "nlp", "pools": [{"pool": "a10", "guarantee": 2, "ceiling": 2}]}]
            )
            await put(client, grown)
            after_ms = int(time.time() * 1000)
            row = (await client.get("/quota")).json()["rows"][0]
            assert (row["guarantee"], row["guarantee_now"], row["ceiling"]) == (2, 2, 2)
            history = (await client.get("/policy/history")).json()
            wire.HistoryAnswer.model_validate(history)
            newest = history["history"][0]
            assert (newest["by"], newest["source"]) == ("ada", "api")
            assert {
                "kind": "changed",
                "path": "projects.nlp.pools.a10.guarantee",
                "before": "1",
                "after": "2",
            } in newest["changes"]
            journalled = [
                each
                for each in yard.context.journal.events_after(0)
                if isinstance(each.event, PolicyDeclared)
            ]
            assert [(each.seq, each.event.by) for each in journalled][-1] == (newest["seq"], "ada")  # type: ignore[union-attr]  # filtered above
            assert before_ms <= journalled[-1].at_ms <= after_ms
            shorter = (await client.get("/policy/history", params={"limit": 1})).json()["history"]
            assert [each["seq"] for each in shorter] == [newest["seq"]]
            assert shorter[0]["changes"] == newest["changes"]

    play(scene())


def test_the_ceiling_that_was_declared_just_now_holds_a_run_back(yard: Yard) -> None:
    async def scene() -> None:
        async with yard.client() as client:
            closed = [{"name": "nlp", "pools": [{"pool": "a10", "ceiling": 0}]}]
            await put(client, declared(projects=closed))
            gpu = {"accelerator": "GPU_1xA10", "nodes": 1}
            run = await submit(client, project="nlp", compute=gpu)
            assert run["project"] == "nlp"
            found: dict[str, Any] = {}
            async with asyncio.timeout(20):
                while found.get("reason") != "PROJECT_CEILING":
                    found = (await client.get(f"/runs/{run['run_id']}/explain")).json()
                    await asyncio.sleep(0.02)
            await put(client, declared())
            async with asyncio.timeout(20):
                while (await client.get(f"/runs/{run['run_id']}")).json()["run"]["state"] == "QUEUED":
                    await asyncio.sleep(0.02)

    play(scene())


def test_a_bad_policy_is_refused_whole_with_every_problem(yard: Yard) -> None:
    async def scene() -> None:
        async with yard.client() as client:
            projects = [
                {"name": "nlp", "pools": [{"pool": "a10", "guarantee": 3, "ceiling": 1, "weight": -1}]},
                {"name": "nlp"},
            ]
            error = await refused(client, declared(projects=projects, half_life_s=0))
            assert error.code == "POLICY_INVALID"
            found = {(each["path"], each["rule"]) for each in error.details["problems"]}
            assert found == {
                ("projects.nlp.pools.a10.ceiling", "CEILING_UNDER_GUARANTEE"),
                ("projects.nlp.pools.a10.weight", "BAD_VALUE"),
                ("projects.nlp", "DUPLICATE_NAME"),
                ("half_life", "BAD_VALUE"),
                ("projects.nlp.pools.a10.guarantee", "GUARANTEES_EXCEED_POOL"),
            }
            assert (await client.get("/policy")).json()["policy"]["projects"] == []

    play(scene())


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"policy": []},
        {"policy": {"pool": []}},
        {"policy": {"pools": [{"name": "a"}]}},
        {"policy": {"pools": [{"name": "a", "accelerator": "CPU", "order": "random"}]}},
        {"policy": {"projects": [{"name": "a", "pools": [{"pool": "p", "guarantee": 1.5}]}]}},
        {"policy": {"projects": [{"name": "a", "pools": [{"pool": "p", "guarantee": True}]}]}},
        {"policy": {"half_life_s": 10**30}},
    ],
)
def test_what_is_no_policy_is_no_request(yard: Yard, body: dict[str, Any]) -> None:
    async def scene() -> None:
        async with yard.client() as client:
            assert (await refused(client, body)).code == "INVALID_ARGS"
            infinite = b'{"policy": {"projects": [{"name": "a", "budget": {"gpu_hours": Infinity}}]}}'
            answer = await client.put(
                "/policy", content=infinite, headers={"content-type": "application/json"}
            )
            assert answer.status_code == 400

    play(scene())


def test_submit_is_refused_with_status_and_code(yard: Yard) -> None:
    async def scene() -> None:
        async with yard.client() as client:
            budget = {"gpu_hours": 0}
            limits = {"waiting": 0}
            projects = [
                {"name": "nlp", "budget": budget},
                {"name": "bob", "members": ["bob"]},
                {"name": "few", "per_user": limits},
            ]
            await put(client, {"policy": {"projects": projects}})
            gpu = {"accelerator": "GPU_1xA10", "nodes": 1}
            urgent = {"accelerator": "CPU", "nodes": 1, "priority": "CRITICAL"}
            for changes, status, code in (
                ({"project": "npl"}, 400, "UNKNOWN_PROJECT"),
                ({"project": "bob"}, 403, "NOT_A_MEMBER"),
                ({"project": "nlp", "compute": urgent}, 403, "CRITICAL_NOT_ALLOWED"),
                ({"project": "nlp", "compute": gpu}, 400, "BUDGET_SPENT"),
                ({"project": "few"}, 503, "TOO_MANY_WAITING"),
            ):
                for dry_run in (False, True):
                    body = {"workload": workload(**changes), "dry_run": dry_run}
                    answer = await client.post("/runs", json=body)
                    error = native.ErrorAnswer.model_validate(answer.json()).error
                    assert (answer.status_code, error.code) == (status, code)
                    assert error.fix is not None
            assert (await client.get("/runs")).json()["runs"] == []

    play(scene())


def test_quota_of_an_unknown_project_is_not_found(yard: Yard) -> None:
    async def scene() -> None:
        async with yard.client() as client:
            await put(client, declared())
            assert (await client.get("/quota", params={"project": "nlp"})).status_code == 200
            answer = await client.get("/quota", params={"project": "npl"})
            assert (answer.status_code, answer.json()["error_code"]) == (404, "UNKNOWN_PROJECT")

    play(scene())


def test_nodes_and_dry_runs_name_the_declared_pool(yard: Yard) -> None:
    async def scene() -> None:
        async with yard.client() as client:
            await put(client, declared())
            nodes = (await client.get("/nodes")).json()["nodes"]
            assert {(node["accelerator"], node["pool"]) for node in nodes} == {
                ("GPU_1xA10", "a10"),
                ("CPU", "CPU"),
            }
            gpu = {"accelerator": "GPU_1xA10", "nodes": 1}
            dry = {"workload": workload(compute=gpu), "dry_run": True}
            assert (await client.post("/runs", json=dry)).json()["dry_run"]["pool"] == "a10"

    play(scene())


def test_the_journal_is_verified_with_declarations_and_moved_attempts(yard: Yard) -> None:
    async def scene() -> None:
        async with yard.client() as client:
            run = await submit(client, compute={"accelerator": "GPU_1xA10", "nodes": 1})
            await yard.begin(run["run_id"])
            await put(client, declared())
            rows = (await client.get("/quota")).json()["rows"]
            assert [(row["project"], row["pool"], row["used"]) for row in rows] == [
                ("default", "a10", 1),
                ("nlp", "a10", 0),
            ]
            verified = (await client.post("/admin/verify")).json()
            assert verified["differences"] == []

    play(scene())


def configured(folder: Path, text: str) -> Any:
    (folder / "yard.yaml").write_text(text)
    (folder / "config.toml").write_text('[policy]\nfile = "yard.yaml"\n')
    config = load_config(folder / "config.toml", home=folder)
    return read_configured(config.policy.file)


def test_a_configured_policy_is_declared_when_it_was_edited(yard: Yard, tmp_path: Path) -> None:
    def policy() -> ClusterState:
        return yard.loop.query(lambda control: control.state.copy()).result(timeout=10)

    loaded = configured(tmp_path, "projects: {nlp: {pools: {GPU_1xA10: {guarantee: 2}}}}")
    declare_configured(yard.loop, loaded, "ada")
    first = policy()
    assert [project.name for project in first.policy.projects] == ["nlp"]
    declare_configured(yard.loop, loaded, "ada")
    assert policy().seq == first.seq
    edited = configured(tmp_path, "projects: {nlp: {pools: {GPU_1xA10: {guarantee: 9}}}}\n")
    with pytest.raises(UserError) as caught:
        declare_configured(yard.loop, edited, "ada")
    assert caught.value.code == "POLICY_INVALID"
    assert f"{tmp_path / 'yard.yaml'}:1:38  projects.nlp.pools.GPU_1xA10.guarantee" in caught.value.message
    assert policy().policy == first.policy


def test_a_configured_file_that_is_broken_or_missing_refuses_the_start(tmp_path: Path) -> None:
    assert read_configured(None) is None
    with pytest.raises(UserError, match="has 1 problem") as caught:
        configured(tmp_path, "pols: {}")
    assert caught.value.code == "YARD_FILE_INVALID"
    (tmp_path / "config.toml").write_text('[policy]\nfile = "none.yaml"\n')
    config = load_config(tmp_path / "config.toml", home=tmp_path)
    with pytest.raises(UserError, match=r"\[policy\] file of the configuration") as missing:
        read_configured(config.policy.file)
    assert missing.value.code == "BAD_CONFIG"
