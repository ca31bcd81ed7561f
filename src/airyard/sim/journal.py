"""The simulated journal: the memory adapter on one durable disk, with a witness and with crashes around appends.

Owns: the moments of death. Must not know: what is written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from airyard.adapters.memory import MemoryDisk, MemoryJournal
from airyard.core.errors import Unavailable
from airyard.core.events import Recorded
from airyard.ports.journal import Changes
from airyard.sim.chance import Chance, Fault
from airyard.sim.truth import Truth


class ServerDied(BaseException):
    """The server process is killed here and now. Not an Exception: nothing in it may catch its own death."""


class SimJournal(MemoryJournal):
    """One server's hold on the disk. ``doom`` lets it die around its next append; ``full`` refuses all."""

    def __init__(self, disk: MemoryDisk, truth: Truth, chance: Chance) -> None:
        super().__init__(disk)
        self._truth = truth
        self._chance = chance
        self.doom: Fault | None = None
        self.full = False
        self.unreachable = False
        """The server cannot reach the journal's disk."""
        self.reign_taken_ms = 0
        self.on_events: Callable[[Sequence[Recorded]], None] = lambda _: None

    def is_over(self, epoch: int) -> bool:
        """Return whether a newer leader has written, as far as this one can see."""
        return not self.unreachable and bool(self.disk.events) and self.disk.events[-1].epoch > epoch

    def reign_taken(self, now_ms: int, epoch: int) -> bool:
        """Take the leader's word that it goes on leading; False when it cannot get here, or another one leads."""
        if self.unreachable or self.is_over(epoch):
            return False
        self.reign_taken_ms = now_ms
        return True

    def append(self, expected_seq: int, epoch: int, events: Sequence[Recorded], changes: Changes) -> None:
        """Write, refuse, or die before or after writing."""
        if self.unreachable:
            raise Unavailable("the journal cannot be reached", code="JOURNAL_BROKEN", retry_after_ms=1_000)
        if self.full:
            self._chance.note(Fault.JOURNAL_FULL)
            raise Unavailable("the disk is full", code="JOURNAL_FULL", retry_after_ms=1_000)
        if self.doom is Fault.KILLED_BEFORE_APPEND:
            self._chance.note(self.doom)
            raise ServerDied
        super().append(expected_seq, epoch, events, changes)
        self.on_events(self._truth.journalled(events))
        if self.doom is Fault.KILLED_AFTER_APPEND:
            self._chance.note(self.doom)
            raise ServerDied
