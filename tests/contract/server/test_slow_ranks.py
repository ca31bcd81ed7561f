"""A throttled GPU and the compute times of a gang's ranks meet in the server: what follows, and what does not.

The throttling is what a real agent reads through the real binding over the stand-in for NVML; steps come by the route
of runners.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from agent_line import Line, ended
from airyard.adapters.agent_facts import facts_of_hello, health_of_push
from airyard.adapters.agent_process import start_agent
from airyard.app.orders import BaseEnvironment, OrderDesk
from airyard.core.health.facts import HealthEvent
from airyard.core.ids import MemberKey
from airyard.core.versions import RUNNER
from airyard.server.routes_runner import router
from airyard.wire.explain import ExplainAnswer
from airyard.wire.nodes import NodeAnswer
from fake_nvml import FakeGpus, compiled
from server_yard import Yard, play, submit

RANKS, SLOW = 8, 3
AT_WORK: dict[str, int | str] = {"utilization": 97, "temperature": 71, "clock": 1755}
HOT: dict[str, int | str] = {
    f"gpu{SLOW}__clock_reasons": 0x48,
    f"gpu{SLOW}__temperature": 92,
    f"gpu{SLOW}__clock": 1200,
}


class Site:
    """A server with the machine of a real agent in its journal."""

    def __init__(self, home: Path, gpus: FakeGpus) -> None:
        self.gpus = gpus
        self.agent = home / "agent"
        (home / "locks").mkdir(mode=0o777)
        start_agent(self.agent, {**os.environ, **gpus.environ})
        self.line = Line(self.agent)
        hello = self.line.hello(home / "locks", monitor={"gpus_idle_s": 0.2, "gpus_s": 0.2})
        _, seen = facts_of_hello(hello, 0)
        self.yard = Yard(home / "home", cpu_slots=0, gpu_nodes=0)
        self.yard.tell(replace(seen, nodes=tuple(one for one in seen.nodes if len(one.devices) == RANKS)))
        self.machine = seen.machine.name
        (self.node,) = self.yard.loop.peek(lambda control: list(control.state.nodes))
        desk = OrderDesk(
            bases={"6": BaseEnvironment(python="/usr/bin/python3", packages=())},
            secret=self.yard.context.secrets.get,
            tracking_uri="http://127.0.0.1:1/mlflow",
            yard="yard",
        )
        self.yard.app.include_router(router(desk))
        self._number = 100

    def close(self) -> None:
        self.yard.stop()
        self.line.close()
        ended(self.agent)

    def seen(self, rule: str) -> list[HealthEvent]:
        """Wait until the agent tells of a rule."""
        while True:
            events = self.line.health()
            message = {"events": events}
            _, found = health_of_push(message, self.machine, frozenset({self.node}), 2**50)
            if any(one.rule == rule for one in found):
                return list(found)

    async def report(self, client: httpx.AsyncClient, events: list[HealthEvent]) -> None:
        now_ms = self.yard.context.clock.now_ms()
        told = [replace(one, at_ms=now_ms).as_json() for one in events]
        answer = await client.post("/health/report", json={"events": told})
        assert answer.status_code == 200, answer.text

    async def began(self, client: httpx.AsyncClient) -> MemberKey:
        run = await submit(client, compute={"accelerator": "GPU_8xH100", "nodes": 1})
        (key,) = await self.yard.begin(run["run_id"])
        return key

    async def step(self, key: MemberKey, *slow: int, windows: int = 5) -> None:
        """Have a member tell of windows of steps; slow ranks compute 140 ms, the others 100."""
        transport = httpx.ASGITransport(self.yard.app)
        token = self.yard.gate.attempt_token(key)
        async with httpx.AsyncClient(
            transport=transport,
            base_url="http://yard/api/v1/runner",
            headers={"authorization": f"Bearer {token}"},
        ) as runner:
            for _ in range(windows):
                self._number += 1
                ranks = [
                    {
                        "rank": rank,
                        "step": self._number,
                        "count": 20 * self._number,
                        "age_ms": 0,
                        "compute_ms": 140.0 if rank in slow else 100.0,
                    }
                    for rank in range(RANKS)
                ]
                entry = {"number": self._number, "kind": "PROGRESS", "at_ns": 1, "ranks": ranks}
                body = {"protocol": RUNNER.newest, "epoch": 1, "sent_ns": 1, "reports": [entry]}
                answer = await runner.post("/reports", json=body)
                assert answer.status_code == 200, answer.text

    async def page(self, client: httpx.AsyncClient) -> NodeAnswer:
        return NodeAnswer.model_validate((await client.get(f"/nodes/{self.node}")).json())

    async def slow_ranks(self, client: httpx.AsyncClient, key: MemberKey) -> list[tuple[int, int | None]]:
        """Return the ranks that explain names, each with its throttled GPU."""
        answer = await client.get(f"/runs/{key.run_id}/explain")
        progress = ExplainAnswer.model_validate(answer.json()).progress
        assert progress is not None
        return [
            (one.rank, one.throttled.device if one.throttled is not None else None)
            for one in progress.stragglers
        ]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    library = compiled()
    if library is None:
        pytest.skip("no C compiler for the stand-in of NVML")
    gpus = FakeGpus(library=library, file=tmp_path / "gpus")
    gpus.set(**AT_WORK)
    one = Site(tmp_path, gpus)
    yield one
    one.close()


def test_throttling_counts_once_its_rank_is_slower_than_the_others(site: Site) -> None:
    async def scene() -> None:
        site.gpus.set(**AT_WORK, **HOT)
        events = site.seen("gpu.throttled")
        async with site.yard.client() as client:
            key = await site.began(client)
            await site.report(client, events)
            await site.step(key)
            assert await site.slow_ranks(client, key) == []
            assert (await site.page(client)).node.health is None  # throttled, and as fast as the others
            await site.step(key, SLOW)
            assert await site.slow_ranks(client, key) == [(SLOW, SLOW)]
            page = await site.page(client)
            (step,) = page.story
            assert (step.rule, step.by) == ("gpu.slowing", "stragglers")
            assert step.why == "GPU 3 is throttled (heat) and its rank is 40% slower than usual"
            assert "rank 3 of run 1" in step.evidence[0]
            assert f"on {site.node} computes 140.0 ms a step, the usual is 100.0 ms" in step.evidence[0]
            assert "by heat" in step.evidence[1]
            assert "0x048, 92 °C, 1200 MHz" in step.evidence[2]
            seq = site.yard.loop.peek(lambda control: control.state.seq)
            await site.step(key, SLOW)
            assert site.yard.loop.peek(lambda control: control.state.seq) == seq  # said once
            text = (await client.get(f"/runs/{key.run_id}/explain")).json()["progress"]["stragglers"][0]
            assert text["text"].endswith("of the last minute at work by heat")
            assert text["throttled"]["reasons"] == "heat"

    play(scene())


def test_a_slow_rank_on_another_gpu_and_a_power_brake_blame_nobody(site: Site) -> None:
    async def scene() -> None:
        site.gpus.set(**AT_WORK, **{**HOT, f"gpu{SLOW}__clock_reasons": 0x88})
        events = site.seen("gpu.throttled")
        async with site.yard.client() as client:
            key = await site.began(client)
            await site.report(client, events)
            await site.step(key, SLOW + 1)
            assert await site.slow_ranks(client, key) == [(SLOW + 1, None)]
            await site.step(key, SLOW, SLOW + 1)
            assert sorted(await site.slow_ranks(client, key)) == [(SLOW, SLOW), (SLOW + 1, None)]
            assert (await site.page(client)).node.health is None

    play(scene())
