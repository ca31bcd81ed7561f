"""Tests of two nodes over the local engine: a real agent, processes over TCP, faults, ``kill -9`` included."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from airyard.adapters.local_engine import LocalEngine
from airyard.checks.fabric_probe import parse
from airyard.core.commands import MachineSeen
from airyard.core.errors import Unavailable
from airyard.core.health.tournament import Pair
from airyard.node.health_simulated import FAULT_FILE
from airyard.node.inventory import Device, Node, Offer, host_name
from airyard.node.node_checks import ChecksRefused
from airyard.node.node_pairs import NodePairs
from airyard.ports.engine import Fact

pytestmark = pytest.mark.e2e
PATIENCE_S = 60
ONE, OTHER = f"{host_name()}-cpu-0", f"{host_name()}-cpu-1"
SIMULATED = ("sim-8xh100-0", "sim-8xh100-1")
QUICK = ["--octets", str(1 << 18), "--pings", "20", "--seconds", "0"]
AGENT = """
import json, sys
from airyard.node import agent, node_pairs
words, node_pairs.TCP_S = json.loads(sys.argv.pop(1)), float(sys.argv.pop(1))
wish_of = node_pairs.wish_of
def faulty(asked, node, place):
    return {**wish_of(asked, node, place), "words": words["all"] + words.get(node.name, [])}
