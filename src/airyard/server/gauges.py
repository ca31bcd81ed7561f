"""What the server has heard of machines lately that no journal keeps: the newest samples, and counts of health events.

Owns: these numbers and their bounds. Must not know: how they are shown. Any thread.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from airyard.core.health.facts import HealthEvent
from airyard.ports.engine import Samples

FRESH_MS = 60_000
"""A sample that is older says nothing of now."""
MOST_SERIES = 5_000
"""So many machines, rules and severities together are counted each for itself; the rest as one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauge:
    """One sampled value of a node; ``name`` is MLflow's without its prefix."""

    node: str
    name: str
    value: float


class Gauges:
    """The newest of each."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[tuple[str, str], tuple[float, int]] = {}
        self._events: Counter[tuple[str, str, str]] = Counter()

    def sampled(self, fact: Samples, now_ms: int) -> None:
        """Take in a round of samples, by the time at which it came."""
        with self._lock:
            for sample in fact.samples:
                for name, value in sample.values.items():
                    self._values[sample.node, name] = (value, now_ms)

    def reported(self, events: Sequence[HealthEvent]) -> None:
        """Count events that were journalled."""
        with self._lock:
            for event in events:
                key = (event.machine, event.rule, event.severity.value)
                if key not in self._events and len(self._events) >= MOST_SERIES:
                    key = ("", "other", event.severity.value)
                self._events[key] += 1

    def fresh(self, now_ms: int) -> list[Gauge]:
        """Return what was sampled lately, by node and name; what is older is forgotten."""
        with self._lock:
            self._values = {key: found for key, found in self._values.items() if now_ms - found[1] < FRESH_MS}
            return [
                Gauge(node=node, name=name, value=value)
                for (node, name), (value, _) in sorted(self._values.items())
            ]

    def events(self) -> list[tuple[tuple[str, str, str], int]]:
        """Return how many events there were since the server started: ((machine, rule, severity), count)."""
        with self._lock:
            return sorted(self._events.items())
