"""The journal's file: crashes, full disks, damage, older and newer schemas."""

from __future__ import annotations

import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from airyard.adapters import journal_schema
from airyard.adapters.journal_sql import SqlJournal
from airyard.adapters.journal_tables import SCHEMA_VERSION, metadata
from airyard.adapters.read_store_sql import SqlReadStore
from airyard.adapters.sqlite_engine import SqliteDatabase, write_engine
from airyard.core import codec
from airyard.core.errors import InvariantBroken, Unavailable, UserError
from airyard.core.events import RunSubmitted
from airyard.core.state import ClusterState
from airyard.ports.journal import Changes
from airyard.ports.read_store import RunFilter
from journal_yard import Writer, row_of, run

WRITER_PROGRAM = """
import sys
from pathlib import Path
from journal_yard import Writer
from airyard.adapters.journal_sql import SqlJournal
from airyard.core.state import ClusterState

journal = SqlJournal(Path(sys.argv[1]))
stored = journal.open()
state = ClusterState.from_json(stored.snapshot) if stored.snapshot else ClusterState()
for recorded in journal.events_after(stored.snapshot_seq):
    state.apply(recorded)
writer = Writer(state=state, epoch=stored.epoch + 1)
for events, changes in writer.story(100_000):
    journal.append(events[0].seq - 1, writer.epoch, events, changes)
    print(events[-1].seq, flush=True)
    if events[-1].seq % 50 == 0:
        journal.save_snapshot(writer.state.seq, writer.state.to_json())
"""


def replay(journal: SqlJournal) -> tuple[ClusterState, dict[int, dict[str, object]]]:
    """Return the state after all events, and every run's last record."""
    state, records = ClusterState(), {}
    for recorded in journal.events_after(0):
        before = dict(state.runs)
        state.apply(recorded)
        for run_id, one in state.runs.items():
            if before.get(run_id) is not one:
                records[run_id] = codec.encode(one)
    return state, records


