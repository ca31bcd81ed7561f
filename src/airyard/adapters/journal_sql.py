"""The journal in a SQL database: events and read tables change in one transaction.

Owns: appending, fencing, what became of a commit that broke off, snapshots, pruning. Must not know: what events mean,
who reads the tables, which database it is.

The control loop's thread appends; a snapshot may come from another one. A lock of this process orders the
two, so that neither polls for SQLite's own. Between servers ``Database.fence`` does: every transaction that writes
begins with it, and only then reads where the journal ends.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, bindparam, delete, func, insert, literal_column, select, update
from sqlalchemy import text as sql_text
from sqlalchemy.exc import DBAPIError

from airyard.adapters.journal_rows import (
    RUN_COLUMNS,
    event_of,
    event_row,
    run_values,
    stale_epoch,
    texts,
    to_text,
)
from airyard.adapters.journal_schema import prepare
from airyard.adapters.journal_tables import SCHEMA_VERSION, journal, nodes, run_tags, runs, snapshots
from airyard.adapters.sql_database import Database, database_of, upsert
from airyard.core.errors import InvariantBroken
from airyard.core.events import Recorded
from airyard.ports.journal import Changes, RunRow, Stored

_PAGE_EVENTS = 1000
_PRUNED_EVENTS = 20_000
_KEPT_SNAPSHOTS = 2
_PIECE_CHARACTERS = 65_536
_RECONNECT_S = 3.0
"""So long an append whose connection broke tries to find out what became of it."""
_RECONNECT_EVERY_S = 0.1
_CHANGING = ("version", "status", "ended_ms", "code_hash", "record")
"""What changes with every event, in the table's order; no index holds any of it."""
_RunFacts = tuple[object, ...]
_EventRow = tuple[int, int, int, int | None, str, str]


class _Statements:
    """The statements of the hot path, compiled once; their parameters are tuples in table order."""

    def __init__(self, engine: Engine) -> None:
        def text(statement: Any) -> str:
            return str(statement.compile(dialect=engine.dialect))

        newest = select(func.max(journal.c.seq)).scalar_subquery()
        schema: Any = select(literal_column("version_num")).select_from(sql_text("alembic_version"))
        self.end = text(
            select(journal.c.seq, journal.c.epoch, schema.scalar_subquery()).where(journal.c.seq == newest)
        )
        self.add_event = text(insert(journal))
        self.put_run = text(upsert(engine, runs, RUN_COLUMNS[1:]))
        self.change_run = text(
            update(runs)
            .where(runs.c.run_id == bindparam("run"))
            .values({name: bindparam(f"new_{name}") for name in _CHANGING})
        )
        self.add_tag = text(insert(run_tags))
        self.drop_tags = text(delete(run_tags).where(run_tags.c.run_id == bindparam("run")))
        self.drop_run = text(delete(runs).where(runs.c.run_id == bindparam("run")))
        self.drop_node = text(delete(nodes).where(nodes.c.name == bindparam("node")))
        self.add_node = text(insert(nodes))


