"""The way out of the node under load: each RDMA adapter against itself.

Owns: running perftest, and its rule. Must not know: which nodes a run has, tournaments.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from airyard.checks.contract import Check, Probe, Profile, Site, Thresholds, failed, passed, skipped
from airyard.core.health.facts import CheckResult, CheckStatus, Component, Retest

_ROW = re.compile(r"^\s*\d+\s+\d+\s+[\d.]+\s+([\d.]+)", re.M)
_LOOPBACK_S = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Loopback:
    """Gb/s of each adapter that was tried; ``problems`` of those that gave no figure."""

    gbit_s: Mapping[str, float] = field(default_factory=dict)
    problems: Mapping[str, str] = field(default_factory=dict)
    skipped: str = ""


def parse_bandwidth(text: str) -> float | None:
    """Return the average of ``ib_write_bw --report_gbits``: the fourth number of the row; None where there is none."""
    found = _ROW.findall(text)
    return float(found[-1]) if found else None


def collect_loopback(site: Site) -> Loopback:
    """Write from each adapter to itself out of a GPU's memory, one after another."""
    program = shutil.which("ib_write_bw")
    adapters = sorted(path.name for path in site.path("/sys/class/infiniband").glob("*"))
    if not any(site.path("/dev").glob("nvidia[0-9]*")):
        return Loopback(skipped="needs a GPU")
    if not adapters or program is None:
        return Loopback(skipped="no RDMA adapter here" if not adapters else "needs perftest (ib_write_bw)")
    speeds, problems = {}, {}
    for number, adapter in enumerate(adapters):
        port = str(18_515 + number)
        arguments = [program, "-d", adapter, "-p", port, "--use_cuda=0", "--report_gbits", "-F", "-D", "3"]
        told = _pair(arguments)
        speed = parse_bandwidth(told)
        if speed is None:
            problems[adapter] = (told.strip().splitlines() or ["it said nothing"])[-1][:200]
        else:
            speeds[adapter] = speed
    return Loopback(gbit_s=speeds, problems=problems)


def _pair(arguments: list[str]) -> str:
    server = subprocess.Popen(
        arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        for _ in range(2):  # the server may not listen yet
            client = subprocess.run(
                [*arguments, "localhost"], capture_output=True, timeout=_LOOPBACK_S, check=False
            )
            if client.returncode == 0:
                break
        return (client.stdout + client.stderr).decode("utf-8", "replace")
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    finally:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(server.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            server.wait(1.0)


def collect_group(site: Site) -> None:
    """Read nothing: the sum is over the nodes of a gang, before its code (``node/gang_checks``)."""


def _loopback(read: Loopback, limits: Thresholds) -> Iterator[CheckResult]:
    name, floor = "rdma.loopback", limits.get("gdr_gbit_s")
    if read.skipped:
        yield skipped(name, read.skipped)
        return
    for adapter, problem in read.problems.items():
        yield CheckResult(
            check=name,
            status=CheckStatus.UNKNOWN,
            message=f"{adapter} gave no figure: {problem}",
            next_step="run ib_write_bw by hand",
            component=Component.NETWORK,
        )
    slow = {adapter: speed for adapter, speed in read.gbit_s.items() if floor is not None and speed < floor}
    for adapter, speed in slow.items():
        yield failed(
            name,
            f"{adapter} writes {speed:.0f} Gb/s out of a GPU's memory",
            "look at nvidia_peermem, ACS and the adapter's PCIe link",
            Component.NETWORK,
            retest=Retest.T4,
            value=speed,
            threshold=floor,
            unit="Gb/s",
        )
    if read.gbit_s and not slow:
        least = min(read.gbit_s.values())
        yield passed(name, f"{len(read.gbit_s)} adapters", value=least, threshold=floor, unit="Gb/s")


def _group(read: None, limits: Thresholds) -> Iterator[CheckResult]:
    yield skipped(
        "net.all_reduce", "over the nodes of a gang, before its code; `airyard health pair` tests two"
    )


LOOPBACK = Probe(
    name="loopback",
    collect=collect_loopback,
    profile=Profile.FULL,
    deadline_s=300.0,
    checks=(
        Check(
            name="rdma.loopback",
            number=46,
            title="each RDMA adapter against itself",
            passes="gdr_gbit_s out of a GPU's memory",
            judge=_loopback,
            component=Component.NETWORK,
        ),
    ),
)
GROUP = Probe(
    name="group",
    collect=collect_group,
    checks=(
        Check(
            name="net.all_reduce",
            number=48,
            title="all-reduce over the run's own nodes",
            passes="right on every rank; nodes_gb_s between whole nodes, where it is set",
            judge=_group,
            component=Component.NETWORK,
        ),
    ),
)
