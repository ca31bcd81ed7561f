"""Virtual time: a heap of what happens next. The simulated world has no other clock and no threads.

Owns: the order of events. Must not know: what they are.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

START_MS = 1_700_000_000_000


MILLION = 1_000_000


class VirtualTime:
    """The clock of the simulated server and the agenda of the world. Ties go by the order of asking."""

    def __init__(self) -> None:
        self._now_ms = START_MS
        self._count = 0
        self._heap: list[tuple[int, int, Callable[[], Any]]] = []

    def now_ms(self) -> int:
        """Return the present."""
        return self._now_ms

    def monotonic_ms(self) -> int:
        """Return the present: virtual time never jumps."""
        return self._now_ms

    @property
    def elapsed_ms(self) -> int:
        """Milliseconds since the world began."""
        return self._now_ms - START_MS

    def at(self, at_ms: int, act: Callable[[], Any]) -> None:
        """Do something at a time; a past time means now."""
        self._count += 1
        heapq.heappush(self._heap, (max(at_ms, self._now_ms), self._count, act))

    def after(self, delay_ms: int, act: Callable[[], Any]) -> None:
        """Do something after a while."""
        self.at(self._now_ms + delay_ms, act)

    def step(self) -> bool:
        """Go to the next event and do it; False when nothing is left to happen."""
        if not self._heap:
            return False
        self._now_ms, _, act = heapq.heappop(self._heap)
        act()
        return True


class SkewedClock:
    """The clock of one machine since its boot, too fast or too slow by ``ppm`` millionths. Nothing sets or stops it."""

    def __init__(self, time: VirtualTime, ppm: int) -> None:
        self._time = time
        self._ppm = ppm

    def now_ms(self) -> int:
        """Return what the clock shows; nearly the present."""
        return START_MS + self._time.elapsed_ms * (MILLION + self._ppm) // MILLION

    def away_ms(self, at_ms: int) -> int:
        """Return how long it really is until the clock shows a time; 0 when it already does."""
        left_ms = at_ms - self.now_ms()
        return -(-left_ms * MILLION // (MILLION + self._ppm)) if left_ms > 0 else 0
