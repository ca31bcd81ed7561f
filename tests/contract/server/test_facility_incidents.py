"""Incidents of a rack's power or cooling, as a server keeps and tells them, also over its restarts."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from airyard.core.cluster import Device, Machine, Node
from airyard.core.commands import MachineSeen, Tick
from airyard.core.events import FacilityIncidentBegan, FacilityIncidentEnded, SlowdownSeen
from airyard.core.health.facility import QUIET_MS
from airyard.wire.explain import ExplainAnswer
from airyard.wire.facility import SlowedDoc
from airyard.wire.health import HealthEventsAnswer
from airyard.wire.nodes import NodeAnswer
from server_yard import HEADERS, Yard, submit

PLACE = "rack r3"


class Servers:
    """One server after the other over the same folder."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self.yard = self._start()

    def _start(self) -> Yard:
        yard = Yard(self._home)
        nodes = tuple(
            Node(
                name=f"n{index}",
                machine="racked",
                accelerator="GPU_1xH100",
                model="H100",
                devices=(Device(index=0, uuid=f"GPU-{index}"),),
                cpus=4.0,
                memory_bytes=8 << 30,
                labels={"rack": "r3"},
            )
            for index in range(4)
        )
        machine = Machine(name="racked", boot_id="boot", address="127.0.0.1")
        yard.tell(MachineSeen(machine=machine, nodes=nodes, members=()))
        return yard

    def restart(self) -> None:
        self.yard.stop()
        self.yard = self._start()

    def slow(self, *nodes: str, ago_ms: int = 0, **changes: Any) -> None:
        """Have monitors report the power brake of nodes."""
        at_ms = self.yard.context.clock.now_ms() - ago_ms
        told = [
            {
                "event_id": f"{node}.{at_ms}",
                "rule": "gpu.throttled_long",
                "machine": "racked",
                "node": node,
                "at_ms": at_ms,
                "component": "FACILITY",
                "severity": "HIGH",
                "source": "NVML",
                "message": "GPU 0 was slowed down in 90% of the last minute at work by the power brake",
                "device": 0,
                "clock_reasons": 0x88,
                **changes,
            }
            for node in nodes
        ]

        async def scene(client: httpx.AsyncClient) -> httpx.Response:
            return await client.post("/health/report", json={"events": told})

        assert self._ask(scene).status_code == 200

    def events(self, **asked: Any) -> HealthEventsAnswer:
        async def scene(client: httpx.AsyncClient) -> httpx.Response:
            return await client.get("/health/events", params=asked)

        return HealthEventsAnswer.model_validate(self._ask(scene).json())

    def node(self, name: str) -> NodeAnswer:
        async def scene(client: httpx.AsyncClient) -> httpx.Response:
            return await client.get(f"/nodes/{name}")

        return NodeAnswer.model_validate(self._ask(scene).json())

    def metric(self, name: str) -> str:
        async def scene() -> httpx.Response:
            transport = httpx.ASGITransport(self.yard.app)
            async with httpx.AsyncClient(transport=transport, base_url="http://yard") as client:
                return await client.get("/metrics", headers=HEADERS)

        found = [line for line in asyncio.run(scene()).text.splitlines() if line.startswith(name + " ")]
        return found[0].removeprefix(name + " ") if found else ""

    def started(self, nodes: int) -> int:
        """Start a run on so many nodes; return its ID."""

        async def scene() -> int:
            async with self.yard.client() as client:
                run = await submit(client, compute={"accelerator": "GPU_1xH100", "nodes": nodes})
                await self.yard.begin(run["run_id"])
                return int(run["run_id"])

        return asyncio.run(scene())

    def slowed(self, run_id: int) -> list[SlowedDoc]:
        """Return what explain says of the supplies of a run's nodes."""

        async def scene(client: httpx.AsyncClient) -> httpx.Response:
            return await client.get(f"/runs/{run_id}/explain")

        return ExplainAnswer.model_validate(self._ask(scene).json()).slowed

    def journalled(self) -> list[str]:
        wanted = (SlowdownSeen, FacilityIncidentBegan, FacilityIncidentEnded)
        entries = self.yard.context.journal.events_after(0)
        return [type(one.event).__name__ for one in entries if isinstance(one.event, wanted)]

    def _ask(self, scene: Any) -> httpx.Response:
        async def asked() -> httpx.Response:
            async with self.yard.client() as client:
                answer: httpx.Response = await scene(client)
                return answer

        return asyncio.run(asked())


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Servers]:
    one = Servers(tmp_path / "home")
    yield one
    one.yard.stop()


