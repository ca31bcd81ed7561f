"""Checks before a member's code, by a real server, agent and runner: refused, elsewhere for free, and certified."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from acceptance_yard import Yard

pytestmark = pytest.mark.e2e

OWN = """
from pathlib import Path

from airyard.checks.contract import Check, Probe, failed, passed
from airyard.core.health.facts import Component

MARK = Path({mark!r})


def collect(site):
    first = not MARK.exists()
    MARK.touch()
    return first


def judge(first, limits):
    if first:
        return [failed("site.first", "the first look fails", "look again", Component.DISK, value=1, threshold=0)]
    return [passed("site.first", "fine")]


CHECK = Check(name="site.first", title="t", passes="p", judge=judge)
PROBE = Probe(name="first", collect=collect, checks=(CHECK,))
"""


def until(yard: Yard, run_id: str, status: str) -> dict[str, Any]:
    deadline = time.monotonic() + 90
    while True:
        run: dict[str, Any] = json.loads(yard.run("get", run_id, "-o", "json").stdout)["data"]
        if run["status"] == status:
            return run
        assert time.monotonic() < deadline, run
        time.sleep(0.1)


def test_a_node_that_fails_a_check_is_cordoned_and_the_run_goes_on_elsewhere_for_free(yard: Yard) -> None:
    here = yard.run("health", "check", "-o", "json")
    if here.returncode != 0:
        pytest.skip(
            "this machine does not pass the checks of its own: a pool that asks for them would refuse it"
        )
    checks = yard.home / "node" / "checks"
    checks.mkdir(parents=True)
    (checks / "first.py").write_text(OWN.format(mark=str(yard.work / "looked")))
    declared = yard.work / "yard.yaml"
    declared.write_text("pools:\n  checked: {accelerator: GPU_1xA10, preflight: fast}\n")
    assert yard.run("apply", "-f", str(declared)).returncode == 0
    try:
        workload = yard.write("checked", "echo here", accelerator="GPU_1xA10")
        started = yard.run("run", workload, "-o", "json")
        assert started.returncode == 0, started.stderr
        run_id = str(json.loads(started.stdout)["data"]["run_id"])
        run = until(yard, run_id, "SUCCEEDED")
        unfit, fit = (attempt["members"][0]["node"] for attempt in run["attempts"])
        assert unfit != fit
        assert (run["attempts"][0]["cause"], run["retries_spent"]) == ("NODE", 0)
        words = (
            f"preflight: node {unfit} failed site.first: the first look fails "
            "(measured 1, limit 0); next: look again"
        )
        assert run["attempts"][0]["failure"]["message"] == words
        shown = json.loads(yard.run("nodes", unfit, "-o", "json").stdout)["data"]
        (taken_out,) = [step for step in shown["story"] if step["after"] == "CORDONED"]
        assert (taken_out["by"], taken_out["why"]) == ("preflight", words)
        assert (yard.home / "node" / "certificates" / f"{fit}.json").exists()
        yard.run("cordon", unfit)  # it is simulated, so that it is mended and back soon
        started = yard.run("run", workload, "-o", "json")
        run_id = str(json.loads(started.stdout)["data"]["run_id"])
        until(yard, run_id, "SUCCEEDED")
        log = yard.run("logs", run_id, "--no-follow")
        assert "preflight" not in log.stdout + log.stderr, "a certified node is not looked at again"
    finally:
        (checks / "first.py").unlink()
        declared.write_text("pools: {}\n")
        yard.run("apply", "-f", str(declared))
        for node in json.loads(yard.run("nodes", "-o", "json").stdout)["data"]["nodes"]:
            if node.get("cordon"):
                yard.run("uncordon", node["name"])


def test_a_pool_has_limits_of_its_own_and_another_one_does_not_mind(yard: Yard) -> None:
    declared = yard.work / "yard.yaml"
    declared.write_text("pools:\n  big: {accelerator: GPU_1xA10, thresholds: {all: {memory_gb_least: 9}}}\n")
    refused = yard.run("apply", "-f", str(declared))
    assert refused.returncode == 2, refused.stderr
    for words in (
        "yard.yaml:2:",
        "pools.big.thresholds.all.memory_gb_least",
        "did you mean 'memory_gib_least'?",
    ):
        assert words in refused.stdout + refused.stderr
    names = [
        node["name"]
        for node in json.loads(yard.run("nodes", "-o", "json").stdout)["data"]["nodes"]
        if node["accelerator"] == "GPU_1xA10"
    ]
    declared.write_text(
        f"pools:\n  big: {{accelerator: GPU_1xA10, nodes: [{names[0]}], preflight: fast,"
        " thresholds: {all: {memory_gib_least: 9000000}}}\n"
        "  usual: {accelerator: GPU_1xA10, preflight: fast}\n"
    )
    assert yard.run("apply", "-f", str(declared)).returncode == 0
    try:
        pools = json.loads(yard.run("pools", "-o", "json").stdout)["data"]["pools"]
        (rules,) = [pool["rules"] for pool in pools if pool["name"] == "big"]
        assert rules["thresholds"] == {"all": {"memory_gib_least": 9000000.0}}
        workload = yard.write("limited", "echo here", accelerator="GPU_1xA10")
        started = yard.run("run", workload, "--override", "compute.pool_id=big", "-o", "json")
        assert started.returncode == 0, started.stderr
        run_id = str(json.loads(started.stdout)["data"]["run_id"])
        deadline = time.monotonic() + 90
        while True:
            run = json.loads(yard.run("get", run_id, "-o", "json").stdout)["data"]
            failure = (run["attempts"] or [{}])[0].get("failure")
            if failure:
                break
            assert time.monotonic() < deadline, run
            time.sleep(0.1)
        yard.run("cancel", run_id)
        assert "failed host.memory_size" in failure["message"]
        assert "limit 9e+06 GiB: memory_gib_least of pool big" in failure["message"]
        fine = yard.run("run", workload, "--override", "compute.pool_id=usual", "-o", "json")
        assert fine.returncode == 0, fine.stderr
        until(yard, str(json.loads(fine.stdout)["data"]["run_id"]), "SUCCEEDED")
    finally:
        declared.write_text("pools: {}\n")
        yard.run("apply", "-f", str(declared))
        for node in json.loads(yard.run("nodes", "-o", "json").stdout)["data"]["nodes"]:
            if node.get("cordon"):
                yard.run("uncordon", node["name"])
