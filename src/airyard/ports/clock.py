"""The clock that shells and the control loop are given."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    """Wall time and monotonic time; the simulator has one of its own."""

    def now_ms(self) -> int:
        """Return milliseconds since 1970; never less than an earlier answer of this process."""
        ...

    def monotonic_ms(self) -> int:
        """Return milliseconds of a clock that no one can set."""
        ...
