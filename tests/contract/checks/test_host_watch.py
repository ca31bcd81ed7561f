"""The machine itself, watched: what is read here, and what follows from it over time."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from airyard.checks.contract import Site
from airyard.checks.host_checks import Space
from airyard.checks.host_watch import HostReading, HostWatch, MountAsker, read_host
from airyard.checks.port_watch import read_ports
from airyard.checks.thresholds import limits, packaged

GIB = 1 << 30
ROOM = Space(path="/data", octets=1000 * GIB, free=500 * GIB)
WELL = HostReading(memory=64 * GIB, available=32 * GIB, disk=ROOM, out_of_memory=3)


def looked(*readings: HostReading, every_s: int = 60, tells_kills: bool = True) -> list[tuple[str, str]]:
    watch = HostWatch(limits(packaged(), ""), tells_kills=tells_kills)
    return [
        (one.rule, one.severity.value)
        for turn, reading in enumerate(readings)
        for one in watch.look(reading, turn * every_s * 1000)
    ]


def but(**more: Any) -> HostReading:
    return replace(WELL, **more)


def test_a_machine_that_is_well_says_nothing() -> None:
    assert looked(*[WELL] * 5) == []


def test_a_disk_is_told_of_when_it_fills_and_gravely_when_it_cannot_be_written() -> None:
    full, broken = but(disk=replace(ROOM, free=GIB)), but(disk=replace(ROOM, problem="Read-only file system"))
    assert looked(full, full, WELL, full) == [("host.disk", "WARNING")] * 2
    assert looked(WELL, full, broken, broken) == [("host.disk", "WARNING"), ("host.disk", "HIGH")]


def test_little_memory_counts_when_it_lasts() -> None:
    little = but(available=GIB)
    assert looked(little, WELL, little, WELL) == []
    assert looked(little, little, little) == [("host.memory", "WARNING")]


def test_a_process_that_waits_in_the_kernel_for_minutes() -> None:
    waits = but(waiting={(7, 100): "python3"})
    assert looked(*[waits] * 5) == []
    assert looked(*[waits] * 9) == [("host.d_state", "WARNING")]
    other = [but(waiting={(7, start): "python3"}) for start in range(9)]  # another process each time
    assert looked(*other) == []


def test_kills_are_told_of_only_where_the_log_does_not() -> None:
    killed = but(out_of_memory=5)
    assert looked(WELL, killed, killed) == [("host.oom", "INFO")]
    assert looked(WELL, killed, tells_kills=False) == []
    assert looked(killed, WELL, but(out_of_memory=None)) == []


def test_a_file_server_that_is_silent_twice() -> None:
    silent = but(silent_mounts=("/data",))
    assert looked(silent, WELL, silent, WELL) == []
    assert looked(silent, silent, silent) == [("host.mounts", "WARNING")]


def test_this_machine_is_read(tmp_path: Path) -> None:
    found = read_host(Site(data_folder=tmp_path))
    assert 0 < found.available < found.memory
    assert found.disk is not None
    assert 0 < found.disk.free < found.disk.octets
    assert all(pid > 0 and started > 0 for pid, started in found.waiting)


def test_a_process_in_the_kernel_is_found_whatever_its_name(tmp_path: Path) -> None:
    for pid, name, state in ((5, "a) D (b", "D"), (6, "fine", "S"), (7, "", "D")):
        (tmp_path / "proc" / str(pid)).mkdir(parents=True)
        rest = " ".join(str(number) for number in range(4, 30))
        (tmp_path / "proc" / str(pid) / "stat").write_text(f"{pid} ({name}) {state} {rest}\n")
    assert read_host(Site(root=tmp_path, data_folder=tmp_path)).waiting == {(5, 22): "a) D (b", (7, 22): ""}


def test_mounts_that_answer_are_not_silent_and_those_that_fail_are(tmp_path: Path) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    good, gone = tmp_path / "good", tmp_path / "gone"
    good.mkdir()
    lines = f"server:/a {good} nfs4 rw 0 0\nserver:/b {gone} nfs rw 0 0\n/dev/sda {tmp_path} ext4 rw 0 0\n"
    (tmp_path / "proc/self/mounts").write_text(lines)
    asker, site = MountAsker(), Site(root=tmp_path)
    assert asker.silent(site) == []
    deadline = time.monotonic() + 30
    while any(_alive(pid) for pid in asker._asked.values()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert asker.silent(site) == [str(gone)]
    for pid in asker._asked.values():
        os.waitpid(pid, 0)


def _alive(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat").read_text()
    return stat.rpartition(")")[2].split()[0] != "Z"


def test_ports_are_read_without_virtual_functions(tmp_path: Path) -> None:
    for device, state in (("mlx5_0", "4: ACTIVE"), ("mlx5_1", "1: DOWN"), ("mlx5_2", "4: ACTIVE")):
        folder = tmp_path / "sys/class/infiniband" / device / "ports/1"
        (folder / "counters").mkdir(parents=True)
        (folder / "state").write_text(state + "\n")
        (folder / "phys_state").write_text("5: LinkUp\n")
        (folder / "hw_counters").mkdir()
        (folder / "counters" / "link_downed").write_text("7\n")
        (folder / "hw_counters" / "rnr_nak_retry_err").write_text("3\n")
    (tmp_path / "sys/class/infiniband/mlx5_2/device/physfn").mkdir(parents=True)
    found = read_ports(tmp_path, counters=True)
    assert [(one.name, one.up, dict(one.counters)) for one in found] == [
        ("mlx5_0/1", True, {"link_downed": 7, "rnr_nak_retry_err": 3}),
        ("mlx5_1/1", False, {"link_downed": 7, "rnr_nak_retry_err": 3}),
    ]
    assert [dict(one.counters) for one in read_ports(tmp_path, counters=False)] == [{}, {}]
