"""Verification finds what was tampered with, wherever it lies, and is content with an honest yard."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from airyard.adapters.memory import MemoryDisk, MemoryJournal, MemoryReadStore
from airyard.app.verify import verify
from airyard.core.events import RunRemoved, RunSubmitted
from journal_yard import Writer, run


def yard(count: int = 6) -> tuple[MemoryDisk, Writer]:
    """Return a disk with two snapshots, and the writer whose memory belongs to it."""
    disk, writer = MemoryDisk(), Writer()
    journal = MemoryJournal(disk)
    for events, changes in writer.story(count):
        journal.append(events[0].seq - 1, 1, events, changes)
        if events[-1].seq in (7, 12):
            journal.save_snapshot(writer.state.seq, writer.state.to_json())
        writer.at_ms += 10
    events, changes = writer.take(RunSubmitted(run=run(40)))
    journal.append(events[0].seq - 1, 1, events, changes)
    return disk, writer


def differences(disk: MemoryDisk, memory: dict[str, Any] | None = None) -> list[str]:
    return [str(one) for one in verify(MemoryJournal(disk), MemoryReadStore(disk), memory).differences]


def test_an_honest_yard_has_no_differences() -> None:
    disk, writer = yard()
    verdict = verify(
        MemoryJournal(disk), MemoryReadStore(disk), json.loads(json.dumps(writer.state.to_json()))
    )
    assert verdict.to_json() == {
        "ok": True,
        "first_seq": 1,
        "last_seq": writer.state.seq,
        "events": writer.state.seq,
        "runs": 7,
        "snapshots": 2,
        "memory_compared": True,
        "differences": [],
    }
    assert differences(MemoryDisk()) == []


def test_a_pruned_yard_is_replayed_from_its_older_snapshot() -> None:
    disk, writer = yard()
    assert MemoryJournal(disk).prune(1 << 60) == 7
    verdict = verify(MemoryJournal(disk), MemoryReadStore(disk), writer.state.to_json())
    assert (verdict.differences, verdict.first_seq, verdict.snapshots) == ([], 8, 2)
    disk.snapshots.clear()
    assert differences(disk) == ["journal: event 1: expected a legal event, found events 1 to 7 are missing"]


def damage_row(disk: MemoryDisk, writer: Writer) -> None:
    disk.runs[3] = replace(disk.runs[3], record={**disk.runs[3].record, "owner": "eve"})


def damage_column(disk: MemoryDisk, writer: Writer) -> None:
    disk.runs[40] = replace(disk.runs[40], state="ENDED")


def lose_row(disk: MemoryDisk, writer: Writer) -> None:
    del disk.runs[2]


def damage_snapshot(disk: MemoryDisk, writer: Writer) -> None:
    snapshot = json.loads(disk.snapshots[12])
    snapshot["runs"][0]["name"] = "other"
    disk.snapshots[12] = json.dumps(snapshot)


def lose_event(disk: MemoryDisk, writer: Writer) -> None:
    del disk.events[4]


def damage_memory(disk: MemoryDisk, writer: Writer) -> None:
    writer.state.runs[40] = replace(writer.state.runs[40], retries_spent=3)


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (damage_row, 'read tables: run 3: expected {"owner": "ada"}, found {"owner": "eve"}'),
        (damage_column, "read tables: run 40, state: expected QUEUED, found ENDED"),
        (lose_row, "read tables: run 2: expected a row, found none"),
        (damage_snapshot, "snapshot 12: runs 2: expected"),
        (lose_event, "journal: event 5: expected a legal event, found event 6 cannot follow 4"),
        (damage_memory, "memory: runs 40: expected"),
    ],
)
def test_damage_is_found_and_named(damage: Callable[[MemoryDisk, Writer], None], told: str) -> None:
    disk, writer = yard()
    damage(disk, writer)
    found = differences(disk, writer.state.to_json())
    assert len(found) == 1, found
    assert found[0].startswith(told)


def test_what_changes_meanwhile_is_no_difference() -> None:
    disk, writer = yard()
    memory = writer.state.to_json()
    journal = MemoryJournal(disk)
    events, changes = writer.take(RunSubmitted(run=run(41)))
    journal.append(events[0].seq - 1, 1, events, changes)
    assert differences(disk, memory) == []
    events, _ = writer.take(RunRemoved(run_id=1, by="ada"))
    journal.append(events[0].seq - 1, 1, events, replace(changes, runs=(), removed_runs=(1,)))
    assert differences(disk, memory) == []
    disk.runs[1] = replace(disk.runs[2], run_id=1)
    assert differences(disk, memory) == ["read tables: run 1: expected no row: it was removed, found a row"]
