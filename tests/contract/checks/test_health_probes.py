"""Probes that crash, hang or are a site's own, and the rules over host, mounts, kernel's log and RDMA ports."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airyard.checks import catalogue, host_checks, kernel_checks, mount_checks, rdma_checks
from airyard.checks.contract import Check, Probe, Site, Thresholds, passed
from airyard.checks.host_checks import Host, Resolved, Space
from airyard.checks.mount_checks import Mount
from airyard.checks.running import run
from airyard.checks.thresholds import limits, packaged
from airyard.core.health.facts import CheckResult, CheckStatus

LIMITS = limits(packaged(), "")
GIB = 1 << 30
GOOD = Host(
    memory=512 * GIB,
    disk=Space(path="/data", octets=1000 * GIB, free=500 * GIB, sync_ms=2),
    shm=Space(path="/dev/shm", octets=256 * GIB, free=250 * GIB),
    memlock=-1,
    nofile=1 << 20,
    nproc=1 << 20,
    governors=("performance",),
    huge_pages="always [madvise] never",
)


def well(value: Any, limits: Thresholds) -> list[CheckResult]:
    return [passed("x.one", str(value))]


def one(name: str, collect: Any, judge: Any = well, deadline_s: float = 5) -> Probe:
    check = Check(name=f"{name}.one", title="t", passes="p", judge=judge)
    return Probe(name=name, collect=collect, checks=(check,), deadline_s=deadline_s)


def crash(site: Site) -> None:
    raise RuntimeError("no such thing")


def test_one_probe_that_crashes_dies_or_hangs_is_unknown_and_stops_nobody() -> None:
    def broken(value: Any, limits: Thresholds) -> list[CheckResult]:
        raise ZeroDivisionError("rule")

    probes = [
        one("crashes", crash),
        one("dies", lambda site: os._exit(3)),
        one("hangs", lambda site: time.sleep(3600), deadline_s=0.3),
        one("rule", lambda site: 1, broken),
        one("well", lambda site: 42),
        one("odd", lambda site: lambda: None),  # cannot be sent to another process
    ]
    results = run(probes, Site(), packaged())
    assert [result.status for result in results] == [
        CheckStatus.UNKNOWN,
        CheckStatus.UNKNOWN,
        CheckStatus.UNKNOWN,
        CheckStatus.UNKNOWN,
        CheckStatus.PASS,
        CheckStatus.UNKNOWN,
    ]
    assert "RuntimeError: no such thing" in results[0].message
    assert "ended without a word" in results[1].message
    assert "did not answer in time" in results[2].message
    assert "ZeroDivisionError" in results[3].message
    assert results[4].message == "42"


def judged(probe: Probe, name: str, value: Any) -> list[tuple[str, str]]:
    check = next(check for check in probe.checks if check.name == name)
    return [(result.status.value, result.message) for result in check.judge(value, LIMITS)]


@pytest.mark.parametrize(
    ("name", "host", "status", "words"),
    [
        ("host.swap", GOOD, "PASS", "no swap"),
        ("host.swap", replace(GOOD, swap=8 * GIB), "WARN", "8.0 GiB of swap"),
        ("host.disk", GOOD, "PASS", "500 GiB free"),
        ("host.disk", replace(GOOD, disk=None), "SKIP", ""),
        ("host.disk", replace(GOOD, disk=Space(path="/d", octets=1000 * GIB, free=20 * GIB)), "FAIL", "2%"),
        ("host.disk", replace(GOOD, disk=Space(path="/d", octets=1000 * GIB, free=80 * GIB)), "WARN", "8%"),
        (
            "host.disk",
            replace(GOOD, disk=Space(path="/d", octets=9, free=9, problem="Read-only")),
            "FAIL",
            "Read-only",
        ),
        (
            "host.disk",
            replace(GOOD, disk=Space(path="/d", octets=9, free=9, sync_ms=3000)),
            "FAIL",
            "3000 ms",
        ),
        ("host.shm", GOOD, "PASS", ""),
        ("host.shm", replace(GOOD, shm=None), "FAIL", "not there"),
        ("host.shm", replace(GOOD, shm=Space(path="s", octets=64 << 20, free=64 << 20)), "FAIL", "64 MiB"),
        (
            "host.shm",
            replace(GOOD, gpus=8, shm=Space(path="s", octets=2 * GIB, free=2 * GIB)),
            "WARN",
            "for 8 GPUs",
        ),
        ("host.shm", replace(GOOD, shm=Space(path="s", octets=8 * GIB, free=GIB)), "WARN", "88% full"),
        ("host.limits", GOOD, "PASS", ""),
        ("host.limits", replace(GOOD, memlock=65536), "PASS", ""),
        ("host.limits", replace(GOOD, memlock=65536, rdma=True), "FAIL", "locked"),
        ("host.limits", replace(GOOD, nofile=1024), "WARN", "1,024 open files"),
        ("host.governor", GOOD, "PASS", "performance"),
        ("host.governor", replace(GOOD, governors=("powersave",)), "WARN", "powersave"),
        ("host.governor", replace(GOOD, governors=()), "SKIP", ""),
        ("host.fabric_manager", GOOD, "SKIP", "no NVSwitch"),
        ("host.fabric_manager", replace(GOOD, nvswitch=True), "FAIL", "does not run"),
        ("host.fabric_manager", replace(GOOD, nvswitch=True, fabric_manager=True), "PASS", ""),
        ("host.peer_memory", replace(GOOD, rdma=True), "WARN", "DMA-BUF"),
        ("host.peer_memory", replace(GOOD, rdma=True, peer_memory=True), "PASS", ""),
    ],
)
def test_rules_of_the_host(name: str, host: Host, status: str, words: str) -> None:
    ((found, message),) = judged(host_checks.HOST, name, host)
    assert found == status
    assert words in message


def test_this_machine_is_read(tmp_path: Path) -> None:
    host = host_checks.collect(Site(data_folder=tmp_path))
    assert host.memory > 0
    assert host.disk is not None
    assert host.disk.sync_ms is not None
    assert list(tmp_path.iterdir()) == []
    gone = host_checks.collect(Site(data_folder=tmp_path / "none"))
    assert gone.disk is not None
    assert gone.disk.problem == "No such file or directory"


def test_names_that_are_not_resolved_fail() -> None:
    read = host_checks.resolve(Site(hosts=("no-such-host.invalid",)))
    assert read.names["no-such-host.invalid"] is None
    results = judged(host_checks.NAMES, "host.names", Resolved(names={"a": 3.0, "b": None, "c": 2500.0}))
    assert results == [
        ("FAIL", "the name b cannot be resolved"),
        ("FAIL", "the name c took 2500 ms to be resolved"),
    ]


def test_mounts_of_this_machine_answer_and_dead_ones_fail() -> None:
    assert all(mount.took_ms is not None for mount in mount_checks.collect(Site()))
    read = (
        Mount(path="/data", kind="nfs4", took_ms=None),
        Mount(path="/old", kind="nfs", took_ms=3.0, problem="Stale file handle"),
        Mount(path="/", kind="ext4", took_ms=1.0),
    )
    assert judged(mount_checks.PROBE, "host.mounts", read) == [
        ("FAIL", "/data (nfs4) does not answer"),
        ("FAIL", "/old (nfs) Stale file handle"),
    ]
    assert judged(mount_checks.PROBE, "host.mounts", ()) == [("SKIP", "no mounts are told of here")]


def kernel(tmp_path: Path, text: str | None) -> list[tuple[str, str]]:
    (tmp_path / "dev").mkdir()
    if text is not None:
        (tmp_path / "dev" / "kmsg").write_text(text)
    return judged(kernel_checks.PROBE, "kernel.faults", kernel_checks.collect(Site(root=tmp_path)))


@pytest.mark.parametrize(
    ("text", "status", "words"),
    [
        ("6,1,100,-;Linux version 6.1\n", "PASS", "no hard fault in 1 lines"),
        ("4,1,100,-;NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\n", "FAIL", "Xid 79"),
        ("4,1,100,-;NVRM: Xid (PCI:0000:3b:00): 13, pid=1, name=python3, Graphics\n", "PASS", ""),
        ("4,1,100,-;Out of memory: Killed process 991 (python3) total-vm:1kB\n", "PASS", ""),
        ("12,1,100,-;NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\n", "WARN", "1 lines"),
        (None, "SKIP", "cannot be read"),
    ],
)
def test_the_kernels_log(tmp_path: Path, text: str | None, status: str, words: str) -> None:
    ((found, message),) = kernel(tmp_path, text)
    assert found == status
    assert words in message


def test_what_a_process_writes_to_the_real_log_is_no_fault() -> None:
    line = "NVRM: Xid (PCI:0000:ff:00): 79, pid=1, name=a-test-of-airyard, GPU has fallen off the bus.\n"
    try:
        with open("/dev/kmsg", "wb", buffering=0) as log:
            log.write(f"<4>{line}".encode())
    except OSError as error:
        pytest.skip(f"/dev/kmsg cannot be written here: {error.strerror}")
    read = kernel_checks.collect(Site())
    if read.findings is None:
        pytest.skip(f"/dev/kmsg cannot be read here: {read.problem}")
    assert read.findings.foreign_kernel_lines >= 1
    assert not any(found.event.pci == "0000:ff:00" for found in read.findings.kernel)
    results = judged(kernel_checks.PROBE, "kernel.faults", read)
    assert not any("0000:ff:00" in message for status, message in results if status == "FAIL")


def port(root: Path, device: str, state: str = "4: ACTIVE", physical: str = "5: LinkUp") -> Path:
    folder = root / "sys/class/infiniband" / device / "ports/1"
    (folder / "counters").mkdir(parents=True)
    (folder / "state").write_text(f"{state}\n")
    (folder / "phys_state").write_text(f"{physical}\n")
    (folder / "rate").write_text("400 Gb/sec (4X NDR)\n")
    for name in ("link_downed", "symbol_error", "port_rcv_errors", "link_error_recovery"):
        (folder / "counters" / name).write_text("7\n")
    return folder


def test_ports_that_are_up_and_quiet_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rdma_checks.time, "sleep", lambda seconds: None)
    port(tmp_path, "mlx5_0")
    port(tmp_path, "mlx5_1")
    read = rdma_checks.collect(Site(root=tmp_path))
    assert judged(rdma_checks.PROBE, "rdma.ports", read) == [("PASS", "2 ports are up, 400 Gb/sec (4X NDR)")]
    assert judged(rdma_checks.PROBE, "rdma.counters", read) == [("PASS", "no error came on 2 ports")]


def test_a_port_that_is_down_or_loud_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loud, reset = port(tmp_path, "mlx5_0"), port(tmp_path, "mlx5_1")
    port(tmp_path, "mlx5_2", "1: DOWN", "3: Disabled")
    port(tmp_path, "mlx5_3", "1: DOWN", "6: LinkErrorRecovery")
    virtual = port(tmp_path, "mlx5_4", "1: DOWN", "3: Disabled")
    (virtual.parents[1] / "device" / "physfn").mkdir(parents=True)

    def later(seconds: float) -> None:
        (loud / "counters/symbol_error").write_text("19\n")
        (reset / "counters/symbol_error").write_text("0\n")

    monkeypatch.setattr(rdma_checks.time, "sleep", later)
    read = rdma_checks.collect(Site(root=tmp_path))
    assert judged(rdma_checks.PROBE, "rdma.ports", read) == [
        ("WARN", "mlx5_2/1 is DOWN, its link Disabled"),
        ("FAIL", "mlx5_3/1 is DOWN, its link LinkErrorRecovery"),
    ]
    assert judged(rdma_checks.PROBE, "rdma.counters", read) == [
        ("FAIL", "mlx5_0/1: errors grow while it is watched: symbol_error +12")
    ]


def test_a_machine_without_rdma_skips(tmp_path: Path) -> None:
    read = rdma_checks.collect(Site(root=tmp_path))
    assert {
        status
        for name in ("rdma.ports", "rdma.counters")
        for status, _ in judged(rdma_checks.PROBE, name, read)
    } == {"SKIP"}


def test_names_of_checks_are_their_own() -> None:
    names = [check.name for probe in catalogue.PROBES for check in probe.checks]
    assert len(set(names)) == len(names)
    assert all(check.title and check.passes for probe in catalogue.PROBES for check in probe.checks)
