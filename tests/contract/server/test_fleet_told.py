"""What nodes measured, from a start's report and from rounds, back to other nodes as what is usual among them.

Loop, routes, orders, the runner's preflight and the agent's rounds are real; disks are this machine's own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import httpx
import pytest

from airyard.app.orders import BaseEnvironment, OrderDesk
from airyard.checks.preflight import certificate
from airyard.core.cluster import Device, Machine, Node
from airyard.core.commands import DeclarePolicy, MachineSeen
from airyard.core.health.fleet_values import GEMM, LASTS_MS, STORAGE
from airyard.core.ids import MemberKey
from airyard.core.policy import Policy, PoolPolicy, Preflight
from airyard.core.versions import RUNNER
from airyard.node import inventory, preflight
from airyard.node.machine_events import Prepared
from airyard.node.node_checks import NodeChecks
from airyard.server.effects import Effects
from airyard.server.fleet_values import FleetValues
from airyard.server.routes_runner import router
from server_yard import Yard, play, submit

MACHINES = 6
FAST_DISK = 1e9
"""MB/s: no disk of a machine that tests run on writes half of that."""


def cpu_node(index: int, **changes: Any) -> Node:
    plain = Node(
        name=f"c{index}",
        machine=f"m{index}",
        accelerator="CPU",
        model=None,
        devices=(Device(index=0, uuid=f"CPU-{index}"),),
        cpus=4.0,
        memory_bytes=8 << 30,
    )
    return replace(plain, **changes)


class FleetYard(Yard):
    """Six machines with a slot each, whose pool asks for the full profile."""

    def __init__(self, home: Path) -> None:
        super().__init__(home, cpu_slots=0, gpu_nodes=0)
        pool = PoolPolicy(name="CPU", accelerator="CPU", preflight=Preflight.FULL)
        self.tell(DeclarePolicy(policy=Policy(pools=(pool,)), by="ada"))
        for index in range(MACHINES):
            machine = Machine(name=f"m{index}", boot_id="boot", address=f"10.0.0.{index + 1}")
            self.tell(MachineSeen(machine=machine, nodes=(cpu_node(index),), members=()))
        desk = OrderDesk(
            bases={"6": BaseEnvironment(python="/usr/bin/python3", packages=())},
            secret=self.context.secrets.get,
            tracking_uri="http://127.0.0.1:1/mlflow",
            yard="yard",
        )
        self.app.include_router(router(desk))

    def runner(self, key: MemberKey) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            transport=httpx.ASGITransport(self.app),
            base_url="http://yard/api/v1/runner",
            headers={"authorization": f"Bearer {self.gate.attempt_token(key)}"},
        )

    async def prepare(self, key: MemberKey) -> dict[str, Any]:
        """Return a member's PREPARE order."""
        async with self.runner(key) as runner:
            answer = await runner.get("/orders?wait_s=0&epoch=1")
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()["orders"][0]
        return found

    async def ready(self, key: MemberKey, measured: Any) -> None:
        """Report READY as a runner's machine says it."""
        body = Prepared(address="10.0.0.1", measured=measured).as_report()
        entry = {"number": 1, "kind": "READY", "at_ns": 1, **body}
        async with self.runner(key) as runner:
            sent = {"protocol": RUNNER.newest, "epoch": 1, "sent_ns": 1, "reports": [entry]}
            answer = await runner.post("/reports", json=sent)
        assert answer.status_code == 200, answer.text

    async def gang(self) -> list[MemberKey]:
        """Have a run placed on all machines."""
        async with self.client() as client:
            run = await submit(client, compute={"accelerator": "CPU", "nodes": MACHINES})
        members = (await self.placed(run["run_id"])).attempts[0].members
        return [MemberKey(run["run_id"], 0, member.index) for member in members]


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[FleetYard]:
    one = FleetYard(tmp_path / "home")
    yield one
    one.stop()


