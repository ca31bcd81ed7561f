"""A broken node goes round its circle with a real server, unattended; a kill -9 of the server doubles no remedy."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from typing import Any

import pytest

from acceptance_yard import Yard

pytestmark = pytest.mark.e2e
CIRCLE = ["CORDONED", "DRAINING", "QUARANTINED", "RESETTING", "RETESTING", "PROBATION", "HEALTHY"]
PATIENCE_S = 90


def data(done: subprocess.CompletedProcess[str]) -> Any:
    """Return the data of an envelope."""
    assert done.returncode == 0, done.stderr or done.stdout
    return json.loads(done.stdout)["data"]


def started(yard: Yard, name: str, command: str) -> str:
    """Submit a run of one simulated GPU; return its number."""
    file = yard.write(name, command, accelerator="GPU_1xA10")
    return str(data(yard.run("run", file, "-o", "json"))["run_id"])


def until(yard: Yard, run_id: str, attempts: int, status: str) -> dict[str, Any]:
    """Wait until a run is there in so many attempts."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        run: dict[str, Any] = data(yard.run("get", run_id, "-o", "json"))
        if len(run["attempts"]) == attempts and run["status"] == status:
            return run
        assert time.monotonic() < deadline, run
        time.sleep(0.2)


def moves(yard: Yard, node: str) -> list[str]:
    """Return the states that the node came to."""
    steps = data(yard.run("nodes", node, "-o", "json"))["story"]
    return [step["after"] for step in steps if step["after"] != step["before"]]


def reached(yard: Yard, node: str, state: str) -> None:
    """Wait until the node came to a state, or beyond it."""
    deadline = time.monotonic() + PATIENCE_S
    while state not in moves(yard, node):
        assert time.monotonic() < deadline, moves(yard, node)
        time.sleep(0.1)


def node_of(run: dict[str, Any]) -> str:
    """Return where the last attempt of a run is."""
    return str(run["attempts"][-1]["members"][0]["node"])


def kill_the_server(yard: Yard) -> None:
    """End the server as a power cut would."""
    pid = int(data(yard.run("status", "-o", "json"))["pid"])
    os.kill(pid, signal.SIGKILL)


def test_the_circle_goes_round_by_itself_and_the_run_goes_on_elsewhere(yard: Yard) -> None:
    run_id = started(yard, "long", "trap 'exit 0' TERM\nsleep 300 & wait")
    sick = node_of(until(yard, run_id, 1, "RUNNING"))
    done = yard.run("health", "report", sick, "--rule", "xid.79", "--severity", "CRITICAL", "--device", "0")
    assert done.returncode == 0, done.stderr
    run = until(yard, run_id, 2, "RUNNING")
    assert node_of(run) != sick
    assert run["attempts"][0]["failure"]["cause"] == "DEVICE"
    assert "xid.79" in yard.run("get", run_id, "-o", "json").stdout
    reached(yard, sick, "PROBATION")
    for turn in range(3):  # the other node is taken: they go to the one on probation
        short = started(yard, f"short{turn}", "true")
        assert node_of(until(yard, short, 1, "SUCCEEDED")) == sick
    reached(yard, sick, "HEALTHY")
    assert moves(yard, sick) == CIRCLE
    told = yard.run("nodes", sick).stdout
    assert "retesting -> probation" in told
    print(told)
    assert yard.run("admin", "verify").returncode == 0


def test_a_server_that_is_killed_in_every_state_doubles_no_remedy(own_yard: Yard) -> None:
    yard, said = own_yard, own_yard.work / "said"
    with (yard.home / "config.toml").open("a") as config:
        mend = f"echo $AIRYARD_ATTEMPT >> {said}; sleep 3"
        config.write(
            f'[health]\nreboot_changes_boot = false\nreboot_command = "{mend}"\nretest_command = "exit 0"\n'
        )
    assert yard.run("up").returncode == 0
    nodes = data(yard.run("nodes", "-o", "json"))["nodes"]
    node = str(next(one["name"] for one in nodes if one["accelerator"] == "CPU"))
    fault = ("health", "report", node, "--rule", "xid.48", "--severity", "CRITICAL", "--id", "e1")
    for state in ("DRAINING", "QUARANTINED", "RESETTING"):
        assert yard.run(*fault).returncode == 0  # the same event, said by each server
        reached(yard, node, state)
        kill_the_server(yard)
        assert yard.run("up").returncode == 0
    deadline = time.monotonic() + PATIENCE_S
    while not (waits := data(yard.run("nodes", node, "-o", "json"))["node"]["health"]["waits_for"]):
        assert time.monotonic() < deadline, moves(yard, node)
        time.sleep(0.2)
    # Nobody knows whether it was done: it is not done again.
    assert "was started again meanwhile" in waits
    assert len(said.read_text().splitlines()) <= 1
    assert yard.run("health", "maintenance", node, "on").returncode == 0
    kill_the_server(yard)
    assert yard.run("up").returncode == 0
    assert yard.run("health", "maintenance", node, "off").returncode == 0
    reached(yard, node, "HEALTHY")
    assert data(yard.run("nodes", node, "-o", "json"))["node"]["cordoned"] is False
    assert yard.run("admin", "verify").returncode == 0
