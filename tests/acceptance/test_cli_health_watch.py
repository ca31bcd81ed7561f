"""The agent's watch, end to end: a fault of a simulated node takes it out of work; a job cannot make one."""

from __future__ import annotations

import json
import os
import signal
import time
from typing import Any

import pytest

from acceptance_yard import Yard
from airyard.node.health_simulated import FAULT_FILE

pytestmark = pytest.mark.e2e
PATIENCE_S = 60
BROKEN = "NVRM: Xid (PCI:0000:11:00): 64, pid=7, name=python3, Row Remapper: Error recording"


def data(yard: Yard, *arguments: str) -> Any:
    done = yard.run(*arguments, "-o", "json")
    assert done.returncode == 0, done.stderr or done.stdout
    return json.loads(done.stdout)["data"]


def fault(yard: Yard, node: str, line: str, device: int = 0) -> None:
    """Let the kernel of a simulated node say something."""
    with (yard.home / "node" / "health" / "simulated-faults.jsonl").open("a") as file:
        file.write(json.dumps({"node": node, "device": device, "kernel": line}) + "\n")


def story(yard: Yard, node: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = data(yard, "nodes", node)["story"]
    return found


def reached(yard: Yard, node: str, state: str) -> list[dict[str, Any]]:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        steps = story(yard, node)
        if any(step["after"] == state for step in steps):
            return steps
        assert time.monotonic() < deadline, steps
        time.sleep(0.2)


def ran_on(yard: Yard, name: str) -> str:
    done = yard.run("run", yard.write(name, "true", accelerator="GPU_1xA10"), "--watch")
    assert done.returncode == 0, done.stderr
    run = data(yard, "get", "@last")
    return str(run["attempts"][-1]["members"][0]["node"])


def test_a_fault_that_the_kernel_tells_of_takes_the_node_out(yard: Yard) -> None:
    sick, other = (one["name"] for one in data(yard, "nodes")["nodes"] if one["accelerator"] == "GPU_1xA10")
    # What is no line, what others wrote, and what a program did itself says nothing.
    fault(yard, sick, f"12,1,1,-;{BROKEN}")
    fault(yard, sick, "NVRM: Xid (PCI:0000:11:00): 31, pid=8, name=python3, MMU Fault")
    fault(yard, "not-a-node", BROKEN)
    fault(yard, sick, BROKEN)
    fault(yard, sick, BROKEN)  # the same again is the same
    steps = reached(yard, sick, "RETIRED")
    assert [step["after"] for step in steps] == ["CORDONED", "DRAINING", "QUARANTINED", "RETIRED"]
    assert steps[0]["rule"] == "xid.64"
    assert steps[0]["by"] == "agent"
    assert BROKEN in steps[0]["evidence"]
    assert story(yard, other) == []
    assert "xid.64" in yard.run("health", "events").stdout
    assert {ran_on(yard, f"after{turn}") for turn in range(3)} == {other}


def test_what_is_seen_while_the_server_is_away_is_not_lost(own_yard: Yard) -> None:
    yard = own_yard
    assert yard.run("up", "--simulate", "GPU_1xA10=2").returncode == 0
    sick = next(one["name"] for one in data(yard, "nodes")["nodes"] if one["accelerator"] == "GPU_1xA10")
    os.kill(int(data(yard, "status")["pid"]), signal.SIGKILL)
    fault(yard, sick, BROKEN)
    outbox = yard.home / "node" / "health" / "outbox.jsonl"
    deadline = time.monotonic() + PATIENCE_S
    while "xid.64" not in outbox.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.1)
    os.kill(int(json.loads((yard.home / "node" / "agent.json").read_text())["pid"]), signal.SIGKILL)
    assert yard.run("up", "--simulate", "GPU_1xA10=2").returncode == 0
    reached(yard, sick, "RETIRED")
    while outbox.read_text():
        assert time.monotonic() < deadline + PATIENCE_S
        time.sleep(0.1)
    assert yard.run("admin", "verify").returncode == 0


def test_monitors_go_by_the_limits_of_the_nodes_pool(own_yard: Yard) -> None:
    yard = own_yard
    assert yard.run("up", "--simulate", "GPU_1xA10=1").returncode == 0
    declared = yard.work / "yard.yaml"
    declared.write_text(
        "pools:\n  strict: {accelerator: GPU_1xA10, thresholds: {all: {ecc_corrected_fail: 10}}}\n"
    )
    assert yard.run("apply", "-f", str(declared)).returncode == 0
    node = ran_on(yard, "limited")
    folder = yard.home / "node" / "health"
    with (folder / FAULT_FILE).open("a") as file:
        file.write(json.dumps({"node": node, "device": 0, "nvml": {"corrected": 50}}) + "\n")
    deadline = time.monotonic() + PATIENCE_S
    while not (steps := story(yard, node)):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    assert steps[0]["after"] == "HEALTHY", "a warning alone takes nothing out"
    assert "limit 10: ecc_corrected_fail of pool strict)" in steps[0]["evidence"][0]
