"""Tokens over the real server: made once, no wider than their maker, and gone when they are taken back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from access_yard import AccessYard
from airyard.core.access.people import People
from airyard.core.access.roles import Kind, Scope
from airyard.core.commands import DeclarePolicy
from airyard.core.policy import Policy, ProjectPolicy
from airyard.server.auth import digest_of
from airyard.wire import access as wire
from server_yard import StreamReader, play, submit, workload

LATER_MS = 10**15


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[AccessYard]:
    one = AccessYard(tmp_path)
    yield one
    one.stop()


def code(answer: httpx.Response, status: int) -> str:
    assert answer.status_code == status, answer.text
    return str(answer.json()["error_code"])


async def make(client: httpx.AsyncClient, **body: Any) -> dict[str, Any]:
    answer = await client.post("/tokens", json={"name": "new", **body})
    assert answer.status_code == 200, answer.text
    wire.TokenAnswer.model_validate(answer.json())
    made: dict[str, Any] = answer.json()
    return made


def test_a_token_is_made_used_listed_and_taken_back(yard: AccessYard) -> None:
    async def scene() -> None:
        async with yard.client() as owner:
            made = await make(owner, user="uma", name="laptop", expires_s=3600)
            token_id = made["token"]["token_id"]
            async with yard.client_of(made["secret"]) as uma:
                found = (await uma.get("/status")).json()["access"]["you"]
                assert (found["name"], found["role"], found["token_id"]) == ("uma", "user", token_id)
                run = await submit(uma)
                assert run["owner"] == "uma"
                listed = (await uma.get("/tokens")).json()
                wire.TokensAnswer.model_validate(listed)
                assert [token["name"] for token in listed["tokens"]] == ["laptop"]
                assert listed["tokens"][0]["last_used_at"] is not None
                assert made["secret"] not in json.dumps(listed)
                assert (await owner.delete(f"/tokens/{token_id}")).status_code == 200
                assert code(await uma.get("/status"), 401) == "TOKEN_NOT_VALID"
            again = await owner.delete(f"/tokens/{token_id}")
            assert again.status_code == 200, "taking it back twice does no harm"
            (kept,) = (await owner.get("/tokens")).json()["tokens"]
            assert (kept["valid"], kept["revoked_by"]) == (False, "ada")

    play(scene())


def test_only_a_hash_is_kept(yard: AccessYard, tmp_path: Path) -> None:
    async def scene() -> None:
        async with yard.client() as owner:
            secret = (await make(owner))["secret"]
            async with yard.client_of(secret) as itself:
                await itself.get("/tokens")
            kept = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
            assert digest_of(secret).encode() in kept
            assert secret.encode() not in kept
            assert secret.rpartition("_")[2].encode() not in kept

    play(scene())


@pytest.mark.parametrize(
    "bad", ["ayu_", "ayu_x", "ayu__", "ayu_000000000000_x", "{known}x", "{known_id}_", "ayu_ü_ß"]
)
def test_a_forged_token_is_401_and_does_not_say_why(yard: AccessYard, bad: str) -> None:
    token = yard.token("uma")
    sent = bad.format(known=token, known_id=token.rpartition("_")[0])
    with pytest.raises(Exception, match="the token was not accepted") as caught:
        yard.context.access.authorise(f"Bearer {sent}", None)
    assert caught.value.code == "UNAUTHENTICATED"  # type: ignore[attr-defined]  # it is a Denied


def test_an_expired_token_is_refused_and_its_holder_told(yard: AccessYard) -> None:
    async def scene() -> None:
        now_ms = yard.context.clock.now_ms()
        async with yard.as_user("uma", expires_ms=now_ms - 1) as client:
            answer = await client.get("/runs")
            assert code(answer, 401) == "TOKEN_NOT_VALID"
            assert "expired" in answer.json()["message"]

    play(scene())


def test_a_token_ends_with_its_user(yard: AccessYard) -> None:
    async def scene() -> None:
        async with yard.as_user("uma") as client:
            assert (await client.get("/runs")).status_code == 200
            yard.users = People(owner="ada", declared=True)
            assert code(await client.get("/runs"), 401) == "UNAUTHENTICATED"

    play(scene())


@pytest.mark.parametrize(
    ("mine", "wanted", "expected"),
    [
        ({"scope": Scope.WRITE}, {"scope": "admin"}, "TOKEN_TOO_WIDE"),
        ({"scope": Scope.WRITE}, {"scope": "read"}, ""),
        ({"scope": Scope.READ}, {"scope": "read"}, "FORBIDDEN"),
        ({"expires_ms": LATER_MS}, {}, "TOKEN_TOO_WIDE"),
        ({"expires_ms": LATER_MS}, {"expires_s": 60}, ""),
        ({"gpu_hours": 5.0}, {"gpu_hours_limit": 1}, "TOKEN_TOO_WIDE"),
        ({"project": "nlp"}, {"project": "nlp"}, "FORBIDDEN"),
        ({"kind": Kind.AGENT}, {}, "FORBIDDEN"),
        ({"kind": Kind.SERVICE}, {}, "FORBIDDEN"),
        ({}, {"user": "bob"}, "FORBIDDEN"),
        ({}, {"user": "nobody"}, "FORBIDDEN"),
    ],
)
def test_no_token_makes_a_wider_one(yard: AccessYard, mine: Any, wanted: Any, expected: str) -> None:
    async def scene() -> None:
        async with yard.as_user("uma", **mine) as client:
            answer = await client.post("/tokens", json={"name": "new", **wanted})
            assert (answer.json().get("error_code") or "") == expected, answer.text

    play(scene())


def test_an_admin_makes_tokens_for_known_users_alone(yard: AccessYard) -> None:
    async def scene() -> None:
        async with yard.as_user("adam") as admin:
            assert (
                code(await admin.post("/tokens", json={"name": "n", "user": "nobody"}), 400) == "UNKNOWN_USER"
            )
            await make(admin, user="bob")
            assert (
                code(await admin.post("/tokens", json={"name": "new", "user": "bob"}), 409) == "TOKEN_EXISTS"
            )
            for name in ("", "a b", "x" * 101, "-x"):
                assert code(await admin.post("/tokens", json={"name": name}), 400) == "INVALID_ARGS"

    play(scene())


def test_a_token_of_one_project_sees_and_makes_only_its_runs(yard: AccessYard) -> None:
    projects = (ProjectPolicy(name="nlp", members=("uma",)), ProjectPolicy(name="vision"))
    yard.tell(DeclarePolicy(policy=Policy(projects=projects), by="ada"))
    other = yard.run_of("uma", project="vision")

    async def scene() -> None:
        async with yard.as_user("uma", project="nlp") as client:
            assert (await submit(client))["project"] == "nlp"
            await submit(client, project="nlp")
            refused = await client.post("/runs", json={"workload": workload(project="vision")})
            assert code(refused, 403) == "OUT_OF_SCOPE"
            runs = (await client.get("/runs")).json()["runs"]
            assert {run["project"] for run in runs} == {"nlp"}
            assert code(await client.get(f"/runs/{other}"), 404) == "RUN_NOT_FOUND"
            moved = await client.post(f"/runs/{runs[0]['run_id']}/update", json={"project": "vision"})
            assert code(moved, 403) == "OUT_OF_SCOPE"

    play(scene())


def test_a_spent_token_pays_for_no_more_gpus(yard: AccessYard) -> None:
    gpu = {"accelerator": "GPU_1xA10", "nodes": 1}

    async def scene() -> None:
        async with yard.as_user("uma", gpu_hours=0.0) as client:
            answer = await client.post("/runs", json={"workload": workload(compute=gpu)})
            assert code(answer, 403) == "TOKEN_SPENT"
            assert "0.00 of its 0 GPU-hours" in answer.json()["message"]
            await submit(client)  # a CPU slot costs nothing
        async with yard.as_user("uma", gpu_hours=1.0) as client:
            run = await submit(client, compute=gpu)
            await yard.placed(run["run_id"])
            spent = yard.loop.peek(lambda control: dict(control.state.spent))
            assert [each.devices for each in spent.values()] == [1]

    play(scene())


def test_nobody_submits_for_somebody_else(yard: AccessYard) -> None:
    async def scene() -> None:
        async with yard.as_user("uma") as uma, yard.as_user("bob") as bob:
            for body in (
                {"workload": workload(), "owner": "bob"},
                {"workload": {**workload(), "owner": "bob"}},
            ):
                assert code(await uma.post("/runs", json=body), 400) == "INVALID_ARGS"
            mine = await submit(uma, key="same")
            theirs = await submit(bob, key="same")
            assert mine["run_id"] != theirs["run_id"], "a key is its user's"

    play(scene())


def test_a_revoked_token_ends_the_streams_it_opened(yard: AccessYard) -> None:
    token = yard.token("uma")

    async def scene() -> None:
        async with yard.client_of(token) as uma:
            run = await submit(uma)
        (key,) = await yard.begin(run["run_id"])
        yard.write(key, "one\n")
        reader = StreamReader(yard, f"/runs/{run['run_id']}/logs?follow=true")
        reader._scope["headers"] = [(b"authorization", f"Bearer {token}".encode())]
        async with reader:
            assert (await reader.until("LOG"))["line"] == "one"
            async with yard.client() as owner:
                await owner.delete(f"/tokens/{token.split('_')[1]}")
            yard.write(key, "two\n")
            async with asyncio.timeout(15):
                assert await reader.next() is None
        await yard.finish(key)

    play(scene())


def test_the_proof_of_a_token_says_nothing_of_unknown_ones(yard: AccessYard) -> None:
    token = yard.token("uma")
    proof = yard.context.access.proof
    token_id = token.split("_")[1]
    assert proof("nonce", token_id) == proof("nonce", token_id) != proof("nonce", None)
    assert proof("nonce", "unknown") != proof("nonce", "unknown")
    from airyard.sdk.transport import prove

    assert prove(token, "nonce") == proof("nonce", token_id)
