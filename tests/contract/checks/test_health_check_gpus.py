"""``airyard health check`` on GPUs: nvidia-ml-py as it is, over a compiled stand-in for the driver's library."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from airyard.checks.catalogue import PROBES
from fake_nvml import FakeGpus, compiled


@pytest.fixture
def gpus(tmp_path: Path) -> FakeGpus:
    library = compiled()
    if library is None:
        pytest.skip("no C compiler for the stand-in of NVML")
    made = FakeGpus(library=library, file=tmp_path / "gpus")
    made.set()
    return made


def checked(gpus: FakeGpus, *arguments: str) -> tuple[int, list[dict[str, Any]]]:
    """Return exit code and the results of the checks of GPUs that did not pass or were skipped."""
    done = subprocess.run(
        [sys.executable, "-m", "airyard.cli", "health", "check", "-o", "json", "--gpus", "8", *arguments],
        env={**os.environ, **gpus.environ, "AIRYARD_HOME": str(gpus.file.parent)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stderr == ""
    told = json.loads(done.stdout)["data"]
    results = told["checks"]
    assert told["ok"] is (done.returncode == 0), "what agents read says what the exit status says"
    names = {check.name for check in PROBES[0].checks} - {"gpu.idle_power"}  # H100s have no limits for it
    found = [one for one in results if one["check"] in names and one["status"] != "PASS"]
    # A busy disk of the machine that tests run on may fail a check of its own: that is not what is asked here.
    failed = {one["check"] for one in results if one["status"] == "FAIL"}
    only_of_others = done.returncode == 1 and not failed & names
    return 0 if only_of_others else done.returncode, found


def test_healthy_gpus_pass_every_check(gpus: FakeGpus) -> None:
    assert checked(gpus) == (0, [])


@pytest.mark.parametrize(
    ("reading", "check", "device", "remedy"),
    [
        ({"gpu3__error": 15}, "gpu.lost", 3, "REBOOT"),
        ({"lost_after": 15}, "gpu.lost", 0, "REBOOT"),
        ({"gpu3__error": 999}, "gpu.lost", 3, "REBOOT"),
        ({"gpu3__error": 28}, "gpu.lost", 3, "REBOOT"),
        ({"gpu3__error": 16}, "gpu.recovery", 3, "GPU_RESET"),
        ({"error__nvmlInit_v2": 4}, "gpu.count", None, "NONE"),
        ({"count": 7}, "gpu.count", None, "REBOOT"),
        ({"error__nvmlInit_v2": 18}, "gpu.count", None, "REBOOT"),
        ({"error__nvmlInit_v2": 9}, "gpu.count", None, "REBOOT"),
        ({"gpu2__ecc": 0}, "gpu.ecc_mode", 2, "GPU_RESET"),
        ({"gpu2__ecc_pending": 0}, "gpu.ecc_mode", 2, "GPU_RESET"),
        ({"gpu2__ecc_uncorrected": 1}, "gpu.ecc_uncorrected", 2, "GPU_RESET"),
        ({"gpu2__ecc_corrected": 60_000_000}, "gpu.ecc_corrected", 2, "GPU_RESET"),
        ({"gpu1__remap_pending": 1}, "gpu.rows", 1, "GPU_RESET"),
        ({"gpu1__remap_failure": 1}, "gpu.rows", 1, "REPLACE"),
        ({"gpu1__banks_none": 1}, "gpu.rows", 1, "REPLACE"),
        ({"gpu1__remapped_uncorrected": 513}, "gpu.rows", 1, "REPLACE"),
        ({"gpu1__sram_uncorrected": 1}, "gpu.sram", 1, "GPU_RESET"),
        ({"gpu1__sram_corrected": 10_001}, "gpu.sram", 1, "GPU_RESET"),
        ({"gpu1__sram_worn": 1}, "gpu.sram", 1, "REPLACE"),
        ({"gpu5__nvlink7_mb_s": 13_281}, "gpu.nvlink_speed", 5, "GPU_RESET"),
        ({"gpu7__field230": 1}, "gpu.recovery", 7, "GPU_RESET"),
        ({"gpu7__field230": 2}, "gpu.recovery", 7, "REBOOT"),
        ({"gpu6__clock_reasons": 0x48}, "gpu.clocks", 6, "NONE"),
        ({"gpu4__pcie_width": 8}, "gpu.pcie_width", 4, "REBOOT"),
        ({"gpu5__nvlink7": 0}, "gpu.nvlink", 5, "GPU_RESET"),
        ({"gpu5__nvlinks": 0}, "gpu.nvlink", 5, "GPU_RESET"),
        ({"gpu0__fabric_state": 2}, "gpu.fabric", 0, "REBOOT"),
        ({"gpu0__fabric_summary": 2}, "gpu.fabric", 0, "REBOOT"),
    ],
)
def test_each_fault_fails_its_check_and_no_other(
    gpus: FakeGpus, reading: dict[str, int], check: str, device: int | None, remedy: str
) -> None:
    gpus.set(**reading)
    code, found = checked(gpus)
    failed = [one for one in found if one["status"] == "FAIL"]
    assert code == 1
    assert [(one["check"], one["device"], one["remedy"]) for one in failed] == [(check, device, remedy)]
    assert failed[0]["next_step"]


@pytest.mark.parametrize("code", [999, 28, 15])
def test_a_driver_that_has_no_handle_of_any_gpu_has_lost_them(gpus: FakeGpus, code: int) -> None:
    gpus.set(error__nvmlDeviceGetHandleByIndex_v2=code)
    exit_code, found = checked(gpus)
    assert exit_code == 1
    assert [one["device"] for one in found if one["status"] == "FAIL"] == list(range(8))
    assert {one["check"] for one in found if one["status"] == "FAIL"} == {"gpu.lost"}
    (count,) = [one for one in found if one["check"] == "gpu.count"]
    assert (count["status"], count["value"]) == ("SKIP", 0)


@pytest.mark.parametrize("code", [4, 10, 11, 17, 19, 27, 29])
def test_a_gpu_that_answers_nothing_is_unknown_and_passes_nothing(gpus: FakeGpus, code: int) -> None:
    gpus.set(gpu2__error=code)
    exit_code, found = checked(gpus)
    assert exit_code == 5
    (unknown,) = [one for one in found if one["status"] == "UNKNOWN"]
    assert (unknown["check"], unknown["device"]) == ("gpu.lost", 2)
    assert f"error {code}" in unknown["message"]
    assert {one["check"] for one in found} == {"gpu.lost", "gpu.count"}


def test_a_call_that_breaks_is_told_where_the_gpu_answers_others(gpus: FakeGpus) -> None:
    gpus.set(gpu2__error=0, error__nvmlDeviceGetRemappedRows=999)
    exit_code, found = checked(gpus)
    assert exit_code == 0
    lost = [one for one in found if one["check"] == "gpu.lost"]
    assert {(one["status"], one["device"]) for one in lost} == {("WARN", index) for index in range(8)}
    assert "nvmlDeviceGetRemappedRows (999)" in lost[0]["message"]


@pytest.mark.parametrize(
    ("reading", "check"),
    [
        ({"gpu2__persistence": 0}, "gpu.persistence"),
        ({"gpu2__ecc_corrected": 21_000_000}, "gpu.ecc_corrected"),
        ({"gpu2__banks_low": 3}, "gpu.rows"),
        ({"gpu2__temperature": 71}, "gpu.temperature"),
        ({"gpu2__power_limit_mw": 500_000}, "gpu.power_limit"),
        ({"gpu2__memory_used": 2_000_000_000}, "gpu.foreign"),
        ({"gpu2__process": 4110}, "gpu.foreign"),
        ({"gpu2__vbios": "96.00.99"}, "gpu.versions"),
        ({"gpu2__inforom": "G520.0200.00.09"}, "gpu.versions"),
        ({"gpu2__gsp": "570.86.15"}, "gpu.versions"),
    ],
)
def test_what_is_only_odd_warns_and_passes(gpus: FakeGpus, reading: dict[str, Any], check: str) -> None:
    gpus.set(**reading)
    code, found = checked(gpus)
    assert code == 0
    assert [(one["check"], one["status"]) for one in found] == [(check, "WARN")]


@pytest.mark.parametrize("file", ["own.toml", "node/thresholds.toml"])
def test_a_power_limit_that_the_site_set_is_due(gpus: FakeGpus, file: str) -> None:
    limits = gpus.file.parent / file
    limits.parent.mkdir(exist_ok=True)
    limits.write_text("version = 1\n[H100]\npower_limit_w = 650\n")
    gpus.set(power_limit_mw=650_000, gpu2__power_limit_mw=700_000)
    code, found = checked(gpus, *(["--thresholds", str(limits)] if file == "own.toml" else []))
    assert code == 1
    assert [(one["check"], one["status"], one["device"], one["threshold"]) for one in found] == [
        ("gpu.power_limit", "FAIL", 2, 650)
    ]


@pytest.mark.parametrize(
    ("call", "check"),
    [
        ("nvmlDeviceGetEccMode", "gpu.ecc_mode"),
        ("nvmlDeviceGetRemappedRows", "gpu.rows"),
        ("nvmlDeviceGetCurrentClocksEventReasons", "gpu.clocks"),
        ("nvmlDeviceGetTemperature", "gpu.temperature"),
        ("nvmlDeviceGetFieldValues", "gpu.recovery"),
        ("nvmlDeviceGetGpuFabricInfoV", "gpu.fabric"),
        ("nvmlDeviceGetMemoryInfo", "gpu.foreign"),
    ],
)
@pytest.mark.parametrize("code", [3, 13])
def test_what_a_device_does_not_tell_is_skipped(gpus: FakeGpus, call: str, check: str, code: int) -> None:
    gpus.set(**{f"error__{call}": code})
    exit_code, found = checked(gpus)
    assert exit_code == 0
    assert {one["status"] for one in found} == {"SKIP"}
    also = {"gpu.nvlink_speed"} if call == "nvmlDeviceGetFieldValues" else set()
    assert {one["check"] for one in found} == {check} | also


def test_a_gpu_in_mig_mode_has_no_links_of_its_own(gpus: FakeGpus) -> None:
    gpus.set(mig=1, nvlinks=0, fabric_state=1)
    code, found = checked(gpus)
    assert code == 0
    assert {(one["check"], one["status"]) for one in found} == {
        ("gpu.nvlink", "SKIP"),
        ("gpu.nvlink_speed", "SKIP"),
        ("gpu.fabric", "SKIP"),
    }


def test_a_board_without_nvswitch_asks_for_no_fabric(gpus: FakeGpus) -> None:
    gpus.set(name="NVIDIA H100 PCIe", nvlinks=0, fabric_state=1)
    code, found = checked(gpus)
    assert code == 0
    assert {one["check"] for one in found} == {"gpu.nvlink", "gpu.nvlink_speed", "gpu.fabric"}
    assert {one["status"] for one in found} == {"SKIP"}


def test_a_call_that_never_returns_is_unknown_and_the_other_checks_go_on(gpus: FakeGpus) -> None:
    gpus.set(hang="nvmlDeviceGetTemperature")
    code, found = checked(gpus)  # within its own limit
    assert code == 5
    assert {one["status"] for one in found} == {"UNKNOWN"}
    assert len(found) == len(PROBES[0].checks) - 1


def test_limits_of_a_site_go_before_ours(gpus: FakeGpus, tmp_path: Path) -> None:
    own = tmp_path / "limits.toml"
    own.write_text("version = 1\n[H100]\nidle_temperature_warn = 30\n")
    code, found = checked(gpus, "--thresholds", str(own))
    assert code == 0
    assert [(one["check"], one["status"], one["threshold"]) for one in found] == [
        ("gpu.temperature", "WARN", 30.0)
    ] * 8


def test_a_machines_limits_with_an_error_are_refused_by_name(gpus: FakeGpus) -> None:
    limits = gpus.file.parent / "node" / "thresholds.toml"
    limits.parent.mkdir()
    limits.write_text("version = 1\n[H100]\nnvlink = 12\n")
    done = subprocess.run(
        [sys.executable, "-m", "airyard.cli", "health", "check"],
        env={**os.environ, **gpus.environ, "AIRYARD_HOME": str(gpus.file.parent)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode not in (0, 1)
    assert f"{limits} cannot be used: [H100] nvlink: no check asks for it (line 3)" in done.stderr
