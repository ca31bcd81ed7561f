"""Read-side queries: what routes may ask without going through the control loop. Any thread.

Owns: filters and answers. Must not know: the state in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from airyard.core.events import Recorded
from airyard.ports.journal import RunRow


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFilter:
    """Which runs: all conditions hold at once; empty ones hold for all. ``before`` is a run id, exclusive."""

    states: tuple[str, ...] = ()
    statuses: tuple[str, ...] = ()
    tags: tuple[tuple[str, str], ...] = ()
    experiment: str | None = None
    owner: str | None = None
    name: str | None = None
    ids: tuple[int, ...] = ()
    before: int | None = None
    ended_before_ms: int | None = None
    limit: int = 100


class ReadStore(Protocol):
    """The read tables, as of the last commit."""

    def run(self, run_id: int) -> RunRow | None:
        """Return one run."""
        ...

    def runs(self, wanted: RunFilter) -> Sequence[RunRow]:
        """Return runs, newest first, at most ``limit``."""
        ...

    def counts(self) -> Mapping[str, int]:
        """Return how many runs there are in each state."""
        ...

    def nodes(self) -> Mapping[str, Mapping[str, Any]]:
        """Return the encoded nodes by name."""
        ...

    def events_of(self, run_id: int) -> Iterator[Recorded]:
        """Yield the journalled events of one run that are still kept, in order."""
        ...

    def yard_events(self, kind: str, limit: int) -> Sequence[Recorded]:
        """Return the newest journalled events of a kind that is about no run, newest first.

        Cost: such events of all kinds that are still kept.
        """
        ...

    def code_hashes(self) -> frozenset[str]:
        """Return the code snapshots that some kept run refers to."""
        ...
