"""The throttled GPUs that monitors tell of, in memory, and which of them slow a gang down.

Owns: the newest of each device, what was said of them. Must not know: HTTP, the rules (``core/health/slowing``).
Nothing of it is kept over a restart of the server: monitors say it again, and runners tell of their steps again.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import replace

from airyard.app.gang_steps import GangSteps
from airyard.core.cluster import Node
from airyard.core.health import slowing
from airyard.core.health.facts import HealthEvent
from airyard.core.health.slowing import Effect, Seat, Throttle
from airyard.core.run import Attempt

MOST_KEPT = 4096
MOST_TOLD = 4096


class Throttles:
    """What lasts, by machine. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[str, str, int, str], Throttle] = OrderedDict()
        self._told: OrderedDict[str, None] = OrderedDict()

    def put(self, events: Iterable[HealthEvent], now_ms: int) -> None:
        """Take in what monitors saw, at the time at which it came."""
        with self._lock:
            for event in events:
                found = slowing.throttle_of(event, now_ms)
                if found is None:
                    continue
                key = (found.machine, found.node, found.device, found.rule)
                before = self._kept.pop(key, None)
                if before is not None and before.lasts(now_ms):
                    found = replace(found, since_ms=before.since_ms)
                self._kept[key] = found
            while len(self._kept) > MOST_KEPT:
                self._kept.popitem(last=False)

    def on(self, machines: Iterable[str], now_ms: int) -> list[Throttle]:
        """Return what lasts on these machines; what does not is forgotten."""
        wanted = frozenset(machines)
        with self._lock:
            for key in [key for key, one in self._kept.items() if not one.lasts(now_ms)]:
                del self._kept[key]
            return [one for one in self._kept.values() if one.machine in wanted]

    def was_told(self, event_id: str) -> bool:
        """True when an event was journalled already."""
        with self._lock:
            return event_id in self._told

    def told(self, event_id: str) -> None:
        """Note that an event was journalled."""
        with self._lock:
            self._told[event_id] = None
            while len(self._told) > MOST_TOLD:
                self._told.popitem(last=False)


def effects(
    steps: GangSteps, throttles: Throttles, attempt: Attempt, nodes: Mapping[str, Node], now_ms: int
) -> list[Effect]:
    """Return the slow ranks of an attempt that their throttled GPUs explain. Cost: its ranks, where any is slow."""
    slow = steps.stragglers(attempt.key, attempt)
    if not slow:
        return []
    lasting = throttles.on({member.machine for member in attempt.members}, now_ms)
    return slowing.judge(slow, _seats(steps, attempt, nodes), lasting, now_ms) if lasting else []


def _seats(steps: GangSteps, attempt: Attempt, nodes: Mapping[str, Node]) -> list[Seat]:
    ranks = steps.ranks_of(attempt.key)
    found: list[Seat] = []
    for member in attempt.members:
        node = nodes.get(member.node)
        uuids = {device.index: device.uuid for device in node.devices} if node is not None else {}
        devices = [(index, uuids.get(index, "")) for index in member.devices]
        found += slowing.seats(ranks.get(member.index, ()), member.node, member.machine, devices)
    return found