def told(value: float, age_s: int = 0, profile: str = "full") -> dict[str, Any]:
    return {"profile": profile, "age_s": age_s, "values": {STORAGE: value}}


def test_what_starts_measured_comes_to_the_next_start_and_its_check_judges_by_it(
    yard: FleetYard, tmp_path: Path
) -> None:
    order: dict[str, Any] = {}

    async def scene() -> None:
        keys = await yard.gang()
        assert "fleet" not in (await yard.prepare(keys[0]))["preflight"]
        for key in keys[:4]:
            await yard.ready(key, told(FAST_DISK))
        assert "fleet" not in (await yard.prepare(keys[5]))["preflight"], "four others are too few"
        await yard.ready(keys[4], told(FAST_DISK))
        assert "fleet" not in (await yard.prepare(keys[0]))["preflight"], "its own does not count"
        order.update(await yard.prepare(keys[5]))

    play(scene())
    assert order["preflight"]["fleet"] == {STORAGE: {"median": FAST_DISK, "nodes": 5}}
    # The runner's side: a real round of checks; what else this machine lacks must not matter here.
    order["preflight"]["strict"] = False
    notes: list[str] = []
    measured: dict[str, Any] = {}
    preflight.run(order, node="c5", node_folder=tmp_path, note=notes.append, tell=measured.update)
    assert [one for one in notes if "warn storage.speed" in one and "the median of 5 other nodes" in one], (
        notes
    )
    assert STORAGE not in measured.get("values", {}), "what warns does not count for the others"


def test_nonsense_and_what_older_runners_say_is_left_out(yard: FleetYard) -> None:
    async def scene() -> None:
        keys = await yard.gang()
        wrong: list[Any] = [
            {},
            {"profile": "full", "values": []},
            {"profile": ["x"], "values": {STORAGE: 5}},
            {"profile": "full", "age_s": -9, "values": {STORAGE: 5}},
            {"profile": "full", "age_s": 10**30, "values": {STORAGE: 5}},
        ]
        for key, measured in zip(keys, wrong, strict=False):
            await yard.ready(key, measured)
        assert "fleet" not in (await yard.prepare(keys[5]))["preflight"]

    play(scene())


def test_a_new_median_voids_no_certificate_and_a_certified_start_tells_what_it_holds(tmp_path: Path) -> None:
    path = preflight.certificate_path(tmp_path, "n1")
    rows: tuple[dict[str, Any], ...] = ({"check": GEMM, "status": "PASS", "value": 700.0},)
    now_ms = preflight._now_ms()
    certificate.store(
        path,
        certificate.Certificate(
            identity=preflight.identity_of("n1", (), tmp_path),
            profile=certificate.Profile.FULL,
            issued_ms=now_ms - 3_600_000,
            expires_ms=now_ms + 3_600_000,
            checks=rows,
        ),
    )
    kept = path.read_bytes()
    for median in (800, 900):
        measured: dict[str, Any] = {}
        asked = {"profile": "full", "fleet": {GEMM: {"median": median, "nodes": 9}}}
        notes: list[str] = []
        preflight.run(
            {"preflight": asked}, node="n1", node_folder=tmp_path, note=notes.append, tell=measured.update
        )
        assert (notes, path.read_bytes()) == ([], kept)
        assert measured["values"] == {GEMM: 700.0}
        assert 3600 <= measured["age_s"] < 3700


class Agents:
    """The part of an engine that has nodes checked, by real rounds of this machine."""

    def __init__(self, folder: Path) -> None:
        self.checks = NodeChecks(folder)
        self.asked: list[Mapping[str, Any]] = []

    def check_node(self, machine: str, asked: Mapping[str, Any], **_: Any) -> Mapping[str, Any]:
        self.asked.append(asked)
        node = inventory.Node(
            name=str(asked["node"]), accelerator="CPU", model=None, devices=(), cpus=1.0, memory_bytes=1 << 30
        )
        only = {**asked, "only": [STORAGE]}
        return self.checks.begin(only, node, busy=False, is_wanted=lambda: True)()


