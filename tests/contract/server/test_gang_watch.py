"""What a server that was started anew makes of a stall that is known: it has heard of some ranks only, or of none."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airyard.app.gang_steps import SAME_FOR_MS, GangSteps
from airyard.core.ids import MemberKey
from airyard.core.run import StallNote
from airyard.server.context import ServerContext
from airyard.server.gang_watch import weigh
from server_yard import Yard, play, submit

LATE_MS = 9_000


def told(rank: int, step: int, age_ms: int = LATE_MS, limit_ms: int = 5_000) -> dict[str, Any]:
    """One rank as its runner tells it."""
    return {"rank": rank, "step": step, "count": step, "age_ms": age_ms, "limit_ms": limit_ms}


class Gang:
    """A running gang of two nodes with two ranks each, and the server that hears of it."""

    def __init__(self, yard: Yard, keys: list[MemberKey]) -> None:
        self.yard = yard
        self.keys = keys
        self.context: ServerContext = yard.context

    def restart(self) -> None:
        """Forget all that is not journalled, as a killed server does."""
        self.context = replace(self.context, steps=GangSteps())

    async def tell(self, member: int, *ranks: dict[str, Any]) -> None:
        """Have a member tell of its ranks, and answer where a look is asked for."""
        now_ms, key = self.context.clock.monotonic_ms(), self.keys[member]
        self.context.steps.put(key, list(ranks), now_ms)
        await weigh(self.context, key)
        for each in self.keys:
            if (number := self.context.steps.looks.wanted(each, now_ms)) is not None:
                self.context.steps.looks.put(each, {"number": number, "ranks": []})

    async def tell_until_sure(self, member: int, *ranks: dict[str, Any]) -> None:
        """Have a member tell the same again until that counts."""
        await self.tell(member, *ranks)
        await asyncio.sleep(SAME_FOR_MS / 1000 + 0.1)
        for _ in range(2):  # the first one has the members looked at
            await self.tell(member, *ranks)

    async def stall(self) -> StallNote | None:
        return (await self.yard.record(self.keys[0].run_id)).attempts[0].stall

    def seq(self) -> int:
        return self.context.loop.peek(lambda control: control.state.seq)


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[Yard]:
    one = Yard(tmp_path / "home")
    yield one
    one.stop()


async def behind(yard: Yard) -> Gang:
    """Return a gang of which rank 0 is known to be behind: it is in a part of its own that may last longer."""
    async with yard.client() as client:
        run = await submit(client, compute={"accelerator": "CPU", "nodes": 2})
    gang = Gang(yard, await yard.begin(run["run_id"]))
    await gang.tell(0, in_a_section(), told(1, step=8))
    await gang.tell_until_sure(1, told(2, step=8), told(3, step=8))
    stall = await gang.stall()
    assert stall is not None
    assert (stall.case, stall.ranks, stall.over_ms) == ("BEHIND", (0,), 0)
    gang.restart()
    await asyncio.sleep(0.05)
    return gang


def in_a_section() -> dict[str, Any]:
    return told(0, step=7, limit_ms=1_800_000)


def test_ranks_that_may_stand_still_are_no_sign_that_the_gang_gets_on(yard: Yard) -> None:
    async def scene() -> None:
        gang = await behind(yard)
        before = gang.seq()
        await gang.tell_until_sure(0, in_a_section(), told(1, step=8, limit_ms=1_800_000))
        assert gang.seq() == before
        await gang.tell_until_sure(1, told(2, step=8), told(3, step=8))
        assert gang.seq() == before, "the same verdict again"

    play(scene())


def test_without_the_ranks_that_it_names_a_verdict_is_not_revised(yard: Yard) -> None:
    async def scene() -> None:
        gang = await behind(yard)
        before = gang.seq()
        await gang.tell_until_sure(1, told(2, step=8), told(3, step=8))
        assert gang.seq() == before
        await gang.tell_until_sure(0, told(0, step=8), told(1, step=7))
        stall = await gang.stall()
        assert stall is not None
        assert (stall.case, stall.ranks) == ("BEHIND", (1,)), "now it is"

    play(scene())


def test_a_rank_that_makes_a_step_ends_the_stall(yard: Yard) -> None:
    async def scene() -> None:
        gang = await behind(yard)
        await gang.tell(0, told(0, step=8, age_ms=0), told(1, step=8, age_ms=0))
        stall = await gang.stall()
        assert stall is not None
        assert stall.over_ms > 0

    play(scene())
