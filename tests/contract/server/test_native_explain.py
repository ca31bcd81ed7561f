"""Why runs wait or run, over the native API: explanations, the queue page by page, expected starts, dry runs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from airyard.core.commands import UpdateRun
from airyard.wire import explain, native
from server_yard import Yard, play, submit, workload


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[Yard]:
    one = Yard(tmp_path / "home")
    yield one
    one.stop()


async def explained(client: httpx.AsyncClient, ref: str) -> dict[str, Any]:
    """Explain a run once the planner has come to it."""
    while True:
        found: dict[str, Any] = (await client.get(f"/runs/{ref}/explain")).json()
        explain.ExplainAnswer.model_validate(found)
        if found["reason"] != "NOT_YET":
            return found
        await asyncio.sleep(0.01)


def seconds_between(first: str, second: str) -> float:
    return (datetime.fromisoformat(second) - datetime.fromisoformat(first)).total_seconds()


async def two_run_and_others_wait(
    yard: Yard, client: httpx.AsyncClient, waiting: int, **changes: Any
) -> None:
    """Fill the two CPU slots for an hour, and let others wait."""
    for _ in range(2 + waiting):
        await submit(client, attempt_timeout_s=3600, **changes)
    await yard.placed(1)
    await yard.placed(2)


def test_a_waiting_run_is_explained(yard: Yard) -> None:
    async def scene() -> None:
        async with yard.client() as client:
            await two_run_and_others_wait(yard, client, 2)
            found = await explained(client, "4")
            assert (found["state"], found["reason"]) == ("QUEUED", "NO_FREE_NODES")
            assert found["evidence"]["holders"] == [1, 2]
            assert (found["position"], found["waiting"]) == (2, 2)
            assert found["ahead"] == [{"rule": "earlier", "count": 1, "runs": [3], "text": "queued earlier"}]
            run = (await client.get("/runs/2")).json()["run"]
            placed = run["attempts"][0]["placed_at"]
            assert 0 <= seconds_between(placed, found["eta"]["p50"]) - 3600 < 60
            assert found["predicted"]["p50_ms"] == 3_600_000
            assert found["predicted"]["source"] == "limit"
            assert found["promise"]["devices_per_node"] == 1
            assert {one["change"] for one in found["counterfactuals"]} == {"RUNS_END"}
            assert found["counterfactuals"][0]["detail"] == {"runs": [1, 2]}
            assert found["preemption"] is None

    play(scene())


def test_a_held_run_has_no_place(yard: Yard) -> None:
    async def scene() -> None:
        async with yard.client() as client:
            await two_run_and_others_wait(yard, client, 1)
            yard.tell(UpdateRun(run_id=3, by="ada", held=True))
            found = await explained(client, "3")
            assert (found["reason"], found["position"], found["eta"]) == ("PAUSED", None, None)
            assert (found["ahead"], found["counterfactuals"]) == ([], [])

    play(scene())


def test_a_held_run_would_start_once_released(yard: Yard) -> None:
    async def scene() -> None:
        async with yard.client() as client:
            await two_run_and_others_wait(yard, client, 1)
            yard.tell(UpdateRun(run_id=3, by="ada", held=True))
            for run_id in (1, 2):
                await client.post(f"/runs/{run_id}/cancel")
                (key,) = await yard.begin(run_id)
                await yard.finish(key)
            found = await explained(client, "3")
            (only,) = found["counterfactuals"]
            assert (only["change"], only["text"]) == ("RELEASED", "once it is released")
            assert only["command"] == found["fix"]["command"] == "airyard release 3"

    play(scene())


def test_a_running_one_says_who_may_evict_it_and_what_it_would_lose(yard: Yard) -> None:
    async def scene() -> None:
        async with yard.client() as client:
            await submit(client, compute={"accelerator": "CPU", "priority": "BEST_EFFORT"})
            await yard.begin(1)
            found = await explained(client, "1")
            told = found["preemption"]
            assert found["reason"] == "RUNNING"
            assert (told["classes"], told["owners"], told["younger"]) == (["CRITICAL", "NORMAL"], [], False)
            run = (await client.get("/runs/1")).json()["run"]
            assert seconds_between(run["attempts"][0]["placed_at"], told["from_at"]) == 60
            assert (told["acknowledged"], told["evicted_at"]) == (False, None)
            assert told["lost_device_seconds"] < 60
            assert found["counterfactuals"] == []

    play(scene())


def test_a_later_run_that_went_first_is_named_on_both_sides(yard: Yard) -> None:
    async def scene() -> None:
        async with yard.client() as client:
            # Both CPU slots are taken; a gang of two waits, then a single one that was queued later gets the first.
            await two_run_and_others_wait(yard, client, 0)
            await submit(client, compute={"accelerator": "CPU", "nodes": 2}, attempt_timeout_s=3600)
            await submit(client, attempt_timeout_s=60)
            # Cancelled: an end by itself would tell how long such runs last, and none would be the shorter.
            await client.post("/runs/1/cancel")
            (key,) = await yard.begin(1)
            await yard.finish(key)
            await yard.placed(4)
            found = await explained(client, "3")
            assert found["passed_by"]["count"] == 1
            (one,) = found["passed_by"]["runs"]
            assert (one["later"], one["earlier"]) == (4, 3)
            assert one["rule"] == "shorter"
            assert one["text"].startswith("run 4 started before run 3: shorter predicted duration, ")
            assert one["text"].endswith(" against 1 h")
            other = await explained(client, "4")
            assert other["went_before"]["runs"] == [one]

    play(scene())


def test_the_queue_comes_in_pages(yard: Yard) -> None:
    async def scene() -> None:
        async with yard.client() as client:
            await two_run_and_others_wait(yard, client, 5)
            await explained(client, "7")
            first = (await client.get("/queue", params={"limit": 3})).json()
            explain.QueueAnswer.model_validate(first)
            assert [(run["run_id"], run["position"]) for run in first["runs"]] == [(3, 1), (4, 2), (5, 3)]
            assert (first["waiting"], first["next_offset"]) == (5, 3)
            rest = (await client.get("/queue", params={"limit": 3, "offset": 3})).json()
            assert [(run["run_id"], run["position"]) for run in rest["runs"]] == [(6, 4), (7, 5)]
            assert rest["next_offset"] is None
            starts = [run["pending"]["eta"]["p50"] for run in first["runs"] + rest["runs"]]
            assert starts == sorted(starts)
            assert all(run["pending"]["reason"] == "NO_FREE_NODES" for run in first["runs"])
            empty = (await client.get("/queue", params={"offset": 99})).json()
            assert (empty["runs"], empty["waiting"], empty["next_offset"]) == ([], 5, None)

    play(scene())


def test_waiting_runs_show_place_and_expected_start_wherever_they_are_listed(yard: Yard) -> None:
    async def scene() -> None:
        async with yard.client() as client:
            await two_run_and_others_wait(yard, client, 1)
            found = await explained(client, "3")
            one = (await client.get("/runs/3")).json()["run"]
            listed = (await client.get("/runs", params={"state": "queued"})).json()["runs"]
            for run in (one, *listed):
                native.RunDoc.model_validate(run)
                assert run["pending"]["position"] == 1
                assert run["pending"]["eta"] == found["eta"]
            assert (await client.get("/runs/1")).json()["run"]["pending"] is None

    play(scene())


def test_estimates_are_compared_with_starts(yard: Yard) -> None:
    async def scene() -> None:
        async with yard.client() as client:
            await two_run_and_others_wait(yard, client, 2)
            found = await explained(client, "3")
            assert found["estimates"] is None
            (key,) = await yard.begin(1)
            await yard.finish(key)
            await yard.placed(3)
            found = (await explained(client, "4"))["estimates"]
            assert (found["count"], found["before_p50"], found["before_p90"]) == (1, 1.0, 1.0)
            assert 3_500_000 < found["median_error_ms"] <= 3_600_000
            assert (await client.get("/queue")).json()["estimates"] == found

    play(scene())


def test_a_dry_run_says_when_and_why(yard: Yard) -> None:
    async def scene() -> None:
        async with yard.client() as client:
            await two_run_and_others_wait(yard, client, 1)
            await explained(client, "3")
            answer = await client.post("/runs", json={"workload": workload(), "dry_run": True})
            native.SubmitAnswer.model_validate(answer.json())
            found = answer.json()["dry_run"]
            assert (found["would_start_now"], found["reason"], found["position"]) == (
                False,
                "NO_FREE_NODES",
                2,
            )
            assert found["eta"]["p50"] <= found["eta"]["p90"]
            gpu = {"accelerator": "GPU_1xA10", "nodes": 2}
            answer = await client.post("/runs", json={"workload": workload(compute=gpu), "dry_run": True})
            found = answer.json()["dry_run"]
            assert (found["would_start_now"], found["eta"]) == (True, None)
            assert found["nodes"] == ["sim-1xa10-0", "sim-1xa10-1"]
            assert (await client.get("/queue")).json()["waiting"] == 1

    play(scene())


def test_an_ended_run_says_why_it_ended(yard: Yard) -> None:
    async def scene() -> None:
        async with yard.client() as client:
            await submit(client)
            (key,) = await yard.begin(1)
            await yard.finish(key, code=3, permanent=True)
            while (found := await explained(client, "1"))["state"] != "ENDED":
                await asyncio.sleep(0.01)
            assert found["reason"] == "USER_CODE"
            assert (found["preemption"], found["eta"], found["counterfactuals"]) == (None, None, [])

    play(scene())