def test_an_incident_begins_once_over_a_restart_is_told_and_blames_nobody(servers: Servers) -> None:
    servers.slow("n0", "n1")
    assert servers.events().incidents == []
    assert [one.node for one in servers.events().slowdowns] == ["n0", "n1"]
    servers.restart()
    servers.slow("n2")
    servers.restart()
    servers.slow("n3")
    (incident,) = servers.events().incidents
    assert (incident.place, incident.supply, incident.ended) == (PLACE, "POWER", None)
    assert incident.nodes == ["n0", "n1", "n2", "n3"]
    assert "3 of 4 nodes of rack r3" in incident.why
    assert "power supply" in incident.next_step
    assert [one.place for one in servers.events(node="n2").incidents] == [PLACE]
    assert servers.events(node="sim-1xa10-0").incidents == []
    assert servers.metric('airyard_facility_incidents{what="power"}') == "1"
    assert servers.metric('airyard_facility_incidents{what="cooling"}') == "0"
    assert servers.journalled() == [
        *["SlowdownSeen"] * 3,
        "FacilityIncidentBegan",
        "SlowdownSeen",
    ]
    for name in ("n0", "n1", "n2", "n3"):
        told = servers.node(name)
        assert told.node.health is None
        assert told.story == []
        assert told.incidents == [incident]
        assert [one.node for one in told.slowdowns] == [name]


def test_an_incident_ends_when_nothing_is_seen_any_more(servers: Servers) -> None:
    servers.slow("n0", "n1", "n2", ago_ms=QUIET_MS + 60_000)
    assert servers.journalled()[-1] == "FacilityIncidentBegan"
    servers.restart()
    servers.yard.tell(Tick())
    servers.yard.tell(Tick())
    assert servers.journalled()[-2:] == ["FacilityIncidentBegan", "FacilityIncidentEnded"]
    (incident,) = servers.events().incidents
    assert incident.ended is not None
    assert incident.next_step == ""
    assert servers.events(since_s=3600).incidents == [incident]
    assert servers.metric('airyard_facility_incidents{what="power"}') == "0"
    # What is told late of the time before says nothing new.
    servers.slow("n3", ago_ms=QUIET_MS + 30_000)
    assert servers.journalled()[-1] == "FacilityIncidentEnded"


def test_heat_of_a_rack_is_taken_back_from_nodes_that_it_was_counted_against(servers: Servers) -> None:
    hot = {"component": "GPU", "clock_reasons": 0x48}
    servers.slow("n0", **hot)
    assert servers.node("n0").node.health is None
    servers.slow("n0", **hot, rule="gpu.slowing", event_id="slow")
    first = servers.node("n0").node.health
    assert first is not None
    assert first.state == "SUSPECT"
    servers.slow("n1", "n2", **hot)
    (incident,) = servers.events().incidents
    assert (incident.supply, incident.nodes) == ("COOLING", ["n0", "n1", "n2"])
    told = servers.node("n0")
    assert told.node.health is not None
    assert (told.node.health.state, told.node.health.score) == ("HEALTHY", 0)
    assert "facility" in told.story[-1].why


def test_a_run_says_what_slows_its_nodes_down_while_it_does(servers: Servers) -> None:
    run_id = servers.started(2)
    state = servers.yard.loop.peek(lambda control: control.state)
    attempt = state.runs[run_id].attempt
    assert attempt is not None
    one, other = sorted(member.node for member in attempt.members)
    third, _ = sorted({"n0", "n1", "n2", "n3"} - {one, other})
    assert servers.slowed(run_id) == []
    servers.slow(third)
    assert servers.slowed(run_id) == []  # it is none of its nodes
    servers.slow(one)
    (alone,) = servers.slowed(run_id)
    assert (alone.incident, alone.nodes) == (False, [one])
    assert alone.text.startswith(f"{one}: GPU 0 was slowed down")
    servers.slow(other)
    (told,) = servers.slowed(run_id)
    assert (told.incident, told.supply, told.place, told.nodes) == (True, "POWER", PLACE, [one, other])
    assert told.text == (
        f"power of {PLACE} fails: it slows {one}, {other} of this run down, 3 nodes in all; no node is blamed"
    )
    assert "power supply" in told.next_step
