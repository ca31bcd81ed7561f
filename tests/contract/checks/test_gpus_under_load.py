"""What is read of GPUs while tests make them work, through nvidia-ml-py over the stand-in for the driver's library."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from airyard.checks.preflight.load import Worked, judged
from airyard.checks.thresholds import limits, packaged
from fake_nvml import FakeGpus, compiled

H100 = limits(packaged(), "H100")
BUSY = {"count": 2, "utilization": 99, "gpu0__field215": 4}
PROGRAM = """
import json, sys, time
from dataclasses import asdict
from airyard.checks.preflight.load import Watch

with Watch(every_s=0.02) as watch:
    while min((seen.readings for seen in list(watch.seen.values())), default=0) < 3 and sys.argv[1] == "busy":
        time.sleep(0.02)
    print("ready", flush=True)
    sys.stdin.readline()
    time.sleep(0.5)
print(json.dumps({"seen": {index: asdict(one) for index, one in watch.seen.items()}, "problem": watch.problem}))
"""


@pytest.fixture
def gpus(tmp_path: Path) -> FakeGpus:
    library = compiled()
    if library is None:
        pytest.skip("no C compiler for the stand-in of NVML")
    return FakeGpus(library=library, file=tmp_path / "gpus")


def watched(gpus: FakeGpus, before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """Return what was seen of GPUs that were like ``before`` for some readings, then like ``after``."""
    gpus.set(**before)
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, "busy" if before.get("utilization") else "idle"],
        env={**os.environ, **gpus.environ},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    gpus.set(**after)
    out, _ = process.communicate("\n", timeout=60)
    told: dict[str, Any] = json.loads(out)
    return told


def results(told: dict[str, Any]) -> list[tuple[str, int | None]]:
    seen = {int(index): Worked(**worked) for index, worked in told["seen"].items()}
    return [(one.status.value, one.device) for one in judged(seen, H100)]


@pytest.mark.parametrize(
    ("later", "expected"),
    [
        ({}, [("PASS", None)]),
        ({"gpu0__field215": 9}, [("FAIL", 0), ("PASS", None)]),
        ({"gpu0__field215": 1}, [("PASS", None)]),  # it was reset
        ({"gpu1__ecc_uncorrected": 1}, [("FAIL", 1), ("PASS", None)]),
        ({"gpu1__ecc_corrected": 20}, [("PASS", None)]),
        ({"gpu1__ecc_corrected": 2000}, [("FAIL", 1), ("PASS", None)]),
        ({"gpu1__replays": 9}, [("PASS", None)]),
        ({"gpu1__replays": 30}, [("FAIL", 1), ("PASS", None)]),
        ({"gpu1__margin": 2}, [("FAIL", 1), ("PASS", None)]),
        ({"clock_reasons": 0x88}, [("FAIL", 0), ("FAIL", 1)]),
        ({"clock_reasons": 0x04}, [("PASS", None)]),  # the power limit is what stops a GPU at full load
    ],
)
def test_what_comes_while_gpus_work(
    gpus: FakeGpus, later: dict[str, Any], expected: list[tuple[str, int | None]]
) -> None:
    told = watched(gpus, BUSY, {**BUSY, **later})
    assert told["problem"] == ""
    assert results(told) == expected


def test_a_link_that_never_comes_up_to_its_speed(gpus: FakeGpus) -> None:
    slow = {**BUSY, "gpu1__pcie_generation": 4}
    assert results(watched(gpus, slow, slow)) == [("FAIL", 1), ("PASS", None)]
    assert results(watched(gpus, slow, BUSY)) == [("PASS", None)]


def test_what_a_device_does_not_tell_and_one_that_rests_say_nothing(gpus: FakeGpus) -> None:
    silent = {**BUSY, "error__nvmlDeviceGetMarginTemperature": 3, "error__nvmlDeviceGetTotalEccErrors": 3}
    assert results(watched(gpus, silent, silent)) == [("PASS", None)]
    idle = {"count": 2, "utilization": 0}
    assert results(watched(gpus, idle, idle)) == [("SKIP", None)]
    lost = {**BUSY, "gpu1__error": 15}
    assert results(watched(gpus, BUSY, lost)) == [("FAIL", 1), ("PASS", None)]
    closed = {"error__nvmlInit_v2": 9}
    assert watched(gpus, closed, closed)["problem"] == "Driver Not Loaded"
