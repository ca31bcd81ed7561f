"""The run's arithmetic: work done, work that a checkpoint holds, work that is lost. No events, no nodes.

Owns: one number of seconds for each of these. Must not know: why it is stopped. Work is in seconds at full speed.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, kw_only=True)
class Training:
    """A run that works, writes a checkpoint, and works on. ``speed`` is 1 when no straggler is among its nodes."""

    checkpoint_s: float
    write_s: float
    speed: float = 1.0
    saved_s: float = 0.0
    lost_s: float = 0.0
    writing_s: float = 0.0
    """Time that checkpoints took."""
    slow_s: float = 0.0
    """Work that stragglers cost."""
    running: bool = False
    _at_s: float = 0.0
    _place_s: float = 0.0
    """How far into working and writing it is."""
    _unsaved_s: float = 0.0

    def advance(self, now_s: float) -> None:
        """Let time pass. Cost: checkpoints since the last call."""
        left_s = now_s - self._at_s
        self._at_s = now_s
        while self.running and left_s > 0:
            if self._place_s < self.checkpoint_s:
                span_s = min(left_s, self.checkpoint_s - self._place_s)
                self._unsaved_s += span_s * self.speed
                self.slow_s += span_s * (1 - self.speed)
            else:
                span_s = min(left_s, self.checkpoint_s + self.write_s - self._place_s)
                self.writing_s += span_s
            self._place_s += span_s
            left_s -= span_s
            if self._place_s >= self.checkpoint_s + self.write_s:
                self._save()

    def _save(self) -> None:
        self.saved_s += self._unsaved_s
        self._unsaved_s = self._place_s = 0.0

    def begin(self, now_s: float) -> None:
        """Take the first step, from the last checkpoint on."""
        self.advance(now_s)
        self.running = True
        self._place_s = self._unsaved_s = 0.0

    def stall(self, now_s: float) -> None:
        """Stop working: dead or hanging. What no checkpoint holds is lost."""
        self.advance(now_s)
        self.running = False
        self.lost_s += self._unsaved_s
        self._unsaved_s = self._place_s = 0.0

    def leave(self, now_s: float) -> None:
        """Write a last checkpoint and stop: nothing is lost."""
        self.advance(now_s)
        self.running = False
        self._save()

    def pace(self, now_s: float, speed: float) -> None:
        """Go at another speed from now on."""
        self.advance(now_s)
        self.speed = speed

    def done_s(self, now_s: float) -> float:
        """Return the work that counts: what is saved, and what would be if it went on."""
        self.advance(now_s)
        return self.saved_s + self._unsaved_s
