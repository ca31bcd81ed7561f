"""The seat of the leader on a real PostgreSQL, and what a leader does that has lost it."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from airyard.adapters.journal_sql import SqlJournal
from airyard.adapters.leader_sql import SqlLeaderSeat
from airyard.adapters.postgres_engine import PostgresDatabase
from airyard.core.errors import Unavailable
from airyard.ports.journal import Changes
from airyard.server.leading import Leading, LedJournal
from e2e.yard import wait_for
from postgres_proxy import proxied
from postgres_server import PostgresServer


@pytest.fixture
def database(postgres: PostgresServer) -> PostgresDatabase:
    """A new database."""
    return PostgresDatabase(postgres.make_database())


@pytest.fixture
def seats(database: PostgresDatabase) -> Iterator[tuple[SqlLeaderSeat, SqlLeaderSeat]]:
    """The seat as two servers have it."""
    both = SqlLeaderSeat(database), SqlLeaderSeat(database)
    yield both
    for seat in both:
        seat.close()


def test_of_two_that_saw_the_same_one_sits_down(seats: tuple[SqlLeaderSeat, SqlLeaderSeat]) -> None:
    a, b = seats
    assert a.look() is None
    assert b.look() is None
    assert a.take(None, "a", "http://a") == 1
    assert b.take(None, "b", "http://b") is None
    seen = b.look()
    assert seen is not None
    assert (seen.term, seen.holder, seen.url, seen.free) == (1, "a", "http://a", False)
    assert a.beat(1)
    assert b.take(seen, "b", "http://b") is None, "it was renewed in between"
    assert b.take(b.look(), "b", "http://b") == 2
    assert not a.beat(1), "whoever was replaced renews nothing"
    a.leave(1)
    left = b.look()
    assert left is not None
    assert not left.free, "nor can it free the seat of another"
    b.leave(2)
    freed = a.look()
    assert freed is not None
    assert freed.free


def test_a_database_that_cannot_be_reached_is_tried_again_until_it_can(postgres: PostgresServer) -> None:
    with proxied(postgres.folder) as proxy:
        seat = SqlLeaderSeat(PostgresDatabase(proxy.url(postgres.make_database())))
        assert seat.take(None, "a", "http://a") == 1
        proxy.refusing, proxy.messages_left = True, 0
        for _ in range(3):
            with pytest.raises(Unavailable):
                seat.beat(1)
        proxy.refusing = False
        assert seat.beat(1)
        seat.close()


def test_the_seat_is_beside_a_journal_and_no_part_of_it(
    database: PostgresDatabase, seats: tuple[SqlLeaderSeat, SqlLeaderSeat]
) -> None:
    assert seats[0].take(None, "a", "http://a") == 1
    journal = SqlJournal(database)
    assert journal.open().last_seq == 0
    journal.close()


def test_a_leader_whose_lease_is_over_writes_nothing_and_one_that_was_replaced_ends(
    database: PostgresDatabase, seats: tuple[SqlLeaderSeat, SqlLeaderSeat]
) -> None:
    a, b = seats
    assert a.take(None, "a", "http://a") == 1
    now_ms = [1_000]
    told: list[str] = []
    replaced = threading.Event()

    def end(reason: str) -> None:
        told.append(reason)
        replaced.set()

    leading = Leading(a, term=1, lease_ms=400, sent_ms=1_000, replaced=end, now_ms=lambda: now_ms[0])
    journal = LedJournal(SqlJournal(database), leading)
    journal.open()
    assert leading.holds()
    journal.append(0, 1, [], Changes())
    now_ms[0] = 1_400
    assert not leading.holds()
    with pytest.raises(Unavailable) as refused:
        journal.append(0, 1, [], Changes())
    assert refused.value.code == "NOT_LEADER"
    leading.start()
    wait_for(leading.holds, what="the renewal: nobody has taken over")
    journal.append(0, 1, [], Changes())
    while b.take(b.look(), "b", "http://b") is None:
        pass
    assert replaced.wait(10)
    assert "another server has taken the lead" in told[0]
    journal.close()
