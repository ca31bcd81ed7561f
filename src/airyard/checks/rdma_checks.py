"""The rules over RDMA ports: up, and without errors that grow.

Owns: reading ``/sys/class/infiniband``. Must not know: which runs use the ports.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from airyard.checks.contract import Check, Probe, Site, Thresholds, failed, passed, skipped, text_of, warned
from airyard.core.health.facts import CheckResult, Component, Retest

_COUNTERS = ("link_downed", "symbol_error", "port_rcv_errors", "link_error_recovery")
_APART_S = 5.0
_SHORT_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Port:
    """One port. ``grown``: by how much each error counter grew between two readings."""

    name: str
    state: str
    physical: str
    rate: str = ""
    firmware: str = ""
    board: str = ""
    """What kind of adapter it is: ports are compared within a kind."""
    grown: dict[str, int] = field(default_factory=dict)
    virtual: bool = False


def collect(site: Site) -> tuple[Port, ...]:
    """Read all ports twice, some seconds apart."""
    folders = sorted(site.path("/sys/class/infiniband").glob("*/ports/*"))
    before = [_counters(folder) for folder in folders]
    if folders:
        time.sleep(_APART_S if site.full else _SHORT_S)
    return tuple(_port(folder, first) for folder, first in zip(folders, before, strict=True))


def _counters(port: Path) -> dict[str, int]:
    texts = {name: text_of(port / "counters" / name) for name in _COUNTERS}
    return {name: int(text) for name, text in texts.items() if text.isdecimal()}


def _port(folder: Path, before: dict[str, int]) -> Port:
    device = folder.parent.parent
    now = _counters(folder)
    # A counter that became smaller was reset: that says nothing.
    grown = {name: now[name] - before[name] for name in now if now[name] > before.get(name, now[name])}
    return Port(
        name=f"{device.name}/{folder.name}",
        state=text_of(folder / "state").partition(":")[2].strip(),
        physical=text_of(folder / "phys_state").partition(":")[2].strip(),
        rate=text_of(folder / "rate"),
        firmware=text_of(device / "fw_ver"),
        board=text_of(device / "board_id"),
        grown=grown,
        virtual=(device / "device" / "physfn").exists(),
    )


def _up(read: tuple[Port, ...], limits: Thresholds) -> Iterator[CheckResult]:
    ports = [port for port in read if not port.virtual]
    if not ports:
        yield skipped("rdma.ports", "no RDMA adapter here")
        return
    down = [port for port in ports if port.state != "ACTIVE" or port.physical != "LinkUp"]
    for port in down:
        text = f"{port.name} is {port.state or 'unreadable'}, its link {port.physical or 'unreadable'}"
        if len(down) == len(ports) or port.physical not in ("Disabled", "Polling"):
            yield failed(
                "rdma.ports",
                text,
                "look at cable, switch and `ibstat`",
                Component.NETWORK,
                retest=Retest.T4,
            )
        else:  # a port beside ones that are up may have no cable at all
            yield warned("rdma.ports", text, "look at its cable, unless none is meant to be there")
    if not down:
        yield passed("rdma.ports", f"{len(ports)} ports are up, {ports[0].rate}")


def _gbit_s(port: Port) -> float | None:
    """Read the kernel's ``400 Gb/sec (4X NDR)``."""
    number = port.rate.partition(" ")[0]
    try:
        return float(number)
    except ValueError:
        return None


def _uniform(read: tuple[Port, ...], limits: Thresholds) -> Iterator[CheckResult]:
    name = "rdma.rate"
    up = [port for port in read if not port.virtual and port.state == "ACTIVE"]
    least, ports_least = limits["rdma_gbit_s_least"], limits["rdma_ports_least"]
    if not up and not ports_least:
        yield skipped(name, "no RDMA port is up here")
        return
    fine = True
    if len(up) < ports_least:
        fine = False
        yield failed(
            name,
            f"{len(up)} RDMA ports are up, {ports_least:.0f} should be",
            "look at `ibstat`, cables and the kernel's log",
            Component.NETWORK,
            retest=Retest.T4,
            value=len(up),
            threshold=ports_least,
        )
    for port in up:
        rate = _gbit_s(port)
        usual = max(_gbit_s(other) or 0.0 for other in up if other.board == port.board)
        if rate is not None and rate < max(least, usual):
            fine = False
            yield failed(
                name,
                f"{port.name} runs at {rate:g} Gb/s, not {max(least, usual):g}",
                "reseat or replace the cable; look at the switch's port",
                Component.NETWORK,
                retest=Retest.T4,
                value=rate,
                threshold=max(least, usual),
                unit="Gb/s",
            )
    for board in sorted({port.board for port in up if port.board}):
        versions = sorted({port.firmware for port in up if port.board == board} - {""})
        if len(versions) > 1:
            fine = False
            yield warned(
                name,
                f"adapters of the kind {board} have firmware {', '.join(versions)}",
                "give all adapters of a kind the same firmware",
            )
    if fine:
        yield passed(name, f"{len(up)} ports at {_gbit_s(up[0]) or 0:g} Gb/s" if up else "none")


def _quiet(read: tuple[Port, ...], limits: Thresholds) -> Iterator[CheckResult]:
    ports = [port for port in read if not port.virtual]
    if not ports:
        yield skipped("rdma.counters", "no RDMA adapter here")
        return
    loud = [port for port in ports if port.grown]
    for port in loud:
        grown = ", ".join(f"{name} +{count}" for name, count in sorted(port.grown.items()))
        yield failed(
            "rdma.counters",
            f"{port.name}: errors grow while it is watched: {grown}",
            "clean or replace the cable; test the pair of ports",
            Component.NETWORK,
            retest=Retest.T4,
        )
    if not loud:
        yield passed("rdma.counters", f"no error came on {len(ports)} ports")


PROBE = Probe(
    name="rdma",
    collect=collect,
    deadline_s=15.0,
    checks=(
        Check(
            name="rdma.ports",
            number=37,
            title="RDMA ports",
            passes="all up; one beside others may be without a cable",
            judge=_up,
            component=Component.NETWORK,
        ),
        Check(
            name="rdma.rate",
            number=37,
            title="speed of RDMA ports",
            passes="that of its like, rdma_gbit_s_least and rdma_ports_least; one firmware a kind (else a warning)",
            judge=_uniform,
            component=Component.NETWORK,
        ),
        Check(
            name="rdma.counters",
            number=38,
            title="errors of RDMA ports",
            passes="none grows while it is watched: 1 s, in full 5 s",
            judge=_quiet,
            component=Component.NETWORK,
        ),
    ),
)
