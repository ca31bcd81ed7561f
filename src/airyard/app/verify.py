"""``airyard admin verify``: does everything that is stored say the same as the journal's events?

Owns: the comparison of events, snapshots, read tables and the state in memory. Must not know: SQL, HTTP.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from airyard.core import codec
from airyard.core.errors import InvariantBroken
from airyard.core.events import RunArchived, RunRemoved
from airyard.core.invariants import check
from airyard.core.run import Run
from airyard.core.state import ClusterState
from airyard.ports.journal import Journal, RunRow
from airyard.ports.read_store import ReadStore, RunFilter

_PAGE_RUNS = 500
_SHOWN_CHARACTERS = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Something stored that disagrees with the replayed events; ``where`` it lies, and both sides in short."""

    where: str
    name: str
    expected: str
    found: str

    def __str__(self) -> str:
        return f"{self.where}: {self.name}: expected {self.expected}, found {self.found}"


@dataclass(slots=True, kw_only=True)
class Verdict:
    """What was compared, and what differed."""

    first_seq: int = 1
    last_seq: int = 0
    events: int = 0
    runs: int = 0
    snapshots: int = 0
    memory: bool = False
    differences: list[Difference] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Return the answer of ``POST /admin/verify``."""
        return {
            "ok": not self.differences,
            "first_seq": self.first_seq,
            "last_seq": self.last_seq,
            "events": self.events,
            "runs": self.runs,
            "snapshots": self.snapshots,
            "memory_compared": self.memory,
            "differences": [str(difference) for difference in self.differences],
        }


def verify(journal: Journal, reads: ReadStore, memory: Mapping[str, Any] | None = None) -> Verdict:
    """Replay from the oldest point that is kept, and compare.

    ``memory`` is ``ClusterState.to_json()`` of some moment before this call; the server may go on meanwhile, and
    what has changed since is left out. ``journal`` is open; another one than the writer's will do.
    Raises: Unavailable. Cost: reads the whole journal and all runs.
    """
    return _Verification(journal, reads, memory).run()


class _Verification:
    def __init__(self, journal: Journal, reads: ReadStore, memory: Mapping[str, Any] | None) -> None:
        self._journal = journal
        self._reads = reads
        self._memory = memory
        self._snapshots = dict(journal.snapshots())
        self._verdict = Verdict(memory=memory is not None)
        self._gone: dict[int, Run | None] = {}
        """Runs that left memory while events were replayed, as they were; None when they were removed."""

    def run(self) -> Verdict:
        try:
            state = self._start()
            self._replay(state)
        except InvariantBroken as error:
            self._differ("journal", f"event {self._verdict.last_seq + 1}", "a legal event", error.message)
            return self._verdict
        for violation in check(state):
            self._differ("state", f"after event {state.seq}", "a sound state", violation)
        self._compare_rows(state)
        return self._verdict

    def _start(self) -> ClusterState:
        """Return the state from which replaying begins: empty, or the oldest snapshot when its past is pruned."""
        first = next(iter(self._journal.events_after(0)), None)
        if first is None or first.seq == 1:
            return ClusterState()
        seq = min(self._snapshots, default=0)
        self._verdict.first_seq = seq + 1
        if seq + 1 < first.seq:
            raise InvariantBroken(f"events {seq + 1} to {first.seq - 1} are missing")
        state = ClusterState.from_json(dict(self._snapshots.pop(seq)))
        self._verdict.snapshots += 1
        self._verdict.last_seq = seq
        return state

    def _replay(self, state: ClusterState) -> None:
        self._look_at(state)
        for recorded in self._journal.events_after(state.seq):
            event = recorded.event
            if isinstance(event, RunArchived):
                self._gone[event.run_id] = state.runs.get(event.run_id)
            if isinstance(event, RunRemoved):
                self._gone[event.run_id] = None
            state.apply(recorded)
            self._verdict.events += 1
            self._verdict.last_seq = state.seq
            self._look_at(state)

    def _look_at(self, state: ClusterState) -> None:
        """Compare with whatever was kept of this very moment."""
        if state.seq in self._snapshots:
            self._compare_states(f"snapshot {state.seq}", state.to_json(), self._snapshots.pop(state.seq))
            self._verdict.snapshots += 1
        if self._memory is not None and state.seq == self._memory["seq"]:
            self._compare_states("memory", state.to_json(), self._memory)
            self._memory = None

    def _compare_states(self, where: str, expected: Mapping[str, Any], found: Mapping[str, Any]) -> None:
        expected, found = _plain(expected), _plain(found)
        for part in sorted({*expected, *found}):
            left, right = expected.get(part), found.get(part)
            if left == right:
                continue
            if part not in ("runs", "nodes", "machines"):
                self._differ(where, part, left, right)
                continue
            mine, theirs = _by_name(left), _by_name(right)
            for name in sorted({*mine, *theirs}):
                if mine.get(name) != theirs.get(name):
                    self._differ(
                        where, f"{part} {name}", *_first_difference(mine.get(name), theirs.get(name))
                    )

    def _compare_rows(self, state: ClusterState) -> None:
        if self._memory is not None:
            self._differ("memory", "seq", f"at most {state.seq}", self._memory["seq"])
        for seq in self._snapshots:
            self._differ(f"snapshot {seq}", "seq", f"{self._verdict.first_seq} to {state.seq}", seq)
        expected: dict[int, Run | None] = {**self._gone, **state.runs}
        seen: set[int] = set()
        for row in self._rows():
            seen.add(row.run_id)
            self._verdict.runs += 1
            if row.version <= state.seq and row.run_id in expected:
                self._compare_row(row, expected[row.run_id])
        for run_id, run in expected.items():
            # Removed since the replay ended, perhaps: then its own row tells.
            if (
                run is not None
                and run_id not in seen
                and self._reads.run(run_id) is None
                and not self._removed(run_id)
            ):
                self._differ("read tables", f"run {run_id}", "a row", "none")

    def _removed(self, run_id: int) -> bool:
        return any(isinstance(recorded.event, RunRemoved) for recorded in self._reads.events_of(run_id))

    def _compare_row(self, row: RunRow, run: Run | None) -> None:
        name = f"run {row.run_id}"
        if run is None:
            self._differ("read tables", name, "no row: it was removed", "a row")
            return
        record, stored = _plain(codec.encode(run)), _plain(row.record)
        if record != stored:
            self._differ("read tables", name, *_first_difference(record, stored))
        columns = {
            "version": (run.version, row.version),
            "state": (run.state.value, row.state),
            "owner": (run.owner, row.owner),
            "name": (run.name, row.name),
            "ended": (run.ended_ms, row.ended_ms),
            "tags": (sorted(run.workload.tags), sorted(row.tags)),
        }
        for column, (expected, found) in columns.items():
            if expected != found:
                self._differ("read tables", f"{name}, {column}", expected, found)

    def _rows(self) -> Iterator[RunRow]:
        before: int | None = None
        while True:
            page = self._reads.runs(RunFilter(before=before, limit=_PAGE_RUNS))
            yield from page
            if len(page) < _PAGE_RUNS:
                return
            before = page[-1].run_id

    def _differ(self, where: str, name: str, expected: Any, found: Any) -> None:
        self._verdict.differences.append(
            Difference(where=where, name=name, expected=_short(expected), found=_short(found))
        )


def _plain(tree: Any) -> Any:
    return json.loads(json.dumps(tree))


def _by_name(records: Any) -> dict[str, Any]:
    return {str(record.get("run_id", record.get("name"))): record for record in records or ()}


def _first_difference(expected: Any, found: Any) -> tuple[Any, Any]:
    """Return the fields that differ, not the whole records."""
    if isinstance(expected, dict) and isinstance(found, dict):
        names = [name for name in sorted({*expected, *found}) if expected.get(name) != found.get(name)]
        return {name: expected.get(name) for name in names}, {name: found.get(name) for name in names}
    return "a record" if expected else "none", "a record" if found else "none"


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."
