"""The machine's clock. Wall time never goes back within a process, whatever is done to the machine's clock."""

from __future__ import annotations

import threading
import time


class SystemClock:
    """Implements ``ports.clock.Clock``. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last_ms = 0

    def now_ms(self) -> int:
        """Return milliseconds since 1970, at least as many as ever before."""
        with self._lock:
            self._last_ms = max(self._last_ms, time.time_ns() // 1_000_000)
            return self._last_ms

    def monotonic_ms(self) -> int:
        """Return milliseconds of the monotonic clock."""
        return time.monotonic_ns() // 1_000_000
