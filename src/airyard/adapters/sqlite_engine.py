"""Connections to the journal's SQLite file: durable ones for the writer, read-only ones for everybody else.

Owns: pragmas, transaction starts, copies, what SQLite's errors mean to us. Must not know: tables.
"""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import QueuePool, StaticPool

from airyard.core.errors import Unavailable

_BUSY_TIMEOUT_MS = 10_000
_CHECKPOINT_PAGES = 4000
"""16 MiB of log between two moves into the file itself, which cost two more waits for the disk."""
_WAL_LIMIT_BYTES = 64 * 1024 * 1024
_NEARLY_FULL_BYTES = 1024 * 1024
_READERS = 16


class SqliteDatabase:
    """The tables in one file (WAL)."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def name(self) -> str:
        """Return the file's path."""
        return str(self._path)

    def write_engine(self, *, durable: bool = True, answer_s: float | None = None) -> Engine:
        """Open the connection that writes; a missing file is made, for its owner alone. A disk is always waited for."""
        with self.errors():
            self._path.touch(mode=0o600, exist_ok=True)
        return write_engine(self._path, durable=durable)

    def read_engine(self, *, answer_s: float | None = None) -> Engine:
        """Open a pool of connections that cannot write."""
        return read_engine(self._path)

    def fence(self, writer: Connection) -> None:
        """Do nothing: every transaction that writes began by taking the file's lock."""

    def lock_schema(self, writer: Connection) -> None:
        """Do nothing, for the same reason."""

    def back_up(self, schema: int) -> Path:
        """Copy the whole database to ``<name>.bak-<schema>``."""
        target = self._path.with_name(f"{self._path.name}.bak-{schema}")
        copy_file(self._path, target)
        return target

    def is_lost(self, error: Exception) -> bool:
        """Return False: there is no connection that could break apart from the disk."""
        return False

    def errors(self) -> AbstractContextManager[None]:
        """Say what SQLite said of the disk."""
        return disk_errors(self._path)

    def size_bytes(self) -> int:
        """Return the bytes of the file, its log and its shared memory."""
        files = (self._path.with_name(self._path.name + suffix) for suffix in ("", "-wal", "-shm"))
        return sum(file.stat().st_size for file in files if file.exists())


def copy_file(path: Path, target: Path) -> None:
    """Copy a database, in use or not, as of one moment; durable before the name appears."""
    partial = target.with_name(f"{target.name}.part")
    partial.unlink(missing_ok=True)
    source, copy = sqlite3.connect(path), sqlite3.connect(partial)
    try:
        source.backup(copy)
    finally:
        copy.close()
        source.close()
    partial.chmod(0o600)
    sync(partial)
    partial.replace(target)
    sync(target.parent)


def sync(path: Path) -> None:
    """Have a file's or a folder's contents on the disk."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_engine(path: Path, *, durable: bool = True) -> Engine:
    """Open a connection that writes: every commit is on the disk when it returns.

    Without ``durable`` a commit may be lost with the machine's power; nothing that others commit is at risk.
    """
    engine = create_engine(
        f"sqlite:///{path}",
        poolclass=StaticPool,
        connect_args={"check_same_thread": False, "timeout": _BUSY_TIMEOUT_MS / 1000},
    )
    _on_connect(
        engine,
        "PRAGMA journal_mode=WAL",
        f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}",
        "PRAGMA foreign_keys=ON",
        f"PRAGMA wal_autocheckpoint={_CHECKPOINT_PAGES}",
        f"PRAGMA journal_size_limit={_WAL_LIMIT_BYTES}",
    )

    # Taking the write lock at once: a read that turns into a write later could not wait for it.
    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    return engine


def read_engine(path: Path) -> Engine:
    """Open a pool of connections that cannot write, for any thread."""
    engine = create_engine(
        f"sqlite:///{path}",
        poolclass=QueuePool,
        pool_size=4,
        max_overflow=_READERS - 4,
        connect_args={"check_same_thread": False, "timeout": _BUSY_TIMEOUT_MS / 1000},
    )
    _on_connect(engine, "PRAGMA query_only=ON")

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN")

    return engine


def _on_connect(engine: Engine, *pragmas: str) -> None:
    @event.listens_for(engine, "connect")
    def connect(connection: Any, record: object) -> None:
        # None: the driver begins nothing by itself, so that `begin` above is the only start of a transaction.
        connection.isolation_level = None
        for pragma in pragmas:
            connection.execute(pragma).close()


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn what SQLite says of the disk into JOURNAL_FULL or JOURNAL_BROKEN. Raises: Unavailable."""
    try:
        yield
    except (DBAPIError, sqlite3.Error, OSError) as error:
        raise unavailable(path, error) from error


def unavailable(path: Path, error: Exception) -> Unavailable:
    """Say what stands in the journal's way, with the numbers of its disk."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    free_bytes = _free_bytes(path.parent)
    code = getattr(cause, "sqlite_errorcode", 0) & 0xFF
    full = code == sqlite3.SQLITE_FULL or getattr(cause, "errno", 0) in (errno.ENOSPC, errno.EDQUOT)
    # Where the disk is full, some writes of SQLite's own (its shared memory, say) fail as plain I/O errors.
    full = full or (
        code in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN) and free_bytes < _NEARLY_FULL_BYTES
    )
    details = {"path": str(path), "free_bytes": free_bytes, "cause": str(cause)}
    if full:
        return Unavailable(
            f"The disk under {path} is full ({free_bytes} bytes free), so nothing new can be recorded. "
            "Nothing that was recorded is lost.",
            code="JOURNAL_FULL",
            fix="Free space on that disk; `airyard admin gc --dry-run` shows what Airyard can remove.",
            details=details,
        )
    return Unavailable(
        f"The journal {path} cannot be read or written: {cause} ({free_bytes} bytes free).",
        code="JOURNAL_BROKEN",
        fix="Look at the disk's health and the file's permissions, then start the server again.",
        details=details,
    )


def _free_bytes(folder: Path) -> int:
    try:
        disk = os.statvfs(folder)
    except OSError:
        return 0
    return disk.f_bavail * disk.f_frsize
