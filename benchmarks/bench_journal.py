"""Journal commits per second beside raw sqlite3 doing the least that is as durable, on one disk in one run.

Owns: the comparison. Must not know: the control loop. The raw side writes texts of the same length into two
tables with the same pragmas; the journal also encodes them, checks its end, and keeps columns and indexes.
With ``--postgres URL`` the journal there is compared with the one in SQLite.
"""

from __future__ import annotations

import argparse
import os
import sqlite3
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from airyard.adapters.journal_rows import to_text
from airyard.adapters.journal_sql import SqlJournal
from airyard.adapters.sql_database import Database
from airyard.adapters.sqlite_engine import SqliteDatabase
from airyard.core import codec
from airyard.core.cluster import Machine
from airyard.core.events import MachineJoined, MemberReady, Recorded
from airyard.ports.journal import Changes, RunRow

SECONDS = 1.0
ROUNDS = 5


def event_at(seq: int) -> Recorded:
    """Return an event of the usual size."""
    event = MemberReady(
        run_id=1 + seq % 500,
        attempt=0,
        member=seq % 8,
        report=1,
        address="10.0.0.17",
        prepared=(("environment_ms", 1200), ("code_ms", 35)),
    )
    return Recorded(seq=seq, at_ms=1_700_000_000_000 + seq, epoch=1, event=event)


def row_at(seq: int, run_id: int) -> RunRow:
    """Return a run's row whose record has the size of a small gang's."""
    machine = MachineJoined(machine=Machine(name="host", boot_id="b" * 36, address="10.0.0.17"), nodes=())
    return RunRow(
        run_id=run_id,
        version=seq,
        owner="ada",
        project="default",
        name=f"run-{run_id}",
        experiment="digits",
        state="ACTIVE",
        status="PREPARING",
        accelerator="GPU_8xH100",
        submitted_ms=1_700_000_000_000,
        ended_ms=None,
        tags=(("round", "1"),),
        code_hash=None,
        record={"members": [codec.encode(machine)] * 8, "workload": {"command": "x" * 200}},
    )


def airyard_commits(place: Database, events_each: int) -> Callable[[], None]:
    """Return what makes one commit of the journal: each event changes one run."""
    journal = SqlJournal(place)
    seq = journal.open().last_seq
    rows = tuple(row_at(seq, run_id) for run_id in range(1, events_each + 1))

    def commit() -> None:
        nonlocal seq
        events = [event_at(seq + 1 + number) for number in range(events_each)]
        journal.append(seq, 1, events, Changes(runs=rows))
        seq += events_each

    return commit


def raw_commits(folder: Path, events_each: int) -> Callable[[], None]:
    """Return what makes one commit of bare sqlite3 with texts of the same length, made beforehand."""
    connection = sqlite3.connect(folder / "raw.db", isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("CREATE TABLE IF NOT EXISTS journal (seq INTEGER PRIMARY KEY, data TEXT)")
    connection.execute("CREATE TABLE IF NOT EXISTS runs (run_id INTEGER PRIMARY KEY, record TEXT)")
    seq: int = connection.execute("SELECT coalesce(max(seq), 0) FROM journal").fetchone()[0]
    data = to_text(codec.encode_event(event_at(1).event)[1])
    rows = [(run_id, to_text(row_at(1, run_id).record)) for run_id in range(1, events_each + 1)]

    def commit() -> None:
        nonlocal seq
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany(
            "INSERT INTO journal VALUES (?, ?)", [(seq + 1 + number, data) for number in range(events_each)]
        )
        connection.executemany("INSERT OR REPLACE INTO runs VALUES (?, ?)", rows)
        connection.execute("COMMIT")
        seq += events_each

    return commit


def rate(commit: Callable[[], None]) -> float:
    """Return commits per second over ``SECONDS``."""
    count = 0
    started = time.perf_counter()
    while (spent := time.perf_counter() - started) < SECONDS:
        commit()
        count += 1
    return count / spent


def main(argv: Sequence[str] = ()) -> int:
    """Print commits per second for 1 and 64 events a transaction, and the ratio to raw sqlite3."""
    parser = argparse.ArgumentParser(prog="bench_journal", description=main.__doc__)
    parser.add_argument("--quick", action="store_true", help="few rounds, to see that it works")
    parser.add_argument(
        "--postgres", metavar="URL", help="compare this throwaway database with the SQLite journal"
    )
    given = parser.parse_args(argv)
    rounds = 2 if given.quick else ROUNDS
    where = os.environ.get("AIRYARD_BENCH_DIR")
    for events_each in (1, 64):
        with tempfile.TemporaryDirectory(dir=where) as name:
            one = airyard_commits(SqliteDatabase(Path(name) / "journal.db"), events_each)
            other, peer = raw_commits(Path(name), events_each), "raw sqlite3"
            if given.postgres:
                from airyard.adapters.postgres_engine import PostgresDatabase

                other, peer = one, "SQLite"
                one = airyard_commits(PostgresDatabase(given.postgres), events_each)
            pairs = [(rate(one), rate(other)) for _ in range(rounds)]
        pairs.sort(key=lambda pair: pair[0] / pair[1])
        middle = pairs[len(pairs) // 2]
        ratios = [ours / raw for ours, raw in pairs]
        print(
            f"{events_each:3} events a commit: journal {middle[0]:6.0f} commits/s "
            f"({middle[0] * events_each:6.0f} events/s), {peer} {middle[1]:6.0f} commits/s; "
            f"ratio {ratios[len(ratios) // 2]:.2f} (of {rounds} rounds {ratios[0]:.2f} to {ratios[-1]:.2f})"
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
