"""Journal and read tables in memory, for the simulator and unit tests.

Owns: the same promises as the SQL adapters, on a ``MemoryDisk`` that outlives a simulated crash.
Must not know: files. Every server of a simulation opens its own ``MemoryJournal`` on the one disk, so a stale
server's append meets the same fence as on a real one.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from airyard.adapters.journal_rows import run_id_of, stale_epoch, texts
from airyard.core.errors import AiryardError
from airyard.core.events import Recorded
from airyard.ports.journal import Changes, RunRow, Stored
from airyard.ports.read_store import RunFilter

_KEPT_SNAPSHOTS = 2


@dataclass(slots=True, kw_only=True)
class MemoryDisk:
    """What is durable: everything that an ``append`` returned for, and nothing else.

    ``refusals`` are raised, one per append, before anything is written: a full or broken disk.
    """

    events: list[Recorded] = field(default_factory=list)
    snapshots: dict[int, str] = field(default_factory=dict)
    runs: dict[int, RunRow] = field(default_factory=dict)
    nodes: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    refusals: list[AiryardError] = field(default_factory=list)
    appends: int = 0


class MemoryJournal:
    """A journal on a ``MemoryDisk``."""

    def __init__(self, disk: MemoryDisk | None = None) -> None:
        self.disk = disk if disk is not None else MemoryDisk()

    def open(self) -> Stored:
        """Return the newest snapshot and the ends of the journal."""
        events = self.disk.events
        last_seq, epoch = (events[-1].seq, events[-1].epoch) if events else (0, 0)
        seq = max(self.disk.snapshots, default=0)
        return Stored(
            snapshot_seq=seq,
            snapshot=json.loads(self.disk.snapshots[seq]) if seq else None,
            last_seq=last_seq,
            epoch=epoch,
            oldest_seq=events[0].seq if events else last_seq + 1,
        )

    def events_after(self, seq: int) -> Iterator[Recorded]:
        """Yield the events after ``seq`` in order."""
        events = self.disk.events
        yield from events[bisect_right(events, seq, key=lambda recorded: recorded.seq) :]

    def append(self, expected_seq: int, epoch: int, events: Sequence[Recorded], changes: Changes) -> None:
        """Take events and rows, all or nothing."""
        if self.disk.refusals:
            raise self.disk.refusals.pop(0)
        last = self.disk.events[-1] if self.disk.events else None
        last_seq, last_epoch = (last.seq, last.epoch) if last else (0, 0)
        if last_seq != expected_seq or last_epoch > epoch:
            raise stale_epoch(
                "The journal",
                last_seq=last_seq,
                last_epoch=last_epoch,
                expected_seq=expected_seq,
                epoch=epoch,
            )
        self.disk.appends += 1
        self.disk.events.extend(events)
        self.disk.runs.update((row.run_id, row) for row in changes.runs)
        for run_id in changes.removed_runs:
            self.disk.runs.pop(run_id, None)
        self.disk.nodes.update(changes.nodes)
        for name in changes.removed_nodes:
            self.disk.nodes.pop(name, None)

    def save_snapshot(self, seq: int, snapshot: Mapping[str, Any]) -> None:
        """Keep a snapshot as text, so that it shares nothing with the living state."""
        self.disk.snapshots[seq] = "".join(texts(snapshot))
        for old in sorted(self.disk.snapshots)[:-_KEPT_SNAPSHOTS]:
            del self.disk.snapshots[old]

    def snapshots(self) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """Yield the snapshots, oldest first."""
        for seq in sorted(self.disk.snapshots):
            yield seq, json.loads(self.disk.snapshots[seq])

    def prune(self, before_ms: int) -> int:
        """Drop old events behind the older snapshot."""
        if len(self.disk.snapshots) < _KEPT_SNAPSHOTS:
            return 0
        end = min(self.disk.snapshots)
        count = 0
        for recorded in self.disk.events:
            if recorded.seq > end or recorded.at_ms >= before_ms:
                break
            count += 1
        del self.disk.events[:count]
        return count

    @property
    def place(self) -> str:
        """Return where it is."""
        return "memory"

    def size_bytes(self) -> int:
        """Return the size of the snapshots; events take no disk here."""
        return sum(map(len, self.disk.snapshots.values()))

    def close(self) -> None:
        """Do nothing: the disk stays."""


class MemoryReadStore:
    """The read side of a ``MemoryDisk``."""

    def __init__(self, disk: MemoryDisk) -> None:
        self._disk = disk

    def run(self, run_id: int) -> RunRow | None:
        """Return one run."""
        row = self._disk.runs.get(run_id)
        return _as_stored(row) if row else None

    def runs(self, wanted: RunFilter) -> Sequence[RunRow]:
        """Return runs, newest first."""
        found = [row for _, row in sorted(self._disk.runs.items(), reverse=True) if _matches(wanted, row)]
        return [_as_stored(row) for row in found[: wanted.limit]]

    def counts(self) -> Mapping[str, int]:
        """Return how many runs there are in each state."""
        counts: dict[str, int] = {}
        for row in self._disk.runs.values():
            counts[row.state] = counts.get(row.state, 0) + 1
        return counts

    def nodes(self) -> Mapping[str, Mapping[str, Any]]:
        """Return the encoded nodes by name."""
        return dict(sorted(self._disk.nodes.items()))

    def events_of(self, run_id: int) -> Iterator[Recorded]:
        """Yield one run's events in order."""
        return (recorded for recorded in list(self._disk.events) if run_id_of(recorded.event) == run_id)

    def yard_events(self, kind: str, limit: int) -> Sequence[Recorded]:
        """Return the newest events of a kind that is about no run."""
        found = [recorded for recorded in self._disk.events if type(recorded.event).__name__ == kind]
        return found[: -limit - 1 : -1] if limit else []

    def code_hashes(self) -> frozenset[str]:
        """Return the code snapshots that some kept run refers to."""
        return frozenset(row.code_hash for row in self._disk.runs.values() if row.code_hash is not None)


def _as_stored(row: RunRow) -> RunRow:
    return replace(row, tags=tuple(sorted(row.tags)))


def _matches(wanted: RunFilter, row: RunRow) -> bool:
    return (
        (not wanted.states or row.state in wanted.states)
        and (not wanted.statuses or row.status in wanted.statuses)
        and (not wanted.ids or row.run_id in wanted.ids)
        and all(tag in row.tags for tag in wanted.tags)
        and wanted.experiment in (None, row.experiment)
        and wanted.owner in (None, row.owner)
        and wanted.name in (None, row.name)
        and (wanted.before is None or row.run_id < wanted.before)
        and (
            wanted.ended_before_ms is None
            or (row.ended_ms is not None and row.ended_ms < wanted.ended_before_ms)
        )
    )