class SqlJournal:
    """A journal in one database, every commit durable. A path is that of a SQLite file (WAL)."""

    def __init__(self, place: Path | Database) -> None:
        self._database = database_of(place)
        self._lock = threading.Lock()
        self._engine: Engine | None = None
        self._readers: Engine | None = None
        self._writer: Connection | None = None
        self._statements: _Statements | None = None
        self._written: dict[int, _RunFacts] = {}
        """What the rows of live runs hold that hardly ever changes."""

    def open(self) -> Stored:
        """Create or migrate the tables, and return the newest good snapshot and the journal's ends."""
        with self._database.errors():
            self._prepare()
            self._engine = self._database.write_engine()
            self._readers = self._database.read_engine()
            self._writer = self._engine.connect()
            self._statements = _Statements(self._engine)
            with self._readers.begin() as reader:
                first = reader.execute(select(func.min(journal.c.seq))).scalar()
                last = reader.exec_driver_sql(self._statements.end).first()
        good = list(self.snapshots())
        seq, snapshot = good[-1] if good else (0, None)
        last_seq, epoch = (last[0], last[1]) if last else (0, 0)
        if seq > last_seq or (snapshot is None and (first or 1) != 1):
            raise InvariantBroken(
                f"the journal {self._database.name} holds events {first} to {last_seq}, "
                f"its newest good snapshot is {seq}",
                code="JOURNAL_GAP",
            )
        return Stored(
            snapshot_seq=seq,
            snapshot=snapshot,
            last_seq=last_seq,
            epoch=epoch,
            oldest_seq=first or last_seq + 1,
        )

    def _prepare(self) -> None:
        # A migration may take its time.
        engine = self._database.write_engine(answer_s=None)
        try:
            prepare(self._database, engine)
        finally:
            engine.dispose()

    @property
    def place(self) -> str:
        """Return the database's name."""
        return self._database.name

    def events_after(self, seq: int) -> Iterator[Recorded]:
        """Yield the events after ``seq`` in order, page by page: no long read holds the log file back."""
        columns = (journal.c.seq, journal.c.at_ms, journal.c.epoch, journal.c.kind, journal.c.data)
        while True:
            page = select(*columns).where(journal.c.seq > seq).order_by(journal.c.seq).limit(_PAGE_EVENTS)
            with self._database.errors(), self._read().begin() as reader:
                rows = reader.execute(page).all()
            for row in rows:
                yield event_of(*row)
            if len(rows) < _PAGE_EVENTS:
                return
            seq = rows[-1][0]

    def append(self, expected_seq: int, epoch: int, events: Sequence[Recorded], changes: Changes) -> None:
        """Write events and read tables in one durable transaction.

        Where the connection breaks, a new one shows whether the transaction was committed; if not, it is done again.
        """
        rows = [event_row(recorded) for recorded in events]
        with self._lock, self._database.errors():
            try:
                self._commit(expected_seq, epoch, rows, changes)
            except DBAPIError as error:
                self._written.clear()
                if not self._database.is_lost(error):
                    raise
                self._settle(expected_seq, epoch, rows, changes)
        for row in changes.runs:
            self._written[row.run_id] = _facts(row)
            if row.ended_ms is not None:
                self._written.pop(row.run_id)
        for run_id in changes.removed_runs:
            self._written.pop(run_id, None)

    def _settle(self, expected_seq: int, epoch: int, rows: list[_EventRow], changes: Changes) -> None:
        """Commit after all, unless the journal has these very events. Raises: DBAPIError when nobody answers in time.

        The fence waits for the broken transaction's end: what is not there then will not come later.
        """
        deadline = time.monotonic() + _RECONNECT_S
        while True:
            try:
                return self._commit(expected_seq, epoch, rows, changes, in_doubt=True)
            except DBAPIError as error:
                if not self._database.is_lost(error) or time.monotonic() >= deadline:
                    raise
            time.sleep(_RECONNECT_EVERY_S)

    def _commit(
        self,
        expected_seq: int,
        epoch: int,
        rows: list[_EventRow],
        changes: Changes,
        *,
        in_doubt: bool = False,
    ) -> None:
        writer, sql = self._write()
        with writer.begin():
            self._database.fence(writer)
            if in_doubt and rows and _holds(writer, rows):
                return
            self._check_end(writer, sql, expected_seq, epoch)
            if rows:
                writer.exec_driver_sql(sql.add_event, rows)
            self._put_runs(writer, sql, changes.runs)
            if changes.removed_runs:
                gone = [(run_id,) for run_id in changes.removed_runs]
                writer.exec_driver_sql(sql.drop_tags, gone)
                writer.exec_driver_sql(sql.drop_run, gone)
            if old := (*changes.nodes, *changes.removed_nodes):
                writer.exec_driver_sql(sql.drop_node, [(name,) for name in old])
            if changes.nodes:
                writer.exec_driver_sql(
                    sql.add_node, [(name, to_text(node)) for name, node in changes.nodes.items()]
                )

    def _check_end(self, writer: Connection, sql: _Statements, expected_seq: int, epoch: int) -> None:
        last = writer.exec_driver_sql(sql.end).first()
        last_seq, last_epoch = (last[0], last[1]) if last else (0, 0)
        # Tables of a newer form: the next leader is of a newer release, and has migrated before its epoch begins.
        migrated = last is not None and int(last[2]) > SCHEMA_VERSION
        if last_seq != expected_seq or last_epoch > epoch or migrated:
            raise stale_epoch(
                f"The journal {self._database.name}",
                last_seq=last_seq,
                last_epoch=last_epoch,
                expected_seq=expected_seq,
                epoch=epoch,
            )

    def _put_runs(self, writer: Connection, sql: _Statements, changed: Sequence[RunRow]) -> None:
        """Write rows; indexes and tags only where they differ. Cost: half the pages for a run that just goes on."""
        whole = [row for row in changed if self._written.get(row.run_id) != _facts(row)]
        if len(whole) < len(changed):
            new = {row.run_id for row in whole}
            going_on = [
                (row.version, row.status, row.ended_ms, row.code_hash, to_text(row.record), row.run_id)
                for row in changed
                if row.run_id not in new
            ]
            writer.exec_driver_sql(sql.change_run, going_on)
        if whole:
            writer.exec_driver_sql(sql.put_run, [run_values(row) for row in whole])
            writer.exec_driver_sql(sql.drop_tags, [(row.run_id,) for row in whole])
            tags = [(row.run_id, key, value) for row in whole for key, value in row.tags]
            if tags:
                writer.exec_driver_sql(sql.add_tag, tags)

    def save_snapshot(self, seq: int, snapshot: Mapping[str, Any]) -> None:
        """Keep a snapshot and drop all but the two newest; encoded before the lock is taken."""
        data = _compressed(snapshot)
        row = {"seq": seq, "sha256": hashlib.sha256(data).hexdigest(), "data": data}
        writer, _ = self._write()
        with self._lock, self._database.errors(), writer.begin():
            self._database.fence(writer)
            writer.execute(delete(snapshots).where(snapshots.c.seq == seq))
            writer.execute(insert(snapshots), row)
            kept = select(snapshots.c.seq).order_by(snapshots.c.seq.desc()).limit(_KEPT_SNAPSHOTS)
            writer.execute(delete(snapshots).where(snapshots.c.seq.not_in(kept.scalar_subquery())))

    def snapshots(self) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """Yield every snapshot whose checksum holds, oldest first."""
        with self._database.errors(), self._read().begin() as reader:
            rows = reader.execute(select(snapshots).order_by(snapshots.c.seq)).all()
        for row in rows:
            if hashlib.sha256(row.data).hexdigest() == row.sha256:
                yield row.seq, json.loads(zlib.decompress(row.data))

    def prune(self, before_ms: int) -> int:
        """Drop events older than ``before_ms`` behind the older of two snapshots.

        Only from the start of the journal: what stays has no hole. Piece by piece: whoever appends waits for one only.
        """
        removed = 0
        while (piece := self._prune_piece(before_ms)) == _PRUNED_EVENTS:
            removed += piece
        return removed + piece

    def _prune_piece(self, before_ms: int) -> int:
        writer, _ = self._write()
        with self._lock, self._database.errors(), writer.begin():
            self._database.fence(writer)
            kept = writer.execute(select(snapshots.c.seq).order_by(snapshots.c.seq)).scalars().all()
            if len(kept) < _KEPT_SNAPSHOTS:
                return 0
            first = writer.execute(select(func.min(journal.c.seq))).scalar()
            young = select(func.min(journal.c.seq)).where(journal.c.at_ms >= before_ms)
            first_young = writer.execute(young).scalar()
            end = kept[0] if first_young is None else min(kept[0], first_young - 1)
            end = min(end, (first or 0) + _PRUNED_EVENTS - 1)
            return writer.execute(delete(journal).where(journal.c.seq <= end)).rowcount

    def size_bytes(self) -> int:
        """Return the bytes that the tables take where they are."""
        return self._database.size_bytes()

    def close(self) -> None:
        """Release files and connections; harmless when closed already."""
        with self._lock:
            if self._writer is not None:
                self._writer.close()
            for engine in (self._readers, self._engine):
                if engine is not None:
                    engine.dispose()
            self._writer = self._readers = self._engine = None

    def _read(self) -> Engine:
        if self._readers is None:
            raise InvariantBroken("the journal is not open")
        return self._readers

    def _write(self) -> tuple[Connection, _Statements]:
        if self._writer is None or self._statements is None:
            raise InvariantBroken("the journal is not open")
        return self._writer, self._statements


def _holds(writer: Connection, rows: Sequence[_EventRow]) -> bool:
    """Return whether the journal has exactly these events."""
    found = select(journal).where(journal.c.seq.between(rows[0][0], rows[-1][0])).order_by(journal.c.seq)
    return [tuple(row) for row in writer.execute(found)] == rows


def _compressed(snapshot: Mapping[str, Any]) -> bytes:
    squeeze, data = zlib.compressobj(1), bytearray()
    piece: list[str] = []
    size = 0
    for text in texts(snapshot):
        piece.append(text)
        size += len(text)
        if size >= _PIECE_CHARACTERS:
            data += squeeze.compress("".join(piece).encode())
            piece.clear()
            size = 0
    data += squeeze.compress("".join(piece).encode())
    return bytes(data + squeeze.flush())


def _facts(row: RunRow) -> _RunFacts:
    """Return all of a row but what ``_CHANGING`` names."""
    return (
        row.owner,
        row.project,
        row.name,
        row.experiment,
        row.state,
        row.accelerator,
        row.submitted_ms,
        row.tags,
    )
