"""``airyard health check --node`` and tests of mended nodes, by a real server and agent on a slot of CPUs."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest

from acceptance_yard import Yard

pytestmark = pytest.mark.e2e
PATIENCE_S = 90
OWN = """
import time
from pathlib import Path

from airyard.checks.contract import Check, Probe, failed, passed
from airyard.core.health.facts import Component

BAD = Path({mark!r})
HELD = BAD.with_name("held")


def collect(site):
    if HELD.exists():
        HELD.with_name("holds").touch()
    while HELD.exists():
        time.sleep(0.05)
    return BAD.exists()


def judge(bad, limits):
    if bad:
        return [failed("site.fan", "the fan stands", "replace it", Component.HOST, value=0, threshold=900)]
    return [passed("site.fan", "it turns")]


CHECK = Check(name="site.fan", title="t", passes="p", judge=judge)
PROBE = Probe(name="fan", collect=collect, checks=(CHECK,), deadline_s=60.0)
"""


@pytest.fixture
def own_check(yard: Yard) -> Iterator[Any]:
    """A check of the site's own that fails while the file is there."""
    here = yard.run("health", "check", "-o", "json")
    if here.returncode != 0:
        pytest.skip("this machine does not pass the checks of its own")
    folder, mark = yard.home / "node" / "checks", yard.work / "bad"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "fan.py").write_text(OWN.format(mark=str(mark)))
    yield mark
    mark.unlink(missing_ok=True)
    (folder / "fan.py").unlink()


def data(yard: Yard, *arguments: str) -> Any:
    done = yard.run(*arguments, "-o", "json")
    return json.loads(done.stdout)["data"]


def slots(yard: Yard) -> list[str]:
    nodes = data(yard, "nodes")["nodes"]
    return [str(one["name"]) for one in nodes if one["accelerator"] == "CPU"]


def state(yard: Yard, node: str) -> str:
    health = data(yard, "nodes", node)["node"].get("health")
    return str(health["state"]) if health else "HEALTHY"


def until_state(yard: Yard, node: str, wanted: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while (now := state(yard, node)) != wanted:
        assert time.monotonic() < deadline, (now, data(yard, "nodes", node)["story"])
        time.sleep(0.2)


def test_a_node_is_checked_by_its_agent_and_a_failure_takes_it_out(yard: Yard, own_check: Any) -> None:
    node = slots(yard)[0]
    good = yard.run("health", "check", "--node", node)
    assert good.returncode == 0, good.stdout + good.stderr
    assert "pass    site.fan               it turns" in good.stdout
    assert state(yard, node) == "HEALTHY"
    own_check.touch()
    bad = yard.run("health", "check", "--node", node, "-o", "json")
    assert bad.returncode == 1, bad.stderr
    told = json.loads(bad.stdout)["data"]
    assert (told["ok"], told["node"], told["profile"], told["reported"]) == (False, node, "fast", 1)
    assert [one["check"] for one in told["checks"] if one["status"] == "FAIL"] == ["site.fan"]
    shown = data(yard, "nodes", node)
    assert shown["node"]["cordon"]["by"] == "airyard health"
    assert "check.site.fan" in json.dumps(shown["story"])
    audited = yard.run("admin", "audit", "-o", "json").stdout
    assert "health/check" in audited
    assert "/health/check/{name}" not in audited


def test_a_node_that_is_given_back_is_tested_by_its_agent(yard: Yard, own_check: Any) -> None:
    node = slots(yard)[1]
    assert yard.run("health", "maintenance", node, "on").returncode == 0
    own_check.touch()
    assert yard.run("health", "maintenance", node, "off").returncode == 0
    until_state(yard, node, "QUARANTINED")
    assert "fail site.fan: the fan stands" in json.dumps(data(yard, "nodes", node)["story"])
    own_check.unlink()
    assert yard.run("health", "maintenance", node, "on").returncode == 0
    assert yard.run("health", "maintenance", node, "off").returncode == 0
    until_state(yard, node, "HEALTHY")


def until_held(yard: Yard) -> None:
    """Wait until a round is at the site's own check, which waits."""
    deadline = time.monotonic() + PATIENCE_S
    while not (yard.work / "holds").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    (yard.work / "holds").unlink()


def test_a_test_is_asked_for_again_after_a_kill_of_agent_and_server(yard: Yard, own_check: Any) -> None:
    node = slots(yard)[2]
    assert yard.run("health", "maintenance", node, "on").returncode == 0
    held = yard.work / "held"
    held.touch()
    assert yard.run("health", "maintenance", node, "off").returncode == 0
    until_held(yard)
    os.kill(json.loads((yard.home / "node" / "agent.json").read_text())["pid"], signal.SIGKILL)
    until_held(yard)
    os.kill(int(data(yard, "status")["pid"]), signal.SIGKILL)
    assert state(yard, node) == "ENROLLING"
    until_held(yard)
    assert state(yard, node) == "ENROLLING", "what nobody has answered is no pass"
    held.unlink()
    until_state(yard, node, "HEALTHY")


def test_what_cannot_be_checked_is_said(yard: Yard) -> None:
    unknown = yard.run("health", "check", "--node", "no-such-node")
    assert unknown.returncode == 3, (unknown.returncode, unknown.stderr)
    assert "no-such-node" in unknown.stderr
    simulated = next(one["name"] for one in data(yard, "nodes")["nodes"] if one["simulated"])
    done = yard.run("health", "check", "--node", simulated)
    assert done.returncode == 5
    assert done.stdout == f"{simulated} is simulated: nothing was checked.\n"
    both = yard.run("health", "check", "--node", simulated, "--gpus", "8")
    assert both.returncode == 2
