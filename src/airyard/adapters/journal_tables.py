"""The tables of the journal and of the read side, for SQLite and PostgreSQL alike.

Owns: names, types, indexes. Must not know: who writes or asks. A change here needs a migration beside it in
``migrations/versions``; a test compares the two.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Index, Integer, LargeBinary, MetaData, Table, Text

SCHEMA_VERSION = 3
"""The newest migration that this version of Airyard knows."""

metadata = MetaData()

# SQLite makes only an INTEGER key the row's own number, and its INTEGER holds 64 bits anyway.
_NUMBER = BigInteger().with_variant(Integer(), "sqlite")

journal = Table(
    "journal",
    metadata,
    Column("seq", _NUMBER, primary_key=True, autoincrement=False),
    Column("at_ms", BigInteger, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("run_id", BigInteger),
    Column("kind", Text, nullable=False),
    Column("data", Text, nullable=False),
)
Index("journal_run", journal.c.run_id, journal.c.seq)

snapshots = Table(
    "snapshots",
    metadata,
    Column("seq", _NUMBER, primary_key=True, autoincrement=False),
    Column("sha256", Text, nullable=False),
    Column("data", LargeBinary, nullable=False),
)

runs = Table(
    "runs",
    metadata,
    Column("run_id", _NUMBER, primary_key=True, autoincrement=False),
    Column("version", BigInteger, nullable=False),
    Column("owner", Text, nullable=False),
    Column("project", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("experiment", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("accelerator", Text, nullable=False),
    Column("submitted_ms", BigInteger, nullable=False),
    Column("ended_ms", BigInteger),
    Column("code_hash", Text),
    Column("record", Text, nullable=False),
)
Index("runs_state", runs.c.state, runs.c.run_id)
Index("runs_name", runs.c.name, runs.c.run_id)
Index("runs_experiment", runs.c.experiment, runs.c.run_id)
Index("runs_submitted", runs.c.submitted_ms)

run_tags = Table(
    "run_tags",
    metadata,
    Column("run_id", BigInteger, primary_key=True, autoincrement=False),
    Column("key", Text, primary_key=True),
    Column("value", Text, nullable=False),
)
Index("run_tags_value", run_tags.c.key, run_tags.c.value, run_tags.c.run_id)

nodes = Table(
    "nodes",
    metadata,
    Column("name", Text, primary_key=True),
    Column("data", Text, nullable=False),
)

eta_samples = Table(
    "eta_samples",
    metadata,
    Column("run_id", BigInteger, primary_key=True, autoincrement=False),
    Column("asked_ms", BigInteger, primary_key=True, autoincrement=False),
    Column("p50_ms", BigInteger, nullable=False),
    Column("p90_ms", BigInteger, nullable=False),
    Column("position", BigInteger, nullable=False),
    Column("started_ms", BigInteger),
)
Index("eta_samples_started", eta_samples.c.started_ms)

notices = Table(
    "notices",
    metadata,
    Column("message_id", Text, primary_key=True),
    Column("seq", BigInteger, nullable=False),
    Column("at_ms", BigInteger, nullable=False),
    Column("kind", Text, nullable=False),
    Column("run_id", BigInteger),
    Column("target", Text, nullable=False),
    Column("queue", Text, nullable=False),
    Column("secret", Text),
    Column("body", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("tries", BigInteger, nullable=False),
    Column("next_ms", BigInteger, nullable=False),
    Column("error", Text, nullable=False),
    Column("ended_ms", BigInteger),
)
Index("notices_state", notices.c.state, notices.c.queue, notices.c.next_ms)
Index("notices_run", notices.c.run_id)

notice_cursor = Table(
    "notice_cursor",
    metadata,
    Column("one", _NUMBER, primary_key=True, autoincrement=False),
    Column("seq", BigInteger, nullable=False),
)
