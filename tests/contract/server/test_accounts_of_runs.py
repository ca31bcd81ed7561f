"""Whose Unix account a run gets at its submit, and who is refused one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from access_yard import AccessYard
from airyard.core.access.people import Person, PoolRights, RunAs
from airyard.core.access.roles import Kind
from airyard.core.commands import DeclarePolicy, MachineSeen
from airyard.core.policy import Policy, PoolPolicy
from server_yard import play, submit, workload


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[AccessYard]:
    one = AccessYard(tmp_path)
    known = {
        **one.users.known,
        "uma": replace(one.users.known["uma"], unix_user="uma1", groups=frozenset({"vision"})),
        "nightly": Person(name="nightly", kind=Kind.SERVICE, unix_user="svc", lent_to=frozenset({"vision"})),
        "adam": replace(one.users.known["adam"], unix_user="root"),
    }
    one.users = replace(one.users, known=known)
    yield one
    one.stop()


def as_root(yard: AccessYard, *names: str) -> None:
    """Have the agent of these nodes start members as anybody."""
    state = yard.context.loop.peek(lambda control: control.state.copy())
    machine = next(iter(state.machines.values()))
    nodes = tuple(
        replace(node, run_as="*") if node.name in names or not names else node
        for node in state.nodes.values()
    )
    yard.tell(MachineSeen(machine=machine, nodes=nodes, members=()))


def refused(answer: httpx.Response) -> str:
    assert answer.status_code in (400, 403), answer.text
    return str(answer.json()["error_code"])


async def ask(client: httpx.AsyncClient, **fields: Any) -> httpx.Response:
    return await client.post("/runs", json={"workload": workload(**fields)})


def test_a_yard_gives_every_run_the_account_of_its_user(yard: AccessYard) -> None:
    as_root(yard)

    async def scene() -> None:
        async with yard.as_user("uma") as uma, yard.as_user("bob") as bob, yard.as_user("adam") as adam:
            assert (await submit(uma))["unix_user"] is None
            yard.users = replace(yard.users, run_as=RunAs.USER)
            assert (await submit(uma))["unix_user"] == "uma1"
            assert refused(await ask(bob)) == "NO_UNIX_USER"
            assert refused(await ask(adam)) == "ROOT_NOT_ALLOWED"
            yard.users = replace(yard.users, allow_root=True)
            assert (await submit(adam))["unix_user"] == "root"

    play(scene())


def test_what_was_submitted_before_accounts_does_not_come_back_without_one(yard: AccessYard) -> None:
    async def scene() -> None:
        async with yard.as_user("bob") as bob:
            before = await submit(bob)
            await bob.post(f"/runs/{before['run_id']}/cancel")
            yard.users = replace(yard.users, run_as=RunAs.USER)
            assert refused(await bob.post(f"/runs/{before['run_id']}/resume")) == "NO_UNIX_USER"

    play(scene())


def test_no_node_that_cannot_switch_is_taken(yard: AccessYard) -> None:
    yard.users = replace(yard.users, run_as=RunAs.USER)

    async def scene() -> None:
        async with yard.as_user("uma") as uma:
            answer = await ask(uma)
            assert refused(answer) == "CANNOT_SWITCH_USER"
            assert "uma1" in answer.json()["message"]

    play(scene())


def test_a_file_names_its_user_or_a_service_that_was_lent(yard: AccessYard) -> None:
    as_root(yard)

    async def scene() -> None:
        async with yard.as_user("uma") as uma, yard.as_user("vic") as vic, yard.as_user("bob") as bob:
            assert (await submit(uma, run_as="uma"))["unix_user"] == "uma1"
            run = await submit(uma, run_as="nightly")
            assert (run["unix_user"], run["owner"]) == ("svc", "uma")
            for other in ("bob", "adam", "nobody"):
                assert refused(await ask(uma, run_as=other)) == "RUN_AS_NOT_ALLOWED"
            assert refused(await ask(bob, run_as="bob")) == "NO_UNIX_USER"
            assert refused(await ask(vic, run_as="nightly")) == "FORBIDDEN"
            known = {**yard.users.known, "nightly": replace(yard.users.known["nightly"], active=False)}
            yard.users = replace(yard.users, known=known)
            assert refused(await ask(uma, run_as="nightly")) == "RUN_AS_NOT_ALLOWED"

    play(scene())


def test_a_pool_may_ask_for_an_account(yard: AccessYard) -> None:
    pools = (
        PoolPolicy(name="managed", accelerator="GPU_1xA10", nodes=("sim-1xa10-0",)),
        PoolPolicy(name="small", accelerator="GPU_1xA10"),
    )
    yard.tell(DeclarePolicy(policy=Policy(pools=pools), by="ada"))
    as_root(yard, "sim-1xa10-0")
    gpu: dict[str, Any] = {"accelerator": "GPU_1xA10", "nodes": 1}
    managed = {**gpu, "pool": "managed"}
    asking = {"managed": PoolRights(run_as=RunAs.USER, open=True)}

    async def scene() -> None:
        async with yard.as_user("uma") as uma, yard.as_user("bob") as bob:
            before = await submit(bob, compute=managed)
            assert before["unix_user"] is None
            yard.users = replace(yard.users, pools=asking)
            assert (await submit(uma, compute=managed))["unix_user"] == "uma1"
            assert (await submit(uma, compute={**gpu, "pool": "small"}))["unix_user"] is None
            run = await submit(bob, compute=gpu)
            assert (run["pool"], run["unix_user"]) == ("small", None)
            assert refused(await ask(bob, compute=managed)) == "NO_UNIX_USER"
            await bob.post(f"/runs/{before['run_id']}/cancel")
            assert refused(await bob.post(f"/runs/{before['run_id']}/resume")) == "NO_UNIX_USER"

    play(scene())
