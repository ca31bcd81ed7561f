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
from airyard.node.health_limits import MachineLimits
from airyard.node.inventory import NvidiaMl
from airyard.node.sampling import RARE_EVERY, Sampled, Sampler
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
    rules, places = GpuRules(MachineLimits(Path("nowhere"))), Places()
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


EVERYTHING = {
    *("memory_usage_percentage", "memory_usage_megabytes"),
    *("utilization_percentage", "memory_utilization_percentage"),
    *("power_usage_watts", "power_usage_percentage", "power_limit_watts"),
    *("temperature_celsius", "memory_temperature_celsius", "slowdown_margin_celsius"),
    *("sm_clock_megahertz", "memory_clock_megahertz"),
    *("clock_event_reasons", "throttled_by_hardware", "throttled_by_heat"),
}
SELDOM = {
    *("ecc_corrected_errors", "ecc_uncorrected_errors"),
    *("ecc_lifetime_corrected_errors", "ecc_lifetime_uncorrected_errors"),
    *("remapped_rows_correctable", "remapped_rows_uncorrectable"),
    *("remapped_rows_pending", "remapped_rows_failure"),
    *("pcie_link_generation", "pcie_link_width", "pcie_replays"),
    *("nvlink_errors", "nvlink_links", "nvlink_links_up", "compute_processes"),
}
PCIE = {"pcie_transmit_megabytes_per_second", "pcie_receive_megabytes_per_second"}


def test_values_are_whole_and_right_on_the_device_that_they_are_of(
    gpus: FakeGpus, client: NvmlClient
) -> None:
    client.ask("open", wait_s=PATIENCE_S)
    gpus.set(
        field82=61,
        field52=4,
        field59=1,
        nvlink7=0,
        margin=-3,
        clock_reasons=0x024,
        ecc_lifetime_uncorrected=9,
        remapped_corrected=2,
        remap_pending=1,
        replays=5,
        process=77,
        pcie_sent_kb_s=2_000,
        gpu2__memory_clock=1313,
        gpu2__pcie_width=8,
    )
    found = client.ask("values", index=2, rare=True)
    assert found.keys() == EVERYTHING | SELDOM | PCIE
    wanted = {
        "memory_temperature_celsius": 61,
        "slowdown_margin_celsius": -3,
        "clock_event_reasons": 0x024,
        "throttled_by_hardware": 0,
        "throttled_by_heat": 1,
        "power_limit_watts": 700,
        "memory_clock_megahertz": 1313,
        "ecc_uncorrected_errors": 0,
        "ecc_lifetime_uncorrected_errors": 9,
        "remapped_rows_correctable": 2,
        "remapped_rows_pending": 1,
        "pcie_link_generation": 5,
        "pcie_link_width": 8,
        "pcie_replays": 5,
        "nvlink_errors": 5,
        "nvlink_links": 18,
        "nvlink_links_up": 17,
        "compute_processes": 1,
        "pcie_transmit_megabytes_per_second": 2,
        "pcie_receive_megabytes_per_second": 0,
    }
    assert {name: found[name] for name in wanted} == wanted
    assert client.ask("values", index=1, rare=True)["pcie_link_width"] == 16
    assert client.ask("values", index=2).keys() == EVERYTHING


def test_what_is_not_told_is_left_out_and_never_zero(gpus: FakeGpus, client: NvmlClient) -> None:
    client.ask("open", wait_s=PATIENCE_S)
    calls = {
        "GetTotalEccErrors": {name for name in SELDOM if name.startswith("ecc_")},
        "GetRemappedRows": {name for name in SELDOM if name.startswith("remapped_")},
        "GetNvLinkState": {"nvlink_links", "nvlink_links_up"},
        "GetPcieThroughput": PCIE,
        "GetPcieReplayCounter": {"pcie_replays"},
        "GetComputeRunningProcesses_v3": {"compute_processes"},
        "GetCurrentClocksEventReasons": {
            "clock_event_reasons",
            "throttled_by_hardware",
            "throttled_by_heat",
        },
        "GetUtilizationRates": {"utilization_percentage", "memory_utilization_percentage"},
        "GetEnforcedPowerLimit": {"power_limit_watts", "power_usage_percentage"},
        "GetClockInfo": {"sm_clock_megahertz", "memory_clock_megahertz"},
    }
    gpus.set(field82=0)  # a board without that sensor
    untold = {"memory_temperature_celsius", "nvlink_errors"}
    for call, names in calls.items():
        gpus.set(field82=0, **{f"error__nvmlDevice{call}": 3})
        found = client.ask("values", index=0, rare=True)
        assert found.keys() == (EVERYTHING | SELDOM | PCIE) - untold - names, call
    gpus.set(error__nvmlDeviceGetMarginTemperature=13, temperature=80)  # an older driver: by its threshold
    assert client.ask("values", index=0)["slowdown_margin_celsius"] == 7
    gpus.set(gpu0__error=15)
    assert client.ask("values", index=0, rare=True) == {}


def test_what_passes_pcie_is_counted_where_the_driver_counts(gpus: FakeGpus, client: NvmlClient) -> None:
    client.ask("open", wait_s=PATIENCE_S)
    gpus.set(field197=1_000_000, field198=5_000_000, error__nvmlDeviceGetPcieThroughput=999)
    assert not client.ask("values", index=0, rare=True).keys() & PCIE  # of a first look there is no rate
    time.sleep(0.1)
    gpus.set(field197=1_000_000, field198=105_000_000)
    found = client.ask("values", index=0)
    assert found["pcie_transmit_megabytes_per_second"] == 0  # told, and nothing went out
    assert 0 < found["pcie_receive_megabytes_per_second"] <= 1_000  # 100 MB in a tenth of a second at least
    gpus.set(field197=10, field198=20)  # they began anew
    assert not client.ask("values", index=0).keys() & PCIE


def test_an_attempts_first_sample_has_everything_and_then_every_third(
    client: NvmlClient, tmp_path: Path
) -> None:
    client.ask("open", wait_s=PATIENCE_S)
    sampler = Sampler(tmp_path, NvidiaMl(client))
    one, two = (Sampled(key=key, node="n", devices=(index,)) for index, key in enumerate(("1/0", "2/0")))

    def whole(*attempts: Sampled) -> list[bool]:
        return [
            f"gpu_{attempt.devices[0]}_pcie_replays" in sample["values"]
            for attempt, sample in zip(attempts, sampler.sample(list(attempts)), strict=True)
        ]

    assert [whole(one) for _ in range(RARE_EVERY + 1)] == [[True], *[[False]] * (RARE_EVERY - 1), [True]]
    assert whole(one, two) == [False, True]
    assert whole(two) == [False]
    assert whole(one) == [True]  # it is a new one: that of before had ended