node_pairs.wish_of = faulty
sys.exit(agent.main())
"""


class Bench:
    """An agent whose sides may be told to do wrong, and an engine that speaks with it."""

    def __init__(self, home: Path, words: Mapping[str, Any], tcp_s: float = PATIENCE_S) -> None:
        self.home = home
        self.known: set[int] = set()
        self.words = json.dumps({"all": QUICK, **words})
        (home / "node" / "health").mkdir(parents=True)
        self.agent = subprocess.Popen(
            [sys.executable, "-c", AGENT, self.words, str(tcp_s), "--home", str(home)]
        )
        deadline = time.monotonic() + PATIENCE_S
        while not (home / "node" / "agent.json").exists():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        self.seen = threading.Event()
        self.engine = LocalEngine(
            home,
            server_url="http://127.0.0.1:9",
            simulate={"GPU_8xH100": 2},
            cpu_slots=2,
            gpu_lock_folder=home / "gpus",
        )
        self.engine.connect(self.on_fact)
        assert self.seen.wait(PATIENCE_S)

    def on_fact(self, fact: Fact) -> None:
        if isinstance(fact, MachineSeen):
            self.seen.set()

    def pair(
        self, one: str = ONE, other: str = OTHER, name: str = "p", after_s: float = PATIENCE_S
    ) -> Mapping[str, Any]:
        """Have a pair tested; it is stopped after ``after_s``."""
        until = time.monotonic() + after_s
        asked = {"name": name, "nodes": [one, other], "python": ""}
        machines = (host_name(), host_name())
        return self.engine.pair_nodes(machines, asked, should_stop=lambda: time.monotonic() >= until)

    def sides(self) -> list[int]:
        """Return the processes of sides that this bench's agent has begun and that live."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                words = (folder / "cmdline").read_bytes().split(b"\0")
                group = os.getpgid(int(folder.name))
            except OSError:
                continue
            if b"airyard.checks.pair_side" in words and group in self.known:
                found.append(int(folder.name))
        return found

    def await_sides(self, count: int) -> None:
        """Wait until so many children of the agent play a side, and remember their groups."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            children = Path(f"/proc/{self.agent.pid}/task").glob("*/children")
            pids = {int(pid) for each in children for pid in each.read_text().split()}
            mine = {pid for pid in pids if b"pair_side" in Path(f"/proc/{pid}/cmdline").read_bytes()}
            if len(mine) == count:
                self.known = mine
                return
            assert time.monotonic() < deadline, mine
            time.sleep(0.05)

    def until_gone(self) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while found := self.sides():
            assert time.monotonic() < deadline, found
            time.sleep(0.05)

    def close(self) -> None:
        self.engine.stop_agent()
        self.agent.wait(PATIENCE_S)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path / "home", {})
    yield made
    made.close()


def hanging(tmp_path: Path, node: str, tcp_s: float = PATIENCE_S) -> Bench:
    return Bench(tmp_path / "home", {node: ["--hang"]}, tcp_s)


def test_two_nodes_are_measured_over_tcp(bench: Bench) -> None:
    found = bench.pair()
    assert found["state"] == "done", found
    read = parse(Pair(a=ONE, b=OTHER), found["served"], found["called"])
    assert (read.correct, read.method, read.finished) == (True, "tcp", True)
    assert read.busbw_gb_s > 0
    assert read.latency_p95_us > 0
    # The next one is begun at once, and by the same name.
    assert bench.pair(OTHER, ONE)["state"] == "done"


def test_a_wrong_bit_is_seen(tmp_path: Path) -> None:
    made = Bench(tmp_path / "home", {OTHER: ["--flip"]})
    try:
        found = made.pair()
        assert not parse(Pair(a=ONE, b=OTHER), found["served"], found["called"]).correct
    finally:
        made.close()


@pytest.mark.parametrize("node", [ONE, OTHER])
def test_a_side_that_hangs_is_killed_at_its_deadline(tmp_path: Path, node: str) -> None:
    made = hanging(tmp_path, node, tcp_s=3.0)
    try:
        assert made.pair()["state"] == "hung"
        assert made.sides() == []
    finally:
        made.close()


def test_a_test_that_is_stopped_or_whose_agent_is_killed_leaves_no_process(tmp_path: Path) -> None:
    made = hanging(tmp_path, ONE)
    try:
        looked = threading.Thread(target=made.await_sides, args=(2,))
        looked.start()
        assert made.pair(after_s=5)["state"] == "stopped"
        looked.join()
        made.until_gone()
        failed: list[str] = []

        def ask() -> None:
            try:
                made.pair(name="two")
            except Unavailable as problem:
                failed.append(problem.code)

        asking = threading.Thread(target=ask)
        asking.start()
        made.await_sides(2)
        os.kill(made.agent.pid, signal.SIGKILL)
        asking.join(PATIENCE_S)
        assert failed == ["MACHINE_AWAY"]
        made.until_gone()
    finally:
        made.close()


def test_what_cannot_be_tested_is_refused(bench: Bench) -> None:
    with pytest.raises(Unavailable) as refused:
        bench.pair(other="n9")
    assert refused.value.code == "UNKNOWN_NODE"
    # What was begun of it is ended.
    assert bench.pair(OTHER, ONE, name="two")["state"] == "done"


def test_simulated_nodes_answer_as_the_file_has_it(bench: Bench) -> None:
    def read() -> Any:
        found = bench.pair(*SIMULATED)
        return (
            parse(Pair(a="a", b="b"), found["served"], found["called"]) if found["state"] == "done" else found
        )

    def say(line: object) -> None:
        with (bench.home / "node" / "health" / FAULT_FILE).open("a") as file:
            file.write(json.dumps(line) + "\n")

    assert read().busbw_gb_s >= read().due_gb_s
    say({"node": SIMULATED[1], "pair": {"busbw_share": 0.4}})
    say({"node": ONE, "pair": "hang"})
    say("no line")
    assert read().busbw_gb_s < read().due_gb_s
    say({"node": SIMULATED[0], "pair": "hang"})
    assert read()["state"] == "hung"
    say({"node": SIMULATED[0], "pair": None})
    say({"node": SIMULATED[1], "pair": {"correct": False}})
    assert not read().correct


def slot(name: str) -> Node:
    return Node(
        name=name, accelerator="CPU", model=None, devices=(Device(index=0, uuid=""),), cpus=1, memory_bytes=1
    )


def test_one_test_a_machine_which_gives_way_to_work(tmp_path: Path) -> None:
    pairs = NodePairs(tmp_path)
    free: dict[str, Any] = {"busy": False, "checking": False, "is_wanted": lambda: True}
    asked = {"name": "one", "node": "n1", "side": "serve", "token": "t", "python": ""}
    for wrong, code in (({"busy": True}, "NODE_IN_USE"), ({"checking": True}, "CHECKS_BUSY")):
        with pytest.raises(ChecksRefused) as refused:
            pairs.begin(asked, slot("n1"), Offer(), **{**free, **wrong})
        assert refused.value.code == code
    side = pairs.begin(asked, slot("n1"), Offer(), **free)
    assert side.opened.result(PATIENCE_S)["port"] > 0
    with pytest.raises(ChecksRefused) as refused:
        pairs.begin({**asked, "name": "two", "node": "n2"}, slot("n2"), Offer(), **free)
    assert refused.value.code == "CHECKS_BUSY"
    pairs.give_way("n2")
    assert not side.over.is_set()
    pairs.give_way("n1")
    assert side.ended.result(PATIENCE_S)["state"] == "stopped"
    assert not pairs.is_running
    nobody = pairs.begin(
        {**asked, "name": "three"}, slot("n1"), Offer(), **{**free, "is_wanted": lambda: False}
    )
    assert nobody.ended.result(PATIENCE_S)["state"] == "stopped"
    with pytest.raises(ChecksRefused) as refused:
        pairs.find("four", "n1")
    assert refused.value.code == "UNKNOWN_PAIR"
