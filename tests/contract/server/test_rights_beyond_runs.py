"""What lists show of others' runs, whose secrets and pools are reached, and what is written down about it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from access_yard import AccessYard
from airyard.app.run_lookup import seen_rows
from airyard.core.access.people import PoolRights
from airyard.core.commands import DeclarePolicy
from airyard.core.policy import Policy, PoolPolicy, ProjectPolicy
from airyard.core.workload import Permission
from airyard.ports.read_store import RunFilter
from airyard.server.audit import AuditLog, line
from airyard.server.route_rights import ROUTES, Access
from airyard.server.secret_rights import lookup
from airyard.wire.explain import QueueAnswer
from server_yard import play, submit, workload


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[AccessYard]:
    one = AccessYard(tmp_path)
    yield one
    one.stop()


def code(answer: httpx.Response, status: int) -> str:
    assert answer.status_code == status, answer.text
    return str(answer.json()["error_code"])


def audit_of(yard: AccessYard) -> list[dict[str, Any]]:
    return [json.loads(found) for found in yard.context.access.audit.read()]


def test_lists_hold_what_one_may_see(yard: AccessYard) -> None:
    own = yard.run_of("uma")
    granted = yard.run_of("bob", Permission(level="CAN_VIEW", user_name="uma"))
    grouped = yard.run_of("ada", Permission(level="CAN_MANAGE", group_name="vision"))
    hidden = yard.run_of("adam")

    async def scene() -> None:
        for user, expected in (
            ("uma", {own, granted}),
            ("bob", {granted, grouped}),
            ("vic", set()),
            ("olga", {own, granted, grouped, hidden}),
        ):
            async with yard.as_user(user) as client:
                found = (await client.get("/runs")).json()["runs"]
                assert {run["run_id"] for run in found} == expected, user
        async with yard.as_user("uma") as uma:
            mine = (await uma.get("/runs?owner=@me")).json()["runs"]
            assert [run["run_id"] for run in mine] == [own]
            page = (await uma.get("/runs?limit=1")).json()
            assert [run["run_id"] for run in page["runs"]] == [granted]
            page = (await uma.get(f"/runs?limit=1&before={page['next_before']}")).json()
            assert [run["run_id"] for run in page["runs"]] == [own]
            assert code(await uma.get(f"/wait?ids={own},{hidden}&timeout_s=0"), 404) == "RUN_NOT_FOUND"

    play(scene())


def test_a_long_list_is_looked_through_in_bounded_steps(yard: AccessYard) -> None:
    runs = [yard.run_of("bob", ended=False) for _ in range(4)]
    rows, behind = seen_rows(yard.context.reads, RunFilter(limit=2), lambda run: run.run_id in runs[:2])
    assert ([row.run_id for row in rows], behind) == ([runs[1], runs[0]], None)


def test_the_queue_shows_place_and_size_of_others_and_nothing_else(yard: AccessYard) -> None:
    hidden = yard.run_of("bob", ended=False)
    own = yard.run_of("uma", ended=False)

    async def scene() -> None:
        async with yard.as_user("uma") as uma:
            answer = (await uma.get("/queue")).json()
            QueueAnswer.model_validate(answer)
            rows = {run["run_id"]: run for run in answer["runs"]}
            assert (rows[hidden]["hidden"], rows[own].get("hidden", False)) == (True, False)
            assert rows[hidden]["accelerator"] == "CPU"
            assert rows[hidden]["position"] is not None
            told = json.dumps(rows[hidden])
            for secret in ("bob", "run-", "digits", "hidden-command"):
                assert secret not in told
            assert rows[own]["name"]

    play(scene())


def test_a_node_names_no_runs_of_others(yard: AccessYard) -> None:
    async def scene() -> None:
        async with yard.as_user("bob") as bob, yard.as_user("uma") as uma:
            run = await submit(bob, name="bobs-plan", compute={"accelerator": "GPU_1xA10", "nodes": 1})
            placed = await yard.placed(run["run_id"])
            node = placed.attempts[0].members[0].node
            (shown,) = (await bob.get(f"/nodes/{node}")).json()["runs"]
            assert (shown["name"], shown["owner"]) == ("bobs-plan", "bob")
            answer = await uma.get(f"/nodes/{node}")
            (shown,) = answer.json()["runs"]
            assert (shown["run_id"], shown["name"], shown["owner"]) == (run["run_id"], "", "")
            assert "bob" not in answer.text + (await uma.get("/nodes")).text

    play(scene())


def test_secrets_are_ones_own_or_those_of_the_project(yard: AccessYard) -> None:
    projects = (ProjectPolicy(name="nlp", members=("uma", "bob")), ProjectPolicy(name="open"))
    yard.tell(DeclarePolicy(policy=Policy(projects=projects), by="ada"))
    refers = {"HF": "hub/token"}

    async def scene() -> None:
        async with yard.as_user("uma") as uma, yard.as_user("bob") as bob, yard.as_user("adam") as adam:
            async with yard.as_user("vic") as vic:
                assert (
                    code(await vic.put("/secrets/hub/x", json={"value": "long enough"}), 403) == "FORBIDDEN"
                )
            await uma.put("/secrets/hub/own", json={"value": "uma's own value"})
            shared = await uma.put("/secrets/hub/token", json={"value": "the project's", "project": "nlp"})
            assert shared.status_code == 200
            assert (await bob.get("/secrets")).json()["secrets"][0]["project"] == "nlp"
            assert len((await uma.get("/secrets")).json()["secrets"]) == 2
            wrong = await uma.put("/secrets/hub/token", json={"value": "a long value", "project": "open"})
            assert code(wrong, 403) == "FORBIDDEN"
            run = await submit(bob, project="nlp", secrets=refers)
            missing = await bob.post("/runs", json={"workload": workload(project="open", secrets=refers)})
            assert code(missing, 400) == "SECRET_NOT_FOUND"
            find = lookup(yard.context.secrets, yard.context.access.audit)
            record = await yard.record(run["run_id"])
            assert find(record, "hub", "token")[0] == "the project's"
            with pytest.raises(Exception, match="no secret hub/own"):
                find(record, "hub", "own")
            gone = await adam.delete("/secrets/hub/token?project=nlp")
            assert gone.status_code == 200
            assert code(await bob.delete("/secrets/hub/own"), 404) == "SECRET_NOT_FOUND"

    play(scene())
    used = [entry for entry in audit_of(yard) if entry["verb"] == "use"]
    assert [(entry["name"], entry["outcome"]) for entry in used] == [
        ("hub/token", "done"),
        ("hub/own", "failed"),
    ]
    assert "the project's" not in json.dumps(audit_of(yard))


def test_a_pool_is_for_those_it_was_opened_to(yard: AccessYard) -> None:
    pools = (
        PoolPolicy(name="big", accelerator="GPU_1xA10", nodes=("sim-1xa10-0",)),
        PoolPolicy(name="small", accelerator="GPU_1xA10"),
    )
    yard.tell(DeclarePolicy(policy=Policy(pools=pools), by="ada"))
    gpu: dict[str, Any] = {"accelerator": "GPU_1xA10", "nodes": 1}

    async def scene() -> None:
        async with yard.as_user("uma") as uma, yard.as_user("bob") as bob:
            assert (await submit(uma, compute=gpu))["pool"] is None
            yard.users = replace(yard.users, pools={"big": PoolRights(groups=frozenset({"vision"}))})
            assert (await submit(uma, compute=gpu))["pool"] == "small"
            assert (await submit(bob, compute=gpu))["pool"] is None
            named = await uma.post("/runs", json={"workload": workload(compute={**gpu, "pool": "big"})})
            assert code(named, 403) == "POOL_NOT_ALLOWED"
            closed = {"big": PoolRights(), "small": PoolRights(projects=frozenset({"nlp"}))}
            yard.users = replace(yard.users, pools=closed)
            assert (
                code(await uma.post("/runs", json={"workload": workload(compute=gpu)}), 403)
                == "POOL_NOT_ALLOWED"
            )
            assert (await submit(uma, compute=gpu, project="nlp"))["pool"] == "small"

    play(scene())


def test_moving_a_run_to_another_project_asks_for_its_pool_again(yard: AccessYard) -> None:
    pools = (PoolPolicy(name="small", accelerator="GPU_1xA10"),)
    yard.tell(DeclarePolicy(policy=Policy(pools=pools), by="ada"))
    yard.users = replace(yard.users, pools={"small": PoolRights(projects=frozenset({"nlp"}))})

    async def scene() -> None:
        async with yard.as_user("uma") as uma:
            body = {"workload": workload(compute={"accelerator": "GPU_1xA10", "nodes": 1}, project="nlp")}
            run_id = (await uma.post("/runs", json={**body, "held": True})).json()["run"]["run_id"]
            moved = await uma.post(f"/runs/{run_id}/update", json={"project": "other"})
            assert code(moved, 403) == "POOL_NOT_ALLOWED"

    play(scene())


def test_a_named_member_sees_the_projects_runs_and_a_star_shows_none(yard: AccessYard) -> None:
    projects = (ProjectPolicy(name="nlp", members=("bob", "uma")), ProjectPolicy(name="open"))
    yard.tell(DeclarePolicy(policy=Policy(projects=projects), by="ada"))
    named, starred = yard.run_of("bob", project="nlp"), yard.run_of("bob", project="open")

    async def scene() -> None:
        async with yard.as_user("uma") as uma:
            assert (await uma.get(f"/runs/{named}")).status_code == 200
            assert code(await uma.post(f"/runs/{named}/cancel"), 403) == "FORBIDDEN"
            assert code(await uma.get(f"/runs/{starred}"), 404) == "RUN_NOT_FOUND"

    play(scene())


def test_the_audit_says_who_did_what_and_who_was_refused(yard: AccessYard) -> None:
    hidden = yard.run_of("bob")

    async def scene() -> None:
        async with yard.as_user("uma") as uma:
            await uma.get("/status")
            await uma.get("/runs")
            run = await submit(uma)
            await uma.get(f"/runs/{run['run_id']}/logs")
            await uma.get(f"/runs/{hidden}/logs")
            answer = await uma.post("/admin/shutdown", json={"runs": "keep"})
            assert code(answer, 403) == "FORBIDDEN"
            await uma.put("/secrets/hub/token", json={"value": "a very secret value"})
        async with yard.client_of("ayu_forged_token") as forger:
            await forger.get("/runs?secret=in-a-query")
        found = audit_of(yard)
        rows = [(entry["principal"], entry["verb"], entry["object"], entry["outcome"]) for entry in found]
        assert rows == [
            ("uma", "create", "run", "done"),
            ("uma", "view", "log", "done"),
            ("uma", "view", "log", "refused"),
            ("uma", "stop", "server", "refused"),
            ("uma", "create", "secret", "done"),
            (None, None, None, "refused"),
        ]
        assert all(entry["token_id"] for entry in found[:-1])
        assert found[3]["request_id"] == answer.headers["x-request-id"]
        assert found[4]["name"] == "hub/token"
        assert "very secret" not in json.dumps(found)
        assert "in-a-query" not in json.dumps(found)
        async with yard.as_user("adam") as adam:
            whole = (await adam.get("/admin/audit")).text
            assert [json.loads(each) for each in whole.splitlines()][:-1] == found, "the last is this look"
            later = (await adam.get(f"/admin/audit?since_ms={found[-1]['time_ms'] + 1}")).text.splitlines()
            assert {json.loads(each)["object"] for each in later} == {"audit"}

    play(scene())


def test_the_audit_is_bounded_and_a_cut_line_harms_nothing(tmp_path: Path) -> None:
    log = AuditLog(tmp_path, file_bytes=2000, files=3)
    for number in range(200):
        log.write(line(number=number, text="ä" * 20))
    log.close()
    files = sorted(path.name for path in tmp_path.iterdir())
    assert files == ["audit.jsonl", "audit.jsonl.1", "audit.jsonl.2"]
    assert all(path.stat().st_size <= 2000 for path in tmp_path.iterdir())
    with (tmp_path / "audit.jsonl").open("ab") as file:
        file.write(b'{"time_ms": 1, "cut')
    again = AuditLog(tmp_path, file_bytes=2000, files=3)
    again.write(line(number=200))
    numbers = [json.loads(found)["number"] for found in again.read()]
    assert numbers == list(range(numbers[0], 201))
    assert numbers[0] > 100
    again.close()


def test_an_admin_and_the_owner_can_do_what_they_could(yard: AccessYard) -> None:
    async def scene() -> None:
        async with yard.client() as owner:
            run = await submit(owner)
            assert (await owner.get(f"/runs/{run['run_id']}")).status_code == 200
            you = (await owner.get("/status")).json()["access"]["you"]
            assert (you["name"], you["role"], you["token_id"]) == ("ada", "admin", None)

    play(scene())


@pytest.mark.parametrize("user", ["uma", "vic"])
def test_no_read_tells_a_stranger_of_a_run_more_than_place_and_size(yard: AccessYard, user: str) -> None:
    told = {
        "name": "zebra-plan",
        "experiment": "xylophone",
        "command": "quokka-command",
        "parameters": {"lr": "wombat"},
        "tags": {"team": "narwhal"},
        "env_variables": {"X": "capybara"},
    }
    words = ("zebra", "xylophone", "quokka", "wombat", "narwhal", "capybara", '"bob"')
    gpu = {"accelerator": "GPU_1xA10", "nodes": 2}

    async def scene() -> None:
        async with yard.as_user("bob") as bob, yard.as_user(user) as stranger:
            active = (await submit(bob, compute=gpu, **told))["run_id"]
            await yard.begin(active)
            waiting = (await submit(bob, compute=gpu, **told))["run_id"]
            if user == "uma":
                own = (await submit(stranger, compute=gpu))["run_id"]
                looked = [f"/runs/{own}/explain", f"/runs/{own}"]
            else:
                looked = []
            for name, entry in ROUTES.items():
                method, _, path = name.partition(" ")
                if method != "GET" or not isinstance(entry, Access) or "/api/v1" not in path:
                    continue
                for run_id in (active, waiting):
                    filled = path.removeprefix("/api/v1").replace("{ref}", str(run_id))
                    looked.append(filled.replace("{name}", "sim-1xa10-0"))
            looked += [
                f"/wait?ids={active}&timeout_s=0",
                f"/runs?ids={active}",
                "/runs?tag=team=narwhal",
                "/queue",
            ]
            looked += [
                "/runs/zebra-plan",
                "/runs/zebra",
                "/runs/tag:team=narwhal",
                "/runs?experiment=xylophone",
            ]
            for path in dict.fromkeys(looked):
                answer = await stranger.get(path)
                asked = {word for word in words if word in path}
                leaked = {word for word in words if word in answer.text} - asked
                assert not leaked, (path, answer.text[:500])

    play(scene())
