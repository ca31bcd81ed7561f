"""When a waiting server may lead, and until when a leading one does.

Owns: the rule of take-over, as bookkeeping on a steady clock. Must not know: threads, the clock, where the seat is.

No wall clock takes part, neither a machine's nor the database's. A leader counts its lease from when it *sent* the
last renewal that was taken; whoever waits counts from when it *saw* that renewal, which is later, and a margin longer.
So the old leader has fallen silent before the seat can be taken. Both clocks count while a machine sleeps.
"""

from __future__ import annotations

from airyard.ports.leadership import Seat

BEAT_SHARE = 8
"""So many renewals a lease: some may be late or lost."""
MARGIN_MS = 1_000


class SeatWatch:
    """What one waiting server has seen of the seat. One thread."""

    def __init__(self, me: str, lease_ms: int) -> None:
        """``me``: the seat of a leader of this name may be taken at once: that process is known to have ended."""
        self._me = me
        self._lease_ms = lease_ms
        self._seen: tuple[int, int] | None = None
        self._since_ms = 0

    @property
    def over_ms(self) -> int:
        """When the reign that was seen last is over: its leader answers nobody any more, unless it is seen again."""
        return self._since_ms + self._lease_ms

    def saw(self, seat: Seat | None, now_ms: int) -> bool:
        """Note what was seen by a look that was answered at ``now_ms``; True: it may be taken as it was seen."""
        if seat is None or seat.free or seat.holder == self._me:
            return True
        mark = (seat.term, seat.beat)
        if mark != self._seen:
            self._seen, self._since_ms = mark, now_ms
            return False
        return now_ms >= self._since_ms + self._lease_ms + MARGIN_MS
