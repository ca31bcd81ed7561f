"""What was said of the starts of runs, to be compared with what became of it.

Owns: schema 2, as it was; never edited later. Must not know: the tables of today.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Add the table; nothing that was there changes."""
    op.create_table(
        "eta_samples",
        sa.Column("run_id", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("asked_ms", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("p50_ms", sa.BigInteger, nullable=False),
        sa.Column("p90_ms", sa.BigInteger, nullable=False),
        sa.Column("position", sa.BigInteger, nullable=False),
        sa.Column("started_ms", sa.BigInteger),
    )
    op.create_index("eta_samples_started", "eta_samples", ["started_ms"])
