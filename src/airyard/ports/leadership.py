"""The seat of the leader among several servers on one journal.

Owns: what a server that leads, or waits to, needs of it. Must not know: SQL, clocks, how long a lease is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """Who leads. ``term`` counts the leaders, ``beat`` the renewals of this one; ``free``: it has left of itself."""

    term: int
    beat: int
    holder: str
    url: str
    free: bool


class LeaderSeat(Protocol):
    """One row that a server takes, renews and leaves, each in one step. One thread at a time.

    Raises: Unavailable where the database does not answer.
    """

    def look(self) -> Seat | None:
        """Return who sits there; None before the first leader, and where the tables are not made yet."""
        ...

    def take(self, seen: Seat | None, holder: str, url: str) -> int | None:
        """Sit down if nothing has changed since ``seen``; return the new term, or None where it has."""
        ...

    def beat(self, term: int) -> bool:
        """Renew; False when another term has begun: this leader has been replaced."""
        ...

    def leave(self, term: int) -> None:
        """Free the seat, so that nobody has to wait for the lease's end."""
        ...

    def close(self) -> None:
        """Release the connection."""
        ...
