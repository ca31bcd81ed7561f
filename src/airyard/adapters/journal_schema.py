"""Brings the journal's tables to the schema of this version, or refuses them.

Owns: schema versions, the backup before a migration. Must not know: what the tables hold.
"""

from __future__ import annotations

import json
from pathlib import Path

from sqlalchemy import Engine, inspect, text
from sqlalchemy.exc import DBAPIError

import airyard
from airyard.adapters.journal_tables import SCHEMA_VERSION
from airyard.adapters.sql_database import Database
from airyard.core.errors import InvariantBroken, UserError
from airyard.core.versions import check_release

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
        raise too_new(database, engine, found, target)
    if found is None:
        _upgrade(database, engine, target, migrations, fenced=False)
        return None
    _check_release(engine)
    backup = database.back_up(found)
    _upgrade(database, engine, target, migrations, fenced=True)
    return backup


def last_version(engine: Engine) -> str:
    """Return the release of the server that led last; empty where the journal does not say.

    Cost: reads backwards over the events of its epoch.
    """
    newest = text("SELECT data FROM journal WHERE kind = 'EpochBegan' ORDER BY seq DESC LIMIT 1")
    with engine.connect() as connection:
        data = connection.execute(newest).scalar()
    return str(json.loads(data).get("version") or "") if data else ""


def too_new(database: Database, engine: Engine, found: int, known: int = SCHEMA_VERSION) -> UserError:
    """Return why a version that knows schemas up to ``known`` must leave tables of schema ``found`` alone."""
    return UserError(
        f"The journal {database.name} has schema {found}{_writer(engine)}; this version of Airyard "
        f"({airyard.__version__}) knows schemas up to {known}.",
        code="JOURNAL_TOO_NEW",
        fix="Start the version that wrote it, or put back what was saved before it was migrated (beside a file it "
        f"is called .bak-{known}).",
        details={"found": found, "known": known},
    )


def _writer(engine: Engine) -> str:
    """Name the release that wrote the tables, where they still are what this version can ask."""
    try:
        version = last_version(engine)
    except (DBAPIError, ValueError):
        return ""
    return f", of Airyard {version}" if version else ""


def _check_release(engine: Engine) -> None:
    """Refuse before anything is changed what ``Control`` would refuse after it. Raises: UserError."""
    active = text("SELECT count(*) FROM runs WHERE state = 'ACTIVE'")
    with engine.connect() as connection:
        live = int(connection.execute(active).scalar() or 0)
    check_release(last_version(engine), airyard.__version__, live_attempts=live)


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


def _upgrade(database: Database, engine: Engine, target: int, migrations: Path, *, fenced: bool) -> None:
    # Imported here: it takes a tenth of a second, and almost every start has nothing to migrate.
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(migrations).replace("%", "%%"))
    with engine.begin() as connection:
        database.lock_schema(connection)
        if fenced:
            # A leader that hung in the middle of a commit ends it before, or sees afterwards that it is replaced.
            database.fence(connection)
        config.attributes["connection"] = connection
        command.upgrade(config, f"{target:04d}")
