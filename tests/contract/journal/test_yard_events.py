"""Events about no run are found by their kind, newest first, on every read store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from airyard.adapters.journal_sql import SqlJournal
from airyard.adapters.memory import MemoryDisk, MemoryJournal, MemoryReadStore
from airyard.adapters.read_store_sql import SqlReadStore
from airyard.core.events import PolicyDeclared, RunSubmitted
from airyard.core.policy import Policy
from airyard.ports.journal import Journal
from airyard.ports.read_store import ReadStore
from journal_place import place_of
from journal_yard import Writer, run


@pytest.fixture(params=["sqlite", "postgres", "memory"])
def stores(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Journal, ReadStore]]:
    if request.param == "memory":
        disk = MemoryDisk()
        yield MemoryJournal(disk), MemoryReadStore(disk)
        return
    place = place_of(request, tmp_path)
    journal = SqlJournal(place)
    journal.open()
    reads = SqlReadStore(place)
    yield journal, reads
    reads.close()
    journal.close()


def test_the_newest_declarations_come_first(stores: tuple[Journal, ReadStore]) -> None:
    journal, reads = stores
    writer = Writer()
    told = []
    for events, changes in writer.story(2):
        journal.append(events[0].seq - 1, 1, events, changes)
    for half_life_ms in (1000, 2000, 3000):
        declared = PolicyDeclared(policy=Policy(half_life_ms=half_life_ms), by="ada", source="api")
        number = writer.state.next_run_id
        events, changes = writer.take(declared, RunSubmitted(run=run(number)))
        journal.append(events[0].seq - 1, 1, events, changes)
        told.append(events[0])
    assert list(reads.yard_events("PolicyDeclared", 10)) == told[::-1]
    assert list(reads.yard_events("PolicyDeclared", 2)) == told[:0:-1]
    assert list(reads.yard_events("PolicyDeclared", 0)) == []
    assert len(reads.yard_events("MachineJoined", 10)) == 1
    assert list(reads.yard_events("ReservationMade", 10)) == []
