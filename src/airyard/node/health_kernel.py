"""What the watch learns from the kernel's log, and from faults that are made up for simulated nodes.

Owns: following the log over restarts of the agent, which GPU an address is, the file of made-up faults. Must not know:
what a line means (``core/health/kernel_watch``), how events travel.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from airyard.checks.kernel_follow import KMSG, KernelFollower, LineFindings, News
from airyard.core.health.facts import Component, Severity, Source
from airyard.core.health.kernel_watch import KernelWatch
from airyard.core.health.sightings import Sighting
from airyard.core.triage.kernel_lines import KernelFinding
from airyard.node.health_settings import HealthSettings

MOST_LINES = 5_000
"""So many lines are read at a look; of a flood the rest is told of and left out."""
FAULT_FILE = "simulated-faults.jsonl"
_MOST_BYTES = 1 << 20


class Places:
    """Which GPU has which address. A GPU that is lost keeps its place. Written by one thread, read by others."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[int, str]] = {}

    def note(self, pci: str, index: int, uuid: str) -> None:
        """Remember a GPU."""
        self._known[pci] = (index, uuid)

    def placed(self, one: Sighting) -> Sighting:
        """Return a sighting with the GPU that it is about, where its address is known."""
        found = self._known.get(one.pci)
        return one if found is None else replace(one, device=found[0], device_uuid=found[1])


class KernelSource:
    """The machine's own log, from where the last agent stopped reading it; else from now on."""

    def __init__(self, places: Places, after: int | None, path: Path = Path(KMSG)) -> None:
        self._places = places
        self._watch = KernelWatch()
        self._path = path
        self._follower: KernelFollower | None = None
        self._pending: list[KernelFinding] = []
        self._told: set[str] = set()
        self._after = after
        self._judged = after
        self.position = after
        """The number of the last record of which all that it says was handed on; None: of none."""

    def every_s(self, settings: HealthSettings) -> float:
        """See ``health_watch.Source``."""
        return settings.kernel_s

    def look(self) -> list[Sighting]:
        """See ``health_watch.Source``. A fault is judged one look late: with what the driver says right after it."""
        try:
            if self._follower is None:
                self._follower = KernelFollower(self._path, after=self._after)
            self.position, before = self._judged, self._follower.last
            news = self._follower.read(MOST_LINES)
        except OSError as error:
            return self._once("unreadable", f"the kernel's log cannot be read: {error.strerror}")
        found = self._bounds(news)
        ready, self._pending = self._pending, list(news.findings)
        self._judged = before if self._pending else self._follower.last
        if ready:
            now_ms = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1_000_000
            found += [self._places.placed(one) for one in self._watch.judge(ready, now_ms)]
        return found

    def _bounds(self, news: News) -> list[Sighting]:
        if not news.lost:
            return []
        return [_note("flood", f"{news.lost:,} lines of the kernel's log were not read: they came too fast")]

    def _once(self, what: str, message: str) -> list[Sighting]:
        if what in self._told:
            return []
        self._told.add(what)
        return [_note(what, message)]

    def close(self) -> None:
        """Let go of the log."""
        if self._follower is not None:
            self._follower.close()


def _note(what: str, message: str) -> Sighting:
    return Sighting(
        rule=f"monitor.kernel_{what}",
        component=Component.HOST,
        severity=Severity.INFO,
        source=Source.KERNEL,
        message=message,
    )


class SimulatedFaults:
    """Lines of a file that are taken for what the kernel of a simulated node says. For tests and trying out.

    ``{"node": "sim-8xh100-0", "device": 3, "kernel": "NVRM: Xid (PCI:0000:14:00): 79, ..."}``: the line is judged as
    one of a real kernel's log is. Nothing in it can concern a node that is not simulated.
    """

    def __init__(self, path: Path, after: int) -> None:
        self._path = path
        self._read = after
        self._nodes: dict[str, tuple[str, ...]] = {}
        self._watches: dict[str, tuple[LineFindings, KernelWatch]] = {}
        self._number = 0

    @property
    def position(self) -> int:
        """How much of the file was read."""
        return self._read

    def nodes(self, simulated: Mapping[str, Sequence[str]]) -> None:
        """Say which nodes are simulated, with the names of their devices. Any thread."""
        self._nodes = {name: tuple(devices) for name, devices in simulated.items()}

    def every_s(self, settings: HealthSettings) -> float:
        """See ``health_watch.Source``."""
        return settings.kernel_s

    def look(self) -> list[Sighting]:
        """See ``health_watch.Source``. A line that is none of a known form is left out."""
        if not self._nodes:
            return []
        try:
            with self._path.open("rb") as file:
                if file.seek(0, 2) < self._read:
                    self._read = 0  # another file
                file.seek(self._read)
                data = file.read(_MOST_BYTES)
        except OSError:
            return []
        whole = data.rfind(b"\n") + 1
        self._read += whole
        found: list[Sighting] = []
        for line in data[:whole].splitlines():
            try:
                found += self._fault(json.loads(line))
            except (ValueError, KeyError, TypeError, AttributeError):
                continue
        return found

    def _fault(self, said: Mapping[str, Any]) -> list[Sighting]:
        node = str(said["node"])
        devices = self._nodes[node]
        lines, watch = self._watches.setdefault(node, (LineFindings(node), KernelWatch()))
        self._number += 1
        finding, _ = lines.take(str(said["kernel"]).encode(), self._number)
        if finding is None:
            return []
        now_ms = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1_000_000
        given = said.get("device")
        device = int(given) if given is not None else None
        uuid = devices[device] if device is not None and 0 <= device < len(devices) else ""
        return [
            replace(one, node=node, device=device, device_uuid=uuid, mark="", at_ms=None)
            for one in watch.judge([finding], now_ms)
        ]
