"""What every journal with its read tables promises: the same suite on SQLite, on PostgreSQL and in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from airyard.adapters.journal_sql import SqlJournal
from airyard.adapters.memory import MemoryDisk, MemoryJournal, MemoryReadStore
from airyard.adapters.read_store_sql import SqlReadStore
from airyard.core.errors import Conflict
from airyard.core.events import EpochBegan, RunSubmitted
from airyard.core.state import ClusterState
from airyard.ports.journal import Changes, Journal
from airyard.ports.read_store import ReadStore, RunFilter
from journal_place import place_of
from journal_yard import Writer, row_of, run


@dataclass(slots=True, kw_only=True)
class Yard:
    """One durable place and how to open it, again and again."""

    open_journal: Callable[[], Journal]
    open_reads: Callable[[], ReadStore]


@pytest.fixture(params=["sqlite", "postgres", "memory"])
def yard(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Yard]:
    if request.param == "memory":
        disk = MemoryDisk()
        yield Yard(open_journal=lambda: MemoryJournal(disk), open_reads=lambda: MemoryReadStore(disk))
        return
    place = place_of(request, tmp_path)
    opened: list[SqlJournal | SqlReadStore] = []

    def keep(one: SqlJournal | SqlReadStore) -> SqlJournal | SqlReadStore:
        opened.append(one)
        return one

    yield Yard(
        open_journal=lambda: keep(SqlJournal(place)),  # type: ignore[arg-type,return-value]  # kept to be closed
        open_reads=lambda: keep(SqlReadStore(place)),  # type: ignore[arg-type,return-value]  # kept to be closed
    )
    for one in opened:
        one.close()


def write(journal: Journal, writer: Writer, count: int) -> None:
    for events, changes in writer.story(count):
        journal.append(events[0].seq - 1, writer.epoch, events, changes)


def test_an_empty_journal(yard: Yard) -> None:
    stored = yard.open_journal().open()
    assert (stored.last_seq, stored.epoch, stored.snapshot_seq, stored.snapshot, stored.oldest_seq) == (
        0, 0, 0, None, 1,
    )  # fmt: skip
    assert yard.open_reads().counts() == {}


def test_what_was_appended_comes_back(yard: Yard) -> None:
    journal, writer = yard.open_journal(), Writer()
    journal.open()
    told = []
    for events, changes in writer.story(4):
        journal.append(events[0].seq - 1, 1, events, changes)
        told += events
    journal.close()
    again = yard.open_journal()
    stored = again.open()
    assert (stored.last_seq, stored.epoch, stored.oldest_seq) == (told[-1].seq, 1, 1)
    assert list(again.events_after(0)) == told
    assert [recorded.seq for recorded in again.events_after(3)] == list(range(4, told[-1].seq + 1))
    replayed = ClusterState()
    for recorded in again.events_after(0):
        replayed.apply(recorded)
    assert replayed.to_json() == writer.state.to_json()


def test_more_events_than_a_page(yard: Yard) -> None:
    journal = yard.open_journal()
    journal.open()
    writer = Writer()
    events, changes = writer.take(*(RunSubmitted(run=run(number)) for number in range(1, 2501)))
    journal.append(0, 1, events, changes)
    assert [recorded.seq for recorded in journal.events_after(0)] == list(range(1, 2501))
    rows = yard.open_reads().runs(RunFilter(limit=2500))
    assert [row.run_id for row in rows] == list(range(2500, 0, -1))
    assert rows[0].tags == (("round", "1"),)


def test_a_wrong_end_and_an_old_epoch_are_refused_whole(yard: Yard) -> None:
    journal, writer = yard.open_journal(), Writer(epoch=2)
    journal.open()
    write(journal, writer, 1)
    last = writer.state.seq
    stale, changes = Writer(epoch=2, state=writer.state.copy()).take(RunSubmitted(run=run(99)))
    with pytest.raises(Conflict) as refused:
        journal.append(last - 1, 2, stale, changes)
    assert refused.value.code == "STALE_EPOCH"
    with pytest.raises(Conflict, match="Another server"):
        journal.append(last, 1, stale, changes)
    assert journal.open().last_seq == last
    assert yard.open_reads().run(99) is None


def test_a_stale_server_meets_the_fence(yard: Yard) -> None:
    old, writer = yard.open_journal(), Writer()
    old.open()
    write(old, writer, 1)
    new = yard.open_journal()
    stored = new.open()
    took_over = Writer(epoch=2, state=writer.state.copy())
    events, changes = took_over.take(EpochBegan(epoch=2, version="test"))
    new.append(stored.last_seq, 2, events, changes)
    events, changes = writer.take(RunSubmitted(run=run(50)))
    with pytest.raises(Conflict):
        old.append(events[0].seq - 1, 1, events, changes)


def test_two_snapshots_are_kept_and_the_newest_is_opened(yard: Yard) -> None:
    journal, writer = yard.open_journal(), Writer()
    journal.open()
    for events, changes in writer.story(5):
        journal.append(events[0].seq - 1, 1, events, changes)
        if events[-1].seq % 4 == 0:
            journal.save_snapshot(writer.state.seq, writer.state.to_json())
    assert [seq for seq, _ in journal.snapshots()] == [8, 12]
    journal.close()
    again = yard.open_journal()
    stored = again.open()
    assert stored.snapshot_seq == 12
    assert stored.snapshot is not None
    state = ClusterState.from_json(dict(stored.snapshot))
    for recorded in again.events_after(stored.snapshot_seq):
        state.apply(recorded)
    assert state.to_json() == writer.state.to_json()


def test_pruning_leaves_no_hole_and_what_the_older_snapshot_needs(yard: Yard) -> None:
    journal, writer = yard.open_journal(), Writer()
    journal.open()
    for events, changes in writer.story(6):
        journal.append(events[0].seq - 1, 1, events, changes)
        writer.at_ms += 100
    assert journal.prune(10_000) == 0, "without snapshots every event is needed"
    snapshot = writer.state.to_json()
    last = writer.state.seq
    journal.save_snapshot(last - 6, snapshot)
    journal.save_snapshot(last - 2, snapshot)
    young = next(recorded.seq for recorded in journal.events_after(0) if recorded.at_ms >= 1300)
    assert journal.prune(1300) == young - 1
    assert next(journal.events_after(0)).seq == young
    journal.prune(1_000_000)
    assert [recorded.seq for recorded in journal.events_after(0)] == list(range(last - 5, last + 1))
    stored = journal.open()
    assert (stored.oldest_seq, stored.last_seq) == (last - 5, last)


def test_runs_are_found_by_what_they_are(yard: Yard) -> None:
    journal, writer = yard.open_journal(), Writer()
    journal.open()
    write(journal, writer, 7)
    events, changes = writer.take(
        RunSubmitted(run=run(8, name="second", owner="bob")), RunSubmitted(run=run(9, name="third"))
    )
    journal.append(events[0].seq - 1, 1, events, changes)
    reads = yard.open_reads()

    def ids(**conditions: object) -> list[int]:
        return [row.run_id for row in reads.runs(RunFilter(**conditions))]  # type: ignore[arg-type]  # as given

    assert ids() == [9, 8, 7, 6, 5, 4, 3, 2, 1]
    assert ids(limit=2) == [9, 8]
    assert ids(limit=2, before=8) == [7, 6]
    assert ids(states=("QUEUED",)) == [9, 8]
    assert ids(states=("QUEUED", "ENDED"), ids=(1, 9)) == [9, 1]
    assert ids(statuses=("QUEUED", "FAILED")) == [9, 8]
    assert ids(statuses=("QUEUED",), states=("ENDED",)) == []
    assert ids(tags=(("round", "2"),)) == [8, 5, 2]
    assert ids(tags=(("round", "2"), ("other", "x"))) == []
    assert ids(owner="bob") == [8]
    assert ids(name="third") == [9]
    assert ids(experiment="digits", before=3) == [2, 1]
    assert ids(experiment="none") == []
    assert ids(ended_before_ms=1001, limit=3) == [7, 6, 5]
    assert ids(ended_before_ms=1000) == []
    assert reads.counts() == {"ENDED": 7, "QUEUED": 2}
    found = reads.run(8)
    assert found == row_of(writer.state.runs[8])
    assert set(reads.nodes()) == {"host"}
    assert [type(recorded.event).__name__ for recorded in reads.events_of(3)] == [
        "RunSubmitted",
        "RunEnded",
        "RunArchived",
    ]


def test_rows_change_and_go(yard: Yard) -> None:
    journal, writer = yard.open_journal(), Writer()
    journal.open()
    write(journal, writer, 1)
    events, _ = writer.take(RunSubmitted(run=run(2)))
    first = row_of(writer.state.runs[2], code_hash="abc")
    journal.append(events[0].seq - 1, 1, events, Changes(runs=(first,)))
    reads = yard.open_reads()
    assert reads.code_hashes() == {"abc"}
    retagged = replace(first, code_hash=None, tags=(("a", "1"), ("b", "2")))
    last = events[-1].seq
    journal.append(last, 1, [], Changes(runs=(retagged,)))
    found = reads.run(2)
    assert found is not None
    assert found.tags == (("a", "1"), ("b", "2"))
    assert [row.run_id for row in reads.runs(RunFilter(tags=(("b", "2"),)))] == [2]
    assert reads.runs(RunFilter(tags=(("round", "2"),))) == []
    journal.append(last, 1, [], Changes(removed_runs=(2,), removed_nodes=("host",)))
    assert reads.run(2) is None
    assert reads.nodes() == {}
    assert reads.code_hashes() == frozenset()
    assert reads.runs(RunFilter(tags=(("b", "2"),))) == []
