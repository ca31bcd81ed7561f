"""What the watch learns from the kernel's log.

Owns: following the log over restarts of the agent, which GPU an address is. Must not know: what a line means
(``core/health/kernel_watch``), how events travel.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from airyard.checks.kernel_follow import KMSG, KernelFollower, News
from airyard.core.health.facts import Component, Severity, Source
from airyard.core.health.kernel_watch import KernelWatch
from airyard.core.health.sightings import Sighting
from airyard.core.triage.kernel_lines import KernelFinding
from airyard.node.health_settings import HealthSettings

MOST_LINES = 5_000
"""So many lines are read at a look; of a flood the rest is told of and left out."""


class Places:
    """Which GPU has which address. A GPU that is lost keeps its place. Written by one thread, read by others."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[int, str]] = {}

    def note(self, pci: str, index: int, uuid: str) -> None:
        """Remember a GPU."""
        self._known[pci] = (index, uuid)

    def __bool__(self) -> bool:
        """True once any GPU is known."""
        return bool(self._known)

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
