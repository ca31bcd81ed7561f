"""A machine that loses a GPU: the others, the node and its samples stay. nvidia-ml-py over the stand-in for NVML."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fake_nvml import FakeGpus, compiled

ASK = """
import json, os, sys
from pathlib import Path
from airyard.node.inventory import Inventory, Offer, open_nvml
nvml = open_nvml()
assert nvml is not None, "the stand-in was not loaded"
inventory = Inventory(Offer(cpu_slots=0, lock_folder=Path(sys.argv[1])), nvml)
for line in sys.stdin:
    (node,) = inventory.nodes(frozenset())
    print(json.dumps({"node": node.as_json(), "values": [nvml.values(i) for i in range(8)]}), flush=True)
"""


@pytest.fixture
def gpus(tmp_path: Path) -> FakeGpus:
    library = compiled()
    if library is None:
        pytest.skip("no C compiler for the stand-in of NVML")
    made = FakeGpus(library=library, file=tmp_path / "gpus")
    made.set()
    return made


def looks(gpus: FakeGpus, tmp_path: Path, *readings: dict[str, Any]) -> list[dict[str, Any]]:
    """Have one process look at the GPUs once for each state that they are put into."""
    locks = tmp_path / "locks"
    locks.mkdir(mode=0o777)
    process = subprocess.Popen(
        [sys.executable, "-c", ASK, str(locks)],
        env={**os.environ, **gpus.environ},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    found = []
    try:
        for reading in readings:
            gpus.set(**reading)
            process.stdin.write("look\n")
            process.stdin.flush()
            found.append(json.loads(process.stdout.readline()))
    finally:
        process.stdin.close()
        process.stdout.close()
        process.wait(20)
    return found


def test_a_lost_gpu_keeps_its_place_and_takes_nothing_from_the_others(gpus: FakeGpus, tmp_path: Path) -> None:
    well, lost, back = looks(gpus, tmp_path, {}, {"gpu3__error": 15}, {})
    assert well["node"]["accelerator"] == lost["node"]["accelerator"] == "GPU_8xH100"
    owners = [device["owner"] for device in lost["node"]["devices"]]
    assert owners[3] == "nobody: it does not answer any more (GPU is lost)"
    assert owners[:3] + owners[4:] == [None] * 7
    assert [bool(values) for values in lost["values"]] == [True, True, True, False, True, True, True, True]
    assert back["node"] == well["node"]


def test_a_driver_that_is_gone_leaves_the_node_with_nothing_to_give(gpus: FakeGpus, tmp_path: Path) -> None:
    _, gone = looks(gpus, tmp_path, {}, {"error__nvmlDeviceGetCount_v2": 9})
    assert gone["node"]["accelerator"] == "GPU_8xH100"
    assert {device["owner"] for device in gone["node"]["devices"]} == {
        "nobody: it does not answer any more (Driver Not Loaded)"
    }


def test_what_one_call_does_not_tell_takes_nothing_from_the_rest(gpus: FakeGpus, tmp_path: Path) -> None:
    (found,) = looks(gpus, tmp_path, {"error__nvmlDeviceGetMemoryInfo": 3})
    values = found["values"][0]
    assert "memory_usage_percentage" not in values
    assert (values["power_usage_watts"], values["power_usage_percentage"], values["temperature_celsius"]) == (
        72.0,
        10.3,
        34.0,
    )
