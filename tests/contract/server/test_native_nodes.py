"""The routes of operators: one node, cordon, uncordon, drain, the word that a machine is dead."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from airyard.core.commands import MachineAway
from airyard.core.run import Cause
from airyard.wire import native
from airyard.wire.nodes import ConfirmDeadAnswer, NodeAnswer, NodesAnswer, OperatedAnswer
from server_yard import Yard, play, submit

ONE, TWO = "sim-1xa10-0", "sim-1xa10-1"


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[Yard]:
    one = Yard(tmp_path / "home")
    yield one
    one.stop()


async def operate(client: httpx.AsyncClient, verb: str, **body: Any) -> OperatedAnswer:
    answer = await client.post(f"/nodes/{verb}", json=body)
    assert answer.status_code == 200, answer.text
    return OperatedAnswer.model_validate(answer.json())


async def refusal(client: httpx.AsyncClient, path: str, body: Any, status: int) -> native.ErrorBody:
    answer = await client.post(path, json=body)
    assert answer.status_code == status, answer.text
    return native.ErrorAnswer.model_validate(answer.json()).error


def test_a_node_is_closed_shown_and_opened(yard: Yard) -> None:
    async def scene() -> None:
        async with yard.client() as client:
            done = await operate(client, "cordon", nodes=[ONE, TWO], reason="fan")
            assert [(one.name, one.changed) for one in done.nodes] == [(ONE, True), (TWO, True)]
            shown = NodeAnswer.model_validate((await client.get(f"/nodes/{ONE}")).json())
            assert shown.node.cordon is not None
            assert (shown.node.cordon.by, shown.node.cordon.reason, shown.node.draining) == (
                "ada",
                "fan",
                None,
            )
            assert (shown.machine.alive, shown.runs) == (True, [])
            again = await operate(client, "cordon", nodes=[ONE])
            assert (again.nodes[0].changed, "already, by ada since" in again.nodes[0].message) == (
                False,
                True,
            )
            back = await operate(client, "uncordon", nodes=[ONE])
            assert back.nodes[0].node is not None
            assert (back.nodes[0].changed, back.nodes[0].node.cordoned) == (True, False)
            nodes = NodesAnswer.model_validate((await client.get("/nodes")).json()).nodes
            assert [node.name for node in nodes if node.cordoned] == [TWO]

    play(scene())


def test_an_idle_node_is_drained_at_once(yard: Yard) -> None:
    async def scene() -> None:
        async with yard.client() as client:
            done = await operate(client, "drain", nodes=[ONE], reason="move", deadline_s=60)
            assert done.runs == []
            shown = done.nodes[0].node
            assert shown is not None
            assert shown.draining is not None
            assert (shown.draining.drained, shown.draining.by, shown.cordoned) == (True, "ada", True)
            assert shown.draining.deadline_at is not None

    play(scene())


def test_bad_asks_change_nothing_and_name_the_nearest(yard: Yard) -> None:
    async def scene() -> None:
        async with yard.client() as client:
            error = await refusal(client, "/nodes/cordon", {"nodes": [ONE, f"{TWO}x"]}, 404)
            assert (error.code, f"did you mean '{TWO}'?" in error.message) == ("NODE_NOT_FOUND", True)
            answer = await client.get(f"/nodes/{ONE}x")
            assert (answer.status_code, answer.json()["error_code"]) == (404, "NODE_NOT_FOUND")
            both = {"nodes": [ONE], "deadline_s": 5, "deadline_at": "2090-01-01T00:00:00Z"}
            assert (await refusal(client, "/nodes/drain", both, 400)).code == "BAD_DEADLINE"
            past = {"nodes": [ONE], "deadline_at": "2001-01-01T00:00:00Z"}
            assert (await refusal(client, "/nodes/drain", past, 400)).code == "BAD_DEADLINE"
            assert (await refusal(client, "/nodes/uncordon", {"nodes": []}, 400)).code == "INVALID_ARGS"
            error = await refusal(client, f"/nodes/{ONE}/confirm-dead", {}, 409)
            assert error.code == "MACHINE_IS_ALIVE"
            nodes = NodesAnswer.model_validate((await client.get("/nodes")).json()).nodes
            assert not any(node.cordoned for node in nodes)

    play(scene())


def test_a_drain_says_who_leaves_and_when_and_a_dead_machine_is_let_go(yard: Yard) -> None:
    async def scene() -> None:
        async with yard.client() as client:
            run_id = (await submit(client))["run_id"]
            where = (await yard.placed(run_id)).attempts[0].members[0]
            await yard.begin(run_id)
            done = await operate(client, "drain", nodes=[where.node], reason="new fans")
            assert [(one.run_id, one.owner, one.nodes) for one in done.runs] == [
                (run_id, "ada", [where.node])
            ]
            shown = NodeAnswer.model_validate((await client.get(f"/nodes/{where.node}")).json())
            assert shown.node.draining is not None
            assert shown.node.draining.drained is False
            (there,) = shown.runs
            assert there.leaving is not None
            assert (there.run_id, there.leaving.reason, there.leaving.by) == (run_id, "DRAIN", "ada")
            assert there.leaving.gone_by == done.runs[0].gone_by
            assert shown.machine.away_since is None
            yard.tell(MachineAway(machine=where.machine))
            away = NodeAnswer.model_validate((await client.get(f"/nodes/{where.node}")).json()).machine
            assert (away.alive, away.away_since is not None) == (False, True)
            path = f"/nodes/{where.node}/confirm-dead"
            error = await refusal(client, path, {"boot_id": "older"}, 409)
            assert error.code == "MACHINE_CAME_BACK"
            word = {"boot_id": shown.machine.boot_id, "reason": "burnt"}
            answer = ConfirmDeadAnswer.model_validate((await client.post(path, json=word)).json())
            assert (answer.machine, answer.changed) == (where.machine, True)
            shown = NodeAnswer.model_validate((await client.get(f"/nodes/{where.node}")).json())
            assert shown.node.draining is not None
            assert (shown.runs, shown.node.draining.drained) == ([], True)
            assert (await yard.record(run_id)).attempts[0].cause is Cause.OPERATOR

    play(scene())
