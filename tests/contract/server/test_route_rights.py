"""Every route has an entry in the table of rights, and real requests are answered as the table says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import APIRouter
from fastapi.routing import APIRoute

from access_yard import NAMES, AccessYard
from airyard.app.orders import OrderDesk
from airyard.core.access.roles import Right, Role, Thing, Verb
from airyard.core.access.table import TABLE, Facts, allowed
from airyard.core.policy import Policy
from airyard.core.workload import Permission
from airyard.server.access import facts_of
from airyard.server.app import create_app
from airyard.server.route_rights import ROUTES, Access, Gateless, entry_of
from airyard.server.routes_runner import router as runner_router
from server_yard import play, workload

NODE = "host-cpu-0"
TOKEN_ROUTE = "DELETE /tokens/{token_id}"
BODIES: dict[str, Any] = {
    "POST /runs": {"workload": workload()},
    "POST /runs/{ref}/update": {"held": True},
    "PUT /policy": {"policy": {}, "dry_run": True},
    "POST /nodes/cordon": {"nodes": [NODE], "reason": "a test"},
    "POST /nodes/uncordon": {"nodes": [NODE]},
    "POST /nodes/drain": {"nodes": [NODE], "reason": "a test"},
    "POST /nodes/{name}/confirm-dead": {"reason": "a test"},
    "POST /reservations": {"nodes": [NODE], "duration_s": 60, "maintenance": True, "from_at": "2099-01-01T00:00:00Z"},
    "PUT /secrets/{scope}/{key}": {"value": "a long value"},
    "POST /admin/gc": {"dry_run": True},
    "POST /admin/shutdown": {"runs": "keep"},
}  # fmt: skip
QUERIES = {"GET /wait": "ids=1&timeout_s=0", "GET /admin/audit": "since_ms=1"}
NATIVE = {
    name.replace("/api/v1", ""): entry
    for name, entry in ROUTES.items()
    if isinstance(entry, Access) and "/api/v1/" in name
}


@pytest.fixture(scope="module")
def yard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AccessYard]:
    one = AccessYard(Path(tmp_path_factory.mktemp("rights")))
    yield one
    one.stop()


def routes_of(yard: AccessYard) -> set[str]:
    app = create_app(yard.context)
    app.include_router(runner_router(OrderDesk.__new__(OrderDesk)))
    return set(_named(app.routes))


def _named(routes: Any) -> Iterator[str]:
    for route in routes:
        if isinstance(route, APIRoute):
            yield from (f"{method} {route.path}" for method in route.methods)
        elif isinstance(getattr(route, "original_router", None), APIRouter):
            yield from _named(route.original_router.routes)
        elif hasattr(route, "routes"):
            yield from _named(route.routes)


def test_every_route_has_an_entry_and_every_entry_a_row(yard: AccessYard) -> None:
    found = routes_of(yard)
    documented = {
        f"{method.upper()} {path}"
        for path, methods in create_app(yard.context).openapi()["paths"].items()
        for method in methods
    }
    assert documented <= found
    assert len(documented) > 40
    assert {name for name in found if entry_of(*name.split(" ")) is None} == set(), (
        "enter it in route_rights.py"
    )
    for entry in ROUTES.values():
        assert isinstance(entry, Gateless) or (entry.thing, entry.verb) in TABLE


def test_no_entry_is_of_a_route_that_is_gone(yard: AccessYard) -> None:
    elsewhere = {name for name in ROUTES if "/fleet/" in name}
    assert set(ROUTES) - elsewhere <= routes_of(yard)


def test_every_row_of_the_table_is_asked_somewhere() -> None:
    asked = {(entry.thing, entry.verb) for entry in ROUTES.values() if isinstance(entry, Access)}
    elsewhere = {(Thing.POOL, Verb.USE), (Thing.TRACKING, Verb.MANAGE)}  # at submit; by MLflow's proxy
    assert asked | elsewhere == set(TABLE)


def test_a_route_that_nobody_entered_is_open_to_nobody(yard: AccessYard) -> None:
    app = create_app(yard.context)

    @app.get("/api/v1/forgotten")
    def forgotten() -> str:
        return "secret"

    async def scene() -> None:
        transport = httpx.ASGITransport(app)
        headers = {"authorization": f"Bearer {yard.token('adam')}"}
        async with httpx.AsyncClient(transport=transport, base_url="http://yard", headers=headers) as client:
            answer = await client.get("/api/v1/forgotten")
            assert (answer.status_code, answer.json()["error_code"]) == (403, "FORBIDDEN")

    play(scene())


def _path(yard: AccessYard, name: str, run_id: int, token_id: str) -> str:
    path = name.partition(" ")[2]
    filled = {
        "{ref}": str(run_id),
        "{tree_hash}": "0" * 64,
        "{name}": NODE,
        "{number}": "7",
        "{scope}": "hub",
        "{key}": "token",
        "{token_id}": token_id,
    }
    for part, value in filled.items():
        path = path.replace(part, value)
    return path + (f"?{QUERIES[name]}" if name in QUERIES else "")


async def _asked(
    yard: AccessYard, client: httpx.AsyncClient, name: str, run_id: int, token_id: str = "none"
) -> tuple[int, str]:
    body = BODIES.get(name)
    if name == "POST /tokens":
        yard._count += 1
        body = {"name": f"made-{yard._count}"}
    path = _path(yard, name, run_id, token_id)
    answer = await client.request(name.partition(" ")[0], path, json=body)
    code = ""
    if answer.status_code >= 400 and answer.content:
        code = answer.json()["error_code"]
    return answer.status_code, code


def _was_let_in(status: int, code: str) -> bool:
    assert status != 401
    assert status < 500, code
    hidden = status == 404 and code in ("RUN_NOT_FOUND", "TOKEN_NOT_FOUND")
    return status != 403 and not hidden


@pytest.mark.parametrize("name", [name for name in NATIVE if "{ref}" in name])
def test_on_runs_every_role_and_right_gets_what_the_table_says(yard: AccessYard, name: str) -> None:
    entry = NATIVE[name]

    async def scene() -> None:
        for role, user in NAMES.items():
            token = yard.token(user)
            async with yard.client_of(token) as client:
                for right in Right:
                    grants = () if right is Right.NONE else (Permission(level=right.value, user_name=user),)
                    for owner in ("bob", user) if right is Right.NONE else ("bob",):
                        run_id = yard.run_of(owner, *grants)
                        run = yard.context.reads.run(run_id)
                        assert run is not None
                        facts = Facts(owner=owner, project="default", grants=grants)
                        expected = allowed(yard.principal(token), entry.verb, entry.thing, facts)
                        status, code = await _asked(yard, client, name, run_id)
                        got = _was_let_in(status, code)
                        assert got == expected.allowed, (role, right, owner, status, code)
                        if not got:
                            # A role that may do it to no run is told so, also of runs that do not exist.
                            ever = allowed(yard.principal(token), entry.verb, entry.thing, None).allowed
                            assert (status == 404) == (ever and expected.hidden), (role, right, owner, code)

    play(scene())


@pytest.mark.parametrize("name", [name for name in NATIVE if "{ref}" not in name and name != TOKEN_ROUTE])
def test_elsewhere_every_role_gets_what_the_table_says(yard: AccessYard, name: str) -> None:
    entry = NATIVE[name]

    async def scene() -> None:
        for role, user in NAMES.items():
            own = yard.run_of(user)
            token = yard.token(user)
            async with yard.client_of(token) as client:
                expected = allowed(yard.principal(token), entry.verb, entry.thing, Facts(owner=user))
                QUERIES["GET /wait"] = f"ids={own}&timeout_s=0"
                status, code = await _asked(yard, client, name, own)
                assert _was_let_in(status, code) == expected.allowed, (role, status, code)

    play(scene())


@pytest.mark.parametrize("owner", ["bob", "own"])
def test_tokens_are_taken_back_by_their_user_and_admins(yard: AccessYard, owner: str) -> None:
    async def scene() -> None:
        for role, user in NAMES.items():
            theirs = user if owner == "own" else "bob"
            victim = yard.token(theirs).split("_")[1]
            token = yard.token(user)
            expected = allowed(yard.principal(token), Verb.DELETE, Thing.TOKEN, Facts(owner=theirs))
            async with yard.client_of(token) as client:
                status, code = await _asked(yard, client, TOKEN_ROUTE, 1, victim)
                assert _was_let_in(status, code) == expected.allowed == (owner == "own" or role is Role.ADMIN)
                if not expected.allowed:
                    unknown = await _asked(yard, client, TOKEN_ROUTE, 1, "ffffffffffff")
                    assert (status, code) == unknown, "whether it exists is not said"

    play(scene())


def test_a_hidden_run_is_refused_in_the_words_of_one_that_does_not_exist(yard: AccessYard) -> None:
    async def scene() -> None:
        seen = yard.run_of("uma")
        hidden = yard.run_of("bob")
        async with yard.as_user("uma") as client:
            for path in ("", "/logs", "/explain", "/source", "/files"):
                there = (await client.get(f"/runs/{hidden}{path}")).json()
                gone = (await client.get(f"/runs/{hidden + 99_999}{path}")).json()
                told = str(there["error"]).replace(str(hidden), "N").replace(f"newest is {seen}", "newest")
                assert told == str(gone["error"]).replace(str(hidden + 99_999), "N").replace(
                    f"newest is {seen}", "newest"
                )
            name = yard.context.reads.run(hidden).name  # type: ignore[union-attr]  # it was just made
            by_name = await client.get(f"/runs/{name}x")
            assert f"'{name}'" not in by_name.text, "nearly right names do not tell of hidden runs"
            assert (await client.get(f"/runs/{name}")).status_code == 404
            assert (await client.get(f"/wait?ids={hidden}&timeout_s=0")).json()[
                "error_code"
            ] == "RUN_NOT_FOUND"

    play(scene())


def test_the_facts_are_those_of_the_run(yard: AccessYard) -> None:
    from airyard.app.run_lookup import run_from

    grants = (Permission(level="CAN_VIEW", group_name="vision"),)
    row = yard.context.reads.run(yard.run_of("bob", *grants))
    assert row is not None
    facts = facts_of(run_from(row), Policy(), yard.principal(yard.token("uma")))
    assert facts == Facts(owner="bob", project="default", grants=grants)
