"""Lines of the kernel's log, as they come: which of them speak against the node, and how gravely."""

from __future__ import annotations

import pytest

from airyard.checks.kernel_follow import LineFindings
from airyard.core.health.blame import weight
from airyard.core.health.facts import Component, Remedy, Retest, Severity
from airyard.core.health.kernel_watch import KernelWatch
from airyard.core.health.sightings import Novelty, Sighting
from airyard.core.triage.kernel_lines import KernelFinding

PCI = "0000:3b:00"


def found(*lines: str) -> list[KernelFinding]:
    reader = LineFindings("kmsg")
    taken = (reader.take(line.encode(), number) for number, line in enumerate(lines))
    return [finding for finding, _ in taken if finding is not None]


def judged(*lines: str) -> list[Sighting]:
    return KernelWatch().judge(found(*lines), 1_000)


def xid(code: int, rest: str = "", pci: str = PCI) -> str:
    return f"NVRM: Xid (PCI:{pci}): {code}, {rest}"


@pytest.mark.parametrize(
    ("line", "rule", "severity", "component", "remedy"),
    [
        (xid(79, "GPU has fallen off the bus."), "xid.79", "CRITICAL", Component.GPU, Remedy.REBOOT),
        (xid(48, "pid=1, DBE"), "xid.48", "CRITICAL", Component.GPU_MEMORY, Remedy.GPU_RESET),
        (xid(64, "pid=1"), "xid.64", "CRITICAL", Component.GPU_MEMORY, Remedy.REPLACE),
        (xid(119, "Timeout after 6s"), "xid.119", "CRITICAL", Component.DRIVER, Remedy.GPU_RESET),
        (xid(63, "pid=1"), "xid.63", "WARNING", Component.GPU_MEMORY, Remedy.NONE),
        (xid(94, "Contained"), "xid.94", "WARNING", Component.GPU_MEMORY, Remedy.NONE),
        (xid(999, "what"), "xid.999", "WARNING", Component.GPU, Remedy.NONE),
        (xid(13, "pid=1, name=python3"), "xid.13", "INFO", Component.GPU, Remedy.NONE),
        (
            xid(149, "NETIR_LINK_EVT Fatal XC0 i0 Link 05 (0x004505c6 0x00000000 0x0 0x0 0x0 0x0)"),
            "nvlink.149",
            "CRITICAL",
            Component.NVLINK,
            Remedy.GPU_RESET,
        ),
        (
            "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 23001, Fatal, Link 3",
            "sxid.23001",
            "CRITICAL",
            Component.NVLINK,
            Remedy.REBOOT,
        ),
        (
            "GPU 0000:3b:00.0: has fallen off the bus and is not responding to commands.",
            "gpu.off_bus",
            "CRITICAL",
            Component.GPU,
            Remedy.REBOOT,
        ),
        (
            "pcieport 0000:3a:00.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer",
            "pcie.aer_fatal",
            "CRITICAL",
            Component.GPU,
            Remedy.REBOOT,
        ),
        ("EDAC MC0: 1 UE on DIMM_A1", "host.edac", "CRITICAL", Component.HOST, Remedy.REBOOT),
        (
            "mlx5_core 0000:9a:00.0: health compromised - reached miss count",
            "net.mlx5",
            "CRITICAL",
            Component.NETWORK,
            Remedy.REBOOT,
        ),
        ("watchdog: BUG: soft lockup - CPU#3 stuck for 26s!", "host.lockup", "HIGH", Component.HOST, Remedy.NONE),
        ("blk_update_request: I/O error, dev sda, sector 9", "disk.error", "HIGH", Component.DISK, Remedy.NONE),
        ("NVRM: API mismatch: the client has version 1", "driver.client", "INFO", Component.DRIVER, Remedy.NONE),
        ("Killed process 991 (python3) total-vm:1kB", "host.oom", "INFO", Component.HOST, Remedy.NONE),
        ("nfs: server n1 not responding, timed out", "storage.nfs", "INFO", Component.STORAGE, Remedy.NONE),
        (
            "INFO: task python3:123 blocked for more than 120 seconds.",
            "host.hung_task",
            "WARNING",
            Component.HOST,
            Remedy.NONE,
        ),
    ],
)  # fmt: skip
def test_a_line_and_what_it_says(
    line: str, rule: str, severity: str, component: Component, remedy: Remedy
) -> None:
    (one,) = judged(line)
    assert (one.rule, one.severity.value, one.component, one.remedy) == (rule, severity, component, remedy)
    assert one.evidence[0] in line


