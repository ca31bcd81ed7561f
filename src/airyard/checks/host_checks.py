"""The rules over the machine itself: memory, disk, shared memory, limits, processors, names, mounts.

Owns: reading /proc, /sys and the file systems, and what is right there. Must not know: GPUs.
"""

from __future__ import annotations

import os
import resource
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from airyard.checks.contract import Check, Probe, Site, Thresholds, failed, passed, skipped, text_of, warned
from airyard.core.health.facts import CheckResult, Component, Remedy

_MIB = 1 << 20
_GIB = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """A file system. ``sync_ms``: how long a small file took to be written and synced; None when it was not tried."""

    path: str
    octets: int
    free: int
    sync_ms: float | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """What was read of the machine."""

    memory: int = 0
    swap: int = 0
    disk: Space | None = None
    shm: Space | None = None
    gpus: int = 0
    memlock: int = 0
    nofile: int = 0
    nproc: int = 0
    governors: tuple[str, ...] = ()
    huge_pages: str = ""
    fabric_manager: bool = False
    nvswitch: bool = False
    peer_memory: bool = False
    rdma: bool = False


def collect(site: Site) -> Host:
    """Read the machine. Writes and removes one file of 4 KiB in the data folder."""
    memory = meminfo(site)
    return Host(
        memory=memory.get("MemTotal", 0),
        swap=memory.get("SwapTotal", 0),
        disk=_space(site.data_folder, write=True),
        shm=_space(site.path("/dev/shm"), write=False),
        gpus=site.gpus or len(list(site.path("/proc/driver/nvidia/gpus").glob("*"))),
        memlock=resource.getrlimit(resource.RLIMIT_MEMLOCK)[0],
        nofile=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        nproc=resource.getrlimit(resource.RLIMIT_NPROC)[0],
        governors=tuple(
            sorted(
                {
                    text_of(path)
                    for path in site.path("/sys/devices/system/cpu").glob("cpu*/cpufreq/scaling_governor")
                }
            )
        ),
        huge_pages=text_of(site.path("/sys/kernel/mm/transparent_hugepage/enabled")),
        fabric_manager=runs(site, "nv-fabricmanager"),
        nvswitch=site.path("/dev/nvidia-nvswitchctl").exists(),
        peer_memory=site.path("/sys/module/nvidia_peermem").exists(),
        rdma=any(site.path("/sys/class/infiniband").glob("*")),
    )


def meminfo(site: Site) -> dict[str, int]:
    """Return the sizes in /proc/meminfo, in bytes."""
    found = {}
    for line in text_of(site.path("/proc/meminfo")).splitlines():
        name, _, rest = line.partition(":")
        if rest.strip().endswith("kB"):
            found[name] = int(rest.split()[0]) * 1024
    return found


def _space(path: Path, *, write: bool) -> Space | None:
    try:
        found = os.statvfs(path)
    except OSError as error:
        return Space(path=str(path), octets=0, free=0, problem=str(error.strerror)) if write else None
    octets, free = found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize
    if not write:
        return Space(path=str(path), octets=octets, free=free)
    probe = path / f".airyard-health-{os.getpid()}"
    began = time.monotonic()
    try:
        with open(probe, "xb", buffering=0) as file:
            probe.unlink()  # at once: whoever is ended in between leaves nothing behind
            file.write(b"\0" * 4096)
            os.fsync(file.fileno())
    except OSError as error:
        return Space(path=str(path), octets=octets, free=free, problem=str(error.strerror))
    return Space(path=str(path), octets=octets, free=free, sync_ms=(time.monotonic() - began) * 1000)


def runs(site: Site, name: str) -> bool:
    """Return whether a process of that name runs; the kernel keeps 15 letters of names."""
    return any(text_of(path) == name[:15] for path in site.path("/proc").glob("[0-9]*/comm"))


def _swap(host: Host, limits: Thresholds) -> Iterator[CheckResult]:
    if host.swap:
        yield warned(
            "host.swap",
            f"{host.swap / _GIB:.1f} GiB of swap are on: a run that takes too much memory slows the machine first",
            "`swapoff -a`, unless it is meant so",
            value=host.swap / _GIB,
            threshold=0,
            unit="GiB",
        )
    else:
        yield passed("host.swap", f"{host.memory / _GIB:.0f} GiB of memory, no swap")


