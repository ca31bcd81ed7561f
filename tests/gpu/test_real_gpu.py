"""A real GPU: found through NVML, booked, shown to the command by its UUID, free again afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pynvml
import pytest

from e2e.yard import Yard

pytestmark = [pytest.mark.gpu, pytest.mark.e2e, pytest.mark.timeout(300)]


@pytest.fixture
def uuids() -> Iterator[list[str]]:
    """Return the UUIDs of this machine's GPUs; skip where there is none."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        pytest.skip(f"no NVIDIA GPU on this machine: {error}")
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        yield [pynvml.nvmlDeviceGetUUID(handle) for handle in handles]
    finally:
        pynvml.nvmlShutdown()


def test_a_run_gets_one_gpu_and_gives_it_back(uuids: list[str], tmp_path: Path) -> None:
    yard = Yard(tmp_path / "home", tmp_path / "cache")
    try:
        yard.up()
        (node,) = [found for found in yard.data("nodes")["nodes"] if found["accelerator"] != "CPU"]
        assert [device["uuid"] for device in node["devices"]] == uuids
        model = node["accelerator"].split("x", 1)[1]
        run_id = yard.submit('echo "visible: $CUDA_VISIBLE_DEVICES"', accelerator=f"GPU_1x{model}")
        run = yard.ended(run_id)
        assert (run["outcome"], run["simulated"]) == ("SUCCEEDED", False)
        shown = yard.ok("logs", str(run_id), "--no-follow")
        assert any(f"visible: {uuid}\n" in shown for uuid in uuids)
        (node,) = [found for found in yard.data("nodes")["nodes"] if found["accelerator"] != "CPU"]
        assert {device["state"] for device in node["devices"]} == {"free"}
    finally:
        yard.close()
