"""How good the expected starts were: what was said of a run once, against when it started.

Owns: estimates that are open, those that have been compared, and the figures over them. All of it bounded.
Must not know: how starts are expected, where estimates are stored.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from statistics import median

from airyard.core.scheduling.eta import Eta
from airyard.ports.estimate_store import Estimate

MOST_OPEN = 5_000
MOST_COMPARED = 1_000
SOON_MS = 1_000
"""A run expected to start within this time is as good as started: its estimate proves nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Of ``count`` estimates the parts that started before p50 and p90, and the median of |start - p50| in ms."""

    count: int
    before_p50: float
    before_p90: float
    median_error_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsaved:
    """What has changed since it was taken last: new and compared estimates, and runs that never started."""

    estimates: tuple[Estimate, ...] = ()
    forgotten: tuple[int, ...] = ()


class Estimates:
    """The record. Not thread-safe: the planner's thread calls everything."""

    def __init__(self) -> None:
        self._open: dict[int, Estimate] = {}
        self._compared: deque[Estimate] = deque(maxlen=MOST_COMPARED)
        self._changed: dict[int, Estimate] = {}
        self._forgotten: dict[int, None] = {}

    def load(self, estimates: Iterable[Estimate]) -> None:
        """Take in what was stored, oldest first."""
        for one in estimates:
            if one.started_ms is None:
                self._open[one.run_id] = one
            else:
                self._compared.append(one)

    def said(self, run_id: int, eta: Eta, position: int, now_ms: int) -> None:
        """Note what was said of a waiting run; only the first estimate of a wait counts."""
        if run_id in self._open or eta.p50_ms - now_ms < SOON_MS or len(self._open) >= MOST_OPEN:
            return
        self._forgotten.pop(run_id, None)
        self._change(
            Estimate(run_id=run_id, asked_ms=now_ms, p50_ms=eta.p50_ms, p90_ms=eta.p90_ms, position=position)
        )

    def started(self, run_id: int, at_ms: int) -> None:
        """Compare, when something was said of the run before it started."""
        one = self._open.pop(run_id, None)
        if one is None:
            return
        if at_ms < one.asked_ms:
            self._forget(run_id)
            return
        done = replace(one, started_ms=at_ms)
        self._compared.append(done)
        self._changed[run_id] = done

    def void(self, run_id: int) -> None:
        """Forget what was said: the run has ended unstarted, or was held, or its begin was put off."""
        if self._open.pop(run_id, None) is not None:
            self._forget(run_id)

    def has(self, run_id: int) -> bool:
        """True when something was said of a run that waits."""
        return run_id in self._open

    def open(self) -> tuple[int, ...]:
        """Return the runs of which something was said and that have not started."""
        return tuple(self._open)

    def _change(self, one: Estimate) -> None:
        self._open[one.run_id] = one
        self._changed[one.run_id] = one

    def _forget(self, run_id: int) -> None:
        self._changed.pop(run_id, None)
        self._forgotten[run_id] = None

    def take_unsaved(self) -> Unsaved:
        """Return what is to be stored, once."""
        found = Unsaved(estimates=tuple(self._changed.values()), forgotten=tuple(self._forgotten))
        self._changed.clear()
        self._forgotten.clear()
        return found

    def figures(self) -> Figures | None:
        """Return the figures over the last ``MOST_COMPARED``; None before the first."""
        rows = [(one, one.started_ms) for one in self._compared if one.started_ms is not None]
        if not rows:
            return None
        return Figures(
            count=len(rows),
            before_p50=sum(at_ms <= one.p50_ms for one, at_ms in rows) / len(rows),
            before_p90=sum(at_ms <= one.p90_ms for one, at_ms in rows) / len(rows),
            median_error_ms=round(median(abs(at_ms - one.p50_ms) for one, at_ms in rows)),
        )