def judge_disk(host: Host, limits: Thresholds) -> Iterator[CheckResult]:
    """Judge the room and speed of the data folder's disk."""
    space = host.disk
    if space is None:
        yield skipped("host.disk", "no data folder was named")
        return
    if space.problem:
        yield failed(
            "host.disk",
            f"{space.path} cannot be written: {space.problem}",
            "mend the file system, or name another data folder",
            Component.DISK,
        )
        return
    share, free_gib = space.free / max(space.octets, 1), space.free / _GIB
    text = f"{space.path} has {free_gib:.0f} GiB free, {share:.0%}"
    if space.sync_ms is not None and space.sync_ms > limits["disk_sync_ms_fail"]:
        yield failed(
            "host.disk",
            f"{space.path} took {space.sync_ms:.0f} ms to sync 4 KiB",
            "look at the disk's health and at what writes to it",
            Component.DISK,
            value=space.sync_ms,
            threshold=limits["disk_sync_ms_fail"],
            unit="ms",
        )
    elif share < limits["disk_free_share_fail"]:
        yield failed(
            "host.disk",
            text,
            "`airyard admin gc`, or make room",
            Component.DISK,
            value=share * 100,
            threshold=limits["disk_free_share_fail"] * 100,
            unit="%",
        )
    elif share < limits["disk_free_share_warn"] or free_gib < limits["disk_free_gib_warn"]:
        yield warned("host.disk", text, "`airyard admin gc`, or make room", value=free_gib, unit="GiB")
    else:
        yield passed("host.disk", f"{text}; synced in {space.sync_ms or 0:.0f} ms")


def _shm(host: Host, limits: Thresholds) -> Iterator[CheckResult]:
    space = host.shm
    if space is None:
        yield failed("host.shm", "/dev/shm is not there", "mount a tmpfs at /dev/shm", Component.HOST)
        return
    octets_mib, wanted = space.octets / _MIB, limits["shm_mib_per_gpu"] * max(host.gpus, 1)
    if octets_mib < limits["shm_mib_least"]:
        yield failed(
            "host.shm",
            f"/dev/shm has {octets_mib:.0f} MiB: NCCL and data loaders fail with so little",
            "give it more (`--shm-size` of a container, a memory-backed volume, `mount -o remount,size=...`)",
            Component.HOST,
            value=octets_mib,
            threshold=limits["shm_mib_least"],
            unit="MiB",
        )
    elif octets_mib < wanted:
        yield warned(
            "host.shm",
            f"/dev/shm has {octets_mib:.0f} MiB for {max(host.gpus, 1)} GPUs",
            "give it more",
            value=octets_mib,
            threshold=wanted,
            unit="MiB",
        )
    elif space.free < limits["shm_free_share_warn"] * space.octets:
        yield warned(
            "host.shm",
            f"/dev/shm is {1 - space.free / space.octets:.0%} full",
            "remove what processes that are gone left there",
        )
    else:
        yield passed("host.shm", f"/dev/shm has {octets_mib:.0f} MiB")


def _limits(host: Host, limits: Thresholds) -> Iterator[CheckResult]:
    name, fine = "host.limits", True
    unlimited = resource.RLIM_INFINITY
    if host.rdma and host.memlock != unlimited:
        fine = False
        yield failed(
            name,
            f"only {host.memlock / _MIB:.0f} MiB may be locked, and RDMA locks what it sends",
            "set memlock to unlimited (`LimitMEMLOCK=infinity` in the unit)",
            Component.HOST,
        )
    for what, value, least in (
        ("open files", host.nofile, limits["nofile_warn"]),
        ("processes", host.nproc, limits["nproc_warn"]),
    ):
        if value != unlimited and value < least:
            fine = False
            yield warned(
                name,
                f"at most {value:,} {what} are allowed",
                f"allow {least:,.0f} (ulimit, or the unit's Limit...)",
                value=value,
                threshold=least,
            )
    if fine:
        yield passed(name, "open files, processes and locked memory suffice")


def _governor(host: Host, limits: Thresholds) -> Iterator[CheckResult]:
    slow = [governor for governor in host.governors if governor not in ("performance", "schedutil")]
    if not host.governors:
        yield skipped("host.governor", "this machine does not tell how its processors are clocked")
    elif slow:
        yield warned(
            "host.governor",
            f"processors are clocked by {', '.join(slow)}",
            "`cpupower frequency-set -g performance`",
        )
    else:
        yield passed("host.governor", ", ".join(host.governors))


