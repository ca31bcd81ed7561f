"""Monitors go by the limits of the machine's file, and over it by those of the pool that the node was last told of."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from airyard.checks.gpu_watch import GpuWatch
from airyard.checks.nvml import Gpu, Gpus
from airyard.node.health_host import HostItself
from airyard.node.health_limits import MOST_NODES, MachineLimits
from airyard.node.health_simulated import SimulatedFaults

POOL = {"pool": "train", "tables": {"all": {"ecc_corrected_fail": 10}}}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "health").mkdir()
    return tmp_path


def write(home: Path, text: str, at_s: int) -> None:
    (home / "thresholds.toml").write_text(f"version = 1\n{text}")
    os.utime(home / "thresholds.toml", (at_s, at_s))


def test_the_pools_go_before_the_machines_and_both_may_change(home: Path) -> None:
    found = MachineLimits(home)
    assert found.of("H100", "n")["ecc_corrected_fail"] == 50_000_000
    write(home, "[all]\necc_corrected_fail = 7\n", 1)
    assert found.of("H100", "n")["ecc_corrected_fail"] == 7
    assert found.of("H100", "n") is found.of("H100", "n"), "nothing is read while nothing changed"
    found.tell("n", POOL)
    assert found.of("H100", "n")["ecc_corrected_fail"] == 10
    assert found.of("H100", "other")["ecc_corrected_fail"] == 7
    assert found.of("H100")["ecc_corrected_fail"] == 10, "the one that was told of last"
    write(home, "broken", 2)
    assert found.of("H100", "other")["ecc_corrected_fail"] == 7, "the last good file holds"
    found.tell("n", {})
    assert found.of("H100", "n")["ecc_corrected_fail"] == 7
    assert found.of("H100")["ecc_corrected_fail"] == 7


def test_they_are_known_after_a_restart_and_an_older_server_changes_nothing(home: Path) -> None:
    MachineLimits(home).tell("n", POOL)
    again = MachineLimits(home)
    again.tell("n", None)
    assert again.of("", "n")["ecc_corrected_fail"] == 10
    assert again.of("")["ecc_corrected_fail"] == 10


@pytest.mark.parametrize(
    "told", ["x", 7, [], {"pool": 3}, {"tables": {"all": {"cpus_least": "x"}}}, {"tables": 7}]
)
def test_what_is_none_changes_nothing_and_breaks_nothing(home: Path, told: Any) -> None:
    found = MachineLimits(home)
    found.tell("n", told)
    assert found.of("", "n")["cpus_least"] == 0


@pytest.mark.parametrize("text", ["", "{", "[]", '{"n": 7}', '{"n": {"tables": null}}'])
def test_a_copy_that_cannot_be_read_is_left_out(home: Path, text: str) -> None:
    (home / "health" / "limits.json").write_text(text)
    assert MachineLimits(home).of("", "n")["cpus_least"] == 0


def test_what_is_kept_is_bounded(home: Path) -> None:
    found = MachineLimits(home)
    for number in range(MOST_NODES + 5):
        found.tell(f"n{number}", POOL)
    assert len(json.loads((home / "health" / "limits.json").read_text())) == MOST_NODES


def test_a_simulated_gpu_is_judged_by_its_nodes_pool_and_says_so(home: Path) -> None:
    limits = MachineLimits(home)
    faults = SimulatedFaults(home / "health" / "faults.jsonl", 0, limits=limits)
    faults.nodes({"a": ("A-0",), "b": ("B-0",)})
    limits.tell("a", POOL)
    lines = [{"node": name, "device": 0, "nvml": {"corrected": 50}} for name in ("a", "b")]
    (home / "health" / "faults.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (found,) = faults.look()
    assert (found.rule, found.node) == ("gpu.ecc_corrected", "a")
    assert "limit 10: ecc_corrected_fail of pool train)" in found.evidence[0]


def test_a_watch_follows_limits_that_change(home: Path) -> None:
    limits = MachineLimits(home)
    watch = GpuWatch(limits.of(""))
    gpu = Gpu(index=0, uuid="G", name="x", corrected=50)
    assert watch.read(Gpus(gpus=(gpu,))) == []
    limits.tell("n", POOL)
    watch.limits = limits.of("")
    assert [one.rule for one in watch.read(Gpus(gpus=(gpu,)))] == ["gpu.ecc_corrected"]


def test_the_disk_is_judged_by_the_machines_file(home: Path) -> None:
    limits = MachineLimits(home)
    host = HostItself(home, limits, tells_kills=False)
    assert [one.rule for one in host.look() if one.rule == "host.disk"] == []
    write(home, "[all]\ndisk_free_share_fail = 1.0\n", 1)
    (found,) = [one for one in host.look() if one.rule == "host.disk"]
    assert found.message.endswith("(limit 100 %: disk_free_share_fail of the machine)")
