"""The kernel's log is followed: only what is new, gaps told, floods cut; what a process writes there is no fault."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from airyard.checks.kernel_follow import KMSG, KernelFollower
from airyard.core.health.sightings import Sighting
from airyard.node.health_kernel import KernelSource, Places

XID = "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus."


def record(number: int, text: str, priority: int = 4) -> str:
    return f"{priority},{number},{number * 1000},-;{text}\n SUBSYSTEM=pci\n"


def add(log: Path, *records: str) -> None:
    with log.open("a") as file:
        file.write("".join(records))


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "kmsg"
    path.write_text(record(1, XID))
    return path


def looks(source: KernelSource) -> list[Sighting]:
    """Look twice: a fault is judged one look late."""
    return [*source.look(), *source.look()]


def test_what_was_there_before_is_not_told_and_what_comes_is(log: Path) -> None:
    places = Places()
    places.note("0000:3b:00", 3, "GPU-3")
    source = KernelSource(places, None, log)
    assert looks(source) == []
    add(log, record(2, "eth0: up"), record(3, XID))
    (one,) = looks(source)
    assert (one.rule, one.device, one.device_uuid, one.mark) == ("xid.79", 3, "GPU-3", "3")
    assert looks(source) == []


def test_an_agent_that_was_killed_goes_on_where_it_had_judged_all(log: Path) -> None:
    source = KernelSource(Places(), None, log)
    looks(source)
    add(log, record(2, "eth0: up"))
    looks(source)
    add(log, record(3, XID))
    source.look()  # it was read, and nobody was told
    source.look()
    after = source.position
    assert after == 2
    source.close()
    (again,) = looks(KernelSource(Places(), after, log))
    assert (again.rule, again.mark) == ("xid.79", "3")


def test_gaps_are_told(log: Path) -> None:
    follower = KernelFollower(log, after=1)
    add(log, record(2, "eth0: up"), record(12, XID))
    news = follower.read(100)
    assert (news.lines, news.lost, len(news.findings)) == (2, 9, 1)


def test_a_flood_is_cut_and_told_of(log: Path) -> None:
    follower = KernelFollower(log)
    add(log, *[record(number, XID) for number in range(2, 20_002)])
    first = follower.read(5_000)
    assert (first.lines, first.lost, len(first.findings)) == (5_000, 0, 5_000)
    add(log, record(20_002, XID))
    second = follower.read(5_000)
    assert (second.lines, second.lost) == (1, 15_000)


def test_what_others_than_the_kernel_wrote_is_counted_and_no_fault(log: Path) -> None:
    follower = KernelFollower(log)
    add(log, record(2, XID, priority=12), record(3, XID, priority=30))
    news = follower.read(100)
    assert (news.findings, news.foreign) == ((), 2)


def test_a_log_that_may_not_be_read_is_told_of_once(tmp_path: Path) -> None:
    source = KernelSource(Places(), None, tmp_path / "none")
    assert [one.rule for one in looks(source)] == ["monitor.kernel_unreadable"]
    assert looks(source) == []


def test_a_process_that_writes_to_the_real_log_causes_nothing() -> None:
    source = KernelSource(Places(), None, Path(KMSG))
    first = source.look()
    if first and first[0].rule == "monitor.kernel_unreadable":
        pytest.skip(first[0].message)
    try:
        with open(KMSG, "wb", buffering=0) as file:
            for level in (4, 0, 3):  # whatever it claims to be
                file.write(f"<{level}>{XID.replace('3b', 'fe')}\n".encode())
    except OSError as error:
        pytest.skip(f"{KMSG} cannot be written here: {error.strerror}")
    time.sleep(0.05)
    assert not any(one.pci == "0000:fe:00" for one in looks(source))
    source.close()
