"""What every part of the simulated world is given: time, chance, the trace, the durable truth.

Owns: the trace and the word for a broken promise. Must not know: any part of the world.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from airyard.sim.chance import Chance
from airyard.sim.clock import VirtualTime

TAIL = 60


class Broken(AssertionError):
    """The system under test broke a promise."""


@dataclass(slots=True)
class Setting:
    """The stage. ``echo`` takes every trace line at once; the last ones are kept for a failure."""

    time: VirtualTime
    chance: Chance
    echo: Callable[[str], None] | None = None
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=TAIL))

    def trace(self, who: str, what: object) -> None:
        """Note what happened."""
        line = f"{self.time.elapsed_ms / 1000:10.3f}  {who:<14} {what}"
        self.tail.append(line)
        if self.echo is not None:
            self.echo(line)

    def later(self, delay_ms: int, act: Callable[[], None]) -> None:
        """Do something after a while."""
        self.time.after(delay_ms, act)
