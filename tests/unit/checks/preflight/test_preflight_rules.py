"""The rules of preflight checks over what was read: each passes what is well and fails what is not, and names it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airyard.checks.contract import Check, Probe, Site
from airyard.checks.nvml import Gpu, Gpus
from airyard.checks.preflight import compute, fabric, gpu_static, links, network, storage
from airyard.checks.preflight.compute import Outcome, disagreeing, run_tests
from airyard.checks.preflight.fabric import Loopback, parse_bandwidth
from airyard.checks.preflight.gpu_static import Cards
from airyard.checks.preflight.links import Buses, redirects
from airyard.checks.preflight.load import Worked
from airyard.checks.preflight.network import Clock, Ways, fingerprint
from airyard.checks.preflight.storage import Speed, Stores
from airyard.checks.preflight.ways import Way
from airyard.checks.thresholds import limits, of_pool, packaged
from airyard.core.health.facts import CheckResult, CheckStatus

H100 = limits(packaged(), "H100")
UNKNOWN_BOARD = limits(packaged(), "")
GIB = 1 << 30


def judged(probe: Probe, name: str, read: Any, thresholds: Any = H100) -> list[CheckResult]:
    check: Check = next(check for check in probe.checks if check.name == name)
    return list(check.judge(read, thresholds))


def words(results: list[CheckResult]) -> list[tuple[str, int | None]]:
    return [(result.status.value, result.device) for result in results]


GPUS = Gpus(
    gpus=tuple(
        Gpu(
            index=i, uuid=f"GPU-{i}", name="NVIDIA H100", retired_pages=0, clock_mhz=1980, clock_default_mhz=1980
        )
        for i in range(2)
    ),
    driver="570.124.06",
    library="12.570.124.06",
)  # fmt: skip
CARDS = Cards(nvml=GPUS, module="570.124.06", known_uuids=frozenset({"GPU-0", "GPU-1"}))
NOT_OPEN = Gpus(error=9, error_text="Driver Not Loaded")


def one_card(**changes: Any) -> Cards:
    return Cards(nvml=replace(GPUS, gpus=(replace(GPUS.gpus[1], **changes),)))


@pytest.mark.parametrize(
    ("name", "read", "expected"),
    [
        ("card.identity", CARDS, [("PASS", None)]),
        ("card.identity", replace(CARDS, known_uuids=frozenset({"GPU-0", "GPU-7"})), [("FAIL", None)]),
        ("card.identity", replace(CARDS, known_uuids=frozenset()), [("SKIP", None)]),
        ("card.identity", Cards(nvml=NOT_OPEN), [("SKIP", None)]),
        (
            "card.identity",
            Cards(nvml=NOT_OPEN, known_uuids=frozenset({"GPU-0"})),
            [("FAIL", None)],
        ),
        ("card.driver", CARDS, [("PASS", None)]),
        ("card.driver", replace(CARDS, module="570.86.15"), [("FAIL", None)]),
        ("card.driver", replace(CARDS, nvml=replace(GPUS, library="12.575.1.06")), [("FAIL", None)]),
        (
            "card.driver",
            replace(CARDS, module="", nvml=replace(GPUS, library="570.124.06")),
            [("PASS", None)],
        ),
        ("card.retired_pages", CARDS, [("PASS", None)]),
        (
            "card.retired_pages",
            one_card(retired_pages=11),
            [("FAIL", 1)],
        ),
        (
            "card.application_clocks",
            one_card(clock_mhz=1935),
            [("WARN", 1)],
        ),
        (
            "card.application_clocks",
            replace(CARDS, nvml=replace(GPUS, gpus=(GPUS.gpus[0], replace(GPUS.gpus[1], clock_mhz=1900)))),
            [("FAIL", 1), ("PASS", None)],
        ),
    ],
)
def test_identity_and_versions(name: str, read: Cards, expected: list[tuple[str, int | None]]) -> None:
    assert words(judged(gpu_static.PROBE, name, read)) == expected


@pytest.mark.parametrize(
    ("name", "read", "board", "expected"),
    [
        ("pcie.errors", Buses(replays={0: 9, 1: 0}, devices=2), H100, [("PASS", None)]),
        ("pcie.errors", Buses(replays={0: 0, 1: 10}, devices=2), H100, [("FAIL", 1)]),
        ("pcie.errors", Buses(aer={"0000:3b:00.0": 1}), H100, [("FAIL", None)]),
        ("pcie.errors", Buses(), H100, [("SKIP", None)]),
        ("pcie.peers", Buses(devices=2, pairs=6), H100, [("PASS", None)]),
        ("pcie.peers", Buses(devices=2, pairs=6, peers=((1, 0, "NVLink", 4),)), H100, [("FAIL", 1)]),
        ("pcie.peers", Buses(devices=2, pairs=6, peers=((1, 0, "NVLink", 4),)), UNKNOWN_BOARD, [("PASS", None)]),
        ("pcie.peers", Buses(devices=2, pairs=6, peers=((1, 0, "read", 2),)), UNKNOWN_BOARD, [("WARN", 1)]),
        ("pcie.peers", Buses(devices=1), H100, [("SKIP", None)]),
        ("pcie.acs", Buses(acs={"0000:00:01.0": True}), H100, [("WARN", None)]),
        ("pcie.acs", Buses(acs={"0000:00:01.0": False}), H100, [("PASS", None)]),
        ("pcie.acs", Buses(acs={"0000:00:01.0": None}), H100, [("SKIP", None)]),
    ],
)  # fmt: skip
def test_ways_of_pcie(name: str, read: Buses, board: Any, expected: list[tuple[str, int | None]]) -> None:
    assert words(judged(links.PROBE, name, read, board)) == expected


def test_acs_is_found_behind_other_capabilities_and_in_no_loop() -> None:
    config = bytearray(0x200)
    config[0x100:0x104] = (0x0001 | 0x140 << 20).to_bytes(4, "little")
    config[0x140:0x144] = (0x000D | 0x100 << 20).to_bytes(4, "little")
    assert redirects(bytes(config)) is False
    config[0x146] = 0x0C
    assert redirects(bytes(config)) is True
    config[0x140:0x144] = (0x0002 | 0x100 << 20).to_bytes(4, "little")
    assert redirects(bytes(config)) is False
    assert redirects(bytes(64)) is None


@pytest.mark.parametrize(
    ("name", "read", "expected"),
    [
        ("net.clock", Ways(clock=Clock(offset_ms=-9)), "PASS"),
        ("net.clock", Ways(clock=Clock(offset_ms=11)), "WARN"),
        ("net.clock", Ways(clock=Clock(offset_ms=-2000)), "FAIL"),
        ("net.clock", Ways(clock=Clock(synchronised=False)), "WARN"),
        ("net.clock", Ways(clock=Clock(synchronised=True, error_ms=3)), "PASS"),
        ("net.clock", Ways(), "SKIP"),
        ("net.peers", Ways(servers=(Way(place="s:7", took_ms=1.0),)), "PASS"),
        ("net.peers", Ways(servers=(Way(place="s:7", problem="timed out"),)), "WARN"),
        ("net.peers", Ways(), "SKIP"),
        ("net.communication", Ways(communication="a"), "SKIP"),
        ("host.image", Ways(image="sha256:1"), "SKIP"),
    ],
)
def test_clock_peers_and_communication(name: str, read: Ways, expected: str) -> None:
    assert [result.status.value for result in judged(network.PROBE, name, read)] == [expected]


def test_adapters_names_do_not_make_two_machines_differ_and_settings_do() -> None:
    one = {"NCCL_IB_HCA": "mlx5_0", "NCCL_ALGO": "Ring"}
    assert fingerprint(one) == fingerprint({"NCCL_IB_HCA": "mlx5_4", "NCCL_ALGO": "Ring"})
    assert fingerprint(one) != fingerprint({"NCCL_ALGO": "Tree"})


def test_speed_of_storage_is_told_and_warned_of() -> None:
    speed = Speed(path="/d", write_mb_s=100, read_mb_s=900)
    assert judged(storage.SPEED, "storage.speed", speed)[0].status is CheckStatus.PASS
    for usual, status in ((199.0, CheckStatus.PASS), (201.0, CheckStatus.WARN)):
        site = limits(of_pool(packaged(), {"all": {"storage_mb_s": usual}}, "train"), "H100")
        assert judged(storage.SPEED, "storage.speed", speed, site)[0].status is status
    assert (
        judged(storage.SPEED, "storage.speed", replace(speed, problem="full"))[0].status is CheckStatus.FAIL
    )


def test_a_manifest_is_compared_and_a_torn_file_named(tmp_path: Path) -> None:
    from hashlib import sha256

    (tmp_path / "good.bin").write_bytes(b"weights")
    (tmp_path / "torn.bin").write_bytes(b"weigh")
    digest = sha256(b"weights").hexdigest()
    manifest = tmp_path / "SHA256SUMS"
    manifest.write_text(f"{digest}  good.bin\n")
    from airyard.checks.preflight.setting import Setting

    setting = Setting(manifest=str(manifest), writes=(str(tmp_path),))
    assert [r.status.value for r in judged(storage.PROBE, "storage.cache", storage.collect(setting))] == [
        "PASS"
    ]
    assert [r.status.value for r in judged(storage.PROBE, "storage.writes", storage.collect(setting))] == [
        "PASS"
    ]
    manifest.write_text(f"{digest}  good.bin\n{digest} *torn.bin\n{digest}  gone.bin\n")
    (found,) = judged(storage.PROBE, "storage.cache", storage.collect(setting))
    assert found.status is CheckStatus.FAIL
    assert "torn.bin: its content" in found.message
    assert "gone.bin: No such file" in found.message
    missing = replace(setting, writes=(str(tmp_path / "nowhere"),))
    assert [r.status.value for r in judged(storage.PROBE, "storage.writes", storage.collect(missing))] == [
        "FAIL"
    ]
    assert judged(storage.PROBE, "storage.cache", Stores())[0].status is CheckStatus.SKIP


# --- compute: judged over what a script says, in place of GPUs

GOOD: dict[str, dict[str, Any]] = {
    "copies": {"to_device": {"0": 55.0, "1": 54.0}, "to_host": {"0": 53.0, "1": 54.0}},
    "peers": {"pairs": {"0-1": 380.0, "1-0": 381.0}},
    "gemm": {"tflops": {"0": 760.0, "1": 750.0}},
    "memory": {"miscompares": {"0": 0, "1": 0}, "gb_s": {"0": 3050.0, "1": 3049.0}},
    "checksum": {"checksums": {"0": ["a"] * 3, "1": ["a"] * 3}},
    "all_reduce": {"wrong": [], "gb_s": {"8": 0.0, str(16 * GIB): 480.0}},
    "burn": {"miscompares": {"0": 0, "1": 0}, "rounds": {"0": 900, "1": 890}},
}


class Scripted:
    """Says what a test should come to."""

    def __init__(self, **changed: dict[str, Any] | Outcome) -> None:
        self.asked: list[str] = []
        self._said = {**GOOD, **changed}

    def run(self, test: str, *, full: bool, budget_s: float) -> Outcome:
        self.asked.append(test)
        said = self._said[test]
        return said if isinstance(said, Outcome) else Outcome(values=said)


def outcome_of(**changed: dict[str, Any] | Outcome) -> dict[str, list[CheckResult]]:
    worked = Outcome(values={"gpus": {index: Worked(readings=9, margin_c=20) for index in (0, 1)}})
    read = {**run_tests(Scripted(**changed), full=True), compute.LOAD: worked}
    return {check.name: list(check.judge(read, H100)) for check in compute.PROBE.checks}


def test_good_gpus_pass_every_test() -> None:
    assert {name: words(found) for name, found in outcome_of().items()} == {
        check.name: [("PASS", None)] for check in compute.PROBE.checks
    }


@pytest.mark.parametrize(
    ("changed", "check", "expected"),
    [
        ({"copies": {"to_device": {"0": 55.0}, "to_host": {"0": 20.0}}}, "compute.copies", [("FAIL", 0)]),
        ({"copies": {"to_device": {"0": 49.0}, "to_host": {"0": 60.0}}}, "compute.copies", [("WARN", 0)]),
        ({"peers": {"pairs": {"0-1": 380.0, "1-0": 100.0}}}, "compute.peers", [("FAIL", None)]),
        ({"peers": {"pairs": {}}}, "compute.peers", [("SKIP", None)]),
        ({"gemm": {"tflops": {"0": 760.0, "1": 500.0}}}, "compute.gemm", [("FAIL", 1)]),
        ({"gemm": {"tflops": {"0": 800.0, "1": 740.0}}}, "compute.gemm", [("WARN", 1)]),
        ({"memory": {"miscompares": {"0": 0, "1": 3}, "gb_s": {}}}, "compute.memory", [("FAIL", 1)]),
        ({"checksum": {"checksums": {"0": ["a"], "1": ["a"], "2": ["b"]}}}, "compute.checksum", [("FAIL", 2)]),
        ({"all_reduce": {"wrong": [1], "gb_s": {"8": 1.0}}}, "compute.all_reduce", [("FAIL", 1)]),
        ({"all_reduce": {"wrong": [], "gb_s": {str(16 * GIB): 300.0}}}, "compute.all_reduce", [("FAIL", None)]),
        ({"all_reduce": {"wrong": [], "gb_s": {str(GIB // 4): 340.0}}}, "compute.all_reduce", [("PASS", None)]),
        ({"burn": {"miscompares": {"0": 2}, "rounds": {"0": 9}}}, "compute.burn", [("FAIL", 0)]),
        ({"burn": Outcome(problem="it was not done within 420 s")}, "compute.burn", [("UNKNOWN", None)]),
        ({"gemm": Outcome(skipped="this environment has no torch")}, "compute.gemm", [("SKIP", None)]),
    ],
)  # fmt: skip
def test_each_bad_figure_fails_its_test(
    changed: dict[str, Any], check: str, expected: list[tuple[str, int | None]]
) -> None:
    found = outcome_of(**changed)
    assert words(found.pop(check)) == expected
    assert {status for each in found.values() for status, _ in words(each)} == {"PASS"}


def test_the_fast_profile_asks_only_for_what_is_short() -> None:
    script = Scripted()
    read = run_tests(script, full=False)
    assert script.asked == ["gemm", "all_reduce"]
    assert read["burn"].skipped == "only in the full profile"


def test_without_a_limit_a_figure_is_told_and_nothing_fails() -> None:
    read = run_tests(Scripted(gemm={"tflops": {"0": 0.1}}), full=True)
    assert words(judged(compute.PROBE, "compute.gemm", read, UNKNOWN_BOARD)) == [("PASS", None)]


@pytest.mark.parametrize(
    ("checksums", "wrong"),
    [
        ({"0": ["a", "a"], "1": ["a", "a"]}, set()),
        ({"0": ["a", "b"], "1": ["a", "a"]}, {"0"}),
        ({"0": ["a"], "1": ["a"], "2": ["c"]}, {"2"}),
        ({"0": ["a"], "1": ["b"]}, {"0", "1"}),
        ({"0": ["a"], "1": ["b"], "2": ["a", "c"]}, {"0", "1", "2"}),
        ({"0": []}, {"0"}),
        ({}, set()),
    ],
)
def test_who_computes_wrong_is_told_by_its_own_runs_or_by_most_of_the_others(
    checksums: dict[str, list[str]], wrong: set[str]
) -> None:
    assert set(disagreeing(checksums)) == wrong


def test_a_machine_without_gpus_skips_them_all_and_starts_nothing(tmp_path: Path) -> None:
    site = Site(root=tmp_path, full=True)
    assert {outcome.skipped for outcome in compute.collect(site).values()} == {"needs a GPU"}
    assert fabric.collect_loopback(site).skipped == "needs a GPU"


def test_loopback_and_the_sum_over_nodes() -> None:
    head = " #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]\n"
    row = f"{head} 65536      350000           0.00               391.52             0.74\n"
    assert parse_bandwidth(row) == 391.52
    assert parse_bandwidth("Couldn't allocate MR") is None
    read = Loopback(gbit_s={"mlx5_0": 391.0, "mlx5_1": 12.0}, problems={"mlx5_2": "no"})
    assert [r.status.value for r in judged(fabric.LOOPBACK, "rdma.loopback", read)] == ["UNKNOWN", "FAIL"]
