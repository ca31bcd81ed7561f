"""The first tables: journal, snapshots, runs and their tags, nodes.

Owns: schema 1, as it was; never edited later. Must not know: the tables of today.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

_NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Create everything."""
    _journal()
    _runs()
    op.create_table(
        "nodes",
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("data", sa.Text, nullable=False),
    )


def _journal() -> None:
    op.create_table(
        "journal",
        sa.Column("seq", _NUMBER, primary_key=True, autoincrement=False),
        sa.Column("at_ms", sa.BigInteger, nullable=False),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("run_id", sa.BigInteger),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("data", sa.Text, nullable=False),
    )
    op.create_index("journal_run", "journal", ["run_id", "seq"])
    op.create_table(
        "snapshots",
        sa.Column("seq", _NUMBER, primary_key=True, autoincrement=False),
        sa.Column("sha256", sa.Text, nullable=False),
        sa.Column("data", sa.LargeBinary, nullable=False),
    )


def _runs() -> None:
    texts = ("owner", "project", "name", "experiment", "state", "status", "accelerator")
    op.create_table(
        "runs",
        sa.Column("run_id", _NUMBER, primary_key=True, autoincrement=False),
        sa.Column("version", sa.BigInteger, nullable=False),
        *(sa.Column(name, sa.Text, nullable=False) for name in texts),
        sa.Column("submitted_ms", sa.BigInteger, nullable=False),
        sa.Column("ended_ms", sa.BigInteger),
        sa.Column("code_hash", sa.Text),
        sa.Column("record", sa.Text, nullable=False),
    )
    op.create_index("runs_state", "runs", ["state", "run_id"])
    op.create_index("runs_name", "runs", ["name", "run_id"])
    op.create_index("runs_experiment", "runs", ["experiment", "run_id"])
    op.create_index("runs_submitted", "runs", ["submitted_ms"])
    op.create_table(
        "run_tags",
        sa.Column("run_id", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("key", sa.Text, primary_key=True),
        sa.Column("value", sa.Text, nullable=False),
    )
    op.create_index("run_tags_value", "run_tags", ["key", "value", "run_id"])
