"""Which queue of messages is served next, so that receivers that do not answer take no room from those that do.

Owns: turns, rests, room. Must not know: messages, how they are sent, clocks. Any thread.

A queue that is served holds a place until its receiver answers or is given up, ten seconds later. So places are kept
free: for receivers that answered last time, and for those that did not fail. Who waited longest goes first.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum

from airyard.core.webhooks import pause_ms

LONGEST_REST_MS = 300_000
"""A queue whose receiver fails rests at most so long."""
MOST_KNOWN = 10_000
"""Of so many queues it is remembered how they fared."""


class Standing(IntEnum):
    """How a receiver did the last time, the best first."""

    ANSWERS = 0
    NEW = 1
    FAILS = 2


AT_ONCE = {Standing.ANSWERS: 8, Standing.NEW: 6, Standing.FAILS: 4}
"""So many places may be taken when a queue of this standing begins: the rest is kept for better ones."""
OF_OWNER = {Standing.ANSWERS: 4, Standing.NEW: 3, Standing.FAILS: 2}
"""Likewise of one owner's places."""


@dataclass(slots=True)
class _Known:
    """``failures``: in a row; -1: it was never served."""

    failures: int = -1
    served_ms: int = 0
    rests_until_ms: int = 0

    @property
    def standing(self) -> Standing:
        if self.failures < 0:
            return Standing.NEW
        return Standing.FAILS if self.failures else Standing.ANSWERS


class Turns:
    """The turns of all queues. A queue's name begins with its owner and a space."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[str, _Known] = {}
        self._busy: set[str] = set()

    def waiting(self, queues: Iterable[str], now_ms: int) -> list[str]:
        """Return the queues that may be served now, in the order of their turns."""
        with self._lock:
            idle = [(self._of(name), name) for name in queues if name not in self._busy]
            ready = [
                (one.standing, one.served_ms, name) for one, name in idle if one.rests_until_ms <= now_ms
            ]
        return [name for _, _, name in sorted(ready)]

    def take(self, queue: str, now_ms: int) -> bool:
        """Take a place for a queue; False where there is none for one of its standing."""
        with self._lock:
            known = self._of(queue)
            if queue in self._busy or not self._has_room(queue, known.standing):
                return False
            self._busy.add(queue)
            known.served_ms = now_ms
            self._known[queue] = known
            self._forget()
            return True

    def let_go(self, queue: str) -> None:
        """Give the place back; a queue of which nothing was due is as it was."""
        with self._lock:
            self._busy.discard(queue)

    def answered(self, queue: str) -> None:
        """Note that its receiver is there, whatever it said."""
        with self._lock:
            known = self._of(queue)
            known.failures, known.rests_until_ms = 0, 0
            self._known[queue] = known

    def failed(self, queue: str, now_ms: int, chance: float, at_least_ms: int = 0) -> None:
        """Let a queue rest: the longer, the more often it failed in a row, whichever messages these were."""
        with self._lock:
            known = self._of(queue)
            known.failures = max(known.failures, 0) + 1
            rest_ms = min(max(pause_ms(known.failures, chance), at_least_ms), LONGEST_REST_MS)
            known.rests_until_ms = now_ms + rest_ms
            self._known[queue] = known

    def _of(self, queue: str) -> _Known:
        return self._known.get(queue) or _Known()

    def _has_room(self, queue: str, standing: Standing) -> bool:
        # Each standing counts those that are no better: good ones in flight do not keep out a bad one for ever.
        alike = [one for one in self._busy if self._of(one).standing >= standing]
        owner = owner_of(queue)
        of_owner = [one for one in self._busy if owner_of(one) == owner]
        alike_of_owner = [one for one in alike if owner_of(one) == owner]
        return (
            len(self._busy) < AT_ONCE[Standing.ANSWERS]
            and len(alike) < AT_ONCE[standing]
            and len(of_owner) < OF_OWNER[Standing.ANSWERS]
            and len(alike_of_owner) < OF_OWNER[standing]
        )

    def _forget(self) -> None:
        """Forget whom nothing was sent to for longest; where it fails is found out again."""
        if len(self._known) <= MOST_KNOWN:
            return
        oldest = sorted(self._known, key=lambda name: (name in self._busy, self._known[name].served_ms))
        for name in oldest[: MOST_KNOWN // 10]:
            del self._known[name]


def owner_of(queue: str) -> str:
    """Return whose messages a queue has."""
    return queue.partition(" ")[0]
