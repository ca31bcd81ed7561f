"""The machine's clock. Wall time never goes back or stands still, whatever is done to the machine's clock."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class SystemClock:
    """Implements ``ports.clock.Clock``. Any thread."""

    def __init__(
        self,
        wall_ns: Callable[[], int] = time.time_ns,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._wall_ns = wall_ns
        self._monotonic_ns = monotonic_ns
        self._lock = threading.Lock()
        self._last_ms = 0
        self._read_at_ms = 0

    def now_ms(self) -> int:
        """Return milliseconds since 1970, at least as many as ever before.

        After the machine's clock was set back it counts on from there, so that pauses and limits still pass.
        """
        with self._lock:
            read_at_ms = self.monotonic_ms()
            counted_ms = self._last_ms + read_at_ms - self._read_at_ms if self._last_ms else 0
            self._last_ms = max(counted_ms, self._wall_ns() // 1_000_000)
            self._read_at_ms = read_at_ms
            return self._last_ms

    def monotonic_ms(self) -> int:
        """Return milliseconds of the monotonic clock."""
        return self._monotonic_ns() // 1_000_000
