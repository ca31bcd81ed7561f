"""NVML from a safe distance, with the real binding over the stand-in: hangs, lost GPUs, drivers that tell little."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from airyard.checks.nvml_client import NvmlClient, NvmlRefused, NvmlSilent, there_is_a_library
from airyard.node.health_gpus import GpuLoads, GpuReadings, GpuRules
from airyard.node.health_kernel import Places
from fake_nvml import FakeGpus, compiled

PATIENCE_S = 30.0


@pytest.fixture
def gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeGpus:
    library = compiled()
    if library is None:
        pytest.skip("no C compiler for the stand-in of NVML")
    made = FakeGpus(library=library, file=tmp_path / "gpus")
    made.set()
    for name, value in made.environ.items():
        monkeypatch.setenv(name, value)  # what the client's process gets
    return made


@pytest.fixture
def client(gpus: FakeGpus) -> Iterator[NvmlClient]:
    made = NvmlClient(hangs_s=0.3)
    yield made
    made.close()


def sources(client: NvmlClient) -> tuple[GpuReadings, GpuLoads, Places]:
    rules, places = GpuRules(), Places()
    return GpuReadings(client, rules, places), GpuLoads(client, rules), places


def rules_of(readings: GpuReadings) -> list[tuple[str, int | None, str]]:
    return [(one.rule, one.device, one.device_uuid) for one in readings.look()]


def test_eight_gpus_are_read_whole(client: NvmlClient) -> None:
    found = client.readings(wait_s=PATIENCE_S)
    assert [gpu.uuid for gpu in found.gpus] == [f"GPU-fake-{index}" for index in range(8)]
    assert found.gpus[3].links == (True,) * 18
    assert {load.clock_mhz for load in client.loads()} == {1980}
    assert {count.replays for count in client.counts()} == {0}
    assert client.ask("values", index=0)["temperature_celsius"] == 34.0


def test_a_gpu_that_is_lost_in_the_middle_of_a_reading(gpus: FakeGpus, client: NvmlClient) -> None:
    readings, loads, _ = sources(client)
    assert client.ask("open", wait_s=PATIENCE_S) is None
    assert rules_of(readings) == []
    gpus.set(gpu3__error=15)
    assert rules_of(readings) == [("gpu.lost", 3, "GPU-fake-3")]
    assert loads.look() == []
    assert rules_of(readings) == []  # said once
    gpus.set(lost_after=1)
    assert ("gpu.lost", 0, "GPU-fake-0") in rules_of(readings)


def test_addresses_are_known_also_of_a_gpu_that_is_lost(gpus: FakeGpus, client: NvmlClient) -> None:
    client.ask("open", wait_s=PATIENCE_S)
    readings, _, places = sources(client)
    readings.look()
    gpus.set(gpu3__error=15)
    (lost,) = readings.look()
    one = type(lost)(
        rule="xid.79",
        component=lost.component,
        severity=lost.severity,
        source=lost.source,
        message="",
        pci="0000:14:00",
    )
    assert (places.placed(one).device, places.placed(one).device_uuid) == (3, "GPU-fake-3")


def test_a_driver_that_tells_little_is_no_fault(gpus: FakeGpus, client: NvmlClient) -> None:
    client.ask("open", wait_s=PATIENCE_S)
    readings, loads, _ = sources(client)
    calls = (
        "GetEccMode",
        "GetTotalEccErrors",
        "GetRemappedRows",
        "GetNvLinkState",
        "GetFieldValues",
        "GetPowerUsage",
    )
    assert rules_of(readings) == []
    gpus.set(**{f"error__nvmlDevice{call}": 3 for call in calls}, mig=1)
    for _ in range(3):
        assert rules_of(readings) == []
        assert loads.look() == []
    assert client.loads()[0].power_w is None


def test_counters_that_jump_and_come_back(gpus: FakeGpus, client: NvmlClient) -> None:
    client.ask("open", wait_s=PATIENCE_S)
    readings, _, _ = sources(client)
    readings.look()
    seen = []
    for value in (1 << 60, 1 << 60, 0, 3, 3):
        gpus.set(ecc_uncorrected=value)
        seen += [(one.rule, one.value) for one in readings.look() if one.device == 0]
    assert seen == [("gpu.ecc_uncorrected", 3)]


def test_a_call_that_never_returns_costs_its_own_process_only(gpus: FakeGpus, client: NvmlClient) -> None:
    readings, _, _ = sources(client)
    client.ask("open", wait_s=PATIENCE_S)
    gpus.set(hang="nvmlDeviceGetTemperature")
    hung = client._process
    assert hung is not None
    with pytest.raises(NvmlSilent):
        client.ask("values", index=0, wait_s=0.2)
    with pytest.raises(NvmlSilent):  # still the same call
        client.ask("open", wait_s=0.2)
    assert hung.poll() is not None
    assert client.hung == 1
    client._not_before_s = 0
    client.ask("open", wait_s=PATIENCE_S)  # another process, which has not hung yet
    assert client.hung == 0
    gpus.set()
    assert readings.look() == []


def test_two_processes_that_hang_are_the_drivers_fault(gpus: FakeGpus, client: NvmlClient) -> None:
    gpus.set(hang="nvmlInit_v2")
    readings, _, _ = sources(client)
    for turn in range(2):
        client._not_before_s = 0
        for _ in range(2):
            with pytest.raises(NvmlSilent):
                client.ask("open", wait_s=0.2)
        assert client.hung == turn + 1
    assert rules_of(readings) == [("nvml.hang", None, "")]


def test_an_answer_that_is_late_is_had_by_the_next_question(client: NvmlClient) -> None:
    with pytest.raises(NvmlSilent):
        client.ask("seen", wait_s=0.001)  # its process has not even started
    assert len(client.ask("seen", wait_s=PATIENCE_S)["gpus"]) == 8


def test_a_driver_that_is_not_loaded_refuses(gpus: FakeGpus, client: NvmlClient) -> None:
    gpus.set(error__nvmlInit_v2=9)
    with pytest.raises(NvmlRefused) as refused:
        client.ask("open", wait_s=PATIENCE_S)
    assert refused.value.code == 9
    assert client.readings().error == 9


def test_a_machine_without_a_library_starts_no_process() -> None:
    assert not there_is_a_library("libnvidia-ml-not-there.so.1")


def test_the_process_ends_with_its_parent(client: NvmlClient) -> None:
    client.ask("open", wait_s=PATIENCE_S)
    process = client._process
    assert process is not None
    client.close()
    deadline = time.monotonic() + PATIENCE_S
    while process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert not os.path.exists(f"/proc/{process.pid}")
