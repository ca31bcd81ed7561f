"""The journal in PostgreSQL: two servers at once, connections that break in the middle of a commit, its schema."""

from __future__ import annotations

import shutil
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from airyard.adapters import journal_schema, journal_sql
from airyard.adapters.journal_sql import SqlJournal
from airyard.adapters.journal_tables import SCHEMA_VERSION, metadata
from airyard.adapters.postgres_engine import PostgresDatabase
from airyard.adapters.read_store_sql import SqlReadStore
from airyard.core.errors import Conflict, InvariantBroken, Unavailable, UserError
from airyard.core.events import EpochBegan, RunSubmitted
from airyard.core.state import ClusterState
from airyard.ports.journal import Changes
from airyard.ports.read_store import RunFilter
from journal_yard import Writer, row_of, run
from postgres_proxy import Cut, Proxy, proxied
from postgres_server import PostgresServer


@pytest.fixture
def url(postgres: PostgresServer) -> str:
    """The URL of an empty database."""
    return postgres.make_database()


@pytest.fixture
def proxy(postgres: PostgresServer) -> Iterator[Proxy]:
    with proxied(postgres.folder) as made:
        yield made


@pytest.fixture
def own_postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL that may be killed."""
    server = PostgresServer()
    server.start()
    yield server
    server.close()


def journal_at(url: str) -> SqlJournal:
    return SqlJournal(PostgresDatabase(url))


def seqs(url: str) -> list[int]:
    journal = journal_at(url)
    journal.open()
    found = [recorded.seq for recorded in journal.events_after(0)]
    journal.close()
    return found


def tell(journal: SqlJournal, writer: Writer, number: int) -> None:
    """Append one submission by a copy of the writer's state, and keep the copy if that worked."""
    events, changes = writer.take(RunSubmitted(run=run(number)))
    journal.append(events[0].seq - 1, writer.epoch, events, changes)


