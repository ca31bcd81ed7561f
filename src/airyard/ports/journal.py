"""The journal: the only durable truth about runs, written by one server at a time.

Owns: what the control loop needs of it. Must not know: SQL.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from airyard.core.events import Recorded


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """A run as the read tables keep it: columns to search by, and ``record``, the encoded ``Run``.

    ``state`` is QUEUED, ACTIVE or ENDED; ``status`` what people see. ``search`` text holds nothing secret.
    """

    run_id: int
    version: int
    owner: str
    project: str
    name: str
    experiment: str
    state: str
    status: str
    accelerator: str
    submitted_ms: int
    ended_ms: int | None
    tags: tuple[tuple[str, str], ...]
    code_hash: str | None
    record: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What one transaction does to the read tables, beside the events it appends."""

    runs: tuple[RunRow, ...] = ()
    removed_runs: tuple[int, ...] = ()
    nodes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Nodes that are new or changed, encoded with their machine."""
    removed_nodes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """The newest snapshot, and where the journal stands."""

    snapshot_seq: int = 0
    snapshot: Mapping[str, Any] | None = None
    last_seq: int = 0
    epoch: int = 0
    oldest_seq: int = field(default=1)


class Journal(Protocol):
    """Append-only events with read tables in the same transaction. One writer: the loop thread."""

    def open(self) -> Stored:
        """Return the newest good snapshot and the ends of the journal. Raises: Unavailable, InvariantBroken."""
        ...

    @property
    def place(self) -> str:
        """Return what people call where it is; it holds no password."""
        ...

    def events_after(self, seq: int) -> Iterator[Recorded]:
        """Yield the events after ``seq`` in order."""
        ...

    def append(self, expected_seq: int, epoch: int, events: Sequence[Recorded], changes: Changes) -> None:
        """Write events and read tables durably, all or nothing.

        Raises: Conflict (``STALE_EPOCH``) when the journal's end is not ``expected_seq`` or a newer epoch has
        written: nothing of it is there then. Unavailable (``JOURNAL_FULL``, ``JOURNAL_BROKEN``) when the disk or the
        database refuses or is away: ``events_after`` tells, once it answers, whether it was written all the same.
        """
        ...

    def save_snapshot(self, seq: int, snapshot: Mapping[str, Any]) -> None:
        """Keep a state snapshot; the two newest are kept. May be called from another thread than ``append``.

        In place of a list it may hold an iterator of the items: they are read once, one by one.
        """
        ...

    def snapshots(self) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """Yield (seq, snapshot) of every good snapshot kept, oldest first; for ``admin verify``."""
        ...

    def prune(self, before_ms: int) -> int:
        """Drop events older than ``before_ms`` that lie behind the older kept snapshot; return how many."""
        ...

    def size_bytes(self) -> int:
        """Return the space the journal takes where it is; 0 where that cannot be found out now."""
        ...

    def close(self) -> None:
        """Release the files."""
        ...
