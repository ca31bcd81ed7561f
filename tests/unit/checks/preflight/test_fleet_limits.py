"""What a check makes of the median of other nodes: products of matrices fail below it, a slow disk warns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from airyard.checks.contract import Probe, Thresholds
from airyard.checks.preflight import compute, storage
from airyard.checks.preflight.compute import Outcome
from airyard.checks.preflight.storage import Speed
from airyard.checks.running import with_layer
from airyard.checks.thresholds import limits, of_pool, packaged
from airyard.core.health.facts import CheckResult
from airyard.core.health.fleet_values import GEMM, STORAGE, Usual

FLEET = {GEMM: Usual(median=800, nodes=7), STORAGE: Usual(median=2000, nodes=7)}


def table(generation: str = "H100", own: Mapping[str, float] | None = None) -> Thresholds:
    made = of_pool(packaged(), {"all": dict(own)}, "train") if own else packaged()
    return replace(limits(made, generation), fleet=FLEET)


def judged(probe: Probe, name: str, read: Any, thresholds: Thresholds) -> list[CheckResult]:
    check = next(check for check in probe.checks if check.name == name)
    return [with_layer(one) for one in check.judge(read, thresholds)]


def gemm(values: Mapping[str, float], thresholds: Thresholds) -> list[CheckResult]:
    return judged(compute.PROBE, GEMM, {"gemm": Outcome(values={"tflops": values})}, thresholds)


def words(results: list[CheckResult]) -> list[tuple[str, int | None]]:
    return [(one.status.value, one.device) for one in results]


def speed(write_mb_s: float, thresholds: Thresholds) -> CheckResult:
    read = Speed(path="/d", write_mb_s=write_mb_s, read_mb_s=9000)
    return judged(storage.SPEED, STORAGE, read, thresholds)[0]


def test_a_gpu_below_nine_tenths_of_the_median_fails_and_says_of_how_many() -> None:
    assert words(gemm({"0": 721, "1": 730}, table())) == [("PASS", None)]
    slow = gemm({"0": 719, "1": 730}, table())
    assert words(slow) == [("FAIL", 0)]
    assert slow[0].threshold == 720
    assert "719.0 TFLOPS, 0.90 of the 800 that are the median of 7 other nodes" in slow[0].message


def test_below_the_tables_floor_is_told_once_and_the_floor_holds_whatever_the_fleet_has() -> None:
    found = gemm({"0": 600, "1": 700, "2": 790}, table())
    assert sorted(words(found)) == [("FAIL", 0), ("FAIL", 1)]
    drifted = replace(table(), fleet={GEMM: Usual(median=600, nodes=40)})
    assert words(gemm({"0": 600}, drifted)) == [("FAIL", 0)], "a fleet that is slow all over is slow"
    assert words(gemm({"0": 719}, replace(drifted, fleet={}))) == [("PASS", None)]


def test_a_board_without_a_table_is_compared_too() -> None:
    assert words(gemm({"0": 700}, table(""))) == [("FAIL", 0)]


def test_what_a_pool_declares_goes_before_the_median() -> None:
    assert words(gemm({"0": 700}, table(own={"gemm_tflops": 500}))) == [("PASS", None)]
    assert words(gemm({"0": 710}, table(own={"gemm_fleet_share": 0}))) == [("PASS", None)]
    strict = gemm({"0": 780}, table(own={"gemm_fleet_share": 0.98}))
    assert words(strict) == [("FAIL", 0)]
    assert strict[0].details["limit"] == "gemm_fleet_share of pool train"
    assert speed(900, table(own={"storage_mb_s": 1700})).status.value == "PASS"


def test_a_disk_below_half_of_the_median_warns() -> None:
    assert speed(1001, table()).status.value == "PASS"
    slow = speed(999, table())
    assert (slow.status.value, slow.threshold) == ("WARN", 1000)
    assert "2,000 MB/s are the median of 7 other nodes" in slow.message
    assert speed(999, replace(table(), fleet={})).status.value == "PASS"
