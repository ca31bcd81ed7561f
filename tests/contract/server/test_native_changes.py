"""The native API after submit: update, hold, begin; reservations of nodes."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from airyard.wire import native
from airyard.wire.changes import ReservationsAnswer, ReserveAnswer, UnreserveAnswer, UpdateAnswer
from airyard.wire.nodes import NodesAnswer
from server_yard import Yard, play, submit, workload

HELD = {"compute": {"accelerator": "GPU_1xA10", "nodes": 1}}


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[Yard]:
    one = Yard(tmp_path / "home")
    yield one
    one.stop()


def ahead(**span: int) -> str:
    """A time to come, as the API writes it."""
    return (datetime.now(UTC) + timedelta(**span)).isoformat(timespec="milliseconds").replace("+00:00", "Z")


async def update(client: httpx.AsyncClient, ref: object, **fields: Any) -> UpdateAnswer:
    answer = await client.post(f"/runs/{ref}/update", json=fields)
    assert answer.status_code == 200, answer.text
    return UpdateAnswer.model_validate(answer.json())


async def refusal(client: httpx.AsyncClient, path: str, body: Any, status: int) -> native.ErrorBody:
    answer = await client.post(path, json=body)
    assert answer.status_code == status, answer.text
    return native.ErrorAnswer.model_validate(answer.json()).error


async def held_run(client: httpx.AsyncClient, **fields: Any) -> dict[str, Any]:
    body = {"workload": workload(**HELD), "held": True, **fields}
    answer = await client.post("/runs", json=body)
    assert answer.status_code == 200, answer.text
    run: dict[str, Any] = answer.json()["run"]
    return run


def test_a_run_is_submitted_held_changed_and_released(yard: Yard) -> None:
    async def scene() -> None:
        async with yard.client() as client:
            begin = ahead(hours=2)
            run = await held_run(client, begin_at=begin)
            assert (run["state"], run["held"], run["begin_at"], run["timeout_s"]) == (
                "QUEUED",
                True,
                begin,
                None,
            )
            found = await update(client, run["run_id"], priority="BEST_EFFORT", project="nlp", timeout_s=90)
            assert found.changed == ["priority", "project", "timeout_s"]
            assert (found.run.priority, found.run.project, found.run.timeout_s) == ("BEST_EFFORT", "nlp", 90)
            found = await update(client, run["run_id"], timeout_s=None, begin_at=None)
            assert (found.changed, found.run.timeout_s, found.run.begin_at) == (
                ["timeout_s", "begin_at"],
                None,
                None,
            )
            assert (await update(client, run["run_id"], held=True)).changed == []
            assert (await update(client, run["run_id"], held=False)).run.held is False
            assert (await yard.placed(run["run_id"])).attempts

    play(scene())


def test_what_cannot_be_changed_is_refused_with_the_reason(yard: Yard) -> None:
    async def scene() -> None:
        async with yard.client() as client:
            run_id = (await submit(client))["run_id"]
            (key,) = await yard.begin(run_id)
            path = f"/runs/{run_id}/update"
            error = await refusal(client, path, {"held": True}, 409)
            assert (error.code, error.fix and error.fix.command) == (
                "RUN_NOT_QUEUED",
                f"airyard cancel {run_id}",
            )
            assert (await refusal(client, path, {}, 400)).message == "the request names nothing to change"
            error = await refusal(client, path, {"timeout_s": 0}, 400)
            assert "timeout_s: is 0 s; a time limit is at least 1 s" in error.message
            assert (
                "begin_at: is not a time" in (await refusal(client, path, {"begin_at": "8:00"}, 400)).message
            )
            error = await refusal(client, path, {"begin_at": "2020-01-01T00:00:00+01:00"}, 400)
            assert (error.code, "2019-12-31 23:00 UTC" in error.message) == ("BEGIN_HAS_PASSED", True)
            assert "priority" in (await refusal(client, path, {"priority": "URGENT"}, 400)).message
            await yard.finish(key)
            error = await refusal(client, path, {"priority": "CRITICAL"}, 409)
            assert (error.code, "(SUCCEEDED)" in error.message) == ("RUN_HAS_ENDED", True)
            assert (await refusal(client, "/runs/77/update", {"held": True}, 404)).code == "RUN_NOT_FOUND"

    play(scene())


def test_a_name_of_several_runs_is_not_guessed(yard: Yard) -> None:
    async def scene() -> None:
        async with yard.client() as client:
            for _ in range(2):
                await held_run(client)
            assert (await refusal(client, "/runs/digits/update", {"held": False}, 409)).code == "AMBIGUOUS"

    play(scene())


def test_nodes_are_reserved_listed_and_given_back(yard: Yard) -> None:
    async def scene() -> None:
        async with yard.client() as client:
            assert (await client.get("/reservations")).json() == {"reservations": []}
            body = {"nodes": ["sim-1xa10-1"], "duration_s": 3600, "maintenance": True}
            body["note"] = "fans\x1b[2J\n2 of 4"
            later = {"nodes": ["sim-1xa10-0"], "from_at": ahead(hours=1), "to_at": ahead(hours=2)}
            second = ReserveAnswer.model_validate((await client.post("/reservations", json=later)).json())
            first = ReserveAnswer.model_validate((await client.post("/reservations", json=body)).json())
            assert (first.reservation.active, first.reservation.by, first.reservation.note) == (
                True,
                "ada",
                "fans\\x1b[2J\\n2 of 4",
            )
            assert (second.reservation.active, second.reservation.project) == (False, "default")
            found = ReservationsAnswer.model_validate((await client.get("/reservations")).json())
            assert found.reservations == [first.reservation, second.reservation]
            nodes = NodesAnswer.model_validate((await client.get("/nodes")).json()).nodes
            assert {node.name: node.reservation_id for node in nodes if node.reservation_id} == {
                "sim-1xa10-1": 2
            }
            answer = await client.delete(f"/reservations/{first.reservation.reservation_id}")
            assert UnreserveAnswer.model_validate(answer.json()).reservation_id == 2
            answer = await client.delete("/reservations/2")
            assert (answer.status_code, answer.json()["error_code"]) == (404, "RESERVATION_NOT_FOUND")

    play(scene())


def test_a_reservation_that_cannot_be_is_refused_with_the_reason(yard: Yard) -> None:
    async def scene() -> None:
        async with yard.client() as client:
            await submit(client, compute={"accelerator": "GPU_1xA10", "nodes": 1})
            run = await yard.placed(1)
            node = run.attempts[0].members[0].node
            plain = {"nodes": [node], "duration_s": 60, "maintenance": True}
            error = await refusal(client, "/reservations", plain, 409)
            assert (error.code, error.details) == ("NODES_IN_USE", {"runs": [1]})
            error = await refusal(client, "/reservations", {**plain, "nodes": ["sim-1xa10-9"]}, 404)
            assert "did you mean 'sim-1xa10-" in error.message
            for wrong in ({"to_at": ahead(hours=1)}, {"duration_s": None}, {"duration_s": 400 * 86_400}):
                assert (
                    await refusal(client, "/reservations", {**plain, **wrong}, 400)
                ).code == "BAD_RESERVATION"
            assert (
                "not for both"
                in (await refusal(client, "/reservations", {**plain, "project": "nlp"}, 400)).message
            )
            answer = await client.post("/reservations", json={**plain, "evict": True})
            assert "run 1 (ada)" in ReserveAnswer.model_validate(answer.json()).warnings[0]

    play(scene())
