"""What was said of starts outlives the server, and is compared with starts that came meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from airyard.adapters.estimates_sql import SqlEstimateStore
from airyard.ports.estimate_store import Estimate
from airyard.server.estimates import EstimateKeeper
from server_yard import Yard, play, submit


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[Yard]:
    one = Yard(tmp_path / "home")
    yield one
    one.stop()


def keeper_of(yard: Yard) -> tuple[EstimateKeeper, SqlEstimateStore]:
    context = yard.context
    store = SqlEstimateStore(yard.home / "server" / "journal.db")
    return EstimateKeeper(context.loop, context.reads, store, context.clock), store


def said(run_id: int, asked_ms: int) -> Estimate:
    far_ms = asked_ms + 3_600_000
    return Estimate(run_id=run_id, asked_ms=asked_ms, p50_ms=far_ms, p90_ms=far_ms, position=1)


def test_what_was_said_over_the_api_is_saved_at_the_end(yard: Yard) -> None:
    keeper, store = keeper_of(yard)
    keeper.start()

    async def scene() -> None:
        async with yard.client() as client:
            for _ in range(4):
                await submit(client, attempt_timeout_s=3600)
            await yard.placed(2)
            while (await client.get("/queue")).json()["runs"][0]["pending"]["eta"] is None:
                await asyncio.sleep(0.01)

    play(scene())
    keeper.stop()
    assert {one.run_id for one in store.load()} == {3, 4}


def test_starts_and_ends_that_nobody_watched_are_caught_up_with(yard: Yard) -> None:
    keeper, store = keeper_of(yard)
    long_ago_ms = yard.context.clock.now_ms() - 1000

    async def scene() -> None:
        async with yard.client() as client:
            for _ in range(3):
                await submit(client, attempt_timeout_s=3600)
            await yard.placed(2)

    play(scene())
    store.save([said(1, long_ago_ms), said(3, long_ago_ms), said(99, long_ago_ms)], [])
    keeper.start()
    keeper.stop()
    found = {one.run_id: one.started_ms for one in store.load()}
    assert found.keys() == {1, 3}
    assert found[3] is None
    assert found[1] is not None
    assert found[1] >= long_ago_ms
