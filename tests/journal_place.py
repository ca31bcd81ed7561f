"""Where a test keeps a journal: a SQLite file, or a database of its own in a real PostgreSQL."""

from __future__ import annotations

from pathlib import Path

import pytest

from airyard.adapters.postgres_engine import PostgresDatabase
from airyard.adapters.sql_database import Database


def place_of(request: pytest.FixtureRequest, folder: Path) -> Path | Database:
    """Return an empty place of the kind that the fixture's parameter names: ``sqlite`` or ``postgres``."""
    if request.param == "sqlite":
        return folder / "journal.db"
    return PostgresDatabase(request.getfixturevalue("postgres").make_database())
