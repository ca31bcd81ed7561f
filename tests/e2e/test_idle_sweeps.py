"""Idle nodes, simulated ones, are tested by a real server: the whole circle, a run in the middle, a killed server."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.yard import Yard

PATIENCE_S = 120.0
BAD = "sim-8xh100-2"
NODES = [f"sim-8xh100-{number}" for number in range(6)]
CONFIG = """
[engine]
simulate = { GPU_8xH100 = 6 }

[health.idle]
after_minutes = 0.02
share = 1
"""


@pytest.fixture
def idle_yard(tmp_path: Path, environment_cache: Path) -> Iterator[Yard]:
    """Six simulated nodes, idle soon; one of them is slow with all others, and every test of a pair takes a while."""
    yard = Yard(tmp_path / "home", environment_cache)
    (yard.home / "config.toml").write_text(CONFIG)
    say(yard)
    yield yard
    yard.close()


def say(yard: Yard, *, bad: str = BAD) -> None:
    """Say that a test of a pair takes a second, and who is slow."""
    file = yard.home / "node" / "health" / "simulated-faults.jsonl"
    file.parent.mkdir(exist_ok=True)
    with file.open("a") as out:
        for name in NODES:
            how = {"seconds": 1.0, **({"busbw_share": 0.4} if name == bad else {})}
            out.write(json.dumps({"node": name, "pair": how}) + "\n")


def until(wanted: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not wanted():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def begun(yard: Yard) -> int:
    """How many sweeps were begun, by all servers so far."""
    log = yard.home / "server" / "server.log"
    return log.read_text().count('"sweep_begun"')


def sweeps(yard: Yard) -> list[dict[str, Any]]:
    return [one for one in yard.data("health", "events")["tests"] if one["kind"] == "FABRIC"]


def blamed(yard: Yard) -> set[str]:
    return {step["node"] for step in yard.data("health", "events")["events"]}


def test_a_killed_server_and_a_run_in_the_middle_blame_nobody_and_then_the_slow_node_is_found(
    idle_yard: Yard,
) -> None:
    yard = idle_yard
    yard.up()
    until(lambda: begun(yard) == 1)
    os.kill(yard.server_pid(), signal.SIGKILL)
    yard.up()
    # Tests of the nodes alone are remembered; of the sweep that was cut off nothing is.
    tests = yard.data("health", "events")["tests"]
    assert {one["node"] for one in tests if one["kind"] == "DEEP"} == set(NODES)
    assert (sweeps(yard), blamed(yard)) == ([], set())
    until(lambda: begun(yard) == 2)

    # Half of the nodes are taken: too few are left, and what was measured so far says nothing.
    run = yard.submit("sleep 1", accelerator="GPU_8xH100", nodes=3)
    assert yard.ended(run)["outcome"] == "SUCCEEDED"
    assert '"sweep_broken_off"' in (yard.home / "server" / "server.log").read_text()
    assert blamed(yard) <= {BAD}  # on a slow machine the next sweep may be over by now

    until(lambda: bool(sweeps(yard)))
    say(yard, bad="")  # a remedy helps, the second or third at the latest
    (sweep, *_) = sweeps(yard)
    assert (sweep["status"], sweep["blamed"]) == ("FAIL", ["NODE"])
    assert f"bad: {BAD}" in sweep["message"]
    assert blamed(yard) == {BAD}
    until(lambda: yard.data("nodes", BAD)["node"]["health"]["state"] == "PROBATION")
    page = yard.data("nodes", BAD)
    assert [step["after"] for step in page["story"]][:3] == ["CORDONED", "DRAINING", "QUARANTINED"]
    assert page["story"][0]["rule"] == "fabric.node"
    assert {step["after"] for step in page["story"]} >= {"RETESTING", "PROBATION"}
    assert [one["kind"] for one in page["tests"]] == ["LIGHT", "DEEP", "FABRIC"]
    assert "INFO pair tests: fail" in yard.ok("nodes", BAD)
