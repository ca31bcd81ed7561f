"""Bundles of evidence: taken by a real child at the first grave fault, bounded in number and time."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from airyard.core.health.facts import Component, HealthEvent, Remedy, Severity, Source
from airyard.node import health_evidence
from airyard.node.health_evidence import MOST_KEPT, EvidenceKeeper, is_grave


def event(**more: object) -> HealthEvent:
    given: dict[str, object] = {
        "event_id": "1",
        "rule": "xid.79",
        "machine": "m",
        "at_ms": 1_764_700_000_000,
        "component": Component.GPU,
        "severity": Severity.CRITICAL,
        "source": Source.KERNEL,
        "message": "lost",
        "evidence": ("NVRM: Xid (PCI:0000:14:00): 79",),
        **more,
    }
    return HealthEvent(**given)  # type: ignore[arg-type]  # a test's own fields


def wait_for(done: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not done():
        assert time.monotonic() < until
        time.sleep(0.02)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A machine with a process that waits in the kernel, a port, and a device with PCIe errors."""
    root = tmp_path / "root"

    def put(path: str, text: str) -> None:
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    put("dev/kmsg", "4,11,110,-;NVRM: Xid (PCI:0000:14:00): 79, GPU has fallen off the bus.\n")
    put("proc/meminfo", "MemTotal: 1024 kB\n")
    put("proc/41/stat", "41 (python3 (x)) D 1 41 41 0\n")
    put("proc/41/cmdline", "python3\0train.py\0")
    put("proc/41/wchan", "rpc_wait_bit_killable")
    put("proc/41/stack", "[<0>] nv_wait+0x1/0x2\n")
    put("proc/7/stat", "7 (bash) S 1 7 7 0\n")
    put("sys/class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE\n")
    put("sys/class/infiniband/mlx5_0/ports/1/counters/link_downed", "3\n")
    put("sys/bus/pci/devices/0000:14:00.0/vendor", "0x10de\n")
    put("sys/bus/pci/devices/0000:14:00.0/aer_dev_fatal", "DLP 0\nTOTAL_ERR_FATAL 2\n")
    return root


def bundles(folder: Path) -> list[Path]:
    return sorted((folder / "evidence").glob("*"))


def test_the_first_grave_fault_takes_a_bundle_and_says_where_it_is(tmp_path: Path, root: Path) -> None:
    keeper = EvidenceKeeper(tmp_path, root=root)
    mild = event(rule="gpu.throttled", severity=Severity.WARNING)
    noted = keeper.note([mild, event(), event(rule="xid.48")])
    (bundle,) = bundles(tmp_path)
    assert [one.rule for one in noted] == ["gpu.throttled", "xid.79", "xid.48"]
    assert noted[1].evidence[1:] == (f"kept on the machine: node/health/evidence/{bundle.name}",)
    assert (noted[0], noted[2]) == (mild, event(rule="xid.48"))
    assert bundle.name == "2025-12-02T18-26-40Z-xid.79"
    wait_for(lambda: (bundle / "gpus.json").exists() and bool((bundle / "gpus.json").read_text()))
    assert json.loads((bundle / "event.json").read_text())["rule"] == "xid.79"
    assert "fallen off the bus" in (bundle / "kernel.log").read_text()
    assert "MemTotal: 1024 kB" in (bundle / "machine.txt").read_text()
    processes = (bundle / "processes.txt").read_text()
    assert "== 41 python3 train.py" in processes
    assert "waits in rpc_wait_bit_killable" in processes
    assert "nv_wait" in processes
    assert "1 other processes" in processes
    assert "link_downed 3" in (bundle / "rdma.txt").read_text()
    assert "TOTAL_ERR_FATAL 2" in (bundle / "pcie.txt").read_text()
    # What follows within ten minutes is most often its effect.
    assert keeper.note([event(rule="xid.48")]) == [event(rule="xid.48")]
    assert bundles(tmp_path) == [bundle]


def test_what_is_grave() -> None:
    assert is_grave(event())
    assert is_grave(event(severity=Severity.HIGH, remedy=Remedy.REBOOT))
    assert not is_grave(event(severity=Severity.HIGH))
    assert not is_grave(event(severity=Severity.WARNING, remedy=Remedy.REBOOT))
    assert not is_grave(event(node="sim-0"))


def test_a_part_that_hangs_costs_itself_and_leaves_no_process(tmp_path: Path, root: Path) -> None:
    (root / "dev/kmsg").unlink()
    os.mkfifo(root / "proc/meminfo.fifo")
    (root / "proc/meminfo").unlink()
    (root / "proc/meminfo.fifo").rename(root / "proc/meminfo")  # reading it never ends
    keeper = EvidenceKeeper(tmp_path, root=root, deadline_s=2.0)
    keeper.note([event()])
    (bundle,) = bundles(tmp_path)
    child = keeper._child
    assert child is not None
    wait_for(
        lambda: (bundle / "missing.txt").exists() and "within 2 s" in (bundle / "missing.txt").read_text()
    )
    assert child.poll() is not None
    assert "kernel.log" in (bundle / "missing.txt").read_text()
    assert not (bundle / "gpus.json").exists()


def test_old_bundles_make_room(tmp_path: Path, root: Path) -> None:
    for number in range(MOST_KEPT + 5):
        (tmp_path / "evidence" / f"2020-01-01T00-00-{number:02}Z-xid.79").mkdir(parents=True)
    EvidenceKeeper(tmp_path, root=root).note([event()])
    wait_for(lambda: len(bundles(tmp_path)) == MOST_KEPT)
    assert bundles(tmp_path)[-1].name.startswith("2025")


def test_a_disk_that_cannot_be_written_costs_the_bundle_and_no_event(
    tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "evidence").write_text("a file stands in the way")
    keeper = EvidenceKeeper(tmp_path, root=root)
    assert keeper.note([event()]) == [event()]
    (tmp_path / "evidence").unlink()
    monkeypatch.setattr(health_evidence.sys, "executable", str(tmp_path / "none"))
    assert keeper.note([event()]) == [event()]


def test_an_agent_that_ends_leaves_no_child(tmp_path: Path, root: Path) -> None:
    (root / "proc/meminfo").unlink()
    os.mkfifo(root / "proc/meminfo")
    keeper = EvidenceKeeper(tmp_path, root=root)
    keeper.note([event()])
    child = keeper._child
    assert child is not None
    keeper.close()
    assert child.poll() is not None
