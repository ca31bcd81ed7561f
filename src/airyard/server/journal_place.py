"""Where a server's journal is: the file of its data folder, or the PostgreSQL database that its configuration names.

Owns: the password's way from a file or the environment to the adapter, the note of a journal that has moved.
Must not know: what is in a journal.
"""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

from airyard.adapters.sql_database import Database
from airyard.adapters.sqlite_engine import SqliteDatabase
from airyard.core.errors import Fix, UserError
from airyard.server.config import Config
from airyard.server.premises import write_atomically

FILE = Path("server/journal.db")
MOVED = Path("server/journal.moved")
PASSWORD_VARIABLE = "AIRYARD_JOURNAL_PASSWORD"
SQLITE = "sqlite"
"""What stands for the file of the data folder where an address is asked for."""


def journal_database(config: Config, home: Path, password: str | None = None) -> Database:
    """Return the configured place of the journal. Nothing is opened. ``password``: what ``taken_password`` gave before.

    Raises: UserError (``BAD_CONFIG``, ``POSTGRES_NOT_INSTALLED``; ``JOURNAL_MOVED`` for the place that it has left).
    """
    section = config.journal
    file = Path(section.password_file) if section.password_file else None
    database = database_at(section.url, file, home, password or taken_password())
    _refuse_the_old_place(database, home)
    return database


def taken_password() -> str | None:
    """Return the password in the environment and take it out: what this process starts need not know it."""
    return os.environ.pop(PASSWORD_VARIABLE, None)


def database_at(url: str | None, password_file: Path | None, home: Path, password: str | None) -> Database:
    """Return the database of an address; None and ``sqlite`` are the data folder's file. The password file wins."""
    if url is None or url == SQLITE:
        return SqliteDatabase(home / FILE)
    # Imported here: who keeps a file needs no driver.
    from airyard.adapters.postgres_engine import PostgresDatabase

    return PostgresDatabase(url, read_password(password_file) if password_file else password)


def note_move(home: Path, source: Database, target: Database, url: str) -> None:
    """Note that the journal has left a place: no server may go on there."""
    note = {"from": source.name, "to": target.name, "url": url}
    write_atomically(home / MOVED, json.dumps(note).encode())


def _refuse_the_old_place(database: Database, home: Path) -> None:
    try:
        note = json.loads((home / MOVED).read_text())
        old, new, url = str(note["from"]), str(note["to"]), str(note["url"])
    except (OSError, ValueError, KeyError, TypeError):
        return
    if old != database.name:
        return
    raise UserError(
        f"The journal was moved from {old} to {new}, and the configuration still names the old place.",
        code="JOURNAL_MOVED",
        fix=Fix(
            text=f'Set url = "{url}" under [journal] in {home / "config.toml"}; to go on with the old one and '
            f"lose what came after, remove {home / MOVED}."
        ),
        details={"from": old, "to": new},
    )


def read_password(file: Path, key: str = "[journal] password_file") -> str:
    """Return what a password file holds; ``key`` is what named it. Raises: UserError, also for one that others read."""
    try:
        if stat.S_IMODE(file.stat().st_mode) & 0o077:
            raise UserError(
                f"the password file {file} can be read by others",
                code="BAD_CONFIG",
                fix=Fix(text="make it its owner's alone", command=f"chmod 600 {file}"),
            )
        return file.read_text().strip()
    except OSError as error:
        raise UserError(
            f"the password file {file} cannot be read: {error.strerror}",
            code="BAD_CONFIG",
            fix=f"correct {key}",
        ) from error
