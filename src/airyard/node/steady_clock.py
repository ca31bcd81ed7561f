"""The clock of one runner: wall time that never jumps, whatever is done to the machine's clock.

Owns: the one time by which a member's log records, reports and deadlines are stamped. Must not know: what is stamped.
"""

from __future__ import annotations

import time


class SteadyClock:
    """Anchored to wall time once, then counted by CLOCK_BOOTTIME, which goes on while the machine sleeps."""

    __slots__ = ("_offset_ns",)

    def __init__(self) -> None:
        self._offset_ns = time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME)

    def now_ns(self) -> int:
        """Return nanoseconds since 1970 by this clock."""
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) + self._offset_ns

    def boot_ms(self, at_ms: int) -> int:
        """Return a time of this clock in milliseconds of CLOCK_BOOTTIME, which every process of the machine shares."""
        return at_ms - self._offset_ns // 1_000_000

    def now_ms(self) -> int:
        """Return milliseconds since 1970 by this clock."""
        return self.now_ns() // 1_000_000
