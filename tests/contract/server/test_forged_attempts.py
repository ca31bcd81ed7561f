"""Tokens of attempts that are forged, of another member or of an attempt that is over: what each runner route says.

And what user code reaches with the token of its own, here and with that of its runner at people's routes: nothing.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from access_yard import AccessYard
from airyard.app.orders import BaseEnvironment, OrderDesk
from airyard.core.commands import DeclarePolicy
from airyard.core.ids import MemberKey
from airyard.core.log_frames import LogRecord, LogStream, encode
from airyard.core.policy import NodeCommand, Policy, PoolPolicy
from airyard.core.versions import RUNNER
from airyard.server.auth import Gatekeeper
from airyard.server.route_rights import ROUTES, Access, Gateless
from airyard.server.routes_runner import router
from server_yard import play, submit, workload

OTHERS_CODE, OWN_CODE = "a" * 64, "b" * 64
SECRET = "the value of bob's secret"


class RunnerYard(AccessYard):
    """A yard that runners speak to: bob's run has two members, uma's is another one."""

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        desk = OrderDesk(
            bases={"6": BaseEnvironment(python="/usr/bin/python3", packages=())},
            secret=self.context.secrets.get,
            tracking_uri="http://127.0.0.1:1/mlflow",
            yard="yard",
        )
        self.app.include_router(router(desk))

    def runner(self, token: str) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            transport=httpx.ASGITransport(self.app),
            base_url="http://yard/api/v1/runner",
            headers={"authorization": f"Bearer {token}"},
        )

    def seq(self) -> int:
        """How many facts the journal has: none was added by what changed nothing."""
        return self.context.loop.peek(lambda control: control.state.seq)

    def audit(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.context.access.audit.read()]


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[RunnerYard]:
    one = RunnerYard(tmp_path)
    yield one
    one.stop()


def frame(seq: int, text: str) -> bytes:
    return encode(LogRecord(stream=LogStream.STDOUT, seq=seq, time_ns=1, payload=text.encode()))


def report(number: int = 1, epoch: int = 1, kind: str = "PROGRESS", **fields: Any) -> dict[str, Any]:
    entry = {"number": number, "kind": kind, "at_ns": 1, **fields}
    return {"protocol": RUNNER.newest, "epoch": epoch, "sent_ns": 1, "reports": [entry]}


async def asked(client: httpx.AsyncClient) -> dict[str, httpx.Response]:
    """Ask every route of runners once."""
    return {
        "GET /orders": await client.get("/orders?wait_s=0"),
        "POST /reports": await client.post("/reports", json=report(phase="code", detail="forged")),
        "POST /logs": await client.post("/logs", content=frame(0, "a forged line\n")),
        "POST /looks": await client.post("/looks", json={"number": 1, "ranks": []}),
        "GET /code/{tree_hash}": await client.get(f"/code/{OWN_CODE}"),
    }


def test_every_runner_route_is_asked_here() -> None:
    routes = {
        name.replace("/api/v1/runner", "") for name, entry in ROUTES.items() if entry is Gateless.ATTEMPT
    }

    async def scene() -> None:
        async with httpx.AsyncClient(transport=httpx.MockTransport(lambda _: httpx.Response(200))) as client:
            client.base_url = httpx.URL("http://yard")
            assert set(await asked(client)) == routes

    play(scene())


def test_a_forged_token_gets_nowhere_and_is_noted(yard: RunnerYard) -> None:
    async def scene() -> None:
        async with yard.as_user("bob") as bob:
            run = (await submit(bob, compute={"accelerator": "CPU", "nodes": 2}))["run_id"]
        first, second = await yard.begin(run)
        good = yard.gate.attempt_token(first)
        text, _, mac = good.rpartition(".")
        other_yard = Gatekeeper(owner="ada", token="ayt_x", attempt_key=b"x" * 32)
        tokens = {
            "of another yard": other_yard.attempt_token(first),
            "renamed to the other member": f"aya_{second}.{mac}",
            "renamed to another run": f"aya_{MemberKey(run + 1, 0, 0)}.{mac}",
            "renamed to the next attempt": f"aya_{MemberKey(run, 1, 0)}.{mac}",
            "a changed signature": f"{text}.{'0' if mac[0] != '0' else '1'}{mac[1:]}",
            "a cut signature": good[:-1],
            "no signature": f"{text}.",
            "no member": f"aya_.{mac}",
            "the key's name": f"aya_{first}.{'0' * 64}",
        }
        for what, token in tokens.items():
            async with yard.runner(token) as forger:
                answers = await asked(forger)
                for route, answer in answers.items():
                    assert (answer.status_code, answer.json()["error_code"]) == (401, "UNAUTHENTICATED"), (
                        what,
                        route,
                    )
        assert yard.context.logs.end(first).next_seq == 0
        noted = [entry for entry in yard.audit() if entry["path"].startswith("/api/v1/runner/")]
        assert len(noted) == len(tokens) * len(answers)
        assert {entry["outcome"] for entry in noted} == {"refused"}
        assert mac not in json.dumps(noted)
        async with yard.as_user("bob") as bob, yard.runner(bob.headers["authorization"][7:]) as person:
            for route, answer in (await asked(person)).items():
                assert (answer.status_code, answer.json()["error_code"]) == (403, "NOT_A_RUNNER"), route
        async with yard.runner(good) as runner:
            answers = await asked(runner)
            assert answers["GET /orders"].status_code == 200
            assert answers["POST /logs"].json()["next"] == 1

    play(scene())


def test_a_command_may_do_nothing_as_its_runner(yard: RunnerYard) -> None:
    """Its report of a failed epilog would close the node; the same words of its runner do."""
    command = NodeCommand(command="true")
    pool = PoolPolicy(name="CPU", accelerator="CPU", prolog=command, epilog=command)
    yard.tell(DeclarePolicy(policy=Policy(pools=(pool,)), by="ada"))
    ends = report(9, kind="EXITED", code=0, started=True, fault="epilog", fault_message="forged")

    async def scene() -> None:
        async with yard.as_user("bob") as bob:
            run = (await submit(bob))["run_id"]
        (key,) = await yard.begin(run)
        ends["epoch"] = (await yard.record(run)).attempts[0].epoch
        async with yard.runner(yard.gate.command_token(key)) as code:
            seq = yard.seq()
            answers = await asked(code)
            for what in (ends, report(9, kind="READY", address="x"), report(9, kind="CHECKPOINT", step=1)):
                answers[f"{what['reports'][0]['kind']}"] = await code.post("/reports", json=what)
            for route, answer in answers.items():
                said = answer.json()
                assert (answer.status_code, said["error_code"]) == (403, "NOT_A_RUNNER"), route
                assert f"the command of member {key}" in said["message"], said
            assert (yard.seq(), yard.context.progress, yard.context.logs.end(key).next_seq) == (seq, {}, 0)
        noted = [entry for entry in yard.audit() if entry["attempt"] == str(key)]
        assert len(noted) == len(answers)
        assert {entry["outcome"] for entry in noted} == {"refused"}
        async with yard.runner(yard.gate.attempt_token(key)) as runner:
            assert (await runner.post("/reports", json=ends)).status_code == 200
        (cordon,) = yard.context.loop.peek(lambda control: control.state.cordons).values()
        assert (cordon.by, cordon.reason) == ("epilog", "forged")

    play(scene())


def test_the_token_of_an_attempt_that_is_over_changes_nothing(yard: RunnerYard) -> None:
    async def scene() -> None:
        async with yard.as_user("bob") as bob:
            run = (await submit(bob))["run_id"]
            (key,) = await yard.begin(run)
            yard.write(key, "the last line\n")
            await yard.finish(key)
            while (await bob.get(f"/runs/{run}")).json()["run"]["ended_at"] is None:
                await asyncio.sleep(0.01)
            before = yard.context.logs.end(key)
            async with yard.runner(yard.gate.attempt_token(key)) as old:
                assert (await old.get("/orders?wait_s=0")).status_code == 410
                seq = yard.seq()
                for kind in ("PROGRESS", "EXITED"):
                    await old.post("/reports", json=report(number=9, kind=kind, phase="x", code=1))
                assert (yard.seq(), yard.context.progress) == (seq, {})
                added = await old.post("/logs", content=frame(before.next_seq, "a line from the grave\n"))
                assert (added.status_code, added.json()["error_code"]) == (410, "ATTEMPT_OVER")
                again = await old.post("/logs", content=frame(0, "the last line\n"))
                assert again.json()["next"] == before.next_seq, "what was sent already may be sent again"
                assert (await old.get(f"/code/{OWN_CODE}")).status_code == 404
                assert (await old.post("/looks", json={"number": 1, "ranks": []})).status_code == 410
            assert yard.context.logs.end(key) == before
            assert "grave" not in (await bob.get(f"/runs/{run}/logs")).text
            assert (await bob.get(f"/runs/{run}")).json()["run"]["status"] == "SUCCEEDED"
            assert (await bob.delete(f"/runs/{run}")).status_code == 200
            async with yard.runner(yard.gate.attempt_token(key)) as old:
                for route, answer in (await asked(old)).items():
                    assert answer.status_code in (404, 410) or route == "POST /reports", (route, answer.text)
                ended = await old.post("/reports", json=report(kind="EXITED", code=0))
                assert ended.status_code == 410
                assert yard.context.progress == {}
            never = MemberKey(4711, 0, 0)
            async with yard.runner(yard.gate.attempt_token(never)) as stray:
                assert (await stray.post("/logs", content=frame(0, "x"))).status_code == 410
            assert not (yard.context.home / "server" / "logs" / "4711").exists()

    play(scene())


def test_the_log_of_an_attempt_that_was_followed_by_another_stays_as_it_is(yard: RunnerYard) -> None:
    async def scene() -> None:
        async with yard.as_user("bob") as bob:
            run = (await submit(bob, max_retries=1))["run_id"]
            (key,) = await yard.begin(run)
            yard.write(key, "first\n")
            await yard.finish(key, code=1)
            await yard.placed(run, attempt=1)
            (next_key,) = await yard.begin(run, attempt=1)
            async with yard.runner(yard.gate.attempt_token(key)) as old:
                assert (await old.post("/logs", content=frame(1, "late"))).status_code == 410
                seq = yard.seq()
                for kind in ("PROGRESS", "EXITED"):
                    await old.post("/reports", json=report(number=99, kind=kind, phase="x", code=0))
                assert (yard.seq(), key in yard.context.progress) == (seq, False)
            assert yard.context.logs.end(next_key).next_seq == 0
            record = await yard.record(run)
            assert record.attempts[1].live

    play(scene())


@pytest.mark.parametrize("whose", ["command", "runner of the release before"])
def test_user_code_reaches_no_more_than_its_own_attempt(yard: RunnerYard, whose: str) -> None:
    """What token a command has is worth nothing at the routes of people; an older runner gives its own to it."""
    yard.context.blobs.put(OTHERS_CODE, [b"bob's code"])

    async def scene() -> None:
        async with yard.as_user("bob") as bob, yard.as_user("uma") as uma:
            await bob.put("/secrets/hub/token", json={"value": SECRET})
            others = (await submit(bob, secrets={"HF": "hub/token"}))["run_id"]
            own = (await submit(uma))["run_id"]
            (key,) = await yard.begin(own)
        runners = yard.gate.attempt_token(key)
        token = yard.gate.command_token(key) if whose == "command" else runners
        async with yard.client_of(token) as code, yard.runner(runners) as runner:
            for name, entry in ROUTES.items():
                method, _, path = name.partition(" ")
                if not isinstance(entry, Access) or "/api/v1" not in path:
                    continue
                for run_id in (others, own):
                    filled = path.removeprefix("/api/v1").replace("{ref}", str(run_id))
                    for part in ("{name}", "{number}", "{scope}", "{key}", "{token_id}", "{tree_hash}"):
                        filled = filled.replace(part, "x")
                    answer = await code.request(method, filled)
                    assert answer.status_code == 403, name
                    assert method == "HEAD" or answer.json()["error_code"] == "NOT_A_PERSON", name
            orders = (await runner.get("/orders?wait_s=0")).text
            assert SECRET not in orders
            assert (await runner.get(f"/code/{OTHERS_CODE}")).json()["error_code"] == "CODE_NOT_FOUND"
        refused = [entry for entry in yard.audit() if entry["attempt"] == str(key)]
        assert len(refused) > 80
        assert {entry["outcome"] for entry in refused} == {"refused"}

    play(scene())


def test_what_is_anothers_is_not_there_and_asking_for_it_is_noted(yard: RunnerYard) -> None:
    looks = ["", "/logs", "/logs/raw?node=0", "/stream", "/files", "/metrics", "/source", "/explain"]

    async def scene() -> None:
        async with yard.as_user("bob") as bob, yard.as_user("uma") as uma:
            await bob.put("/secrets/hub/token", json={"value": SECRET})
            run = (await submit(bob, secrets={"HF": "hub/token"}))["run_id"]
            await yard.begin(run)
            never = run + 1000
            asks = [("GET", f"/runs/{{}}{path}", None) for path in looks]
            asks += [
                ("POST", "/runs/{}/page", None),
                ("POST", "/runs/{}/cancel", None),
                ("DELETE", "/runs/{}", None),
            ]
            asks += [("POST", "/runs/{}/update", {"held": True}), ("POST", "/runs/{}/resume", None)]
            for method, path, body in asks:
                theirs = await uma.request(method, path.format(run), json=body)
                nobodys = await uma.request(method, path.format(never), json=body)
                assert (theirs.status_code, theirs.json()["error_code"]) == (404, "RUN_NOT_FOUND"), path
                assert theirs.text == nobodys.text.replace(str(never), str(run)), path
            assert (await uma.delete("/secrets/hub/token")).json()["error_code"] == "SECRET_NOT_FOUND"
            assert (await uma.get("/secrets")).json()["secrets"] == []
            refused = await uma.post("/runs", json={"workload": workload(secrets={"HF": "hub/token"})})
            assert refused.json()["error_code"] == "SECRET_NOT_FOUND"
        noted = [
            entry for entry in yard.audit() if entry["principal"] == "uma" and entry["outcome"] == "refused"
        ]
        assert {entry["path"].removeprefix("/api/v1") for entry in noted} >= {
            path.format(run).partition("?")[0] for _, path, _ in asks
        }
        assert SECRET not in json.dumps(yard.audit())

    play(scene())
