"""Copies all tables of a journal from one database into another, empty one: all of it, verified, or nothing.

Owns: the copy and its proof. Must not know: what the tables hold, which database is which kind.

The proof is the number of rows and a sum of the hashes of all rows, which no order changes: databases sort texts
differently.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from sqlalchemy import Connection, Table, func, insert, select

from airyard.adapters.journal_schema import prepare, version_of
from airyard.adapters.journal_tables import SCHEMA_VERSION, journal, metadata
from airyard.adapters.sql_database import Database
from airyard.core.errors import Conflict, InvariantBroken, NotFound, UserError

_BATCH_ROWS = 1000
_DIGEST_RANGE = 1 << 256


@dataclass(slots=True, kw_only=True)
class Content:
    """What some tables hold: rows by table, the end of the journal, and the sum of the rows' hashes."""

    rows: dict[str, int] = field(default_factory=dict)
    last_seq: int = 0
    epoch: int = 0
    digest: int = 0

    def take(self, table: Table, values: Sequence[Any]) -> None:
        """Count one row in."""
        self.rows[table.name] = self.rows.get(table.name, 0) + 1
        text = json.dumps([table.name, *map(_plain, values)], ensure_ascii=False)
        self.digest = (self.digest + int.from_bytes(hashlib.sha256(text.encode()).digest())) % _DIGEST_RANGE

    def as_json(self) -> dict[str, Any]:
        """Return what is printed, and kept in a backup."""
        return {
            "tables": {name: self.rows.get(name, 0) for name in metadata.tables},
            "last_seq": self.last_seq,
            "epoch": self.epoch,
            "sha256_sum": f"{self.digest:064x}",
        }


def copy_journal(source: Database, target: Database) -> Content:
    """Copy everything in one transaction of the target's, compared with the source before it is committed.

    Raises: NotFound (``NO_JOURNAL``), UserError (``JOURNAL_OLD``) for a source of another schema, Conflict
    (``JOURNAL_NOT_EMPTY``, ``JOURNAL_IN_USE`` when the source changed meanwhile), InvariantBroken
    (``COPY_DIFFERS``), Unavailable. Cost: reads the source once and the copy once.
    """
    with target.errors():
        into = target.write_engine(answer_s=None)
        prepare(target, into)
        with into.connect() as writer, writer.begin():
            target.fence(writer)
            _check_empty(target, writer)
            copied = _copy_into(source, writer)
            found = _content_of(writer)
            if found != copied:
                raise InvariantBroken(
                    f"the copy in {target.name} differs from {source.name}: {found.as_json()} and {copied.as_json()}",
                    code="COPY_DIFFERS",
                )
            end = _end_of(source)
            if end != (copied.last_seq, copied.epoch):
                raise Conflict(
                    f"{source.name} went on from event {copied.last_seq} to {end[0]} while it was copied: a server "
                    "is at work there",
                    code="JOURNAL_IN_USE",
                    fix="stop every server on it first",
                )
        into.dispose()
    return copied


def content_of(database: Database) -> Content:
    """Return what a journal holds, as of one moment. Raises: as ``copy_journal`` does of its source."""
    with database.errors():
        engine = database.read_engine(answer_s=None)
        try:
            _check_schema(database)
            with engine.connect() as reader, reader.begin():
                return _content_of(reader)
        finally:
            engine.dispose()


def _copy_into(source: Database, writer: Connection) -> Content:
    copied = Content()
    with source.errors():
        engine = source.read_engine(answer_s=None)
        try:
            _check_schema(source)
            with engine.connect() as reader, reader.begin():
                for table in metadata.sorted_tables:
                    for batch in _batches(_rows(reader, table)):
                        for values in batch:
                            copied.take(table, values)
                        names = [column.name for column in table.columns]
                        writer.execute(insert(table), [dict(zip(names, row, strict=True)) for row in batch])
                copied.last_seq, copied.epoch = _end(reader)
        finally:
            engine.dispose()
    return copied


def _content_of(reader: Connection) -> Content:
    found = Content()
    for table in metadata.sorted_tables:
        for values in _rows(reader, table):
            found.take(table, values)
    found.last_seq, found.epoch = _end(reader)
    return found


def _rows(reader: Connection, table: Table) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of a table; a large one is not held in memory."""
    for row in reader.execute(select(table), execution_options={"yield_per": _BATCH_ROWS}):
        yield tuple(row)


def _batches(rows: Iterable[tuple[Any, ...]]) -> Iterator[list[tuple[Any, ...]]]:
    rows = iter(rows)
    while batch := list(islice(rows, _BATCH_ROWS)):
        yield batch


def _end(reader: Connection) -> tuple[int, int]:
    newest = select(func.max(journal.c.seq)).scalar_subquery()
    row = reader.execute(select(journal.c.seq, journal.c.epoch).where(journal.c.seq == newest)).first()
    return (row[0], row[1]) if row else (0, 0)


def _end_of(database: Database) -> tuple[int, int]:
    with database.errors():
        engine = database.read_engine(answer_s=None)
        try:
            with engine.connect() as reader, reader.begin():
                return _end(reader)
        finally:
            engine.dispose()


def _check_schema(database: Database) -> None:
    engine = database.read_engine(answer_s=None)
    try:
        found = version_of(engine)
    finally:
        engine.dispose()
    if found is None:
        raise NotFound(f"there is no journal in {database.name}", code="NO_JOURNAL")
    what = f"The journal {database.name} has schema {found}; this version of Airyard copies schema {SCHEMA_VERSION}."
    if found < SCHEMA_VERSION:
        fix = "Start and stop this version's server on it once: that migrates it."
        raise UserError(what, code="JOURNAL_OLD", fix=fix)
    if found > SCHEMA_VERSION:
        raise UserError(what, code="JOURNAL_TOO_NEW", fix="Use the version that wrote it.")


def _check_empty(database: Database, writer: Connection) -> None:
    for table in metadata.sorted_tables:
        if writer.execute(select(table).limit(1)).first() is not None:
            raise Conflict(
                f"{database.name} holds a journal already: its table {table.name} is not empty",
                code="JOURNAL_NOT_EMPTY",
                fix="name an empty database, or put that journal away first",
            )


def _plain(value: Any) -> Any:
    return hashlib.sha256(value).hexdigest() if isinstance(value, bytes) else value
