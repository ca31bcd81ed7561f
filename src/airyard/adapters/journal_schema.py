"""Brings the journal's file to the schema of this version, or refuses it.

Owns: schema versions, the backup before a migration. Must not know: what the tables hold.
"""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from sqlalchemy import Engine, inspect

from airyard.adapters.journal_tables import SCHEMA_VERSION
from airyard.core.errors import InvariantBroken, UserError

MIGRATIONS = Path(__file__).parent / "migrations"


def prepare(
    path: Path, engine: Engine, *, target: int = SCHEMA_VERSION, migrations: Path = MIGRATIONS
) -> Path | None:
    """Create or migrate the tables; return the backup that was made first, if one was.

    Raises: UserError (``JOURNAL_TOO_NEW``), InvariantBroken (``JOURNAL_FOREIGN``).
    Cost: one query when nothing is to do.
    """
    found = version_of(engine)
    if found == target:
        return None
    if found is not None and found > target:
        raise UserError(
            f"The journal {path} has schema {found}; this version of Airyard knows schemas up to {target}.",
            code="JOURNAL_TOO_NEW",
            fix=f"Start the version that wrote it, or put back a backup ({path.name}.bak-{target}) beside it.",
            details={"found": found, "known": target},
        )
    backup = back_up(path, found) if found is not None else None
    _upgrade(engine, target, migrations)
    return backup


def version_of(engine: Engine) -> int | None:
    """Return the schema that the file has; None for an empty file. Raises: InvariantBroken for foreign tables."""
    with engine.connect() as connection:
        names = set(inspect(connection).get_table_names())
        if "alembic_version" in names:
            version = connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar()
            if version is not None:
                return int(version)
    if names - {"alembic_version"}:
        raise InvariantBroken(
            f"the journal has tables ({', '.join(sorted(names))}) but no schema version",
            code="JOURNAL_FOREIGN",
        )
    return None


def back_up(path: Path, version: int) -> Path:
    """Copy the whole database to ``<name>.bak-<version>``, durable before the name appears."""
    target = path.with_name(f"{path.name}.bak-{version}")
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
    sync(path.parent)
    return target


def sync(path: Path) -> None:
    """Have a file's or a folder's contents on the disk."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _upgrade(engine: Engine, target: int, migrations: Path) -> None:
    # Imported here: it takes a tenth of a second, and almost every start has nothing to migrate.
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(migrations).replace("%", "%%"))
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, f"{target:04d}")