@pytest.mark.parametrize(
    "line",
    [
        "Linux version 6.1",
        xid(43, "pid=1"),
        xid(45, "pid=1"),
        xid(137, "pid=1"),
        xid(154, "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"),
        "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 3",
        "python3[77]: segfault at 0 ip 1 sp 2 error 4 in python3",
        "pcieport 0000:3a:00.0: AER: Corrected error received: 0000:3b:00.0",
        f"12,1,1,-;{xid(79)}",
    ],
)
def test_lines_that_say_nothing_of_the_node(line: str) -> None:
    assert judged(line) == []


def test_a_gpu_that_left_the_bus_is_tested_thoroughly_and_weighs_enough() -> None:
    (one,) = judged(xid(79, "GPU has fallen off the bus."))
    assert one.retest is Retest.T3
    assert weight(one.event("e", "m", 5)) >= 6


def test_what_the_driver_says_of_a_cure_goes_before_the_table() -> None:
    reboot = xid(154, "GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)")
    (one,) = judged(xid(119, "Timeout"), reboot)
    assert one.remedy is Remedy.REBOOT
    (one,) = judged(xid(119, "Timeout"), reboot.replace("3b", "5e"))  # of another GPU
    assert one.remedy is Remedy.GPU_RESET


def test_a_program_that_faults_on_all_gpus_never_adds_up_to_a_suspicion() -> None:
    watch, lines = (
        KernelWatch(),
        [xid(31, f"pid={n}, name=python3", f"0000:{n:02x}:00") for n in range(16, 24)],
    )
    seen = [one for turn in range(4) for one in watch.judge(found(*lines), turn * 600_000)]
    assert {one.severity for one in seen} == {Severity.INFO}
    assert sum(weight(one.event("e", "m", 5)) for one in seen) == 0


def test_one_gpu_that_faults_under_program_after_program_counts_a_little() -> None:
    watch = KernelWatch()
    seen = [watch.judge(found(xid(31, f"pid={n}, name=train")), n * 600_000)[0] for n in range(1, 4)]
    assert [one.severity.value for one in seen] == ["INFO", "INFO", "WARNING"]
    late = watch.judge(found(xid(31, "pid=9, name=train")), 100 * 3_600_000)[0]
    assert late.severity is Severity.INFO  # the day is over


def test_a_link_that_corrects_errors_all_the_time_is_told_of() -> None:
    line = "pcieport 0000:3a:00.0: AER: Corrected error received: 0000:3b:00.0"
    assert judged(*[line] * 19) == []
    assert {(one.rule, one.severity.value) for one in judged(*[line] * 20)} == {
        ("pcie.aer_corrected", "WARNING")
    }


def test_a_processor_that_is_stuck_again_and_again_asks_for_a_reboot() -> None:
    line, watch = "watchdog: BUG: soft lockup - CPU#3 stuck for 26s!", KernelWatch()
    seconds = (0, 5, 30, 61, 130, 200, 9_000)
    remedies = [watch.judge(found(line), second * 1000)[0].remedy.value for second in seconds]
    assert remedies == ["NONE", "NONE", "NONE", "NONE", "REBOOT", "REBOOT", "NONE"]


def test_an_address_on_an_earlier_line_is_found() -> None:
    (one,) = judged(
        "NVRM: The NVIDIA GPU 0000:3b:00.0 (PCI ID: 10de:2330)",
        "NVRM: fallen off the bus and is not responding",
    )
    assert (one.rule, one.pci) == ("gpu.off_bus", PCI)


def test_a_flood_of_one_fault_is_one_event_until_its_window_is_over() -> None:
    watch, novelty = KernelWatch(), Novelty()
    passed = []
    for second in range(130):
        lines = found(*[xid(79, "GPU has fallen off the bus.")] * 100)
        passed += novelty.new(watch.judge(lines, second * 1000), second * 1000)
    assert [one.rule for one in passed] == ["xid.79"] * 3


def test_other_devices_nodes_and_severities_are_other_events() -> None:
    (one,) = judged(xid(79))
    others = [
        Sighting(
            rule=one.rule,
            component=one.component,
            severity=severity,
            source=one.source,
            message="",
            node=node,
            device=device,
        )
        for severity in (Severity.CRITICAL, Severity.WARNING)
        for node in ("a", "b")
        for device in (0, 1)
    ]
    novelty = Novelty()
    assert len(novelty.new([*others, *others], 0)) == len(others)
    assert novelty.new(others, 59_999) == []
    assert len(novelty.new(others, 60_000)) == 4  # the grave ones
