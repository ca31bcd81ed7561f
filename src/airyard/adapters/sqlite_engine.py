"""Connections to the journal's SQLite file: durable ones for the writer, read-only ones for everybody else.

Owns: pragmas, transaction starts, what SQLite's errors mean to us. Must not know: tables.
"""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
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
