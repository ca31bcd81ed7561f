"""The seat of the leader in PostgreSQL: one row beside the journal's tables.

Owns: that row. Must not know: leases, who asks. Every call is one statement with its own commit: a server that hangs
cannot keep the row locked. The table is no part of the journal: it is neither migrated, copied nor backed up, so that a
server of a newer version can take the seat before it migrates anything.
"""

from __future__ import annotations

from sqlalchemy import Connection, Engine, text

from airyard.adapters.journal_schema import prepare, version_of
from airyard.adapters.sql_database import Database
from airyard.ports.leadership import Seat

ANSWER_S = 2.0
"""A renewal that takes longer is given up and sent again: the lease does not wait."""

_MAKE = """CREATE TABLE IF NOT EXISTS leader (
    one boolean PRIMARY KEY CHECK (one), term bigint NOT NULL, beat bigint NOT NULL,
    holder text NOT NULL, url text NOT NULL, free boolean NOT NULL)"""
_LOOK = text("SELECT term, beat, holder, url, free FROM leader")
_SIT_FIRST = text(
    "INSERT INTO leader VALUES (true, 1, 0, :holder, :url, false) ON CONFLICT DO NOTHING RETURNING term"
)
_SIT = text(
    "UPDATE leader SET term = term + 1, beat = 0, holder = :holder, url = :url, free = false"
    " WHERE term = :term AND beat = :beat RETURNING term"
)
_BEAT = text("UPDATE leader SET beat = beat + 1 WHERE term = :term RETURNING beat")
_LEAVE = text("UPDATE leader SET free = true WHERE term = :term")


class SqlLeaderSeat:
    """Implements ``ports.leadership.LeaderSeat``. A broken connection is replaced at the next call."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._engine: Engine | None = None
        self._connection: Connection | None = None

    def look(self) -> Seat | None:
        """Return who sits there."""
        with self._database.errors():
            row = self._connected().execute(_LOOK).first()
        return None if row is None else Seat(term=row[0], beat=row[1], holder=row[2], url=row[3], free=row[4])

    def take(self, seen: Seat | None, holder: str, url: str) -> int | None:
        """Sit down if nothing has changed since ``seen``."""
        who = {"holder": holder, "url": url}
        with self._database.errors():
            if seen is None:
                row = self._connected().execute(_SIT_FIRST, who).first()
            else:
                row = self._connected().execute(_SIT, {**who, "term": seen.term, "beat": seen.beat}).first()
        return None if row is None else int(row[0])

    def beat(self, term: int) -> bool:
        """Renew."""
        with self._database.errors():
            return self._connected().execute(_BEAT, {"term": term}).first() is not None

    def leave(self, term: int) -> None:
        """Free the seat."""
        with self._database.errors():
            self._connected().execute(_LEAVE, {"term": term})

    def close(self) -> None:
        """Release the connection."""
        self._disconnect()
        if self._engine is not None:
            self._engine.dispose()
        self._engine = None

    def _connected(self) -> Connection:
        if self._engine is None:
            self._make()
            self._engine = self._database.write_engine(answer_s=ANSWER_S)
        if self._connection is not None and self._connection.invalidated:
            self._disconnect()
        if self._connection is None:
            self._connection = self._engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        return self._connection

    def _disconnect(self) -> None:
        # Forgotten first: where no new one can be had, the old one must not be tried again.
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _make(self) -> None:
        engine = self._database.write_engine(answer_s=None)
        try:
            if version_of(engine) is None:
                # Nobody has made the journal's tables; tables that are there without them would be taken for foreign.
                prepare(self._database, engine)
            with engine.begin() as connection:
                self._database.lock_schema(connection)
                connection.exec_driver_sql(_MAKE)
        finally:
            engine.dispose()
