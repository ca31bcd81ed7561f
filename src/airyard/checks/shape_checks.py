"""The rules over what a machine should consist of: processors, memory, drives, and the services of its NVSwitches.

Owns: reading /sys for them, and asking the fabric manager its version. Must not know: GPUs (``gpu_checks.py``), room
and speed of disks (``host_checks.py``). How much there should be is a limit of the site's; without one, what is there
has to be whole: no processor off, memory alike on all NUMA nodes, every drive alive.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from airyard.checks.contract import Check, Probe, Site, Thresholds, failed, passed, skipped, text_of, warned
from airyard.checks.host_checks import meminfo, runs
from airyard.core.health.facts import CheckResult, Component, Remedy

_GIB = 1 << 30
_MANAGERS = ("/usr/bin/nv-fabricmanager", "/opt/nvidia/fabricmanager/bin/nv-fabricmanager")
_ASK_S = 5.0
_VERSION = re.compile(r"\d+\.\d+(?:\.\d+)?")
_CONTROLLER = re.compile(r"nvme\d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What was read. Counts are None where this machine does not tell."""

    cpus: int | None = None
    cpus_present: int | None = None
    memory: int = 0
    numa: tuple[int, ...] = ()
    """Bytes of memory by NUMA node that has processors."""
    drives: dict[str, str] = field(default_factory=dict)
    """State by NVMe controller."""
    nvswitch: bool = False
    module: str = ""
    manager: str = ""
    """Version of the fabric manager's program, empty where it is not there or does not tell."""
    subnet_manager: bool = False


def collect(site: Site) -> Shape:
    """Read /sys; ask the fabric manager its version where there are NVSwitches (a process, five seconds at most)."""
    nvswitch = site.path("/dev/nvidia-nvswitchctl").exists()
    cpu = site.path("/sys/devices/system/cpu")
    return Shape(
        cpus=_count(text_of(cpu / "online")),
        cpus_present=_count(text_of(cpu / "present")),
        memory=meminfo(site).get("MemTotal", 0),
        numa=tuple(_numa(site)),
        drives={
            path.name: text_of(path / "state")
            for path in sorted(site.path("/sys/class/nvme").glob("nvme*"))
            if _CONTROLLER.fullmatch(path.name)
        },
        nvswitch=nvswitch,
        module=text_of(site.path("/sys/module/nvidia/version")),
        manager=_manager(site) if nvswitch else "",
        subnet_manager=runs(site, "nvlsm"),
    )


def _count(ranges: str) -> int | None:
    """Return how many numbers a list such as ``0-63,128`` of the kernel names; None for one that cannot be read."""
    total = 0
    for part in ranges.split(","):
        first, _, last = part.partition("-")
        if not first.isdigit() or (last and not last.isdigit()):
            return None
        total += int(last or first) - int(first) + 1
    return total


def _numa(site: Site) -> Iterator[int]:
    """Memory of the nodes that have processors: others are expansions, or GPUs."""
    for node in sorted(site.path("/sys/devices/system/node").glob("node[0-9]*")):
        found = re.search(r"MemTotal:\s+(\d+) kB", text_of(node / "meminfo"))
        if text_of(node / "cpulist"):
            yield int(found[1]) * 1024 if found else 0


def _manager(site: Site) -> str:
    program = next((path for path in map(site.path, _MANAGERS) if path.is_file()), None)
    if program is None:
        return ""
    return _version(program)


