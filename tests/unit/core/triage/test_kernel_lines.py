"""Lines of the kernel's log in all their forms."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as some

from airyard.core.triage.kernel_lines import KernelEvent, KernelKind, OffBus, kernel_event, parse_line

XID = "NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, name=python3, GPU has fallen off the bus."


def event_of(text: str) -> KernelEvent | None:
    line = parse_line(text)
    return kernel_event(line) if line is not None else None


@pytest.mark.parametrize(
    ("text", "uptime_ms", "at_ms"),
    [
        (f"[  123.456789] {XID}", 123_456, None),
        (f"[Tue Mar  4 10:00:00 2025] {XID}", None, 1_741_082_400_000),
        (f"kern  :err   : [  123.456789] {XID}", 123_456, None),
        (f"Mar  4 10:00:00 n3 kernel: {XID}", None, 5_392_800_000),
        (f"2025-03-04T11:00:00.250+01:00 n3 kernel: {XID}", None, 1_741_082_400_250),
        (f"Mar  4 10:00:00 n3 kernel: [  123.456789] {XID}", 123_456, 5_392_800_000),
        (f"2025-03-04T11:00:00,250000+01:00 {XID}", None, 1_741_082_400_250),
        (f"kern  :err   : 2025-03-04T11:00:00,250000+01:00 {XID}", None, 1_741_082_400_250),
        (f"3,901,123456789,-;{XID}", 123_456, None),
        (XID, None, None),
        (f"[  123.456789][ T1234] {XID}", 123_456, None),
        (f"[  123.456789] [    C3] {XID}", 123_456, None),
        (f"Mar  4 10:00:00 n3 kernel: [  123.456789][ T77] {XID}", 123_456, 5_392_800_000),
        (f"Mar  4 10:00:00 n3 kernel: [T77] {XID}", None, 5_392_800_000),
        (f"<3>[  123.456789] {XID}", 123_456, None),
        (f"<3>Mar  4 10:00:00 n3 kernel: {XID}", None, 5_392_800_000),
        (f"<3>1 2025-03-04T10:00:00Z n3 kernel - - - {XID}", None, 1_741_082_400_000),
        (f"Tue 2025-03-04 10:00:00 UTC n3 kernel: {XID}", None, 1_741_082_400_000),
        (f"1741082400.250000 n3 kernel: {XID}", None, 1_741_082_400_250),
        (f"[  123.456789] n3 kernel: {XID}", 123_456, None),
        (f"[Mar  4 10:00] {XID}", None, None),
        (f"[  +0.000006] {XID}", None, None),
        (f"[  123.456789 <    0.000001>] {XID}", 123_456, None),
    ],
)
def test_the_forms_of_a_heading(text: str, uptime_ms: int | None, at_ms: int | None) -> None:
    event = event_of(text)
    assert event is not None
    assert (event.rule, event.pci, event.pid, event.name) == ("xid.79", "0000:3b:00", 1234, "python3")
    assert (event.uptime_ms, event.at_ms) == (uptime_ms, at_ms)


@pytest.mark.parametrize(
    ("text", "code", "pid"),
    [
        ("NVRM: Xid (PCI:0000:ca:00): 31, Ch 00000010, intr 10000000.", 31, None),
        ("NVRM: Xid (0000:ca:00): 48, An uncorrectable double bit error (DBE) has been detected", 48, None),
        ("NVRM: Xid (PCI:0000:ca:00.0): 119 pid=77, name=nvidia-smi, Timeout", 119, 77),
        ("NVRM: Xid (PCI:0000:ca:00): 45, pid='<unknown>', name=<unknown>, Ch 00000008", 45, None),
        ("NVRM: Xid (PCI:0000:ca:00): 45, pid='771', Ch 00000008, caused by previous Xid 48", 45, 771),
    ],
)
def test_the_forms_of_an_xid(text: str, code: int, pid: int | None) -> None:
    event = event_of(text)
    assert event is not None
    assert (event.kind, event.code, event.pid, event.pci) == (KernelKind.XID, code, pid, "0000:ca:00")


def test_a_device_after_a_stamp_is_no_host() -> None:
    stamp = "2025-03-04T11:00:00,250000+01:00"  # dmesg --time-format iso
    event = event_of(f"{stamp} pcieport 0000:00:03.0: AER: Uncorrected (Fatal) error received: 0000:00:03.0")
    assert event is not None
    assert event.kind is KernelKind.AER_FATAL


def test_an_nvlink_event_says_its_unit_and_words() -> None:
    event = event_of(
        "NVRM: Xid (PCI:0018:01:00): 145, RLW_RXPIPE Nonfatal XC0 i0 Link 08 (0x0409a0c2 0x00000008 0x0 0x0 0x0)"
    )
    assert event is not None
    assert (event.unit, event.fatal, event.words[:2]) == ("RLW_RXPIPE", False, (0x0409A0C2, 8))


def test_a_banner_is_no_event() -> None:
    assert (
        event_of("[ 12.5] NVRM: _kgspLogXid119: ********************************* GSP Timeout *****") is None
    )


@pytest.mark.parametrize(
    "text",
    [
        f"12,901,88000000,-;{XID}",
        f"14,902,88000000,-;{XID}",
        f"user  :notice: [  123.456789] {XID}",
        f"Mar  4 10:00:00 n3 logger[4110]: {XID}",
        f"Mar  4 10:00:00 n3 python3: {XID}",
    ],
)
def test_what_somebody_else_wrote_is_no_event(text: str) -> None:
    assert event_of(text) is None


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (
            "pcieport 0000:00:01.0: AER: Uncorrected (Fatal) error received: 0000:01:00.0",
            KernelKind.AER_FATAL,
        ),
        ("pcieport 0000:00:01.0: AER: Corrected error received: 0000:01:00.0", KernelKind.AER_CORRECTED),
        ("Out of memory: Killed process 991 (python3) total-vm:1kB", KernelKind.OOM_KILL),
        ("Memory cgroup out of memory: Killed process 991 (python3) total-vm:1kB", KernelKind.OOM_KILL),
        ("watchdog: BUG: soft lockup - CPU#11 stuck for 22s! [python3:4110]", KernelKind.LOCKUP),
        ("Kernel panic - not syncing: Fatal exception", KernelKind.PANIC),
        ("EDAC MC0: 1 UE memory read error on CPU_SrcID#0", KernelKind.MEMORY_UNCORRECTED),
        (
            "mlx5_core 0000:5e:00.0: mlx5_health: device's health compromised - reached miss count",
            KernelKind.NIC,
        ),
        ("mlx5_core 0000:5e:00.0: Detected insufficient power on the PCIe slot (27W).", KernelKind.NIC_HINT),
        ("INFO: task python3:4110 blocked for more than 120 seconds.", KernelKind.HUNG_TASK),
        ("nfs: server store-1 not responding, still trying", KernelKind.FILE_SYSTEM),
        ("blk_update_request: I/O error, dev nvme0n1, sector 21", KernelKind.DISK),
        ("python3[4110]: segfault at 0 ip 00007f error 4 in libcuda.so", KernelKind.SEGFAULT),
        ("NVRM: API mismatch: the client has the version 535.183.01, but", KernelKind.DRIVER_MISMATCH),
        ("NVRM: GPU 0000:09:00.0: RmInitAdapter failed! (0x22:0x56:894)", KernelKind.DRIVER_INIT),
    ],
)
def test_faults_other_than_xids(text: str, kind: KernelKind) -> None:
    event = event_of(f"[ 5.0] {text}")
    assert event is not None
    assert event.kind is kind


def test_a_gpu_that_left_the_bus_is_named_some_lines_before() -> None:
    lines = (
        "[   25.101877] NVRM: The NVIDIA GPU 0000:5d:00.0",
        "NVRM: (PCI ID: 10de:2330) installed in this system has",
        "NVRM: fallen off the bus and is not responding to commands.",
    )
    joined = OffBus()
    events = []
    for text in lines:
        line = parse_line(text)
        assert line is not None
        events.append(joined.address(line, kernel_event(line)))
    last = events[-1]
    assert events[:2] == [None, None]
    assert last is not None
    assert (last.kind, last.pci) == (KernelKind.OFF_BUS, "0000:5d:00")


@given(some.text(max_size=300))
def test_no_text_is_too_odd(text: str) -> None:
    event_of(text)
    event_of(f"NVRM: Xid (PCI:0000:3b:00): {text}")


@pytest.mark.parametrize(
    "heading",
    [
        "<12>[  123.456789] ",
        "<12>Mar  4 10:00:00 n3 kernel: ",
        "Tue 2025-03-04 10:00:00 UTC n3 python[7]: ",
        "1741082400.250000 n3 python[7]: ",
        "[  123.456789] n3 python[7]: ",
        "2025-03-04T10:00:00Z n3 python - - - ",
    ],
)
def test_what_others_wrote_is_not_the_kernels_in_any_form(heading: str) -> None:
    assert event_of(f"{heading}{XID}") is None


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("watchdog: CPU3: Watchdog detected hard LOCKUP on cpu 3", KernelKind.LOCKUP),
        ("rcu: INFO: rcu_sched self-detected stall on CPU", KernelKind.LOCKUP),
        ("EDAC MC0: UE row 0, channel-a= 0 labels", KernelKind.MEMORY_UNCORRECTED),
        ("mce: Uncorrected hardware memory error in user-access at 7d3a5", KernelKind.MEMORY_UNCORRECTED),
        (
            "Memory failure: 0x7d3a5: Sending SIGBUS to python:1234 due to hardware memory corruption",
            KernelKind.MEMORY_UNCORRECTED,
        ),
    ],
)
def test_further_words_of_the_kernel(text: str, kind: KernelKind) -> None:
    event = event_of(f"3,901,123456789,-,caller=T7;{text}")
    assert event is not None
    assert event.kind is kind
