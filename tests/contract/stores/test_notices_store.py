"""Messages and the mark: kept over restarts, made once, bounded, beside a journal at work."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from threading import Semaphore, Thread

import pytest

from airyard.adapters import journal_schema, notices_sql
from airyard.adapters.journal_sql import SqlJournal
from airyard.adapters.notices_sql import SqlNoticeStore
from airyard.adapters.postgres_engine import PostgresDatabase
from airyard.adapters.sql_database import Database, database_of
from airyard.core.errors import Unavailable
from airyard.core.notices import SOURCES
from airyard.ports.notice_store import Message, MessageState
from journal_place import place_of
from journal_yard import Writer


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path | Database]:
    place = place_of(request, tmp_path)
    journal = SqlJournal(place)
    journal.open()
    yield place
    journal.close()


@pytest.fixture
def store(place: Path | Database) -> Iterator[SqlNoticeStore]:
    found = SqlNoticeStore(place)
    yield found
    found.close()


def message(number: int, **changes: object) -> Message:
    whole = Message(
        message_id=f"msg_{number}",
        seq=number,
        at_ms=number,
        kind="failed",
        run_id=number,
        target="https://one.example/hook",
        queue="ada https://one.example",
        secret=None,
        body="{}",
    )
    return replace(whole, **changes)  # type: ignore[arg-type]  # the tests pass what it has


def filled(place: Path | Database, runs: int = 6) -> int:
    """Append the life of some runs; return the journal's end."""
    journal, writer = SqlJournal(place), Writer()
    journal.open()
    for events, changes in writer.story(runs):
        journal.append(events[0].seq - 1, 1, events, changes)
    journal.close()
    return writer.state.seq


def test_messages_and_mark_are_there_after_a_restart(place: Path | Database) -> None:
    store = SqlNoticeStore(place)
    assert store.cursor() == 0
    store.keep([message(1), message(2, run_id=None, secret="ops/key", queue=" x")], 7)
    store.close()
    again = SqlNoticeStore(place)
    assert again.cursor() == 7
    assert again.queues() == {"ada https://one.example": 1, " x": 1}
    assert again.due(" x", 0) == message(2, run_id=None, secret="ops/key", queue=" x")
    again.close()


def test_a_message_that_is_made_again_is_not_sent_again(store: SqlNoticeStore) -> None:
    store.keep([message(1)], 1)
    gone = replace(message(1), state=MessageState.DELIVERED, tries=2, ended_ms=9)
    store.note(gone)
    store.keep([message(1), message(2)], 2)
    assert list(store.of_run(1)) == [gone]
    assert store.queues() == {"ada https://one.example": 1}
    assert store.counts() == {"DELIVERED": 1, "WAITING": 1}


def test_what_is_due_goes_in_the_order_of_events_and_only_when_it_is(store: SqlNoticeStore) -> None:
    store.keep([message(3), message(1), message(2)], 3)
    store.note(message(1, tries=1, next_ms=100, error="answered 503"))
    queue = "ada https://one.example"
    assert store.due(queue, 50) == message(2)
    found = store.due(queue, 100)
    assert found is not None
    assert (found.message_id, found.error) == ("msg_1", "answered 503")
    assert store.due("somebody else's", 100) is None


def test_the_newest_that_have_ended_are_kept(store: SqlNoticeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notices_sql, "MOST_ENDED", 3)
    store.keep([message(number) for number in range(1, 8)], 7)
    for number in range(1, 7):
        store.note(message(number, state=MessageState.DELIVERED, ended_ms=number))
    assert [one.seq for one in store.newest(MessageState.DELIVERED, 10)] == [6, 5, 4]
    assert [one.seq for one in store.newest(None, 2)] == [7, 6]
    assert store.counts() == {"DELIVERED": 3, "WAITING": 1}


def test_events_are_read_from_the_mark_on_by_kind_and_page(place: Path | Database) -> None:
    end = filled(place)
    store = SqlNoticeStore(place)
    whole, upto = store.events_after(0, SOURCES.keys(), 1000)
    assert upto == end
    assert {type(recorded.event).__name__ for recorded in whole} <= set(SOURCES)
    assert any(type(recorded.event).__name__ == "RunEnded" for recorded in whole)
    first, middle = store.events_after(0, SOURCES.keys(), 2)
    assert (list(first), middle) == (list(whole[:2]), whole[1].seq)
    rest, upto = store.events_after(middle, SOURCES.keys(), 1000)
    assert ([*first, *rest], upto) == (list(whole), end)
    assert store.events_after(end, SOURCES.keys(), 10) == ([], end)
    store.close()


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_what_happened_before_there_were_messages_is_told_to_nobody(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    file = tmp_path / "journal.db"
    database = (
        database_of(file)
        if kind == "sqlite"
        else PostgresDatabase(request.getfixturevalue("postgres").make_database())
    )
    engine = database.write_engine(answer_s=None)
    journal_schema.prepare(database, engine)
    end = filled(database)
    with engine.begin() as writer:  # back to the tables of schema 2
        for table in ("notices", "notice_cursor"):
            writer.exec_driver_sql(f"DROP TABLE {table}")
        writer.exec_driver_sql("UPDATE alembic_version SET version_num = '0002'")
    journal_schema.prepare(database, engine)
    engine.dispose()
    store = SqlNoticeStore(database)
    assert store.cursor() == end
    store.close()


def test_a_store_is_closed_beside_deliveries_that_still_write(place: Path | Database) -> None:
    """A connection closed under a statement ends the process: closing waits, and what comes later is refused."""
    store = SqlNoticeStore(place)
    store.keep([message(number) for number in range(50)], 50)
    begun, refused = Semaphore(0), []

    def deliver(number: int) -> None:
        for tries in range(1, 1_000):
            try:
                store.note(message(number, tries=tries))
            except Unavailable as error:
                refused.append(error)
                return
            begun.release()

    threads = [Thread(target=deliver, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(8):
        assert begun.acquire(timeout=60)
    store.close()
    for thread in threads:
        thread.join(60)
    assert len(refused) == 4
