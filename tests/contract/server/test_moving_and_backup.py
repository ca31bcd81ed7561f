"""A journal is moved between SQLite and PostgreSQL and back, and a yard is saved and put back: whole or not at all."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airyard.adapters import journal_copy
from airyard.adapters.estimates_sql import SqlEstimateStore
from airyard.adapters.journal_copy import content_of, copy_journal
from airyard.adapters.journal_sql import SqlJournal
from airyard.adapters.notices_sql import SqlNoticeStore
from airyard.adapters.postgres_engine import PostgresDatabase
from airyard.adapters.read_store_sql import SqlReadStore
from airyard.adapters.secrets_fernet import FernetSecretStore
from airyard.adapters.sql_database import Database
from airyard.adapters.sqlite_engine import SqliteDatabase
from airyard.core.errors import Conflict, InvariantBroken, NotFound, UserError
from airyard.ports.estimate_store import Estimate
from airyard.ports.notice_store import Message
from airyard.ports.read_store import RunFilter
from airyard.server import maintenance
from airyard.server.backup import restore
from airyard.server.config import load_config
from airyard.server.journal_place import journal_database
from airyard.server.premises import Premises
from journal_yard import Writer
from postgres_server import PostgresServer

Maintain = Callable[..., dict[str, Any]]
MESSAGE = Message(
    message_id="msg_1", seq=7, at_ms=1, kind="done", run_id=3, target="https://a.example", queue="ada a", secret=None,
    body="{}",
)  # fmt: skip


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A data folder with a journal of everything, a secret, tokens, code, logs and a configuration."""
    home = tmp_path / "home"
    premises = Premises(home)
    premises.open()
    premises.token()
    fill(SqliteDatabase(home / "server" / "journal.db"))
    secrets = FernetSecretStore(home / "server")
    secrets.put("ada", "team", "key", "a-secret-value", masked=True, now_ms=1)
    for name, text in (
        ("config.toml", '[policy]\nfile = "yard.yaml"\n'),
        ("yard.yaml", "pools: []\n"),
        ("server/blobs/code/abc.tar.gz", "code"),
        ("server/sources/def.yaml", "command: true"),
        ("server/logs/1/0/0.log", "left out"),
        ("server/server.log", "left out"),
        ("node/agent.json", "left out"),
    ):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(text)
    premises.close()
    return home


@pytest.fixture
def maintain(capsys: pytest.CaptureFixture[str]) -> Maintain:
    """Do one thing as the command line does, and return the answer: what was found, or the error."""

    def do(home: Path, *arguments: object) -> dict[str, Any]:
        mask = os.umask(0o022)
        try:
            code = maintenance.main(["--home", str(home), *map(str, arguments)])
        finally:
            os.umask(mask)  # it is made for a process of its own
        told = capsys.readouterr()
        found: dict[str, Any] = json.loads(told.err if code else told.out)
        return found["error"] if code else found

    return do


def fill(database: Database) -> None:
    journal, writer = SqlJournal(database), Writer()
    journal.open()
    for events, changes in writer.story(40):
        journal.append(events[0].seq - 1, 1, events, changes)
        if events[-1].seq % 30 == 0:
            journal.save_snapshot(writer.state.seq, writer.state.to_json())
    journal.close()
    estimates = SqlEstimateStore(database)
    estimates.save([Estimate(run_id=3, asked_ms=1, p50_ms=2, p90_ms=3, position=4)], [])
    estimates.close()
    notices = SqlNoticeStore(database)
    notices.keep([MESSAGE], 7)
    notices.close()


def everything(database: Database) -> tuple[Any, ...]:
    """Return what the stores say."""
    journal, reads, estimates = SqlJournal(database), SqlReadStore(database), SqlEstimateStore(database)
    notices = SqlNoticeStore(database)
    stored = journal.open()
    found = (
        stored,
        list(journal.snapshots()),
        list(journal.events_after(0)),
        reads.runs(RunFilter(limit=1000)),
        reads.nodes(),
        estimates.load(),
        notices.cursor(),
        notices.newest(None, 10),
    )
    for one in (journal, reads, estimates, notices):
        one.close()
    return found


def configure(home: Path, url: str) -> None:
    (home / "config.toml").write_text(f'[journal]\nurl = "{url}"\n')


def configured(home: Path) -> Database:
    return journal_database(load_config(None, home=home), home)


def test_there_and_back_again(home: Path, postgres: PostgresServer, maintain: Maintain) -> None:
    before = everything(configured(home))
    url = postgres.make_database()
    moved = maintain(home, "migrate", "--to", url)
    assert moved["tables"]["journal"] == before[0].last_seq
    assert moved["tables"]["eta_samples"] == 1
    assert min(moved["tables"].values()) > 0, "every table had something to move"
    with pytest.raises(UserError) as stays:
        configured(home)
    assert stays.value.code == "JOURNAL_MOVED"
    assert url in maintain(home, "backup", home.parent / "x.tgz")["fix"]["text"]
    configure(home, url)
    assert everything(configured(home)) == before
    refused = maintain(home, "migrate", "--to", "sqlite")
    assert refused["code"] == "JOURNAL_NOT_EMPTY"
    for name in ("journal.db", "journal.db-wal", "journal.db-shm"):
        (home / "server" / name).unlink(missing_ok=True)
    assert maintain(home, "migrate", "--to", "sqlite")["sha256_sum"] == moved["sha256_sum"]
    configure(home, "sqlite")
    assert everything(configured(home)) == before


