"""Where the journal's tables are: what SQLite and PostgreSQL do differently, behind one face.

Owns: that face, which of the two a place means, the one statement whose words differ. Must not know: what the tables
hold. Everything else that the stores say to a database is the same SQL, with parameters by position.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from sqlalchemy import Connection, Engine, Table
from sqlalchemy.dialects import postgresql, sqlite

POSTGRES = "postgresql"
ANSWER_S = 12.0
"""A database that has not answered for so long is away. Longer than one server may keep another one waiting."""


class Database(Protocol):
    """One place for the tables of a yard. Any thread."""

    @property
    def name(self) -> str:
        """Return what messages call it; it holds no password."""
        ...

    def write_engine(self, *, durable: bool = True, answer_s: float | None = ANSWER_S) -> Engine:
        """Return connections that write, one at a time; a commit is on the disk when it returns.

        Without ``durable`` a commit may be lost with the machine's power; nothing that others commit is at risk.
        ``answer_s``: a connection over which no answer comes for so long is broken; None: for what may take its time.
        """
        ...

    def read_engine(self, *, answer_s: float | None = ANSWER_S) -> Engine:
        """Return connections that cannot write; a transaction sees one state of everything."""
        ...

    def fence(self, writer: Connection) -> None:
        """Wait, first thing in a transaction, until no other transaction that has come this far is under way.

        What is read afterwards is what the last of them left, and it stays so until this one ends.
        """
        ...

    def lock_schema(self, writer: Connection) -> None:
        """Let one server at a time make or migrate the tables."""
        ...

    def back_up(self, schema: int) -> Path | None:
        """Copy everything before a migration from ``schema``; None where that is left to its administrator."""
        ...

    def is_lost(self, error: Exception) -> bool:
        """True when the connection broke: whether the transaction was committed can only be seen on another one."""
        ...

    def errors(self) -> AbstractContextManager[None]:
        """Turn what the database says into ``JOURNAL_FULL`` or ``JOURNAL_BROKEN``. Raises: Unavailable."""
        ...

    def size_bytes(self) -> int:
        """Return the space that the tables take."""
        ...


def database_of(place: Path | Database) -> Database:
    """Return the database at a place: a path is that of a SQLite file."""
    if isinstance(place, Path):
        from airyard.adapters.sqlite_engine import SqliteDatabase

        return SqliteDatabase(place)
    return place


def upsert(engine: Engine, table: Table, columns: Sequence[str]) -> Any:
    """Return the insert that replaces ``columns`` of a row whose primary key is there already."""
    dialect = postgresql if engine.dialect.name == POSTGRES else sqlite
    added = dialect.insert(table)
    return added.on_conflict_do_update(
        index_elements=[column.name for column in table.primary_key],
        set_={name: added.excluded[name] for name in columns},
    )


def insert_new(engine: Engine, table: Table) -> Any:
    """Return the insert that leaves a row alone whose primary key is there already."""
    dialect = postgresql if engine.dialect.name == POSTGRES else sqlite
    return dialect.insert(table).on_conflict_do_nothing()
