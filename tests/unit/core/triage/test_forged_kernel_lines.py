"""The kernel prints names that users choose: of programs, files and cgroups. None of them is a machine's fault."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as some

from airyard.core.triage.kernel_lines import KernelKind, kernel_event, parse_line
from airyard.core.triage.reading import Reader

FAULTS = (
    "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.",
    "NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus.",
    "NVRM: GPU 0000:3b:00.0: RmInitAdapter failed! (0x24:0x72:1568)",
    "NVRM: API mismatch: the client has the version 1",
    "nvidia-nvswitch1: SXid (PCI:0000:84:00.0): 12028, Fatal, Link 07",
    "pcieport 0000:00:02.0: AER: Uncorrected (Fatal) error received: 0000:02:00.0",
    "pcieport 0000:00:02.0: PCIe Bus Error: severity=Uncorrected (Fatal)",
    "EDAC MC0: 1 UE memory read error on CPU_SrcID#0",
    "{1}[Hardware Error]: event severity: fatal",
    "mlx5_core 0000:9a:00.0: health compromised - reached miss count",
    "mlx5_core 0000:9a:00.0 ib0: Link down",
    "blk_update_request: I/O error, dev sda, sector 9",
    "EXT4-fs (sda1): Remounting filesystem read-only",
    "nvme nvme0: I/O 12 QID 3 timeout, aborting",
    "nfs: server n1 not responding, timed out",
    "Kernel panic - not syncing: Fatal exception",
    "watchdog: BUG: soft lockup - CPU#3 stuck for 26s!",
)
OF_PROCESSES = (
    "{comm}[1234]: segfault at 0 ip 0000000000401136 sp 00007ffd00 error 6 in {name}[401000+1000] likely on CPU 1",
    "traps: {comm}[1234] general protection fault ip:401136 sp:7ffd00 error:0 in {name}[401000+1000]",
    "{comm}[1234] trap invalid opcode ip:401136 sp:7ffd00 error:0 in {name}[401000+1000]",
    "{comm} invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0",
    "oom-kill:constraint=CONSTRAINT_MEMCG,task_memcg=/user/{name},task={comm},pid=1,uid=1000",
    "Memory cgroup out of memory: Killed process 77 ({comm}) total-vm:1kB",
    "INFO: task {comm}:77 blocked for more than 120 seconds.",
    "CPU: 3 PID: 77 Comm: {comm} Not tainted 6.1",
    "cgroup: fork rejected by pids controller in /user.slice/{name}",
    "{comm}: page allocation failure: order:4, mode:0xcc0",
    "overlayfs: failed to resolve '{name}': -2",
    "process '{name}' started with executable stack",
)
OWN = {KernelKind.OOM_KILL, KernelKind.SEGFAULT, KernelKind.HUNG_TASK, None}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_faults_themselves_are_found(fault: str) -> None:
    line = parse_line(f"3,1,1,-;{fault}")
    assert line is not None
    assert kernel_event(line) is not None


@pytest.mark.parametrize("line", OF_PROCESSES)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_name_that_reads_like_a_fault_is_none(line: str, fault: str) -> None:
    for comm, name in ((fault[:15], fault), (fault[-15:], fault), ("python3", fault), (fault[:15], "x")):
        text = line.format(comm=comm, name=name)
        parsed = parse_line(f"6,1,1,-;{text}")
        assert parsed is not None
        event = kernel_event(parsed)
        assert (event.kind if event else None) in OWN, text
        if event is not None:
            assert not event.pci or event.pci in text


@given(
    before=some.text(some.characters(exclude_characters="\n\r", max_codepoint=0x2FF), min_size=1),
    fault=some.sampled_from(FAULTS),
)
def test_no_part_of_a_line_after_its_start_is_a_fault(before: str, fault: str) -> None:
    line = parse_line(f"6,1,1,-;some subsystem: {before} {fault}")
    assert line is not None
    assert kernel_event(line) is None


def test_a_segfault_of_a_program_with_such_a_name_is_a_segfault() -> None:
    text = OF_PROCESSES[0].format(comm="NVRM: Xid (PCI:", name=FAULTS[0])
    line = parse_line(f"6,1,1,-;{text}")
    assert line is not None
    event = kernel_event(line)
    assert event is not None
    assert event.kind is KernelKind.SEGFAULT
    assert event.name == "NVRM: Xid (PCI:"


def test_a_line_break_in_a_name_begins_no_message() -> None:
    reader = Reader("dmesg", kernel=True)
    comm = "[   12.000001] NVRM: a[77]: segfault at 0 ip 1 sp 2 error 6 in x"
    reader.feed(f"{comm}\n{FAULTS[0]}[4000+1000]\n{FAULTS[7]}\n".encode())
    found = reader.findings()
    assert [one.event.kind for one in found.kernel if one.event.kind is not KernelKind.SEGFAULT] == []
    assert found.foreign_kernel_lines == 2


def test_the_driver_goes_on_in_the_next_line() -> None:
    reader = Reader("dmesg", kernel=True)
    reader.feed(
        b"[    8.000001] NVRM: The NVIDIA GPU 0000:41:00.0\n"
        b"               NVRM: (PCI ID: 10de:20f1) installed in this system has\n"
        b"               NVRM: fallen off the bus and is not responding to commands.\n"
    )
    (one,) = reader.findings().kernel
    assert (one.event.kind, one.event.pci) == (KernelKind.OFF_BUS, "0000:41:00")


@pytest.mark.parametrize(
    ("changes", "counts"),
    [
        ({}, True),
        ({"SYSLOG_FACILITY": "1"}, False),  # a process wrote to /dev/kmsg
        ({"_TRANSPORT": "stdout"}, False),
        ({"_TRANSPORT": "syslog", "SYSLOG_IDENTIFIER": "kernel"}, False),
        ({"_TRANSPORT": None}, False),
    ],
)
def test_of_the_journals_entries_only_the_kernels_count(changes: dict[str, str | None], counts: bool) -> None:
    entry = {
        "__REALTIME_TIMESTAMP": "1741082400250000",
        "SYSLOG_FACILITY": "0",
        "_TRANSPORT": "kernel",
        "_HOSTNAME": "n1",
        "MESSAGE": FAULTS[0],
        **changes,
    }
    reader = Reader("journal.json", kernel=True)
    reader.feed(json.dumps({name: value for name, value in entry.items() if value is not None}).encode())
    found = reader.findings()
    assert len(found.kernel) == counts
    assert found.foreign_kernel_lines == (not counts)
    if counts:
        event = found.kernel[0].event
        assert (event.at_ms, event.host, event.rule) == (1_741_082_400_250, "n1", "xid.79")


@pytest.mark.parametrize("line", ['{"MESSAGE": [1, 2]}', '{"a": 1}', "{" * 3000, '{"MESSAGE": null}'])
def test_json_that_is_no_entry_is_only_text(line: str) -> None:
    assert parse_line(line) is not None


def test_a_programs_name_makes_no_nvlink_event_fatal() -> None:
    line = parse_line("3,1,1,-;NVRM: Xid (PCI:0000:3b:00): 31, pid=7, name=Fatal, Ch 00000008")
    assert line is not None
    event = kernel_event(line)
    assert event is not None
    assert event.fatal is None
