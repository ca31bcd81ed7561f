"""Brings the journal's tables to the schema of this version, or refuses them.

Owns: schema versions, the backup before a migration. Must not know: what the tables hold.
"""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Engine, inspect

from airyard.adapters.journal_tables import SCHEMA_VERSION
from airyard.adapters.sql_database import Database
from airyard.core.errors import InvariantBroken, UserError

MIGRATIONS = Path(__file__).parent / "migrations"


def prepare(
    database: Database, engine: Engine, *, target: int = SCHEMA_VERSION, migrations: Path = MIGRATIONS
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
            f"The journal {database.name} has schema {found}; this version of Airyard knows schemas up to {target}.",
            code="JOURNAL_TOO_NEW",
            fix="Start the version that wrote it, or put back what was saved before it was migrated (beside a file it "
            f"is called .bak-{target}).",
            details={"found": found, "known": target},
        )
    backup = database.back_up(found) if found is not None else None
    _upgrade(database, engine, target, migrations)
    return backup


def version_of(engine: Engine) -> int | None:
    """Return the schema that the tables have; None where there are none. Raises: InvariantBroken for foreign tables."""
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


def _upgrade(database: Database, engine: Engine, target: int, migrations: Path) -> None:
    # Imported here: it takes a tenth of a second, and almost every start has nothing to migrate.
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(migrations).replace("%", "%%"))
    with engine.begin() as connection:
        database.lock_schema(connection)
        config.attributes["connection"] = connection
        command.upgrade(config, f"{target:04d}")