def test_events_and_rows_agree_after_kill_9_at_any_moment(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    chance = random.Random(7)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    promised = 0
    for _ in range(6):
        child = subprocess.Popen(
            [sys.executable, "-c", WRITER_PROGRAM, str(path)],
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
        )
        assert child.stdout is not None
        first = child.stdout.readline()
        assert first, "the writer did not start"
        time.sleep(chance.uniform(0.0, 0.15))
        child.send_signal(signal.SIGKILL)
        said = [
            line for line in (first + child.stdout.read()).splitlines(keepends=True) if line.endswith("\n")
        ]
        child.stdout.close()
        child.wait()
        promised = int(said[-1])
        journal, reads = SqlJournal(path), SqlReadStore(path)
        stored = journal.open()
        assert stored.last_seq >= promised, "an append that returned was lost"
        state, records = replay(journal)
        assert state.seq == stored.last_seq
        rows = {row.run_id: dict(row.record) for row in reads.runs(RunFilter(limit=1_000_000))}
        assert rows == records
        if stored.snapshot is not None:
            resumed = ClusterState.from_json(dict(stored.snapshot))
            for recorded in journal.events_after(stored.snapshot_seq):
                resumed.apply(recorded)
            assert resumed.to_json() == state.to_json()
        reads.close()
        journal.close()
    assert promised > 20


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 1 MiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = shutil.which("mount")
    if mount is None or os.geteuid() != 0:
        pytest.skip("mounting a small tmpfs needs root")
    made = subprocess.run(
        [mount, "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], capture_output=True, text=True
    )
    if made.returncode != 0:
        pytest.skip(f"a tmpfs cannot be mounted here: {made.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


def test_a_full_disk_refuses_whole_and_loses_nothing(small_disk: Path) -> None:
    path = small_disk / "journal.db"
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(300 * 1024))
    journal, reads = SqlJournal(path), SqlReadStore(path)
    journal.open()
    writer = Writer()
    kept = writer.state.copy()
    refused: Unavailable | None = None
    for events, changes in writer.story(10_000):
        try:
            journal.append(events[0].seq - 1, 1, events, changes)
        except Unavailable as error:
            refused = error
            break
        kept = writer.state.copy()
    assert refused is not None
    assert refused.code == "JOURNAL_FULL"
    assert str(path) in refused.message
    assert refused.details["free_bytes"] < 300 * 1024
    assert kept.seq > 10
    many = (RunSubmitted(run=run(90_000 + number)) for number in range(300))
    events, changes = Writer(state=kept.copy()).take(*many)
    with pytest.raises(Unavailable) as again:
        journal.append(kept.seq, 1, events, changes)
    assert again.value.code == "JOURNAL_FULL"
    assert [recorded.seq for recorded in journal.events_after(0)] == list(range(1, kept.seq + 1))
    _, records = replay(journal)
    assert {row.run_id: dict(row.record) for row in reads.runs(RunFilter(limit=1_000_000))} == records
    ballast.unlink()
    writer = Writer(state=kept)
    events, changes = writer.take(RunSubmitted(run=run(70_000)))
    journal.append(events[0].seq - 1, 1, events, changes)
    journal.close()
    assert journal.open().last_seq == events[-1].seq
    assert reads.run(70_000) == row_of(writer.state.runs[70_000])
    reads.close()
    journal.close()


def test_a_damaged_newest_snapshot_falls_back_to_the_older(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    journal, writer = SqlJournal(path), Writer()
    journal.open()
    for events, changes in writer.story(3):
        journal.append(events[0].seq - 1, 1, events, changes)
        journal.save_snapshot(writer.state.seq, writer.state.to_json())
    seqs = [seq for seq, _ in journal.snapshots()]
    journal.close()
    with sqlite3.connect(path) as raw:
        raw.execute("UPDATE snapshots SET data = zeroblob(40) WHERE seq = ?", (seqs[1],))
    raw.close()
    stored = journal.open()
    assert (stored.snapshot_seq, stored.last_seq) == (seqs[0], writer.state.seq)
    journal.close()
    with sqlite3.connect(path) as raw:
        raw.execute("UPDATE snapshots SET data = zeroblob(40)")
    raw.close()
    assert journal.open().snapshot_seq == 0, "all events are there, so no snapshot is needed"
    journal.close()
    with sqlite3.connect(path) as raw:
        raw.execute("DELETE FROM journal WHERE seq < 4")
    raw.close()
    with pytest.raises(InvariantBroken, match="newest good snapshot"):
        journal.open()
    journal.close()


def test_a_snapshot_is_saved_beside_appends(tmp_path: Path) -> None:
    journal, writer = SqlJournal(tmp_path / "journal.db"), Writer()
    journal.open()
    snapshot = writer.state.to_json() | {"ballast": ["x" * 100] * 20_000}
    stop = threading.Event()
    faults: list[BaseException] = []

    def save() -> None:
        seq = 0
        while not stop.is_set():
            seq += 1
            try:
                journal.save_snapshot(seq, snapshot)
            except BaseException as error:
                faults.append(error)
                return

    thread = threading.Thread(target=save)
    thread.start()
    for events, changes in writer.story(100):
        journal.append(events[0].seq - 1, 1, events, changes)
    stop.set()
    thread.join()
    assert not faults
    assert len(list(journal.snapshots())) == 2
    assert sum(1 for _ in journal.events_after(0)) == writer.state.seq
    journal.close()


def test_a_file_that_is_no_database_is_named(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    path.write_bytes(b"not a database" * 1000)
    with pytest.raises(Unavailable) as refused:
        SqlJournal(path).open()
    assert refused.value.code == "JOURNAL_BROKEN"
    assert str(path) in refused.value.message


def test_the_tables_are_what_the_migrations_make(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    engine = write_engine(path)
    assert journal_schema.prepare(SqliteDatabase(path), engine) is None
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
    assert journal_schema.version_of(engine) == SCHEMA_VERSION
    engine.dispose()


NEXT_MIGRATION = """
from alembic import op
import sqlalchemy as sa
revision = "{revision}"
down_revision = "{before}"
def upgrade() -> None:
    op.add_column("runs", sa.Column("cost", sa.Integer))
    {fault}
"""


def next_migrations(folder: Path, fault: str = "") -> Path:
    """Return a copy of the migrations with one more that does not exist yet."""
    shutil.copytree(journal_schema.MIGRATIONS, folder, ignore=shutil.ignore_patterns("__pycache__"))
    text = NEXT_MIGRATION.format(
        revision=f"{SCHEMA_VERSION + 1:04d}", before=f"{SCHEMA_VERSION:04d}", fault=fault
    )
    (folder / "versions" / "next.py").write_text(text)
    return folder


def filled(path: Path) -> None:
    journal, writer = SqlJournal(path), Writer()
    journal.open()
    for events, changes in writer.story(3):
        journal.append(events[0].seq - 1, 1, events, changes)
    journal.close()


def test_an_older_schema_is_backed_up_and_migrated(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    filled(path)
    engine = write_engine(path)
    backup = journal_schema.prepare(
        SqliteDatabase(path), engine, target=SCHEMA_VERSION + 1, migrations=next_migrations(tmp_path / "next")
    )
    assert journal_schema.version_of(engine) == SCHEMA_VERSION + 1
    engine.dispose()
    assert backup == tmp_path / f"journal.db.bak-{SCHEMA_VERSION}"
    assert backup.stat().st_mode & 0o777 == 0o600
    old = SqlJournal(backup)
    assert old.open().last_seq == 10
    old.close()
    with pytest.raises(UserError) as refused:
        SqlJournal(path).open()
    assert refused.value.code == "JOURNAL_TOO_NEW"
    assert f"schema {SCHEMA_VERSION + 1}" in refused.value.message
    assert f"up to {SCHEMA_VERSION}" in refused.value.message


def test_a_migration_that_fails_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    filled(path)
    engine = write_engine(path)
    broken = next_migrations(tmp_path / "next", fault="raise RuntimeError('no')")
    with pytest.raises(RuntimeError):
        journal_schema.prepare(SqliteDatabase(path), engine, target=SCHEMA_VERSION + 1, migrations=broken)
    assert journal_schema.version_of(engine) == SCHEMA_VERSION
    engine.dispose()
    journal = SqlJournal(path)
    assert journal.open().last_seq == 10
    journal.close()


def test_foreign_tables_are_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    with sqlite3.connect(path) as raw:
        raw.execute("CREATE TABLE mine (x)")
    raw.close()
    with pytest.raises(InvariantBroken, match="mine"):
        SqlJournal(path).open()


def test_the_file_is_the_owners_alone_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    journal = SqlJournal(path)
    journal.open()
    journal.append(0, 1, [], Changes())
    assert path.stat().st_mode & 0o777 == 0o600
    assert journal.size_bytes() >= path.stat().st_size > 0
    journal.close()
    journal.close()
