"""A real agent over the stand-in for NVML: what it reports, until when it repeats it, and that a hang stops nothing."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent_line import Line, ended
from airyard.adapters.agent_process import start_agent
from fake_nvml import FakeGpus, compiled

PATIENCE_S = 60.0


@pytest.fixture
def gpus(tmp_path: Path) -> FakeGpus:
    library = compiled()
    if library is None:
        pytest.skip("no C compiler for the stand-in of NVML")
    made = FakeGpus(library=library, file=tmp_path / "gpus")
    made.set()
    return made


@pytest.fixture
def agent(tmp_path: Path, gpus: FakeGpus) -> Iterator[Path]:
    home = tmp_path / "home"
    (tmp_path / "locks").mkdir(mode=0o777)
    start_agent(home, {**os.environ, **gpus.environ})
    yield home
    ended(home)


def grave(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [event for event in events if event["severity"] == "CRITICAL"]


def test_a_fault_is_said_until_it_was_taken(agent: Path, gpus: FakeGpus, tmp_path: Path) -> None:
    line = Line(agent)
    nodes = line.hello(tmp_path / "locks", monitor={"counters_s": 0.3})["nodes"]
    assert sorted(node["accelerator"] for node in nodes) == ["CPU", "GPU_1xA10", "GPU_8xH100"]
    gpus.set(gpu3__field230=2)
    while not (events := grave(line.health())):
        pass
    (event,) = events
    assert (event["rule"], event["device"], event["device_uuid"]) == ("gpu.recovery", 3, "GPU-fake-3")
    assert (event["remedy"], event["confirmed"]) == ("REBOOT", True)
    line.close()
    other = Line(agent)  # a server that was started again
    other.hello(tmp_path / "locks", monitor={})
    (again,) = grave(other.health())
    assert again["event_id"] == event["event_id"]
    other.ask("health_taken", ids=[one["event_id"] for one in [again]])
    other.close()
    third = Line(agent)
    third.hello(tmp_path / "locks", monitor={})
    waiting = [json.loads(text) for text in (agent / "node/health/outbox.jsonl").read_text().splitlines()]
    assert event["event_id"] not in [one["event_id"] for one in waiting]
    third.close()


def test_a_server_of_a_release_without_monitoring_is_told_nothing(
    agent: Path, gpus: FakeGpus, tmp_path: Path
) -> None:
    line = Line(agent)
    line.hello(tmp_path / "locks")
    fault = {"node": "sim-1xa10-0", "device": 0, "kernel": "NVRM: Xid (PCI:0000:11:00): 79, GPU"}
    (agent / "node/health/simulated-faults.jsonl").write_text(json.dumps(fault) + "\n")
    outbox = agent / "node/health/outbox.jsonl"
    deadline = time.monotonic() + PATIENCE_S
    while "xid.79" not in outbox.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert line.quiet(0.5)
    line.close()
    newer = Line(agent)
    newer.hello(tmp_path / "locks", monitor={})
    assert [event["node"] for event in grave(newer.health())] == ["sim-1xa10-0"]
    newer.close()


def test_monitoring_that_is_switched_off_says_nothing(agent: Path, gpus: FakeGpus, tmp_path: Path) -> None:
    line = Line(agent)
    line.hello(tmp_path / "locks", monitor={"enabled": False})
    time.sleep(1.5)  # what is being looked at is looked at to its end
    gpus.set(gpu3__field230=2)
    assert line.quiet(1.5)
    assert "gpu.recovery" not in (agent / "node/health/outbox.jsonl").read_text()
    assert json.loads((agent / "node/health/settings.json").read_text())["enabled"] is False
    line.close()


def test_a_driver_that_hangs_stops_neither_the_start_nor_what_is_asked(
    tmp_path: Path, gpus: FakeGpus
) -> None:
    gpus.set(hang="nvmlInit_v2")
    home = tmp_path / "home"
    start_agent(home, {**os.environ, **gpus.environ})
    line = Line(home)
    nodes = line.hello(tmp_path, monitor={"counters_s": 0.3})["nodes"]
    assert sorted(node["accelerator"] for node in nodes) == ["CPU", "GPU_1xA10"]
    assert line.ask("tidy", age_ms=None, cap_bytes=None, dry_run=True)["count"] == 0
    fault = {"node": "sim-1xa10-0", "device": 0, "kernel": "NVRM: Xid (PCI:0000:11:00): 79, GPU"}
    (home / "node/health/simulated-faults.jsonl").write_text(json.dumps(fault) + "\n")
    assert [event["rule"] for event in grave(line.health())] == ["xid.79"]
    line.ask("stop")
    line.close()
