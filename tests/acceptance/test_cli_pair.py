"""``airyard health pair`` and tests of mended nodes in pairs, by a real server and agent: simulated nodes, slots."""

from __future__ import annotations

import json
import time
import urllib.request
from typing import Any

import pytest

from acceptance_yard import Yard
from airyard.node.health_simulated import FAULT_FILE

pytestmark = pytest.mark.e2e
PATIENCE_S = 90
NIC_STOPS = "mlx5_core 0000:9a:00.0: health compromised - reached miss count"


def data(yard: Yard, *arguments: str) -> Any:
    return json.loads(yard.run(*arguments, "-o", "json").stdout)["data"]


def names(yard: Yard, *, simulated: bool) -> list[str]:
    return [str(one["name"]) for one in data(yard, "nodes")["nodes"] if one["simulated"] is simulated]


def say(yard: Yard, line: object) -> None:
    folder = yard.home / "node" / "health"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / FAULT_FILE).open("a") as file:
        file.write(json.dumps(line) + "\n")


def test_two_slots_are_tested_over_tcp(yard: Yard) -> None:
    one, other = names(yard, simulated=False)[:2]
    done = yard.run("health", "pair", one, other)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith(f"pass    {one} {other}")
    assert "GB/s" in done.stdout
    assert "on one machine" in done.stdout + done.stderr
    told = data(yard, "health", "pair", other, one)
    assert (told["ok"], told["outcome"], told["nodes"], told["correct"]) == (True, "PASS", [other, one], True)
    assert told["busbw_gb_s"] > 0
    audited = yard.run("admin", "audit", "-o", "json").stdout
    assert "health/pair" in audited
    assert "/health/pair/{name}" not in audited


def test_a_simulated_node_is_as_slow_as_the_file_says(yard: Yard) -> None:
    one, other = names(yard, simulated=True)[:2]
    assert yard.run("health", "pair", one, other).returncode == 0
    say(yard, {"node": other, "pair": {"busbw_share": 0.4}})
    slow = yard.run("health", "pair", one, other)
    assert slow.returncode == 1, slow.stdout
    assert "120 GB/s" in slow.stdout
    assert f"airyard health pair {other} OTHER" in slow.stdout
    say(yard, {"node": other, "pair": "hang"})
    hangs = yard.run("health", "pair", one, other)
    assert hangs.returncode == 1
    assert "did not end in time" in hangs.stdout
    say(yard, {"node": other, "pair": None})
    assert yard.run("health", "pair", one, other).returncode == 0


def test_what_cannot_be_tested_is_said(yard: Yard) -> None:
    slot, simulated = names(yard, simulated=False)[0], names(yard, simulated=True)[0]
    for pair, code, said in (
        ((slot, slot), 2, "named twice"),
        ((slot, "no-such-node"), 3, "no-such-node"),
        ((slot, simulated), 2, "is simulated"),
    ):
        done = yard.run("health", "pair", *pair)
        assert (done.returncode, said in done.stderr) == (code, True), (done.returncode, done.stderr)


def test_a_node_with_runs_is_left_alone(yard: Yard) -> None:
    one, other = names(yard, simulated=False)[:2]
    work = yard.write("holds", "sleep 600", count=len(names(yard, simulated=False)))
    run = str(data(yard, "run", work)["run_id"])
    try:
        deadline = time.monotonic() + PATIENCE_S
        while data(yard, "get", run)["status"].lower() != "running":
            assert time.monotonic() < deadline, data(yard, "get", run)
            time.sleep(0.2)
        refused = yard.run("health", "pair", one, other)
        assert refused.returncode == 5, refused.stdout + refused.stderr
        assert "would disturb them" in refused.stderr
    finally:
        yard.run("cancel", run)