def _huge_pages(host: Host, limits: Thresholds) -> Iterator[CheckResult]:
    if host.huge_pages:
        yield passed("host.huge_pages", f"transparent huge pages: {host.huge_pages}")
    else:
        yield skipped("host.huge_pages", "this machine does not tell")


def _fabric_manager(host: Host, limits: Thresholds) -> Iterator[CheckResult]:
    if not host.nvswitch:
        yield skipped("host.fabric_manager", "no NVSwitch here: nothing to manage")
    elif host.fabric_manager:
        yield passed("host.fabric_manager", "nv-fabricmanager runs")
    else:
        yield failed(
            "host.fabric_manager",
            "this machine has NVSwitches, and nv-fabricmanager does not run",
            "`systemctl start nvidia-fabricmanager`, in the driver's version",
            Component.DRIVER,
            Remedy.REBOOT,
        )


def _peer_memory(host: Host, limits: Thresholds) -> Iterator[CheckResult]:
    if not host.rdma:
        yield skipped("host.peer_memory", "no RDMA adapter here")
    elif host.peer_memory:
        yield passed("host.peer_memory", "nvidia_peermem is loaded")
    else:
        yield warned(
            "host.peer_memory",
            "nvidia_peermem is not loaded: RDMA reaches GPUs only through DMA-BUF",
            "`modprobe nvidia_peermem`, unless the kernel and NCCL use DMA-BUF",
        )


HOST = Probe(
    name="host",
    collect=collect,
    deadline_s=10.0,
    checks=(
        Check(
            name="host.fabric_manager",
            number=20,
            title="fabric manager",
            passes="runs, on machines with NVSwitch",
            judge=_fabric_manager,
            component=Component.DRIVER,
        ),
        Check(
            name="host.peer_memory",
            number=22,
            title="RDMA to GPUs",
            passes="nvidia_peermem is there, on machines with RDMA (else a warning)",
            judge=_peer_memory,
            component=Component.NETWORK,
        ),
        Check(
            name="host.swap",
            number=26,
            title="memory and swap",
            passes="no swap (else a warning)",
            judge=_swap,
        ),
        Check(
            name="host.disk",
            number=27,
            title="disk of the data folder",
            passes="room, and 4 KiB synced within disk_sync_ms_fail",
            judge=judge_disk,
            component=Component.DISK,
        ),
        Check(
            name="host.shm",
            number=28,
            title="shared memory",
            passes="shm_mib_least at least; shm_mib_per_gpu each (else a warning)",
            judge=_shm,
        ),
        Check(
            name="host.limits",
            number=29,
            title="limits of processes",
            passes="locked memory unlimited with RDMA; open files and processes (else a warning)",
            judge=_limits,
        ),
        Check(
            name="host.huge_pages", number=30, title="huge pages", passes="reported only", judge=_huge_pages
        ),
        Check(
            name="host.governor",
            number=31,
            title="clocks of processors",
            passes="performance or schedutil (else a warning)",
            judge=_governor,
        ),
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """How long each name took to be resolved; None when it was not."""

    names: dict[str, float | None] = field(default_factory=dict)


def resolve(site: Site) -> Resolved:
    """Resolve this machine's own name and those that the site names."""
    found: dict[str, float | None] = {}
    for name in dict.fromkeys((socket.gethostname(), *site.hosts)):
        began = time.monotonic()
        try:
            socket.getaddrinfo(name, None)
        except OSError:
            found[name] = None
        else:
            found[name] = (time.monotonic() - began) * 1000
    return Resolved(names=found)


def _names(read: Resolved, limits: Thresholds) -> Iterator[CheckResult]:
    slow = limits["resolve_ms_fail"]
    bad = {name: took for name, took in read.names.items() if took is None or took > slow}
    for name, took in bad.items():
        what = "cannot be resolved" if took is None else f"took {took:.0f} ms to be resolved"
        yield failed(
            "host.names",
            f"the name {name} {what}",
            "mend DNS or /etc/hosts: ranks meet by names",
            Component.NETWORK,
            value=took,
            threshold=slow,
            unit="ms",
        )
    if not bad:
        yield passed("host.names", f"{', '.join(read.names)}")


NAMES = Probe(
    name="names",
    collect=resolve,
    deadline_s=10.0,
    checks=(
        Check(
            name="host.names",
            number=33,
            title="names",
            passes="each within resolve_ms_fail",
            judge=_names,
            component=Component.NETWORK,
        ),
    ),
)
