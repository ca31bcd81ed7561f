"""Rounds of checks over the local engine: a real agent over the compiled stand-in of NVML, ``kill -9`` included."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from airyard.adapters.local_engine import LocalEngine
from airyard.checks import catalogue
from airyard.checks.contract import Profile
from airyard.checks.preflight import certificate
from airyard.core.commands import MachineSeen
from airyard.core.errors import Unavailable
from airyard.node import preflight
from airyard.node.inventory import Device, Node, host_name
from airyard.node.node_checks import ChecksRefused, NodeChecks
from airyard.ports.engine import Fact
from fake_nvml import FakeGpus, compiled

pytestmark = pytest.mark.e2e
PATIENCE_S = 60
AGENT = """
import sys
from airyard.node import agent, preflight
# The stand-in is found by the loader's own variable, which the machine's real environment does not have.
preflight.of_checks = dict
sys.exit(agent.main())
"""
LONG = """
import time
from airyard.checks.contract import Check, Probe
CHECK = Check(name="site.long", title="t", passes="p", judge=lambda read, limits: [])
PROBE = Probe(name="long", collect=lambda site: time.sleep(600), checks=(CHECK,), deadline_s=600.0)
"""


class Bench:
    """An agent over fake GPUs, and an engine that speaks with it."""

    def __init__(self, home: Path, gpus: FakeGpus) -> None:
        self.home, self.gpus = home, gpus
        (home / "node").mkdir(parents=True)
        self.agent = subprocess.Popen(
            [sys.executable, "-c", AGENT, "--home", str(home)], env={**os.environ, **gpus.environ}
        )
        deadline = time.monotonic() + PATIENCE_S
        while not (home / "node" / "agent.json").exists():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        self.seen = threading.Event()
        self.engine = LocalEngine(home, server_url="http://127.0.0.1:9", gpu_lock_folder=home / "gpus")
        self.engine.connect(self.on_fact)
        assert self.seen.wait(PATIENCE_S)

    def on_fact(self, fact: Fact) -> None:
        if isinstance(fact, MachineSeen):
            self.seen.set()

    def check(self, name: str = "r", profile: str = "fast", after_s: float = PATIENCE_S) -> Mapping[str, Any]:
        """Have a round run; it is stopped after ``after_s``."""
        until = time.monotonic() + after_s
        asked = {"name": name, "node": host_name(), "profile": profile, "python": sys.executable}
        return self.engine.check_node(host_name(), asked, should_stop=lambda: time.monotonic() >= until)

    def part(self, part: str, parts: Mapping[str, Sequence[str]]) -> dict[str, str]:
        """Have a part of the full profile run, and return what its checks came to."""
        asked = {
            "name": f"part {part}",
            "node": host_name(),
            "profile": "full",
            "python": sys.executable,
            "part": part,
            "parts": list(parts),
            "only": list(parts[part]),
        }
        answer = self.engine.check_node(host_name(), asked, should_stop=lambda: False)
        assert (answer["state"], answer["part"]) == ("done", part)
        # The worst of several devices last.
        results = sorted(answer["results"], key=lambda one: one["status"] in ("FAIL", "UNKNOWN"))
        return {one["check"]: one["status"] for one in results}

    def rounds(self) -> list[int]:
        """Return the processes of rounds of this bench that live."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                words = (folder / "cmdline").read_bytes().split(b"\0")
                mine = str(self.gpus.file).encode() in (folder / "environ").read_bytes()
            except OSError:
                continue
            if mine and b"airyard.checks.preflight" in words:
                found.append(int(folder.name))
        return found

    def close(self) -> None:
        self.engine.stop_agent()
        self.agent.wait(PATIENCE_S)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    library = compiled()
    if library is None:
        pytest.skip("no C compiler for the stand-in of NVML")
    gpus = FakeGpus(library=library, file=tmp_path / "gpus.txt")
    gpus.set()
    made = Bench(tmp_path / "home", gpus)
    yield made
    made.close()


def until_gone(bench: Bench) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while found := bench.rounds():
        assert time.monotonic() < deadline, found
        time.sleep(0.05)


