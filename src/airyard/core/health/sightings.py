"""What a rule of a monitor has found, before it has a name and a place; and which of them say nothing new.

Owns: the type, how it becomes an event, the windows in which the same is one. Must not know: rules, who reads what.
Pure: time is an argument.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from airyard.core.health.facts import Component, HealthEvent, Remedy, Retest, Severity, Source

GRAVE_WINDOW_MS = 60_000
WINDOW_MS = 600_000
_LONGEST_LINE = 500
_MOST_LINES = 5
_MOST_KEPT = 4_096


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """One thing that a rule found. ``pci`` is the address of the device, where a line names no more than that."""

    rule: str
    component: Component
    severity: Severity
    source: Source
    message: str
    node: str = ""
    """Empty: it is of the machine, or the device says of which node."""
    device: int | None = None
    device_uuid: str = ""
    pci: str = ""
    place: str = ""
    """What else tells two of one rule apart: a port, a mount."""
    mark: str = ""
    """What the occurrence is known by for ever, where there is such a thing; it becomes part of the event's id."""
    at_ms: int | None = None
    code: int | None = None
    value: float | None = None
    unit: str = ""
    remedy: Remedy = Remedy.NONE
    retest: Retest = Retest.T1
    evidence: tuple[str, ...] = ()
    clock_reasons: int = 0

    def event(self, event_id: str, machine: str, at_ms: int) -> HealthEvent:
        """Return it as an event; ``at_ms`` is since 1970."""
        return HealthEvent(
            event_id=event_id,
            rule=self.rule,
            machine=machine,
            at_ms=at_ms,
            component=self.component,
            severity=self.severity,
            source=self.source,
            message=self.message[:_LONGEST_LINE],
            node=self.node,
            device=self.device,
            device_uuid=self.device_uuid,
            code=self.code,
            value=self.value,
            unit=self.unit,
            remedy=self.remedy,
            retest=self.retest,
            evidence=tuple(line[:_LONGEST_LINE] for line in self.evidence[:_MOST_LINES]),
            clock_reasons=self.clock_reasons,
        )


def window_ms(severity: Severity) -> int:
    """Return for how long the same rule on the same device is the same event.

    What is grave is said again soon: a device may have been mended in between.
    """
    return GRAVE_WINDOW_MS if severity in (Severity.CRITICAL, Severity.HIGH) else WINDOW_MS


class Novelty:
    """Lets the first of each rule, place and severity pass, and the next one after its window."""

    def __init__(self) -> None:
        self._last_ms: dict[tuple[str, str, int | None, str, str, Severity], int] = {}

    def new(self, found: Iterable[Sighting], now_ms: int) -> list[Sighting]:
        """Return those that say something new. ``now_ms`` is of a clock that never goes back."""
        passed = []
        for one in found:
            key = (one.node, one.rule, one.device, one.pci, one.place, one.severity)
            last_ms = self._last_ms.get(key)
            if last_ms is not None and now_ms - last_ms < window_ms(one.severity):
                continue
            self._last_ms.pop(key, None)  # to the end of the order
            self._last_ms[key] = now_ms
            passed.append(one)
        while len(self._last_ms) > _MOST_KEPT:
            del self._last_ms[next(iter(self._last_ms))]
        return passed
