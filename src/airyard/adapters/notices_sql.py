"""Messages in tables of the journal's database, on connections of their own.

Owns: the rows, their number. Must not know: what messages say, who sends them.
A commit here waits for no disk, as that of estimates: what a loss of power takes away is made again from the journal,
with the same ids, because messages and the mark are written together.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Select, delete, func, select, update

from airyard.adapters.journal_rows import event_of
from airyard.adapters.journal_tables import journal, notice_cursor, notices
from airyard.adapters.sql_database import Database, database_of, insert_new, upsert
from airyard.core.errors import Unavailable
from airyard.core.events import Recorded
from airyard.ports.notice_store import Message, MessageState

MOST_ENDED = 10_000
"""So many messages that were delivered or given up are kept; the oldest go first."""
_CURSOR = 1


class SqlNoticeStore:
    """The tables of a journal that ``SqlJournal.open`` has prepared. A path is that of a SQLite file."""

    def __init__(self, place: Path | Database) -> None:
        self._database = database_of(place)
        self._engine = self._database.write_engine(durable=False)
        self._readers = self._database.read_engine()
        self._lock = threading.Lock()
        self._closed = False

    def cursor(self) -> int:
        """Return the last event whose messages are kept; 0 in a journal that has just begun."""
        query = select(notice_cursor.c.seq).where(notice_cursor.c.one == _CURSOR)
        with self._database.errors(), self._readers.begin() as reader:
            return int(reader.execute(query).scalar() or 0)

    def events_after(self, seq: int, kinds: Collection[str], limit: int) -> tuple[Sequence[Recorded], int]:
        """Return the next events of these kinds, and up to which event all have been looked at.

        Cost: walks over the events in between, and decodes only those of the kinds.
        """
        columns = (journal.c.seq, journal.c.at_ms, journal.c.epoch, journal.c.kind, journal.c.data)
        wanted = select(*columns).where(journal.c.seq > seq, journal.c.kind.in_(sorted(kinds)))
        with self._database.errors(), self._readers.begin() as reader:
            end = int(reader.execute(select(func.max(journal.c.seq))).scalar() or seq)
            rows = reader.execute(wanted.order_by(journal.c.seq).limit(limit)).all()
        found = [event_of(*row) for row in rows]
        return found, found[-1].seq if len(found) == limit else end

    def keep(self, messages: Sequence[Message], cursor: int) -> None:
        """Write messages and mark in one transaction."""
        rows = [_values(message) for message in messages]
        with self._writing() as writer:
            if rows:
                writer.execute(insert_new(self._engine, notices), rows)
            mark = {"one": _CURSOR, "seq": cursor}
            writer.execute(upsert(self._engine, notice_cursor, ("seq",)), [mark])

    def queues(self) -> dict[str, int]:
        """Return how many messages wait in each queue."""
        query = select(notices.c.queue, func.count()).where(notices.c.state == MessageState.WAITING.value)
        with self._database.errors(), self._readers.begin() as reader:
            return {row[0]: row[1] for row in reader.execute(query.group_by(notices.c.queue))}

    def due(self, queue: str, now_ms: int) -> Message | None:
        """Return the oldest message of a queue that is to be sent now."""
        waits = notices.c.state == MessageState.WAITING.value
        query = select(notices).where(waits, notices.c.queue == queue, notices.c.next_ms <= now_ms)
        found = self._read(query.order_by(notices.c.seq, notices.c.message_id).limit(1))
        return found[0] if found else None

    def note(self, message: Message) -> None:
        """Write the outcome of a try; beyond ``MOST_ENDED`` the oldest that have ended go."""
        values = _values(message)
        changed = {name: values[name] for name in ("state", "tries", "next_ms", "error", "ended_ms")}
        with self._writing() as writer:
            writer.execute(update(notices).where(notices.c.message_id == message.message_id).values(changed))
            if message.state is MessageState.WAITING:
                return
            ended = notices.c.ended_ms.is_not(None)
            count = writer.execute(select(func.count()).select_from(notices).where(ended)).scalar_one()
            if count > MOST_ENDED:
                oldest = select(notices.c.ended_ms).where(ended).order_by(notices.c.ended_ms)
                bound = oldest.offset(count - MOST_ENDED).limit(1).scalar_subquery()
                writer.execute(delete(notices).where(ended, notices.c.ended_ms < bound))

    def of_run(self, run_id: int) -> Sequence[Message]:
        """Return one run's messages, oldest first."""
        query = select(notices).where(notices.c.run_id == run_id)
        return self._read(query.order_by(notices.c.seq, notices.c.message_id))

    def newest(self, state: MessageState | None, limit: int) -> Sequence[Message]:
        """Return messages, newest first."""
        query = select(notices).order_by(notices.c.at_ms.desc(), notices.c.message_id).limit(limit)
        return self._read(query if state is None else query.where(notices.c.state == state.value))

    def counts(self) -> dict[str, int]:
        """Return how many there are in each state."""
        query = select(notices.c.state, func.count()).group_by(notices.c.state)
        with self._database.errors(), self._readers.begin() as reader:
            return {row[0]: row[1] for row in reader.execute(query)}

    def close(self) -> None:
        """Release the connections. A delivery that ends later is refused: its message waits for the next server."""
        with self._lock:  # what is being written has its connection to its end
            self._closed = True
            self._engine.dispose()
        self._readers.dispose()

    @contextmanager
    def _writing(self) -> Iterator[Connection]:
        with self._lock:
            if self._closed:
                raise Unavailable("the store of notifications is closed")
            with self._database.errors(), self._engine.begin() as writer:
                yield writer

    def _read(self, query: Select[Any]) -> Sequence[Message]:
        with self._database.errors(), self._readers.begin() as reader:
            return [_message(row) for row in reader.execute(query).mappings().all()]


def _values(message: Message) -> dict[str, Any]:
    return {**asdict(message), "state": message.state.value}


def _message(row: Mapping[Any, Any]) -> Message:
    return Message(**{**row, "state": MessageState(row["state"])})
