"""A real GPU through the process that reads NVML: it is read whole, in time, and says nothing against itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from airyard.checks.nvml_client import NvmlClient, NvmlRefused, there_is_a_library
from airyard.node.health_gpus import GpuLoads, GpuReadings, GpuRules
from airyard.node.health_kernel import Places
from airyard.node.health_limits import MachineLimits

pytestmark = pytest.mark.gpu


@pytest.fixture
def client() -> Iterator[NvmlClient]:
    if not there_is_a_library():
        pytest.skip("no NVIDIA GPU on this machine: there is no library of a driver")
    made = NvmlClient()
    try:
        made.ask("open", wait_s=30)
        yield made
    except NvmlRefused as refused:
        pytest.skip(f"no NVIDIA GPU on this machine: {refused}")
    finally:
        made.close()


def test_a_gpu_that_is_well_is_read_and_nothing_is_said_of_it(client: NvmlClient) -> None:
    found = client.readings(wait_s=30)
    assert found.error is None
    for gpu in found.gpus:
        assert gpu.uuid.startswith("GPU-")
        assert gpu.temperature_c is not None
        told = client.ask("values", index=gpu.index)
        assert {"memory_usage_megabytes", "power_usage_watts", "temperature_celsius"} <= set(told)
    rules = GpuRules(MachineLimits(Path("nowhere")))
    readings, loads = GpuReadings(client, rules, Places()), GpuLoads(client, rules)
    assert [one for _ in range(3) for one in (*readings.look(), *loads.look())] == []
