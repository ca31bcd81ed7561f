"""What a change of a GPU's readings says of the node: every rule fires, and none fires for what is daily life."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airyard.checks import gpu_watch
from airyard.checks.gpu_watch import GpuWatch, silent
from airyard.checks.nvml import LOST, MISMATCH, Gpu, Gpus
from airyard.checks.nvml_load import Counts, Load
from airyard.checks.thresholds import limits, packaged
from airyard.core.health.facts import Component, Remedy
from airyard.core.health.sightings import Sighting

WELL = Gpu(
    index=0,
    uuid="GPU-0",
    name="NVIDIA H100 80GB HBM3",
    uncorrected=0,
    corrected=5,
    remap_pending=False,
    remap_failure=False,
    remapped_uncorrected=0,
    banks_none=0,
    recovery_action=0,
    pcie_width=16,
    pcie_width_max=16,
    links=(True,) * 18,
    fabric_state=3,
    fabric_summary=1,
)
H100 = limits(packaged(), "H100")


def gpus(*readings: Gpu) -> Gpus:
    return Gpus(gpus=readings)


def read(*steps: Gpus, watch: GpuWatch | None = None) -> list[tuple[str, str]]:
    """Return what a watch says of these readings, one after the other."""
    watch = watch or GpuWatch(H100)
    return [(one.rule, one.severity.value) for step in steps for one in watch.read(step)]


def changed(**readings: Any) -> Gpus:
    return gpus(replace(WELL, **readings))


@pytest.mark.parametrize(
    ("reading", "rule", "severity", "twice"),
    [
        ({"errors": {"nvmlDeviceGetTemperature": LOST}}, "gpu.lost", "CRITICAL", False),
        ({"recovery_action": 1}, "gpu.recovery", "CRITICAL", False),
        ({"recovery_action": 4}, "gpu.recovery", "HIGH", False),
        ({"remap_failure": True}, "gpu.rows", "CRITICAL", False),
        ({"remap_pending": True}, "gpu.rows", "WARNING", False),
        ({"corrected": 60_000_000}, "gpu.ecc_corrected", "WARNING", False),
        ({"uncorrected": 2}, "gpu.ecc_uncorrected", "CRITICAL", True),
        ({"pcie_width": 8}, "gpu.pcie_width", "HIGH", True),
        ({"links": (True,) * 17 + (False,)}, "gpu.nvlink", "CRITICAL", True),
        ({"fabric_state": 2}, "gpu.fabric", "CRITICAL", True),
    ],
)
def test_each_rule_fires_once_when_a_reading_goes_wrong(
    reading: dict[str, Any], rule: str, severity: str, twice: bool
) -> None:
    well, ill = gpus(WELL), changed(**reading)
    assert read(well, ill) == ([] if twice else [(rule, severity)])
    assert read(well, ill, ill, ill) == [(rule, severity)]
    if twice:
        assert read(well, ill, well, ill, well) == []  # each time for one look only


@pytest.mark.parametrize(
    ("reading", "said"),
    [
        ({"remap_failure": True}, "a row of memory could not be replaced"),
        ({"banks_none": 1}, "a bank of memory has no spare row left"),
        ({"remapped_uncorrected": 513}, "513 rows of memory were replaced"),
    ],
)
def test_rows_that_are_spent_say_how_and_no_limit_that_was_kept(reading: dict[str, Any], said: str) -> None:
    watch = GpuWatch(H100)
    watch.read(gpus(WELL))
    (one,) = watch.read(changed(**reading))
    assert said in one.message
    assert ("limit" in " ".join(one.evidence)) is ("remapped_uncorrected" in reading)


def test_it_fires_again_after_it_was_well() -> None:
    well, ill = gpus(WELL), changed(recovery_action=1)
    assert read(well, ill, ill, well, ill) == [("gpu.recovery", "CRITICAL")] * 2


def test_what_was_so_before_the_watch_began_is_told_only_where_it_stays_until_a_remedy() -> None:
    for old in ({"uncorrected": 9}, {"pcie_width": 8}, {"links": (False,) * 18}, {"fabric_state": 1}):
        assert read(*[changed(**old)] * 3) == []
    assert read(changed(recovery_action=2)) == [("gpu.recovery", "CRITICAL")]


def test_what_a_device_does_not_tell_says_nothing() -> None:
    bare = Gpu(index=0, name=WELL.name, errors={"nvmlDeviceGetEccMode": 3})
    assert read(gpus(WELL), gpus(bare), gpus(bare), gpus(bare)) == []


def test_mig_hides_links_and_that_is_no_fault() -> None:
    assert read(gpus(WELL), *[changed(mig=True, links=None, fabric_state=0)] * 3) == []


@pytest.mark.parametrize(
    ("values", "grown"),
    [
        ((0, 0, 0), []),
        ((3, 0, 0), []),  # reset
        ((0, 1, 1), [1]),
        ((0, 1, 0, 0), []),  # it was misread
        ((5, 7, 9, 9), [4]),
        ((0, 1 << 60, 1 << 60), []),  # a leap
        ((0, 1 << 60, 0, 2, 2), [2]),
        ((0, None, 4, 4), [4]),
        ((0, 1, 1, 2, 2), [1, 1]),
    ],
)
def test_uncorrected_errors_count_when_they_grow(values: tuple[int | None, ...], grown: list[int]) -> None:
    watch = GpuWatch(H100)
    found = [one for value in values for one in watch.read(changed(uncorrected=value))]
    assert [one.value for one in found] == grown
    assert {one.remedy for one in found} <= {Remedy.GPU_RESET}


def test_a_lost_gpu_is_named_as_it_was_known_and_says_nothing_else() -> None:
    watch = GpuWatch(H100)
    watch.read(gpus(WELL))
    lost = Gpu(index=0, errors={"nvmlDeviceGetHandleByIndex": LOST})
    (one,) = watch.read(gpus(lost))
    assert (one.rule, one.device, one.device_uuid) == ("gpu.lost", 0, "GPU-0")


@pytest.mark.parametrize("code", [999, 28, 6])
def test_an_error_that_may_mean_anything_is_a_lost_gpu_at_the_second_look(code: int) -> None:
    gone = Gpu(index=0, errors={"nvmlDeviceGetHandleByIndex": code})
    assert read(gpus(WELL), gpus(gone)) == []
    assert read(gpus(WELL), gpus(gone), gpus(WELL), gpus(gone)) == []
    assert read(gpus(WELL), gpus(gone), gpus(gone), gpus(gone)) == [("gpu.lost", "CRITICAL")]


@pytest.mark.parametrize("code", [10, 19, 27])
def test_a_gpu_that_answers_nothing_for_other_reasons_is_not_judged(code: int) -> None:
    mute = Gpu(index=0, errors={"nvmlDeviceGetHandleByIndex": code})
    assert read(gpus(WELL), gpus(mute), gpus(mute), gpus(mute)) == []


def test_a_gpu_that_has_to_be_reset_says_so() -> None:
    needs = Gpu(index=0, errors={"nvmlDeviceGetHandleByIndex": 16})
    assert read(gpus(WELL), gpus(needs)) == [("gpu.recovery", "CRITICAL")]


def test_gpus_that_do_not_answer_any_more_are_missed() -> None:
    two, one = gpus(WELL, replace(WELL, index=1, uuid="GPU-1")), gpus(WELL)
    assert read(two, one) == []
    assert read(two, one, one, one) == [("gpu.count", "CRITICAL")]
    assert read(one, two, one, two, one) == []


def test_a_driver_that_goes_away() -> None:
    away, other = Gpus(error=9, error_text="not loaded"), Gpus(error=MISMATCH, error_text="mismatch")
    assert read(gpus(WELL), away) == []
    assert read(gpus(WELL), away, away, away) == [("driver.away", "HIGH")]
    assert read(gpus(WELL), other, other) == [("driver.mismatch", "HIGH")]
    assert read(away, away, away) == []  # there was none


def test_a_driver_that_does_not_answer_is_blamed_when_two_processes_in_a_row_hang() -> None:
    assert list(silent(1, "no answer for 45 s")) == []
    (one,) = silent(2, "no answer for 45 s")
    assert (one.rule, one.component, one.remedy) == ("nvml.hang", Component.DRIVER, Remedy.REBOOT)


def counted(*values: dict[str, int], every_s: int = 30) -> list[str]:
    watch = GpuWatch(H100)
    return [
        one.rule
        for turn, value in enumerate(values)
        for one in watch.count([Counts(index=0, **value)], turn * every_s * 1000)
    ]


def test_pcie_replays_count_by_the_second() -> None:
    assert counted({"replays": 7}, {"replays": 200}) == []
    assert counted({"replays": 7}, {"replays": 1_000}) == ["gpu.pcie_replays"]
    assert counted({"replays": 1_000}, {"replays": 0}, {"replays": 0}) == []
    assert counted({"replays": 0}, {"replays": 1 << 40}) == []


def test_nvlink_errors_count_when_they_keep_coming() -> None:
    assert counted(*[{"link_errors": number} for number in range(16)]) == []
    assert counted(*[{"link_errors": number} for number in range(17)]) == ["gpu.nvlink_errors"]
    assert counted(*[{"link_errors": number // 3} for number in range(90)]) == []


def busy(index: int = 0, **more: Any) -> Load:
    given = {
        "utilization": 99,
        "power_w": 690.0,
        "limit_w": 700.0,
        "clock_reasons": 4,
        "clock_mhz": 1900,
        **more,
    }
    return Load(index=index, **given)


def worked(seconds: int, *loads: Load, watch: GpuWatch | None = None, every_s: int = 5) -> list[Sighting]:
    watch = watch or GpuWatch(H100)
    return [one for now in range(0, seconds + 1, every_s) for one in watch.work(list(loads), now * 1000)]


def rules(found: list[Sighting]) -> set[str]:
    return {one.rule for one in found}


def test_full_load_at_the_power_limit_is_daily_life() -> None:
    assert worked(900, busy(), busy(1, clock_reasons=0)) == []


def test_heat_slows_a_gpu_down() -> None:
    found = worked(120, busy(clock_reasons=0x44, temperature_c=92))
    assert rules(found) == {"gpu.throttled", "gpu.throttled_long"}
    assert {one.component for one in found} == {Component.GPU}
    assert "0x040" in found[0].evidence[0]
    assert found[-1].message == "GPU 0 was slowed down in 100% of the last minute at work by heat"
    assert found[-1].event("1", "m", 1).clock_reasons == 0x40


def test_a_gpu_at_rest_or_without_utilization_is_not_judged() -> None:
    assert worked(120, busy(utilization=3, clock_reasons=0x40)) == []
    assert worked(120, busy(utilization=None, clock_reasons=0x40)) == []
    assert worked(120, Load(index=0)) == []


def test_a_short_slowdown_warns() -> None:
    watch = GpuWatch(H100)
    found = [
        one
        for now in range(0, 60, 5)
        for one in watch.work([busy(clock_reasons=0x40 if now in (30, 35) else 0)], now * 1000)
    ]
    assert rules(found) == {"gpu.throttled"}


def test_time_that_only_the_driver_saw_counts_and_a_reset_of_its_clock_does_not() -> None:
    watch = GpuWatch(H100)
    found = [
        one for now in range(0, 60, 5) for one in watch.work([busy(thermal_ns=now * 200_000_000)], now * 1000)
    ]
    assert rules(found) == {"gpu.throttled"}
    assert [one for now in range(0, 60, 5) for one in GpuWatch(H100).work([busy(thermal_ns=9)], now)] == []
    back = GpuWatch(H100)
    assert not [
        one for now in range(0, 60, 5) for one in back.work([busy(thermal_ns=(60 - now) << 40)], now * 1000)
    ]


def test_minutes_of_slowdowns_add_up() -> None:
    watch = GpuWatch(H100)
    found = [
        one
        for now in range(0, 600, 5)
        for one in watch.work([busy(clock_reasons=0x40 if now % 60 == 0 else 0)], now * 1000)
    ]
    assert "gpu.throttled_long" in rules(found)


def test_the_power_brake_is_the_racks() -> None:
    assert {one.component for one in worked(120, busy(clock_reasons=0x80))} == {Component.FACILITY}
    # With it the umbrella of hardware's reasons is on, too; beside heat it is not the rack's alone.
    assert {one.component for one in worked(120, busy(clock_reasons=0x88))} == {Component.FACILITY}
    assert {one.component for one in worked(120, busy(clock_reasons=0xC8))} == {Component.GPU}


def test_a_brake_that_only_the_driver_saw_is_the_racks_too() -> None:
    watch = GpuWatch(H100)
    found = [
        one
        for now in range(0, 60, 5)
        for one in watch.work([busy(brake_ns=now * 200_000_000, thermal_ns=5)], now * 1000)
    ]
    assert {(one.component, one.clock_reasons) for one in found} == {(Component.FACILITY, 0x80)}


def test_a_card_that_is_held_at_half_its_power() -> None:
    assert rules(worked(120, busy(power_w=350.0))) == {"gpu.power_held"}
    assert worked(40, busy(power_w=350.0)) == []
    assert worked(120, busy(power_w=350.0, clock_reasons=0)) == []


def test_a_slow_clock_is_one_that_is_slower_than_its_peers() -> None:
    slow = busy(0, clock_mhz=1200)
    peers = [busy(index) for index in range(1, 8)]
    (one, *_) = found = worked(180, slow, *peers)
    assert rules(found) == {"gpu.slow_clock"}
    assert one.device == 0
    assert worked(100, slow, *peers) == []
    assert worked(180, slow, busy(1)) == []  # too few to compare with
    assert worked(180, *[busy(index, clock_mhz=1200) for index in range(8)]) == []


def test_each_rule_that_there_is_has_its_words() -> None:
    assert set(gpu_watch.RULES) >= set(gpu_watch._EDGES)
