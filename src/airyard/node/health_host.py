"""What the watch learns from the machine itself: RDMA ports, disk, memory, processes, mounts.

Owns: what is read when. Must not know: what a reading means (``checks/port_watch``, ``checks/host_watch``).
"""

from __future__ import annotations

import time
from pathlib import Path

from airyard.checks.contract import Site
from airyard.checks.host_watch import HostWatch, MountAsker, read_host
from airyard.checks.port_watch import PortWatch, read_ports
from airyard.core.health.sightings import Sighting
from airyard.node.health_limits import MachineLimits
from airyard.node.health_settings import HealthSettings

COUNTERS_EVERY_MS = 5_000


class Ports:
    """The RDMA ports."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self._watch = PortWatch()
        self._counted_ms = -COUNTERS_EVERY_MS

    @property
    def there(self) -> bool:
        """Whether there is any."""
        return any(self._root.glob("sys/class/infiniband/*/ports/*"))

    def every_s(self, settings: HealthSettings) -> float:
        """See ``health_watch.Source``."""
        return settings.ports_s

    def look(self) -> list[Sighting]:
        """See ``health_watch.Source``."""
        now_ms = _now_ms()
        counters = now_ms - self._counted_ms >= COUNTERS_EVERY_MS
        if counters:
            self._counted_ms = now_ms
        return self._watch.look(read_ports(self._root, counters=counters), now_ms)


class HostItself:
    """Disk, memory, processes that wait in the kernel, mounts."""

    def __init__(self, data_folder: Path, limits: MachineLimits, *, tells_kills: bool) -> None:
        self._site = Site(data_folder=data_folder)
        self._limits = limits
        self._watch = HostWatch(limits.of(""), tells_kills=tells_kills)
        self._mounts = MountAsker()

    def every_s(self, settings: HealthSettings) -> float:
        """See ``health_watch.Source``."""
        return settings.host_s

    def look(self) -> list[Sighting]:
        """See ``health_watch.Source``."""
        self._watch.limits = self._limits.of("")
        return self._watch.look(read_host(self._site, self._mounts.silent(self._site)), _now_ms())


def _now_ms() -> int:
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1_000_000
