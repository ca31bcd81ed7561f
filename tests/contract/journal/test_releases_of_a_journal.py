"""A journal between two releases: who may migrate it, who may still write, who must not lead."""

from __future__ import annotations

import shutil
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

import airyard
from airyard.adapters import journal_schema
from airyard.adapters.journal_sql import SqlJournal
from airyard.adapters.journal_tables import SCHEMA_VERSION
from airyard.adapters.sqlite_engine import SqliteDatabase, write_engine
from airyard.core.errors import AiryardError, Conflict, UserError
from airyard.core.events import EpochBegan
from airyard.ports.journal import Changes
from airyard.server.standby import Follower
from journal_yard import Writer, machine_joined, row_of, run

NEXT = SCHEMA_VERSION + 1
MIGRATION = f"""
from alembic import op
import sqlalchemy as sa
revision, down_revision = "{NEXT:04d}", "{SCHEMA_VERSION:04d}"
def upgrade() -> None:
    op.add_column("runs", sa.Column("cost", sa.Integer))
"""


def written(path: Path, version: str, *, active: bool = False) -> tuple[SqlJournal, Writer]:
    """Return an open journal whose leader is of a release, and its writer; with a live attempt's row."""
    journal, writer = SqlJournal(path), Writer()
    journal.open()
    events, changes = writer.take(EpochBegan(epoch=1, version=version), machine_joined())
    rows = (replace(row_of(run(1)), state="ACTIVE"),) if active else ()
    journal.append(0, 1, events, Changes(runs=rows, nodes=changes.nodes))
    return journal, writer


def migrate(path: Path, folder: Path) -> None:
    """Bring the tables to a schema that does not exist yet."""
    shutil.copytree(journal_schema.MIGRATIONS, folder, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "versions" / "next.py").write_text(MIGRATION)
    engine = write_engine(path)
    try:
        journal_schema.prepare(SqliteDatabase(path), engine, target=NEXT, migrations=folder)
    finally:
        engine.dispose()


def test_a_leader_writes_nothing_into_tables_that_were_migrated_meanwhile(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    old, writer = written(path, airyard.__version__)
    migrate(path, tmp_path / "next")
    events, changes = writer.take(machine_joined("another"))
    with pytest.raises(Conflict) as refused:
        old.append(events[0].seq - 1, 1, events, changes)
    assert refused.value.code == "STALE_EPOCH"
    old.close()
    with sqlite3.connect(path) as raw:
        assert raw.execute("SELECT count(*) FROM journal").fetchone() == (2,)
    raw.close()


def test_a_release_too_far_away_migrates_nothing_while_runs_are_live(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "journal.db"
    written(path, "0.1.0", active=True)[0].close()
    monkeypatch.setattr(airyard, "__version__", "0.9.0")
    with pytest.raises(UserError, match=r"0\.1\.0.*0\.9\.0") as refused:
        migrate(path, tmp_path / "next")
    assert refused.value.code == "UPGRADE_TOO_FAR"
    assert [each.name for each in tmp_path.glob("*.bak-*")] == []
    monkeypatch.setattr(airyard, "__version__", "0.2.0")
    shutil.rmtree(tmp_path / "next")
    migrate(path, tmp_path / "next")
    assert [each.name for each in tmp_path.glob("*.bak-*")] == [f"journal.db.bak-{SCHEMA_VERSION}"]


def problem_of(follower: Follower) -> AiryardError | None:
    """Follow, and again: what stands in the way does not go away by itself."""
    follower.follow()
    before = follower.problem
    follower.follow()
    assert (follower.problem is None) == (before is None)
    return follower.problem


def test_a_standby_must_not_lead_what_it_cannot_read(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    journal, writer = written(path, airyard.__version__)
    follower, late = Follower(SqliteDatabase(path)), Follower(SqliteDatabase(path))
    assert problem_of(follower) is None
    # The leader of a newer release migrates first, then begins its epoch.
    migrate(path, tmp_path / "next")
    refused = problem_of(late)
    assert refused is not None
    assert (refused.code, airyard.__version__ in refused.message) == ("JOURNAL_TOO_NEW", True)
    writer.epoch = 2
    events, _ = writer.take(EpochBegan(epoch=2, version="99.0.0"))
    with sqlite3.connect(path) as raw:
        row = (events[0].seq, 1, 2, None, "EpochBegan", '{"epoch":2,"version":"99.0.0"}')
        raw.execute("INSERT INTO journal VALUES (?, ?, ?, ?, ?, ?)", row)
    raw.close()
    refused = problem_of(follower)
    assert refused is not None
    assert (refused.code, "99.0.0" in refused.message) == ("JOURNAL_TOO_NEW", True)
    for each in (journal, follower, late):
        each.close()


def test_a_standby_that_meets_an_unknown_event_does_not_lead(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    journal, _ = written(path, airyard.__version__)
    follower = Follower(SqliteDatabase(path))
    assert problem_of(follower) is None
    with sqlite3.connect(path) as raw:
        raw.execute("INSERT INTO journal VALUES (3, 1, 1, NULL, 'MoonRose', '{}')")
    raw.close()
    refused = problem_of(follower)
    assert refused is not None
    assert refused.code == "UNKNOWN_EVENT"
    journal.close()
    follower.close()