def _version(program: Path) -> str:
    try:
        told = subprocess.run(
            [program, "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_ASK_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    found = _VERSION.search(told.stdout)
    return found[0] if found else ""


def _processors(read: Shape, limits: Thresholds) -> Iterator[CheckResult]:
    name, least = "host.processors", limits["cpus_least"]
    if read.cpus is None:
        yield skipped(name, "this machine does not tell")
    elif read.cpus < least:
        yield failed(
            name,
            f"{read.cpus} processors work, {least:.0f} should",
            "look at the BIOS and at the kernel's log",
            Component.HOST,
            value=read.cpus,
            threshold=least,
        )
    elif read.cpus_present is not None and read.cpus < read.cpus_present:
        yield warned(
            name,
            f"{read.cpus_present - read.cpus} of {read.cpus_present} processors are off",
            "`chcpu -e`, unless they are meant to be off",
            value=read.cpus,
            threshold=read.cpus_present,
        )
    else:
        yield passed(name, f"{read.cpus} processors", value=read.cpus)


def _memory(read: Shape, limits: Thresholds) -> Iterator[CheckResult]:
    name, least = "host.memory_size", limits["memory_gib_least"]
    share = limits["memory_share_warn"]
    gib = read.memory / _GIB
    if not read.memory:
        yield skipped(name, "this machine does not tell")
    elif gib < least:
        yield failed(
            name,
            f"{gib:,.0f} GiB of memory are there, {least:,.0f} should be",
            "look for a module that failed (`dmidecode -t memory`, the BMC's log)",
            Component.HOST,
            value=gib,
            threshold=least,
            unit="GiB",
        )
    elif read.numa and min(read.numa) < (1 - share) * max(read.numa):
        sizes = ", ".join(f"{size / _GIB:,.0f}" for size in read.numa)
        yield warned(
            name,
            f"the NUMA nodes have {sizes} GiB of memory: they should be alike",
            "look for a module that failed (`dmidecode -t memory`, the BMC's log)",
            value=min(read.numa) / _GIB,
            threshold=(1 - share) * max(read.numa) / _GIB,
            unit="GiB",
        )
    else:
        nodes = f" on {len(read.numa)} NUMA nodes" if len(read.numa) > 1 else ""
        yield passed(name, f"{gib:,.0f} GiB{nodes}", value=gib, unit="GiB")


def _drives(read: Shape, limits: Thresholds) -> Iterator[CheckResult]:
    name, least = "host.drives", limits["nvme_least"]
    dead = {drive: state for drive, state in read.drives.items() if state not in ("live", "")}
    for drive, state in dead.items():
        yield failed(
            name,
            f"{drive} is {state}",
            "look at the kernel's log; have the drive replaced",
            Component.DISK,
        )
    alive = len(read.drives) - len(dead)
    if not dead and alive < least:
        yield failed(
            name,
            f"{alive} NVMe drives are there, {least:.0f} should be",
            "look at the kernel's log and at the drive's slot",
            Component.DISK,
            value=alive,
            threshold=least,
        )
    elif not read.drives:
        yield skipped(name, "no NVMe drive here")
    elif not dead:
        yield passed(name, f"{alive} NVMe drives", value=alive)


def _services(read: Shape, limits: Thresholds) -> Iterator[CheckResult]:
    name = "host.fabric_version"
    if not read.nvswitch:
        yield skipped(name, "no NVSwitch here: nothing to manage")
    elif limits.get("subnet_manager") and not read.subnet_manager:
        yield failed(
            name,
            "this machine's NVSwitches need NVLink's subnet manager, and nvlsm does not run",
            "install nvlsm, and start nvidia-fabricmanager, which starts it",
            Component.DRIVER,
            Remedy.REBOOT,
        )
    elif read.manager and read.module and read.manager != read.module:
        yield failed(
            name,
            f"the fabric manager is {read.manager}, the driver {read.module}: they have to be of one version",
            "install the fabric manager in the driver's version and start it",
            Component.DRIVER,
            Remedy.REBOOT,
        )
    elif not read.manager:
        yield skipped(name, "the fabric manager's version cannot be told here (it may be another machine's)")
    else:
        yield passed(name, read.manager)


PROBE = Probe(
    name="shape",
    collect=collect,
    deadline_s=10.0,
    checks=(
        Check(
            name="host.fabric_version",
            number=20,
            title="services of NVSwitches",
            passes="fabric manager in the driver's version; NVLink's subnet manager where it is needed",
            judge=_services,
            component=Component.DRIVER,
        ),
        Check(
            name="host.processors",
            number=26,
            title="processors",
            passes="cpus_least at least; none is off (else a warning)",
            judge=_processors,
        ),
        Check(
            name="host.memory_size",
            number=26,
            title="memory's size",
            passes="memory_gib_least at least; NUMA nodes within memory_share_warn (else a warning)",
            judge=_memory,
        ),
        Check(
            name="host.drives",
            number=27,
            title="NVMe drives",
            passes="nvme_least at least, and all alive",
            judge=_drives,
            component=Component.DISK,
        ),
    ),
)