def test_a_full_round_in_parts_says_what_the_whole_says_and_certifies_with_the_last(bench: Bench) -> None:
    path = preflight.certificate_path(bench.home / "node", host_name())
    parts = {name: checks for name, checks in catalogue.parts(gpus=True).items() if name != catalogue.READING}
    found: dict[str, str] = {}
    for part in parts:
        assert certificate.load(path) is None
        said = bench.part(part, parts)
        assert set(said) == set(parts[part])
        found |= said
    assert not {"FAIL", "UNKNOWN"} & set(found.values()), found
    kept = certificate.load(path)
    assert kept is not None
    assert kept.profile is Profile.FULL
    # What fails in a part voids it, and all parts before it.
    bench.part(next(iter(parts)), parts)
    bench.gpus.set(gpu3__ecc_uncorrected=2)
    assert bench.part(catalogue.READING, catalogue.parts(gpus=True))["gpu.ecc_uncorrected"] == "FAIL"
    assert certificate.load(path) is None
    assert list(path.parent.iterdir()) == []


def test_a_node_is_checked_where_it_is_and_a_failure_voids_what_it_had_passed(bench: Bench) -> None:
    path = preflight.certificate_path(bench.home / "node", host_name())
    first = bench.check("one")
    assert first["state"] == "done"
    found = {one["check"]: one["status"] for one in first["results"]}
    assert (found["gpu.count"], found["gpu.lost"]) == ("PASS", "PASS")
    if not {"FAIL", "UNKNOWN"} & set(found.values()):
        kept = certificate.load(path)
        assert kept is not None
        assert len(kept.identity.uuids) == 8
    bench.gpus.set(gpu3__ecc_uncorrected=2)
    second = bench.check("two")
    failed = {(one["check"], one["device"]) for one in second["results"] if one["status"] == "FAIL"}
    assert ("gpu.ecc_uncorrected", 3) in failed
    assert certificate.load(path) is None


def test_a_round_that_is_stopped_or_whose_agent_is_killed_leaves_no_process(bench: Bench) -> None:
    # Longer than this test waits: its own deadline must not be what ends it.
    (bench.home / "node" / "checks").mkdir()
    (bench.home / "node" / "checks" / "long.py").write_text(LONG)
    assert bench.check("one", after_s=1)["state"] == "stopped"
    until_gone(bench)
    failed: list[str] = []

    def ask() -> None:
        try:
            bench.check("two")
        except Unavailable as problem:
            failed.append(problem.code)

    asking = threading.Thread(target=ask)
    asking.start()
    deadline = time.monotonic() + PATIENCE_S
    while not bench.rounds():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.kill(bench.agent.pid, signal.SIGKILL)
    asking.join(PATIENCE_S)
    assert failed == ["MACHINE_AWAY"]
    until_gone(bench)


def test_one_round_at_a_time_and_a_heavy_one_gives_way_to_work(tmp_path: Path) -> None:
    checks = NodeChecks(tmp_path)
    node = Node(
        name="n1", accelerator="CPU", model=None, devices=(Device(index=0, uuid=""),), cpus=1, memory_bytes=1
    )
    asked = {"name": "one", "node": "n1", "profile": "full"}
    with pytest.raises(ChecksRefused) as refused:
        checks.begin(asked, node, busy=True, is_wanted=lambda: True)
    assert refused.value.code == "NODE_IN_USE"
    work = checks.begin(asked, node, busy=False, is_wanted=lambda: True)
    with pytest.raises(ChecksRefused) as refused:
        checks.begin({**asked, "name": "two"}, node, busy=False, is_wanted=lambda: True)
    assert refused.value.code == "CHECKS_BUSY"
    checks.give_way("n2")
    checks.give_way("n1")
    assert work() == {"state": "stopped", "results": []}
    light = checks.begin({**asked, "name": "two", "profile": "fast"}, node, busy=True, is_wanted=lambda: True)
    checks.give_way("n1")
    told = light()
    assert told["state"] == "done"
    assert {one["component"] for one in told["results"]}.isdisjoint({"GPU", "GPU_MEMORY", "NVLINK"})
    json.dumps(told)
    nobody = checks.begin({**asked, "name": "three"}, node, busy=False, is_wanted=lambda: False)
    assert nobody()["state"] == "stopped"
    with pytest.raises(ChecksRefused) as refused:
        checks.begin(asked, None, busy=False, is_wanted=lambda: True)
    assert refused.value.code == "UNKNOWN_NODE"
    checks.close()