def test_what_cannot_be_moved_stays(home: Path, postgres: PostgresServer, maintain: Maintain) -> None:
    url = postgres.make_database()
    premises = Premises(home)
    premises.open()
    assert maintain(home, "migrate", "--to", url)["code"] == "ALREADY_SERVED"
    premises.close()
    assert maintain(home, "migrate", "--to", "sqlite")["code"] == "SAME_PLACE"
    secret = maintain(home, "migrate", "--to", "postgresql://a:hunter2@b/c")
    assert "no password in here" in secret["message"]
    assert "hunter2" not in str(secret)
    assert maintain(home, "migrate", "--to", postgres.url("nowhere"))["code"] == "JOURNAL_BROKEN"
    assert isinstance(configured(home), SqliteDatabase), "nothing has moved"


def test_a_copy_that_differs_or_comes_too_late_is_taken_back(
    home: Path, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = configured(home), PostgresDatabase(postgres.make_database())
    take = journal_copy.Content.take

    def forgetful(self: journal_copy.Content, table: Any, values: Any) -> None:
        take(self, table, values)
        self.digest += table.name == "nodes"

    with monkeypatch.context() as patched:
        patched.setattr(journal_copy, "_end_of", lambda database: (10_000, 1))
        with pytest.raises(Conflict) as went_on:
            copy_journal(source, target)
        assert went_on.value.code == "JOURNAL_IN_USE"
    counted = journal_copy._content_of
    with monkeypatch.context() as patched:
        patched.setattr(journal_copy, "_content_of", lambda reader: patched.setattr(
            journal_copy.Content, "take", forgetful) or counted(reader))  # fmt: skip
        with pytest.raises(InvariantBroken, match="differs"):
            copy_journal(source, target)
    assert content_of(target).rows == {}
    assert copy_journal(source, target) == content_of(source)


def test_a_backup_holds_what_is_needed_and_comes_back(home: Path, tmp_path: Path, maintain: Maintain) -> None:
    before = everything(configured(home))
    archive = tmp_path / "yard.tar.gz"
    # As while a server is at work: it holds the lock, and its database has a log beside it.
    premises, server = Premises(home), SqlJournal(configured(home))
    premises.open()
    server.open()
    saved = maintain(home, "backup", archive)
    server.close()
    premises.close()
    assert archive.stat().st_mode & 0o777 == 0o600
    assert saved["bytes"] == archive.stat().st_size
    assert maintain(home, "backup", archive)["code"] == "BACKUP_EXISTS"
    assert maintain(home, "backup", home / "server" / "x.tar.gz")["code"] == "BACKUP_INSIDE"
    other = tmp_path / "other"
    put = maintain(other, "restore", archive)
    assert put["journal"]["last_seq"] == before[0].last_seq
    found = {path.relative_to(other).as_posix() for path in other.rglob("*") if path.is_file()}
    assert found == {
        "config.toml", "yard.yaml", "server/journal.db", "server/token", "server/secrets.key", "server/secrets.db",
        "server/blobs/code/abc.tar.gz", "server/sources/def.yaml",
    }  # fmt: skip
    assert everything(configured(other)) == before
    assert FernetSecretStore(other / "server").get("ada", "team", "key") == ("a-secret-value", True)
    assert (other / "server" / "token").read_text() == (home / "server" / "token").read_text()
    assert all(path.stat().st_mode & 0o077 == 0 for path in other.rglob("*"))
    assert maintain(other, "restore", archive)["code"] == "HOME_NOT_EMPTY"


@pytest.mark.skipif(os.getuid() != 0, reason="giving a folder to another account needs root")
def test_an_account_restores_into_its_home_whose_parent_is_not_its_own(
    home: Path, maintain: Maintain
) -> None:
    nobody = 65534
    # As /var/lib with a home of the server's account in it; a test's own folder lets nobody else in.
    with tempfile.TemporaryDirectory() as outer:
        parent = Path(outer)
        parent.chmod(0o755)
        archive, own = parent / "yard.tar.gz", parent / "own"
        assert maintain(home, "backup", archive)["files"]
        archive.chmod(0o644)
        own.mkdir()
        os.chown(own, nobody, nobody)
        child = os.fork()
        if child == 0:
            os.setgroups([])
            os.setgid(nobody)
            os.setuid(nobody)
            done = 1
            try:
                restore(archive, own)
                done = 0
            finally:
                os._exit(done)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert sorted(each.name for each in own.iterdir()) == ["config.toml", "server", "yard.yaml"]
        assert content_of(SqliteDatabase(own / "server" / "journal.db")) == content_of(
            SqliteDatabase(home / "server" / "journal.db")
        )


def test_a_yard_on_postgres_comes_back_into_an_empty_database(
    home: Path, tmp_path: Path, postgres: PostgresServer, maintain: Maintain
) -> None:
    url = postgres.make_database()
    maintain(home, "migrate", "--to", url)
    configure(home, url)
    before = everything(configured(home))
    archive = tmp_path / "yard.tar.gz"
    maintain(home, "backup", archive)
    other = tmp_path / "other"
    assert maintain(other, "restore", archive)["code"] == "JOURNAL_NOT_EMPTY"
    assert not other.exists()
    name = url.partition("?")[0].rpartition("/")[2]
    postgres.psql(f"DROP DATABASE {name} WITH (FORCE)")
    postgres.psql(f"CREATE DATABASE {name}")
    assert maintain(other, "restore", archive)["place"].startswith("postgresql://")
    assert everything(configured(other)) == before
    assert not (other / "server" / "journal.db").exists()


def test_what_servers_share_is_saved_and_comes_back_to_its_place(
    home: Path, tmp_path: Path, postgres: PostgresServer, maintain: Maintain
) -> None:
    url, shared, archive = postgres.make_database(), tmp_path / "shared", tmp_path / "yard.tar.gz"
    maintain(home, "migrate", "--to", url)
    (home / "config.toml").write_text(f'[journal]\nurl = "{url}"\n[standby]\nshared = "{shared}"\n')
    assert maintain(home, "backup", archive)["code"] == "NO_SHARED_FOLDER"
    assert not archive.exists()
    (shared / "server").mkdir(parents=True)
    FernetSecretStore(shared / "server").put("ada", "team", "key", "a-shared-value", masked=True, now_ms=1)
    (shared / "server" / "token").write_text("the token of both")
    maintain(home, "backup", archive)
    name = url.partition("?")[0].rpartition("/")[2]
    postgres.psql(f"DROP DATABASE {name} WITH (FORCE)")
    postgres.psql(f"CREATE DATABASE {name}")
    other = tmp_path / "other"
    assert maintain(other, "restore", archive)["code"] == "HOME_NOT_EMPTY"
    assert not other.exists()
    shared.rename(tmp_path / "lost")
    maintain(other, "restore", archive)
    assert FernetSecretStore(shared / "server").get("ada", "team", "key") == ("a-shared-value", True)
    assert (shared / "server" / "token").read_text() == "the token of both"
    assert not (other / "shared").exists()


@pytest.mark.parametrize("damage", ["cut", "changed", "missing", "foreign", "escaping", "no archive"])
def test_a_damaged_backup_is_refused_and_leaves_nothing(
    home: Path, tmp_path: Path, maintain: Maintain, damage: str
) -> None:
    archive = tmp_path / "yard.tar.gz"
    maintain(home, "backup", archive)
    broken = tmp_path / "broken.tar.gz"
    if damage == "cut":
        broken.write_bytes(archive.read_bytes()[:-400])
    elif damage == "no archive":
        broken.write_bytes(b"hello" * 1000)
    else:
        rewrite(archive, broken, damage)
    refused = maintain(tmp_path / "other", "restore", broken)
    assert refused["code"] == "BACKUP_DAMAGED"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["broken.tar.gz", "home", "yard.tar.gz"]


def rewrite(archive: Path, broken: Path, damage: str) -> None:
    folder = archive.parent / "unpacked"
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    if damage == "changed":
        with sqlite3.connect(folder / "server" / "journal.db") as raw:
            raw.execute("UPDATE runs SET owner = 'mallory' WHERE run_id = 1")
        raw.close()
    elif damage == "missing":
        (folder / "server" / "secrets.key").unlink()
    elif damage == "foreign":
        (folder / "server" / "token").unlink()
        (folder / "server" / "token").symlink_to("/etc/passwd")
    with tarfile.open(broken, "w:gz") as tar:
        for path in sorted(folder.rglob("*")):
            if not path.is_dir() or path.is_symlink():
                tar.add(path, path.relative_to(folder).as_posix())
        if damage == "escaping":
            tar.add(folder / "config.toml", "../escaped")
    shutil.rmtree(folder)


def test_where_there_is_no_journal(tmp_path: Path, maintain: Maintain, postgres: PostgresServer) -> None:
    with pytest.raises(NotFound):
        content_of(PostgresDatabase(postgres.make_database()))
    empty = tmp_path / "empty"
    empty.mkdir()
    assert maintain(empty, "backup", tmp_path / "x.tar.gz")["code"] == "NO_JOURNAL"
    assert maintain(empty, "backup", tmp_path / "nowhere" / "x.tar.gz")["code"] in {
        "NO_JOURNAL",
        "FILE_UNUSABLE",
    }
    assert list(empty.iterdir()) == []
