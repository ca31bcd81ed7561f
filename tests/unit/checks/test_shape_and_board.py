"""The rules over what a machine consists of, caches and links of GPUs, ports' speeds, and the driver's own words."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airyard.checks import kernel_checks, rdma_checks, shape_checks
from airyard.checks.board_checks import CHECKS
from airyard.checks.catalogue import PROBES
from airyard.checks.contract import Probe, Site, Thresholds
from airyard.checks.kernel_checks import KernelLog, Unknown
from airyard.checks.nvml import Gpu, Gpus
from airyard.checks.rdma_checks import Port
from airyard.checks.shape_checks import Shape
from airyard.checks.thresholds import limits, packaged
from airyard.core.triage.reading import Findings

GIB = 1 << 30
PLAIN = limits(packaged(), "")
WHOLE = Shape(
    cpus=128, cpus_present=128, memory=1000 * GIB, numa=(500 * GIB, 500 * GIB), drives={"nvme0": "live"}
)


def asking(generation: str = "", **values: float) -> Thresholds:
    base = limits(packaged(), generation)
    assert values.keys() <= base.values.keys()
    return replace(base, values={**base.values, **values})


def judged(probe: Probe, name: str, read: Any, thresholds: Thresholds = PLAIN) -> list[tuple[str, str]]:
    check = next(check for check in probe.checks if check.name == name)
    return [(result.status.value, result.message) for result in check.judge(read, thresholds)]


@pytest.mark.parametrize(
    ("name", "read", "thresholds", "status", "words"),
    [
        ("host.processors", WHOLE, PLAIN, "PASS", "128"),
        ("host.processors", replace(WHOLE, cpus=126), PLAIN, "WARN", "2 of 128"),
        ("host.processors", WHOLE, asking(cpus_least=192), "FAIL", "192 should"),
        ("host.processors", replace(WHOLE, cpus=None), PLAIN, "SKIP", ""),
        ("host.memory_size", WHOLE, PLAIN, "PASS", "2 NUMA nodes"),
        ("host.memory_size", replace(WHOLE, numa=(500 * GIB, 468 * GIB)), PLAIN, "WARN", "500, 468"),
        ("host.memory_size", replace(WHOLE, numa=(500 * GIB, 490 * GIB)), PLAIN, "PASS", ""),
        ("host.memory_size", WHOLE, asking(memory_gib_least=1500), "FAIL", "1,500 should"),
        ("host.drives", WHOLE, PLAIN, "PASS", "1 NVMe"),
        ("host.drives", replace(WHOLE, drives={}), PLAIN, "SKIP", ""),
        ("host.drives", replace(WHOLE, drives={}), asking(nvme_least=2), "FAIL", "2 should"),
        ("host.drives", replace(WHOLE, drives={"nvme0": "dead"}), PLAIN, "FAIL", "nvme0 is dead"),
        ("host.fabric_version", WHOLE, PLAIN, "SKIP", "no NVSwitch"),
        (
            "host.fabric_version",
            replace(WHOLE, nvswitch=True, module="570.124.06", manager="570.124.06"),
            PLAIN,
            "PASS",
            "",
        ),
        (
            "host.fabric_version",
            replace(WHOLE, nvswitch=True, module="570.124.06", manager="570.86.15"),
            PLAIN,
            "FAIL",
            "570.86.15",
        ),
        ("host.fabric_version", replace(WHOLE, nvswitch=True), asking("B200"), "FAIL", "nvlsm"),
        ("host.fabric_version", replace(WHOLE, nvswitch=True), asking("H100"), "SKIP", ""),
    ],
)
def test_what_a_machine_consists_of(
    name: str, read: Shape, thresholds: Thresholds, status: str, words: str
) -> None:
    ((found, message),) = judged(shape_checks.PROBE, name, read, thresholds)
    assert found == status
    assert words in message


def test_a_machine_is_read_from_its_files(tmp_path: Path) -> None:
    def put(path: str, text: str) -> None:
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    put("sys/devices/system/cpu/online", "0-61,64-127\n")
    put("sys/devices/system/cpu/present", "0-127\n")
    put("sys/devices/system/node/node0/meminfo", "Node 0 MemTotal:       1024 kB\nNode 0 MemFree: 3 kB\n")
    put("sys/devices/system/node/node0/cpulist", "0-127\n")
    put("sys/devices/system/node/node1/meminfo", "Node 1 MemTotal:       9999 kB\n")
    put("sys/devices/system/node/node1/cpulist", "\n")
    put("sys/class/nvme/nvme0/state", "live\n")
    put("sys/class/nvme/nvme1/state", "dead\n")
    put("dev/nvidia-nvswitchctl", "")
    put("sys/module/nvidia/version", "570.124.06\n")
    program = tmp_path / "usr/bin/nv-fabricmanager"
    put("usr/bin/nv-fabricmanager", "#!/bin/sh\necho 'Fabric Manager version is : 570.86.15'\n")
    program.chmod(0o755)
    assert shape_checks.collect(Site(root=tmp_path)) == Shape(
        cpus=126,
        cpus_present=128,
        numa=(1024 * 1024,),
        drives={"nvme0": "live", "nvme1": "dead"},
        nvswitch=True,
        module="570.124.06",
        manager="570.86.15",
    )


def test_this_machine_consists_of_something() -> None:
    here = shape_checks.collect(Site())
    assert here.cpus
    assert here.memory > 0


BOARD = Gpu(index=2, uuid="GPU-2", sram_corrected=0, sram_uncorrected=0, link_mb_s=(26562,) * 18, power_w=80)


@pytest.mark.parametrize(
    ("name", "change", "generation", "status"),
    [
        ("gpu.sram", {}, "H100", "PASS"),
        ("gpu.sram", {"sram_corrected": None, "sram_uncorrected": None}, "H100", "SKIP"),
        ("gpu.sram", {"sram_uncorrected": 1}, "H100", "FAIL"),
        ("gpu.sram", {"sram_corrected": 10_000}, "H100", "PASS"),
        ("gpu.nvlink_speed", {}, "H100", "PASS"),
        ("gpu.nvlink_speed", {}, "B200", "FAIL"),
        ("gpu.nvlink_speed", {}, "", "SKIP"),
        ("gpu.nvlink_speed", {"link_mb_s": ()}, "H100", "SKIP"),
        ("gpu.nvlink_speed", {"mig": True, "link_mb_s": (0,)}, "H100", "SKIP"),
        ("gpu.idle_power", {}, "H100", "SKIP"),
        ("gpu.idle_power", {}, "B200", "PASS"),
        ("gpu.idle_power", {"power_w": 20.0}, "B300", "WARN"),
        ("gpu.idle_power", {"power_w": 1600.0}, "B300", "WARN"),
        ("gpu.idle_power", {"power_w": 1600.0, "pids": (7,)}, "B300", "SKIP"),
    ],
)
def test_rules_of_a_board(name: str, change: dict[str, Any], generation: str, status: str) -> None:
    check = next(check for check in CHECKS if check.name == name)
    read = (Gpus(gpus=(replace(BOARD, **change),)), 1)
    assert [one.status.value for one in check.judge(read, limits(packaged(), generation))] == [status]


NDR = Port(
    name="mlx5_0/1",
    state="ACTIVE",
    physical="LinkUp",
    rate="400 Gb/sec (4X NDR)",
    firmware="28.39",
    board="A",
)


@pytest.mark.parametrize(
    ("ports", "thresholds", "expected"),
    [
        ((), PLAIN, [("SKIP", "no RDMA")]),
        ((NDR, NDR), PLAIN, [("PASS", "2 ports at 400")]),
        ((NDR, replace(NDR, name="b", rate="200 Gb/sec (4X HDR)")), PLAIN, [("FAIL", "b runs at 200 Gb/s")]),
        ((NDR, replace(NDR, rate="100 Gb/sec (4X EDR)", board="storage")), PLAIN, [("PASS", "")]),
        ((NDR, replace(NDR, rate="unreadable")), PLAIN, [("PASS", "")]),
        ((NDR,), asking(rdma_gbit_s_least=800), [("FAIL", "not 800")]),
        ((NDR,), asking(rdma_ports_least=8), [("FAIL", "8 should")]),
        ((), asking(rdma_ports_least=8), [("FAIL", "8 should")]),
        ((NDR, replace(NDR, firmware="28.40")), PLAIN, [("WARN", "28.39, 28.40")]),
        ((NDR, replace(NDR, rate="1 Gb/sec", virtual=True)), PLAIN, [("PASS", "1 ports")]),
    ],
)
def test_speeds_of_ports(
    ports: tuple[Port, ...], thresholds: Thresholds, expected: list[tuple[str, str]]
) -> None:
    found = judged(rdma_checks.PROBE, "rdma.rate", ports, thresholds)
    assert [status for status, _ in found] == [status for status, _ in expected]
    for (_, message), (_, words) in zip(found, expected, strict=True):
        assert words in message


def test_lines_of_the_driver_that_no_rule_knows_are_listed_once_each() -> None:
    unknown = Unknown()
    for text in (
        "4,10,100,-;NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  570.124.06\n",
        "4,11,110,-;NVRM: Xid (PCI:0000:14:00): 79, GPU has fallen off the bus.\n",
        "4,12,120,-;NVRM: GPU0 frobnicator: credit underrun in lane 3\n SUBSYSTEM=pci\n",
        "4,13,130,-;NVRM: GPU0 frobnicator: credit underrun in lane 3\n",
        "12,14,140,-;NVRM: written by somebody else\n",
        "6,15,150,-;usb 1-1: new device\n",
    ):
        unknown.feed(text.encode())
    assert unknown.lines == ["NVRM: GPU0 frobnicator: credit underrun in lane 3"]
    assert unknown.count == 2
    read = KernelLog(findings=Findings(), unknown=tuple(unknown.lines), unknown_count=unknown.count)
    ((status, message),) = judged(kernel_checks.PROBE, "kernel.unknown", read)
    assert status == "WARN"
    assert "2 lines" in message
    assert judged(kernel_checks.PROBE, "kernel.unknown", KernelLog(findings=Findings()))[0][0] == "PASS"
    assert judged(kernel_checks.PROBE, "kernel.unknown", KernelLog(problem="no"))[0][0] == "SKIP"


def test_the_catalogue_has_every_check_that_a_node_should_pass() -> None:
    """Fifty are known of the field's own tools; each check says which of them it is."""
    numbers = {check.number for probe in PROBES for check in probe.checks}
    assert numbers == set(range(1, 51))
