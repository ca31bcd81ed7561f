"""Tests of idle nodes by the server: begun and finished by the journal, out of the way of work, blaming who is bad.

The loop, planner and journal are real; how fast two nodes are with each other is made up here.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airyard.app import health_views
from airyard.checks import catalogue
from airyard.core.cluster import Machine, Node
from airyard.core.commands import MachineSeen
from airyard.core.health.fabric import Measured
from airyard.core.health.fabric_faults import Blamed
from airyard.core.health.facts import CheckStatus, Retest
from airyard.core.health.idle import IdleRules
from airyard.core.health.retesting import needed
from airyard.core.health.states import HealthState
from airyard.core.health.tournament import Pair
from airyard.core.state import ClusterState
from airyard.server.idle_checks import parts_of
from airyard.server.idle_rounds import IdleRounds, IdleSettings
from server_yard import Yard, play, submit

PATIENCE_S = 60.0
RULES = IdleRules(after_ms=0)
Check = Callable[..., Mapping[str, Any]]


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[Yard]:
    one = Yard(tmp_path / "home", cpu_slots=1, gpu_nodes=6)
    yield one
    one.stop()


class Made:
    """How fast pairs are: ``bad`` ones are slow. While ``gate`` is closed tests do not end by themselves."""

    def __init__(self, *bad: str) -> None:
        self.bad = set(bad)
        self.gate = threading.Event()
        self.gate.set()
        self.began: list[str] = []
        self.stopped: list[str] = []

    def measure(self, one: str, other: str, *, name: str, should_stop: Callable[[], bool]) -> Measured:
        self.began.append(name)
        pair = Pair(a=one, b=other)
        while not self.gate.wait(0.01):
            if should_stop():
                self.stopped.append(name)
                return Measured(pair=pair, stopped=True)
        slow = 0.4 if self.bad & {one, other} else 1.0
        return Measured(pair=pair, busbw_gb_s=300 * slow, latency_p95_us=20)


def nobody(machine: str, asked: Mapping[str, Any], **_: object) -> Mapping[str, Any]:
    raise AssertionError(f"no agent is to be asked: {asked}")


def made_for(
    yard: Yard, made: Made | None = None, *, check: Check = nobody, rules: IdleRules = RULES, **more: Any
) -> IdleRounds:
    return IdleRounds(
        read=yard.loop.peek,
        tell=yard.tell,
        check_node=check,
        measure=made.measure if made is not None else None,
        now_ms=yard.context.clock.now_ms,
        python="",
        settings=IdleSettings(rules=rules, **more),
    )


def state(yard: Yard) -> ClusterState:
    return yard.loop.peek(lambda control: control.state)


def until(ready: Callable[[], bool], what: IdleRounds | None = None) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not ready():
        assert time.monotonic() < deadline
        if what is not None:
            what.tick()
        time.sleep(0.02)


def swept(yard: Yard) -> int:
    return sum(pool.number for pool in state(yard).sweeps.values())


def test_idle_nodes_pass_light_and_deep_and_the_bad_one_is_found_in_pairs(yard: Yard) -> None:
    made = Made("sim-1xa10-2")
    idle = made_for(yard, made)
    until(lambda: swept(yard) == 1, idle)
    found = state(yard)
    assert "host-cpu-0" not in found.tests
    assert all(found.tests[f"sim-1xa10-{number}"].deep_ms for number in range(6))
    (pool,) = found.sweeps.values()
    assert (pool.last[0].bad, dict(pool.counts)) == (("sim-1xa10-2",), {Blamed.NODE.value: 1})
    health = found.health["sim-1xa10-2"]
    assert (health.state, health.rule, health.retest.value) == (HealthState.DRAINING, "fabric.node", "T4")
    assert found.tests["sim-1xa10-1"].paired_ms
    assert not found.tests["sim-1xa10-2"].paired_ms
    assert set(found.health) == {"sim-1xa10-2"}
    idle.stop()


def test_a_run_in_the_middle_of_a_sweep_starts_at_once_and_nobody_is_blamed(yard: Yard) -> None:
    made = Made()
    idle = made_for(yard, made)
    made.gate.clear()
    until(lambda: bool(made.began), idle)  # all have passed alone, and the sweep begins

    async def scene() -> None:
        async with yard.client() as client:
            compute = {"accelerator": "GPU_1xA10", "nodes": 6}
            run = await submit(client, compute=compute)
            placed = await yard.placed(run["run_id"])
            assert len(placed.attempts[0].members) == 6

    play(scene())
    until(lambda: bool(made.stopped), idle)
    made.gate.set()
    until(lambda: idle._sweep is None)
    assert state(yard).sweeps == {}
    assert state(yard).health == {}
    idle.stop()


def test_two_nodes_that_are_taken_leave_the_sweep_to_the_others(yard: Yard) -> None:
    made = Made("sim-1xa10-5")
    idle = made_for(yard, made)
    made.gate.clear()
    until(lambda: bool(made.began), idle)

    async def scene() -> None:
        async with yard.client() as client:
            run = await submit(client, compute={"accelerator": "GPU_1xA10", "nodes": 1})
            await yard.placed(run["run_id"])

    play(scene())
    made.gate.set()
    until(lambda: swept(yard) == 1, idle)
    (pool,) = state(yard).sweeps.values()
    (run,) = state(yard).runs.values()
    taken = run.attempts[0].members[0].node
    assert taken in pool.last[0].unknown
    assert set(pool.last[0].bad) <= {"sim-1xa10-5"} - {taken}
    assert taken not in state(yard).health
    idle.stop()


def real(yard: Yard, count: int) -> list[str]:
    """Let nodes with real GPUs join: they are asked by the engine."""
    nodes = []
    for number in range(count):
        like = state(yard).nodes["sim-1xa10-0"]
        name = f"real-{number}"
        nodes.append(replace(like, name=name, machine=name, simulated=False))
        machine = Machine(name=name, boot_id="b1", address="127.0.0.1")
        yard.tell(MachineSeen(machine=machine, nodes=(nodes[-1],), members=()))
    return [node.name for node in nodes]


def result(check: str, status: str, **more: Any) -> dict[str, Any]:
    return {"check": check, "status": status, "message": "as told", "duration_ms": 1, **more}


FIT = [result("gpu.count", "PASS"), result("gpu.lost", "PASS")]


@pytest.fixture
def few(tmp_path: Path) -> Iterator[Yard]:
    one = Yard(tmp_path / "few", cpu_slots=0, gpu_nodes=1)
    yield one
    one.stop()


def test_what_fails_on_an_idle_node_is_its_health_and_what_is_stopped_says_nothing(few: Yard) -> None:
    names = real(few, 3)
    answers: dict[str, Mapping[str, Any]] = {
        names[0]: {"state": "done", "results": FIT},
        names[1]: {"state": "done", "results": [*FIT, result("gpu.rows", "FAIL", component="GPU_MEMORY")]},
        names[2]: {"state": "stopped", "results": []},
    }
    asked: list[str] = []

    def check(machine: str, given: Mapping[str, Any], **_: object) -> Mapping[str, Any]:
        asked.append(f"{machine} {given['profile']}")
        return answers[machine]

    idle = made_for(few, check=check)
    until(lambda: len(set(asked)) >= 4, idle)  # light for three, and deep for the one that passed
    until(lambda: names[1] in state(few).health and names[0] in state(few).tests)
    idle.stop()
    found = state(few)
    light = found.tests[names[0]].light
    assert light is not None
    assert (light.status, light.version) == (CheckStatus.PASS, "b1")
    failed = found.tests[names[1]].light
    assert failed is not None
    assert (failed.status, found.tests[names[1]].passed_ms) == (CheckStatus.FAIL, None)
    assert found.health[names[1]].rule == "check.gpu.rows"
    assert (names[2] in found.tests, names[2] in found.health) == (False, False)
    # It is let alone for a while, not asked again and again.
    assert asked.count(f"{names[2]} fast") == 1


def test_a_test_makes_room_for_a_run_that_is_placed_on_its_node(few: Yard) -> None:
    (name,) = real(few, 1)
    ended = threading.Event()

    def check(
        machine: str, given: Mapping[str, Any], *, should_stop: Callable[[], bool]
    ) -> Mapping[str, Any]:
        deadline = time.monotonic() + PATIENCE_S
        while not should_stop() and time.monotonic() < deadline:
            time.sleep(0.01)
        ended.set()
        # The round was over a moment before: an answer, of a node that it shared with a run.
        return {"state": "done", "results": [result("gpu.rows", "FAIL", component="GPU_MEMORY")]}

    idle = made_for(few, check=check, rules=IdleRules(after_ms=0, share=1.0))
    until(lambda: name in idle._tests, idle)

    async def scene() -> None:
        async with few.client() as client:
            run = await submit(client, compute={"accelerator": "GPU_1xA10", "nodes": 2})
            await few.placed(run["run_id"])

    play(scene())
    until(ended.is_set, idle)
    until(lambda: name not in idle._tests)
    idle.stop()
    assert name not in state(few).health
    assert name not in state(few).tests


def test_a_test_makes_room_for_a_check_that_somebody_waits_for(few: Yard) -> None:
    (name,) = real(few, 1)

    def check(
        machine: str, given: Mapping[str, Any], *, should_stop: Callable[[], bool]
    ) -> Mapping[str, Any]:
        while not should_stop():
            time.sleep(0.01)
        return {"state": "stopped", "results": []}

    idle = made_for(few, check=check, rules=IdleRules(after_ms=0, share=1.0))
    until(lambda: name in idle._tests, idle)
    idle.make_room(name)
    assert name not in idle._tests
    idle.tick()
    assert name not in idle._tests  # nor does the next one begin while it is checked
    assert state(few).tests.keys() == {"sim-1xa10-0"}
    idle.stop()


class Agent:
    """An agent that does parts. From ``stops_after`` parts on it makes room, as for a run, until told otherwise."""

    def __init__(self, *, older: bool = False) -> None:
        self.older = older
        self.stops_after: int | None = None
        self.failing = ""
        self.parts: list[str] = []

    def check(self, machine: str, given: Mapping[str, Any], **_: object) -> Mapping[str, Any]:
        if given["profile"] == "fast":
            return {"state": "done", "results": FIT}
        if self.stops_after is not None and len(self.parts) >= self.stops_after:
            return {"state": "stopped", "results": []}
        self.parts.append(given["part"])
        if self.older:
            return {"state": "done", "results": [result(check, "PASS") for check in needed(Retest.T3, 1)]}
        assert list(given["parts"]) == list(parts_of(NODE))
        results = [result(check, "PASS") for check in given["only"] if check != catalogue.OWN]
        if given["part"] == self.failing:
            results.append(result("compute.memory", "FAIL", component="GPU_MEMORY"))
        return {"state": "done", "results": results, "part": given["part"]}


NODE = Node(name="n", machine="m", accelerator="GPU_1xA10", model="A10", devices=(), cpus=1, memory_bytes=1)


def test_a_deep_test_that_made_room_goes_on_where_it_was_also_with_the_next_server(few: Yard) -> None:
    (name,) = real(few, 1)
    agent, rules = Agent(), IdleRules(after_ms=0, share=1.0)
    names = list(parts_of(NODE))
    agent.stops_after = len(names) // 2
    idle = made_for(few, check=agent.check, rules=rules)
    until(lambda: name in idle._rest_until_ms and len(agent.parts) == agent.stops_after, idle)
    idle.stop()
    until(lambda: not idle._tests)
    known = state(few).tests[name]
    assert ([note.part for note in known.parts], known.deep) == (names[: agent.stops_after], None)
    told = [
        one["message"].split(":")[0] for one in health_views.tests(state(few), name)
    ]  # on the node's page
    assert told[-agent.stops_after :] == [f"part {part}" for part in names[: agent.stops_after]]
    agent.stops_after = None
    again = made_for(few, check=agent.check, rules=rules)
    until(lambda: state(few).tests[name].deep is not None, again)
    again.stop()
    assert agent.parts == names, "each once"
    known = state(few).tests[name]
    assert (known.deep is not None and known.deep.status, known.parts) == (CheckStatus.PASS, ())
    assert known.deep_ms


def test_a_reboot_makes_the_older_parts_void(few: Yard) -> None:
    (name,) = real(few, 1)
    agent, rules = Agent(), IdleRules(after_ms=0, share=1.0)
    agent.stops_after = 2
    idle = made_for(few, check=agent.check, rules=rules)
    until(lambda: name in idle._rest_until_ms and len(agent.parts) == 2, idle)
    idle.stop()
    node = state(few).nodes[name]
    machine = Machine(name=name, boot_id="b2", address="127.0.0.1")
    few.tell(MachineSeen(machine=machine, nodes=(node,), members=()))
    agent.stops_after = None
    again = made_for(few, check=agent.check, rules=rules)
    until(lambda: state(few).tests[name].deep is not None, again)
    again.stop()
    names = list(parts_of(NODE))
    assert agent.parts == [*names[:2], *names]
    deep = state(few).tests[name].deep
    assert deep is not None
    assert (deep.status, deep.version) == (CheckStatus.PASS, "b2")


def test_a_part_that_fails_is_acted_on_at_once(few: Yard) -> None:
    (name,) = real(few, 1)
    agent = Agent()
    agent.failing = "compute.memory"
    idle = made_for(few, check=agent.check, rules=IdleRules(after_ms=0, share=1.0))
    until(lambda: name in state(few).health, idle)
    idle.stop()
    names = list(parts_of(NODE))
    assert agent.parts == names[: names.index("compute.memory") + 1]
    assert state(few).health[name].rule == "check.compute.memory"
    deep = state(few).tests[name].deep
    assert deep is not None
    assert deep.status is CheckStatus.FAIL


def test_an_agent_of_an_older_release_does_the_whole_and_is_asked_once(few: Yard) -> None:
    (name,) = real(few, 1)
    agent = Agent(older=True)
    idle = made_for(few, check=agent.check, rules=IdleRules(after_ms=0, share=1.0))
    until(lambda: name in state(few).tests and state(few).tests[name].deep is not None, idle)
    for _ in range(20):
        idle.tick()
    idle.stop()
    known = state(few).tests[name]
    assert (known.deep is not None and known.deep.status, known.parts) == (CheckStatus.PASS, ())
    assert len(agent.parts) == 1


def test_what_was_tested_is_known_to_the_next_server(yard: Yard, tmp_path: Path) -> None:
    idle = made_for(yard, Made())
    until(lambda: swept(yard) == 1, idle)
    idle.stop()
    before = state(yard)
    restored = ClusterState.from_json(before.copy().to_json())
    assert (restored.tests, restored.sweeps, restored.left_ms) == (
        before.tests,
        before.sweeps,
        before.left_ms,
    )
    again = made_for(yard, Made())
    facts, made = again._plan()
    assert (made.begin, made.sweep) == ((), None)
    assert all(one.passed_ms and one.paired_ms for one in facts if one.name.startswith("sim"))


def test_nodes_of_cpus_are_tested_only_where_somebody_asked_for_it(yard: Yard) -> None:
    facts, _ = made_for(yard)._plan()
    assert "host-cpu-0" not in {one.name for one in facts}
    facts, _ = made_for(yard, cpu_slots=True)._plan()
    assert "host-cpu-0" in {one.name for one in facts}