def test_a_mended_node_is_tested_in_pairs_with_nobody_s_help(own_yard: Yard) -> None:
    # Two others, because pairs with one alone do not say which of the two it is.
    assert own_yard.run("up", "--simulate", "GPU_8xH100=4").returncode == 0
    bad, good = "sim-8xh100-1", "sim-8xh100-2"
    say(own_yard, {"node": good, "kernel": NIC_STOPS})
    until(own_yard, good, "PROBATION")
    assert "test T4: pass" in story(own_yard, good)
    # Each remedy is followed by the test, and none of them helps.
    say(own_yard, {"node": bad, "pair": {"busbw_share": 0.5}})
    say(own_yard, {"node": bad, "kernel": NIC_STOPS})
    until(own_yard, bad, "RETIRED")
    assert "test T4: fail" in story(own_yard, bad)


def story(yard: Yard, node: str) -> str:
    return json.dumps(data(yard, "nodes", node)["story"])


def until(yard: Yard, node: str, wanted: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        health = data(yard, "nodes", node)["node"].get("health")
        if health is not None and health["state"] == wanted:
            return
        assert time.monotonic() < deadline, story(yard, node)
        time.sleep(0.3)


def test_slots_of_cpus_are_mended_and_tested_in_pairs_over_tcp(own_yard: Yard) -> None:
    if own_yard.run("health", "check", "--full").returncode != 0:
        pytest.skip("this machine does not pass the checks of its own")
    with (own_yard.home / "config.toml").open("a") as file:
        file.write('[health]\nreboot_changes_boot = false\nreboot_command = "true"\n')
    assert own_yard.run("up").returncode == 0
    node = names(own_yard, simulated=False)[0]
    report(own_yard, node)
    until(own_yard, node, "PROBATION")
    told = story(own_yard, node)
    assert told.count("test T4: pass") == 2


def report(yard: Yard, node: str) -> None:
    """Report what only tests in pairs clear, as a monitor of one's own would."""
    endpoint = json.loads((yard.home / "server" / "endpoint.json").read_text())
    event = {
        "event_id": "e1",
        "rule": "nic.stops",
        "machine": data(yard, "nodes", node)["machine"]["name"],
        "node": node,
        "at_ms": time.time_ns() // 1_000_000,
        "component": "NETWORK",
        "severity": "CRITICAL",
        "source": "KERNEL",
        "message": "an adapter stopped",
        "retest": "T4",
    }
    asked = urllib.request.Request(
        f"{endpoint['url']}/api/v1/health/report",
        data=json.dumps({"events": [event]}).encode(),
        headers={
            "authorization": f"Bearer {(yard.home / 'server' / 'token').read_text().strip()}",
            "content-type": "application/json",
        },
    )
    with urllib.request.urlopen(asked) as answer:
        assert json.load(answer) == {"taken": 1, "notes": []}


def test_a_pool_says_what_a_pair_has_to_reach(yard: Yard) -> None:
    nodes = [one for one in data(yard, "nodes")["nodes"] if one["simulated"]]
    kind = next(one["accelerator"] for one in nodes if one["name"] == names(yard, simulated=True)[0])
    one, other = [each["name"] for each in nodes if each["accelerator"] == kind][:2]
    say(yard, {"node": one, "pair": None})
    say(yard, {"node": other, "pair": None})
    declared = yard.work / "pair_limits.yaml"
    try:
        for figure, code in ((400, 0), (500, 1)):  # simulated nodes have 300, and seven tenths are asked
            declared.write_text(
                f"pools:\n  quick: {{accelerator: {kind}, thresholds: {{all: {{nodes_gb_s: {figure}}}}}}}\n"
            )
            applied = yard.run("apply", "-f", str(declared))
            assert applied.returncode == 0, applied.stdout + applied.stderr
            done = yard.run("health", "pair", one, other)
            assert done.returncode == code, done.stdout + done.stderr
        assert "300 GB/s, at least 350 are due (nodes_gb_s of pool quick)" in done.stdout
    finally:
        declared.write_text("pools: {}\n")
        yard.run("apply", "-f", str(declared))
