"""Clocks, the way to the yard's servers, and whether all nodes of a run speak the same NCCL.

Owns: reading the kernel's clock state, connecting to servers, the fingerprint of NCCL's settings. Must not know: names
(``host_checks.py``), RDMA ports (``rdma_checks.py``), how nodes call each other (``ways.py``).
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from airyard.checks.contract import Check, Probe, Site, Thresholds, failed, passed, skipped, warned
from airyard.checks.preflight import ways
from airyard.checks.preflight.setting import setting_of
from airyard.checks.preflight.ways import Way
from airyard.core.health.facts import CheckResult, Component

_OF_A_GANG = "compared between the nodes of a gang, before its code"
_TIME_ERROR = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """``offset_ms``: measured against the controller. ``error_ms``: what the kernel thinks it may be wrong by."""

    offset_ms: float | None = None
    error_ms: float | None = None
    synchronised: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ways:
    """What was read of clock, servers and communication. ``alone``: why the nodes of a run were not called."""

    clock: Clock = field(default_factory=Clock)
    servers: tuple[Way, ...] = ()
    alone: str = ""
    communication: str = ""
    """A fingerprint of NCCL's version, plugins and variables."""
    image: str = ""


def collect(site: Site) -> Ways:
    """Read the clock, call the servers. Cost: as long as the slowest of them, four seconds at most."""
    setting = setting_of(site)
    spoken = communication(
        os.environ, setting.path("/etc/nccl.conf"), Path(setting.python) if setting.python else None
    )
    return Ways(
        clock=_clock(setting.clock_offset_ms),
        servers=ways.call(setting.servers),
        alone=setting.alone,
        communication=fingerprint(spoken),
        image=os.environ.get("AIRYARD_IMAGE_DIGEST", ""),
    )


def communication(environ: Mapping[str, str], conf: Path, python: Path | None) -> dict[str, str]:
    """Return what decides how NCCL speaks here: its variables, its file, its packages beside an interpreter."""
    found = {name: value for name, value in environ.items() if name.startswith("NCCL_")}
    with contextlib.suppress(OSError):
        found["/etc/nccl.conf"] = conf.read_text("utf-8", "replace")
    if python is not None:
        for folder in python.parent.parent.glob("lib/python*/site-packages/*nccl*.dist-info"):
            name, _, version = folder.name.removesuffix(".dist-info").partition("-")
            found[name] = version
    return found


def fingerprint(settings: Mapping[str, str]) -> str:
    """Return a short hash: equal on two machines exactly when the settings are. Names of adapters do not count."""
    kept = {
        name: value
        for name, value in settings.items()
        if not re.fullmatch(r"NCCL_(IB_HCA|SOCKET_IFNAME|HOSTID|DEBUG|DEBUG_FILE|DEBUG_SUBSYS)", name)
    }
    text = "\n".join(f"{name}={kept[name]}" for name in sorted(kept))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _clock(offset_ms: float | None) -> Clock:
    """Ask the kernel how well it keeps time; nothing is set."""
    with contextlib.suppress(OSError, AttributeError):
        buffer = (ctypes.c_long * 64)()
        state = int(ctypes.CDLL(None).adjtimex(ctypes.byref(buffer)))
        if state >= 0:
            return Clock(offset_ms=offset_ms, error_ms=buffer[4] / 1000, synchronised=state != _TIME_ERROR)
    return Clock(offset_ms=offset_ms)


def _skew(read: Ways, limits: Thresholds) -> Iterator[CheckResult]:
    name, clock = "net.clock", read.clock
    step = "let chrony or systemd-timesyncd keep the clock"
    most, many = limits["clock_skew_ms_fail"], limits["clock_skew_ms_warn"]
    if clock.offset_ms is not None:
        off = abs(clock.offset_ms)
        text = f"the clock is {off:.0f} ms from the controller's"
        if off > most:
            yield failed(name, text, step, Component.HOST, value=off, threshold=most, unit="ms")
        elif off > many:
            yield warned(name, text, step, value=off, threshold=many, unit="ms")
        else:
            yield passed(name, text, value=off, threshold=most, unit="ms")
    elif clock.synchronised is None:
        yield skipped(name, "this machine does not tell")
    elif not clock.synchronised:
        yield warned(name, "nothing keeps this machine's clock: the order of failures cannot be told", step)
    else:
        yield passed(name, "the clock is kept", value=clock.error_ms, unit="ms")


def _reach(read: Ways, limits: Thresholds) -> Iterator[CheckResult]:
    name, alone = "net.peers", read.alone or "no run: there is no other node to call"
    away = [way for way in read.servers if way.problem]
    for way in away:
        yield warned(
            name,
            f"the server at {way.place} cannot be reached: {way.problem}",
            "start it, or look at routes and firewalls: should it come to lead, runs here would not find it",
            details={"peer": way.place},
        )
    if away:
        return
    if read.servers:
        slowest = max(way.took_ms for way in read.servers)
        count = len(read.servers)
        text = f"{count} {'server answers' if count == 1 else 'servers answer'}; {alone}"
        yield passed(name, text, value=slowest, unit="ms")
    else:
        yield skipped(name, alone)


def _settings(read: Ways, limits: Thresholds) -> Iterator[CheckResult]:
    yield skipped("net.communication", f"{_OF_A_GANG} (ours: {read.communication})")


def _image(read: Ways, limits: Thresholds) -> Iterator[CheckResult]:
    ours = f"ours: {read.image}" if read.image else "AIRYARD_IMAGE_DIGEST names this machine's"
    yield skipped("host.image", f"{_OF_A_GANG} ({ours})")


PROBE = Probe(
    name="ways",
    collect=collect,
    deadline_s=20.0,
    checks=(
        Check(
            name="net.clock",
            number=32,
            title="the clock",
            passes="within clock_skew_ms_fail of the controller's; kept by something (else a warning)",
            judge=_skew,
        ),
        Check(
            name="net.peers",
            number=34,
            title="the way to the run's other nodes, and to all servers",
            passes="each node takes 32 KiB in large packets, of mtu_least where that is set (else a warning); each "
            "server answers (else a warning)",
            judge=_reach,
            component=Component.NETWORK,
        ),
        Check(
            name="host.image",
            number=36,
            title="the image",
            passes="the same digest on all nodes of the run",
            judge=_image,
        ),
        Check(
            name="net.communication",
            number=39,
            title="NCCL's version and settings",
            passes="the same fingerprint on all nodes of the run",
            judge=_settings,
        ),
    ),
)
