"""Runs over the native API: submit, look, list, wait, cancel, resume, remove; every failure in wire form."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from airyard.wire import native
from server_yard import Yard, play, submit, workload


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[Yard]:
    one = Yard(tmp_path / "home")
    yield one
    one.stop()


def code_of(answer: httpx.Response, status: int) -> str:
    """Check the wire form of an error and return its code."""
    assert answer.status_code == status, answer.text
    body = native.ErrorAnswer.model_validate(answer.json())
    assert body.error_code == body.error.code
    assert body.message == body.error.message
    return body.error_code


def test_a_run_from_submit_to_its_end(yard: Yard) -> None:
    async def scene() -> None:
        async with yard.client() as client:
            run = await submit(client, "one", name="first")
            native.RunDoc.model_validate(run)
            assert (run["run_id"], run["exit_code"]) == (1, None)
            assert run["status"] in ("QUEUED", "PREPARING")
            assert run["phases"][0]["name"] == "queued"
            (key,) = await yard.begin(1)
            run = (await client.get("/runs/1")).json()["run"]
            native.RunDoc.model_validate(run)
            assert run["status"] == "RUNNING"
            assert run["attempts"][0]["members"][0]["prepared"]["environment_ms"] == 30
            names = [phase["name"] for phase in run["phases"]]
            assert names[:4] == ["queued", "code", "environment", "barrier"]
            assert run["phases"][-1] == {**run["phases"][-1], "name": "running", "duration_ms": None}
            await yard.finish(key)
            run = (await client.get("/runs/@last")).json()["run"]
            native.RunDoc.model_validate(run)
            assert (run["status"], run["exit_code"], run["logs_complete"]) == ("SUCCEEDED", 0, True)
            assert run["pending"] is None
            assert run["duration_ms"] >= 0

    play(scene())


def test_the_same_key_is_the_same_run(yard: Yard) -> None:
    async def scene() -> None:
        async with yard.client() as client:
            first, again = await asyncio.gather(
                *(
                    client.post("/runs", json={"workload": workload(), "idempotency_key": "k"})
                    for _ in range(2)
                )
            )
            assert first.json()["run"]["run_id"] == again.json()["run"]["run_id"] == 1
            assert sorted([first.json()["existing"], again.json()["existing"]]) == [False, True]
            await yard.begin(1)
            other = {"workload": workload(command="false"), "idempotency_key": "k"}
            answer = await client.post("/runs", json=other)
            assert code_of(answer, 409) == "IDEMPOTENCY_CONFLICT"
            assert answer.json()["error"]["details"] == {"run_id": 1, "field": "command"}

    play(scene())


def test_a_conflict_names_the_field_after_the_run_left_memory(yard: Yard) -> None:
    async def scene() -> None:
        async with yard.client() as client:
            await submit(client, "k")
            (key,) = await yard.begin(1)
            await yard.finish(key)
            answer = await client.post(
                "/runs", json={"workload": workload(max_retries=2), "idempotency_key": "k"}
            )
            assert code_of(answer, 409) == "IDEMPOTENCY_CONFLICT"
            assert answer.json()["error"]["details"]["field"] == "max_retries"
            same = await client.post("/runs", json={"workload": workload(), "idempotency_key": "k"})
            assert same.json()["existing"] is True
            assert same.json()["run"]["status"] == "SUCCEEDED"

    play(scene())


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"compute": {"accelerator": "H100"}}, "workload.compute.accelerator"),
        ({"compute": {"accelerator": "CPU", "nodes": 0}}, "workload.compute.nodes"),
        ({"compute": {"accelerator": "CPU", "nodes": "2"}}, "workload.compute.nodes"),
        ({"max_retries": -1}, "workload.max_retries"),
        ({"env_variables": {"NODE_RANK": "1"}}, "workload.env_variables.NODE_RANK.[key]"),
        ({"env_variables": {"A": "\0"}}, "workload.env_variables.A"),
        ({"secrets": {"A": "noslash"}}, "workload.secrets.A"),
        ({"colour": "red"}, "workload.colour"),
        ({"command": None}, "workload.command"),
        ({"experiment": "\ud800"}, "workload.experiment"),
    ],
)
def test_a_bad_field_is_named(yard: Yard, change: dict[str, Any], path: str) -> None:
    async def scene() -> None:
        async with yard.client() as client:
            body = json.dumps({"workload": workload(**change)})
            answer = await client.post("/runs", content=body, headers={"content-type": "application/json"})
            assert code_of(answer, 400) == "INVALID_ARGS"
            assert [field["path"] for field in answer.json()["error"]["details"]["fields"]] == [path]

    play(scene())


def test_what_cannot_run_is_refused_with_the_reason(yard: Yard) -> None:
    async def scene() -> None:
        async with yard.client() as client:

            async def refused(status: int, **changes: Any) -> str:
                return code_of(await client.post("/runs", json={"workload": workload(**changes)}), status)

            assert await refused(400, compute={"accelerator": "GPU_8xH100"}) == "NO_SUCH_ACCELERATOR"
            assert await refused(400, compute={"accelerator": "CPU", "nodes": 9}) == "EXCEEDS_POOL"
            assert await refused(400, command="  ") == "INVALID_ARGS"
            role = {"name": "a", "command": "true", "ranks": [1]}
            assert await refused(400, command="", roles=[role]) == "INVALID_ARGS"
            assert await refused(400, secrets={"TOKEN": "hub/token"}) == "SECRET_NOT_FOUND"
            assert await refused(400, environment={"version": "99"}) == "NO_SUCH_ENVIRONMENT"
            code = {"tree_hash": "0" * 64, "directory_name": "code", "size_bytes": 1}
            assert await refused(409, code=code) == "CODE_MISSING"
            assert (await client.get("/runs")).json()["runs"] == []

    play(scene())


def test_warnings_name_what_is_not_enforced(yard: Yard) -> None:
    async def scene() -> None:
        async with yard.client() as client:
            granted = workload(permissions=[{"level": "CAN_FLY", "user_name": "bob"}])
            answer = (await client.post("/runs", json={"workload": granted})).json()
            native.SubmitAnswer.model_validate(answer)
            assert "CAN_FLY" in answer["warnings"][0]
            yard.join_machine("other", cpu_slots=2)
            spread = workload(compute={"accelerator": "CPU", "nodes": 2})
            answer = (await client.post("/runs", json={"workload": spread})).json()
            assert "2 machines" in answer["warnings"][0]
            strict = await client.post("/runs", json={"workload": spread, "allow_no_durable": False})
            assert code_of(strict, 400) == "NO_DURABLE_STORE"

    play(scene())


def test_a_dry_run_says_where_it_would_start_and_changes_nothing(yard: Yard) -> None:
    async def scene() -> None:
        async with yard.client() as client:
            gpus = workload(compute={"accelerator": "GPU_1xA10", "nodes": 2}, attempt_timeout_s=1800)
            found = (await client.post("/runs", json={"workload": gpus, "dry_run": True})).json()
            native.DryRunDoc.model_validate(found["dry_run"])
            assert found["dry_run"]["would_start_now"] is True
            assert found["dry_run"]["nodes"] == ["sim-1xa10-0", "sim-1xa10-1"]
            assert found["dry_run"]["gpu_hours_at_limit"] == 1.0
            assert found["dry_run"]["environment"] == {"version": "6", "dependencies": 0, "cached": None}
            await submit(client, compute={"accelerator": "GPU_1xA10", "nodes": 1})
            await yard.placed(1)
            found = (await client.post("/runs", json={"workload": gpus, "dry_run": True})).json()["dry_run"]
            assert (found["would_start_now"], found["reason"]) == (False, "NO_FREE_NODES")
            assert found["position"] == 1
            never = workload(compute={"accelerator": "GPU_1xA10", "nodes": 3})
            refused = await client.post("/runs", json={"workload": never, "dry_run": True})
            assert code_of(refused, 400) == "EXCEEDS_POOL"
            assert [run["run_id"] for run in (await client.get("/runs")).json()["runs"]] == [1]

    play(scene())


def test_a_dry_run_says_whether_the_environment_is_built(yard: Yard) -> None:
    async def scene() -> None:
        async with yard.client() as client:
            yard.context.has_environment = lambda asked: asked.environment.dependencies == ("a",)
            for dependencies, cached in ((["a"], True), (["a", "b"], False)):
                asked = workload(environment={"version": "6", "dependencies": dependencies})
                answer = await client.post("/runs", json={"workload": asked, "dry_run": True})
                found = answer.json()["dry_run"]
                native.DryRunDoc.model_validate(found)
                told = {"version": "6", "dependencies": len(dependencies), "cached": cached}
                assert found["environment"] == told

    play(scene())


def test_lists_filter_and_page(yard: Yard) -> None:
    async def scene() -> None:
        async with yard.client() as client:
            for number in range(1, 6):
                await submit(client, name=f"run-{number % 2}", tags={"round": str(number)}, experiment="e")
            (key,) = await yard.begin(1)
            await yard.finish(key)

            async def ids(**query: Any) -> list[int]:
                answer = (await client.get("/runs", params=query)).json()
                native.RunsAnswer.model_validate(answer)
                return [run["run_id"] for run in answer["runs"]]

            assert await ids() == [5, 4, 3, 2, 1]
            assert await ids(state="ended") == [1]
            assert await ids(state="succeeded") == await ids(state="SUCCEEDED") == [1]
            assert await ids(state="failed") == []
            await yard.begin(2)
            assert await ids(state="running") == [2]
            assert await ids(tag="round=4") == [4]
            assert await ids(ids="2,4,99") == [4, 2]
            assert await ids(ids="") == []
            assert await ids(owner="nobody") == []
            page = (await client.get("/runs", params={"limit": 2})).json()
            assert page["next_before"] == 4
            assert await ids(limit=2, before=4) == [3, 2]
            assert (await client.get("/runs", params={"limit": 5})).json()["next_before"] is None
            assert code_of(await client.get("/runs", params={"tag": "x"}), 400) == "INVALID_ARGS"
            assert code_of(await client.get("/runs", params={"state": "odd"}), 400) == "INVALID_ARGS"

    play(scene())


def test_references(yard: Yard) -> None:
    async def scene() -> None:
        async with yard.client() as client:
            assert code_of(await client.get("/runs/@last"), 404) == "RUN_NOT_FOUND"
            for number in range(1, 4):
                await submit(client, name="train", tags={"round": str(number), "kind": "x"})
            for run_id in (1, 2):
                await client.post(f"/runs/{run_id}/cancel")
            await submit(client, name="evaluate")

            async def number_of(ref: str) -> int:
                return int((await client.get(f"/runs/{ref}")).json()["run"]["run_id"])

            assert await number_of("train") == 3
            for answer in (await client.post("/runs/train/cancel"), await client.delete("/runs/train")):
                assert code_of(answer, 409) == "AMBIGUOUS"
                assert answer.json()["error"]["details"]["runs"] == [3, 2, 1]
            assert await number_of("@last") == 4
            assert await number_of("tag:round=2") == 2
            answer = await client.get("/runs/tag:kind=x")
            assert code_of(answer, 409) == "AMBIGUOUS"
            assert answer.json()["error"]["details"]["runs"] == [3, 2, 1]
            answer = await client.get("/runs/trian")
            assert code_of(answer, 404) == "RUN_NOT_FOUND"
            assert answer.json()["error"]["details"]["near"] == ["train"]
            assert code_of(await client.get("/runs/99"), 404) == "RUN_NOT_FOUND"
            assert code_of(await client.get("/runs/" + "9" * 40), 404) == "RUN_NOT_FOUND"
            assert code_of(await client.get("/runs/@first"), 400) == "BAD_REFERENCE"
            assert (await client.post("/runs/evaluate/cancel")).json()["run_id"] == 4

    play(scene())


def test_a_long_poll_returns_at_a_change(yard: Yard) -> None:
    async def scene() -> None:
        async with yard.client() as client:
            await submit(client)
            await yard.placed(1)
            version = (await client.get("/runs/1")).json()["run"]["version"]
            poll = asyncio.create_task(
                client.get("/runs/1", params={"wait_version": version, "timeout_s": 20}, timeout=30)
            )
            await asyncio.sleep(0.05)
            assert not poll.done()
            await yard.begin(1)
            assert (await asyncio.wait_for(poll, 5)).json()["run"]["version"] > version
            late = await client.get("/runs/1", params={"wait_version": 10**6, "timeout_s": 0.1})
            assert late.json()["run"]["run_id"] == 1

    play(scene())


def test_waiting_for_all_and_for_any(yard: Yard) -> None:
    async def scene() -> None:
        async with yard.client() as client:
            await submit(client)
            await submit(client)
            first, second = [(await yard.begin(run_id))[0] for run_id in (1, 2)]
            some = asyncio.create_task(client.get("/wait", params={"ids": "2,1", "any": True}, timeout=30))
            every = asyncio.create_task(client.get("/wait", params={"ids": "2,1"}, timeout=30))
            await asyncio.sleep(0.05)
            await yard.finish(first)
            found = (await asyncio.wait_for(some, 5)).json()
            native.WaitAnswer.model_validate(found)
            assert [run["run_id"] for run in found["runs"]] == [2, 1]
            assert not every.done()
            await yard.finish(second, 3, permanent=True)
            found = (await asyncio.wait_for(every, 5)).json()
            assert found["done"] is True
            assert [run["exit_code"] for run in found["runs"]] == [1, 0]
            assert code_of(await client.get("/wait", params={"ids": "1,77"}), 404) == "RUN_NOT_FOUND"
            assert code_of(await client.get("/wait", params={"ids": ""}), 400) == "INVALID_ARGS"

    play(scene())


def test_cancelling(yard: Yard) -> None:
    async def scene() -> None:
        async with yard.client() as client:
            for _ in range(3):
                await submit(client)
            (key,) = await yard.begin(1)
            assert (await client.post("/runs/1/cancel")).json() == {"run_id": 1, "already_ended": False}
            run = (await client.get("/runs/1")).json()["run"]
            assert run["status"] == "STOPPING"
            assert run["attempts"][0]["stop"]["by"] == "ada"
            await yard.finish(key, 143)
            run = (await client.get("/runs/1")).json()["run"]
            assert (run["outcome"], run["exit_code"]) == ("CANCELLED", 6)
            assert run["failure"]["next_step"].startswith("`airyard resume 1`")
            assert (await client.post("/runs/1/cancel")).json()["already_ended"] is True

    play(scene())


def test_resuming_a_run_that_left_memory(yard: Yard) -> None:
    async def scene() -> None:
        async with yard.client() as client:
            await submit(client)
            (key,) = await yard.begin(1)
            assert code_of(await client.post("/runs/1/resume"), 409) == "RUN_IS_LIVE"
            await yard.finish(key, 7, permanent=True)
            run = (await client.post("/runs/1/resume")).json()["run"]
            assert run["state"] in ("QUEUED", "ACTIVE")
            (key,) = await yard.begin(1, 1)
            await yard.finish(key)
            run = (await client.get("/runs/1")).json()["run"]
            assert (run["attempt"], run["outcome"]) == (1, "SUCCEEDED")
            assert code_of(await client.post("/runs/1/resume"), 409) == "RUN_SUCCEEDED"

    play(scene())


def test_removing_takes_everything_along(yard: Yard) -> None:
    async def scene() -> None:
        async with yard.client() as client:
            await submit(client)
            (key,) = await yard.begin(1)
            assert code_of(await client.delete("/runs/1"), 409) == "RUN_IS_LIVE"
            yard.write(key, "hello\n")
            output = yard.home / "node/runs/1/output"
            output.mkdir(parents=True)
            await yard.finish(key)
            answer = await client.delete("/runs/1")
            assert answer.status_code == 200, answer.text
            assert answer.json()["log_bytes"] > 0
            assert not output.exists()
            assert yard.context.logs.end(key).next_seq == 0
            assert code_of(await client.get("/runs/1"), 404) == "RUN_NOT_FOUND"

    play(scene())


def test_the_source_comes_back_as_sent(yard: Yard) -> None:
    async def scene() -> None:
        async with yard.client() as client:
            text = "experiment_name: digits  # a remark\n"
            await client.post("/runs", json={"workload": workload(), "source_yaml": text})
            await submit(client)
            found = (await client.get("/runs/1/source")).json()
            native.SourceAnswer.model_validate(found)
            assert found["source_yaml"] == text
            assert found["workload"]["command"] == "true"
            assert (await client.get("/runs/2/source")).json()["source_yaml"] is None

    play(scene())