def test_of_two_servers_at_once_one_writes_each_event(url: str) -> None:
    rounds = 40
    journals = [journal_at(url) for _ in range(2)]
    for journal in journals:
        journal.open()
    barrier = threading.Barrier(2)
    won: list[list[int]] = [[], []]
    refused: list[list[str]] = [[], []]

    def serve(which: int) -> None:
        for seq in range(rounds):
            writer = Writer(state=ClusterState(seq=seq, next_run_id=seq + 1))
            events, _ = writer.take(RunSubmitted(run=run(seq + 1, owner=f"server-{which}")))
            barrier.wait()
            try:
                journals[which].append(seq, 1, events, Changes())
                won[which].append(seq + 1)
            except Conflict as error:
                refused[which].append(error.code)

    threads = [threading.Thread(target=serve, args=(which,)) for which in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(won[0] + won[1]) == list(range(1, rounds + 1)), "each event was written by exactly one"
    assert set(refused[0] + refused[1]) == {"STALE_EPOCH"}
    owners = {recorded.seq: recorded.event.run.owner for recorded in journals[0].events_after(0)}  # type: ignore[union-attr]  # submissions all
    assert owners == {seq: f"server-{which}" for which in range(2) for seq in won[which]}
    for journal in journals:
        journal.close()


def test_a_stale_server_waits_for_the_commit_under_way_and_is_refused(url: str) -> None:
    old, new = journal_at(url), PostgresDatabase(url)
    old.open()
    writer = Writer()
    tell(old, writer, 1)
    engine = new.write_engine()
    holder = engine.connect()
    with holder.begin():
        new.fence(holder)
        took_over, _ = Writer(epoch=2, state=writer.state.copy()).take(EpochBegan(epoch=2, version="test"))
        answers: list[Exception] = []

        def late() -> None:
            try:
                old.append(1, 1, [], Changes(removed_runs=(1,)))
            except Conflict as error:
                answers.append(error)

        thread = threading.Thread(target=late)
        thread.start()
        time.sleep(0.2)
        assert thread.is_alive(), "an append without events queues behind the other server, too"
        row = journal_sql.event_row(took_over[0])
        holder.execute(journal_sql.insert(journal_sql.journal), dict(zip(COLUMNS, row, strict=True)))
    thread.join()
    holder.close()
    (refused,) = answers
    assert isinstance(refused, Conflict)
    assert refused.code == "STALE_EPOCH"
    assert SqlReadStore(new).run(1) is not None, "nothing of the stale append is there"
    old.close()


COLUMNS = ("seq", "at_ms", "epoch", "run_id", "kind", "data")


@pytest.mark.parametrize("cut", list(Cut))
def test_a_commit_that_breaks_off_is_there_once(
    url: str, proxy: Proxy, cut: Cut, postgres: PostgresServer
) -> None:
    journal, writer = journal_at(proxy.url(url)), Writer()
    journal.open()
    tell(journal, writer, 1)
    proxy.next_commit = cut
    tell(journal, writer, 2)
    assert proxy.cuts == 1
    tell(journal, writer, 3)
    journal.close()
    assert seqs(url) == [1, 2, 3]
    reads = SqlReadStore(PostgresDatabase(url))
    assert [row.run_id for row in reads.runs(RunFilter())] == [3, 2, 1]
    assert reads.run(2) == row_of(writer.state.runs[2])
    reads.close()


def test_a_connection_cut_anywhere_doubles_and_loses_nothing(url: str, proxy: Proxy) -> None:
    journal, writer = journal_at(proxy.url(url)), Writer()
    journal.open()
    for number in range(1, 31):
        proxy.messages_left = number % 10
        tell(journal, writer, number)
    journal.close()
    assert proxy.cuts >= 20
    assert seqs(url) == list(range(1, 31))


def test_while_nobody_answers_it_says_so_and_afterwards_what_became_of_it(
    url: str, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_sql, "_RECONNECT_S", 0.2)
    journal, writer = journal_at(proxy.url(url)), Writer()
    journal.open()
    tell(journal, writer, 1)
    proxy.next_commit, proxy.refusing = Cut.UNANSWERED, True
    before = writer.state.copy()
    with pytest.raises(Unavailable) as unknown:
        tell(journal, writer, 2)
    assert unknown.value.code == "JOURNAL_BROKEN"
    assert unknown.value.retryable
    assert unknown.value.fix is not None
    assert str(proxy.folder) in unknown.value.fix.text
    proxy.refusing = False
    assert [recorded.seq for recorded in journal.events_after(1)] == [2], "it was committed after all"
    with pytest.raises(Conflict):
        tell(journal, Writer(state=before), 2)
    tell(journal, writer, 3)
    journal.close()
    assert seqs(url) == [1, 2, 3]


def test_a_server_that_stops_within_a_commit_does_not_keep_the_others_waiting(url: str) -> None:
    impatient = f"{url}&options={quote('-c idle_in_transaction_session_timeout=300')}"
    journal, stopped = journal_at(url), PostgresDatabase(impatient)
    journal.open()
    writer = Writer()
    engine = stopped.write_engine()
    holder = engine.connect()
    holder.begin()
    stopped.fence(holder)
    tell(journal, writer, 1)  # waits until the other's session is ended
    with pytest.raises(Unavailable), stopped.errors():
        holder.exec_driver_sql("SELECT 1")
    holder.close()
    journal.close()
    assert seqs(url) == [1]


def test_a_postgres_that_dies_and_comes_back_costs_nothing(own_postgres: PostgresServer) -> None:
    url = own_postgres.make_database()
    journal, writer = journal_at(url), Writer()
    journal.open()
    reads = SqlReadStore(PostgresDatabase(url))
    for number in range(1, 4):
        tell(journal, writer, number)
        assert reads.counts() == {"QUEUED": number}
        own_postgres.stop(signal.SIGKILL)
        threading.Timer(0.3, own_postgres.start).start()
    tell(journal, writer, 4)
    assert [row.run_id for row in reads.runs(RunFilter())] == [4, 3, 2, 1]
    journal.save_snapshot(writer.state.seq, writer.state.to_json())
    assert journal.size_bytes() > 50_000
    own_postgres.stop()
    with pytest.raises(Unavailable) as away:
        reads.counts()
    assert away.value.code == "JOURNAL_BROKEN"
    assert journal.size_bytes() == 0
    reads.close()
    journal.close()


def test_nobody_there_at_the_start(tmp_path: Path) -> None:
    database = PostgresDatabase(f"postgresql://ada:@/yard?host={quote(str(tmp_path))}", password="hunter2")
    with pytest.raises(Unavailable) as refused:
        SqlJournal(database).open()
    error = refused.value
    assert error.code == "JOURNAL_BROKEN"
    assert error.message.startswith(f"The journal postgresql://ada@{tmp_path}:5432/yard cannot be read")
    assert error.fix is not None
    assert error.fix.command == f"pg_isready -h {tmp_path} -p 5432"
    assert "hunter2" not in str(error.as_json())
    assert "hunter2" not in repr(database.write_engine())


def test_a_database_that_is_missing_is_named_with_how_to_make_it(postgres: PostgresServer) -> None:
    with pytest.raises(Unavailable) as refused:
        journal_at(postgres.url("nowhere")).open()
    assert refused.value.fix is not None
    assert refused.value.fix.command is not None
    assert refused.value.fix.command.endswith("-O airyard nowhere")


def test_an_address_that_is_none_is_refused() -> None:
    with pytest.raises(UserError) as refused:
        PostgresDatabase("postgresql://a@b:not-a-port-at-all/x?wrong=1")
    assert refused.value.code == "BAD_CONFIG"


def test_the_tables_are_what_the_migrations_make(url: str) -> None:
    database = PostgresDatabase(url)
    engine = database.write_engine()
    assert journal_schema.prepare(database, engine) is None
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
    assert journal_schema.version_of(engine) == SCHEMA_VERSION


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
    names = {"revision": f"{SCHEMA_VERSION + 1:04d}", "before": f"{SCHEMA_VERSION:04d}", "fault": fault}
    (folder / "versions" / "next.py").write_text(NEXT_MIGRATION.format(**names))
    return folder


def test_a_migration_is_whole_or_not_at_all_and_a_newer_schema_is_refused(url: str, tmp_path: Path) -> None:
    database = PostgresDatabase(url)
    engine = database.write_engine()
    journal, writer = SqlJournal(database), Writer()
    journal.open()
    tell(journal, writer, 1)
    journal.close()
    broken = next_migrations(tmp_path / "broken", fault="raise RuntimeError('no')")
    with pytest.raises(RuntimeError):
        journal_schema.prepare(database, engine, target=SCHEMA_VERSION + 1, migrations=broken)
    assert journal_schema.version_of(engine) == SCHEMA_VERSION
    assert seqs(url) == [1]
    whole = next_migrations(tmp_path / "whole")
    journal_schema.prepare(database, engine, target=SCHEMA_VERSION + 1, migrations=whole)
    with pytest.raises(UserError) as refused:
        SqlJournal(database).open()
    assert refused.value.code == "JOURNAL_TOO_NEW"
    assert database.name in refused.value.message


def test_two_servers_may_open_an_empty_database_at_once(url: str) -> None:
    faults: list[BaseException] = []

    def open_it() -> None:
        journal = journal_at(url)
        try:
            assert journal.open().last_seq == 0
        except BaseException as error:
            faults.append(error)
        journal.close()

    threads = [threading.Thread(target=open_it) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults


def test_foreign_tables_are_left_alone(url: str, postgres: PostgresServer) -> None:
    postgres.psql("CREATE TABLE mine (x int)", database=url.partition("?")[0].rpartition("/")[2])
    with pytest.raises(InvariantBroken, match="mine"):
        journal_at(url).open()