def test_rounds_tell_what_they_measured_and_are_told_what_is_usual(yard: FleetYard, tmp_path: Path) -> None:
    agents = Agents(tmp_path)
    effects = Effects(
        engine=cast(Any, agents),
        worker=cast(Any, None),
        logs=yard.context.logs,
        token_for=lambda key: "",
        yard="yard",
        temporary=tmp_path,
        find_diff=lambda tree: None,
    )
    effects._loop = yard.loop

    def check(index: int) -> Mapping[str, Any]:
        asked = {"name": f"r{index}", "node": f"c{index}", "profile": "full", "python": ""}
        answer = effects._check_idle(f"m{index}", asked, should_stop=lambda: False)
        (speed,) = (one for one in answer["results"] if one["check"] == STORAGE)
        return cast(Mapping[str, Any], speed)

    for index in range(MACHINES - 1):
        assert check(index)["status"] == "PASS"
        assert "fleet" not in agents.asked[-1]
    check(MACHINES - 1)
    assert agents.asked[-1]["fleet"][STORAGE]["nodes"] == MACHINES - 1
    # Theirs grow beyond any disk: the next round is slow beside them, and is not learnt from.
    now_ms = yard.context.clock.now_ms()
    for index in range(1, MACHINES):
        effects.fleet.note(cpu_node(index), "CPU", "full", {STORAGE: FAST_DISK}, now_ms, now_ms)
    slow = check(0)
    assert slow["status"] == "WARN"
    assert f"the median of {MACHINES - 1} other nodes" in slow["message"]
    check(1)
    assert agents.asked[-1]["fleet"][STORAGE]["median"] == FAST_DISK


def test_values_are_of_one_pool_board_and_profile_the_newest_and_never_of_simulated_nodes() -> None:
    values, now_ms = FleetValues(), LASTS_MS
    nodes = [cpu_node(index, model="H100") for index in range(8)]

    def median(pool: str = "a", profile: str = "full", at_ms: int = now_ms, node: Node = nodes[7]) -> Any:
        return values.usual(node, pool, profile, at_ms).get("fleet", {}).get(GEMM)

    for node in nodes[:5]:
        values.note(node, "a", "full", {GEMM: 700.0}, now_ms, now_ms)
    assert median() == {"median": 700.0, "nodes": 5}
    assert [median(pool="b"), median(profile="fast"), median(node=cpu_node(7, model="A100"))] == [None] * 3
    assert median(node=cpu_node(7, model="H100", simulated=True)) is None
    assert median(at_ms=now_ms + LASTS_MS + 1) is None
    # An older value, one from the future, and a simulated node's change nothing.
    for node in nodes[:5]:
        values.note(node, "a", "full", {GEMM: 1.0}, now_ms - 5, now_ms)
        values.note(node, "a", "full", {GEMM: 1.0}, now_ms + 5, now_ms)
        values.note(replace(node, simulated=True), "a", "full", {GEMM: 1.0}, now_ms, now_ms)
    assert median() == {"median": 700.0, "nodes": 5}
    values.note(nodes[0], "b", "full", {GEMM: 700.0}, now_ms, now_ms)
    assert median() is None, "it has gone to another pool"


def test_asking_and_telling_at_once_from_many_threads_loses_nothing() -> None:
    values, now_ms = FleetValues(), LASTS_MS

    def work(index: int) -> None:
        node = cpu_node(index)
        for _ in range(50):
            values.note(node, "a", "full", {STORAGE: float(index + 1)}, now_ms, now_ms)
            values.usual(node, "a", "full", now_ms)

    async def scene() -> None:
        await asyncio.gather(*(asyncio.to_thread(work, index) for index in range(9)))

    asyncio.run(scene())
    found = values.usual(cpu_node(99), "a", "full", now_ms)
    assert found == {"fleet": {STORAGE: {"median": 5.0, "nodes": 9}}}
