"""Messages to be delivered, and up to which event they have been made.

Owns: schema 3, as it was; never edited later. Must not know: the tables of today.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"

_NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Add the tables. What happened before is told to nobody: the mark stands at the journal's end."""
    op.create_table(
        "notices",
        sa.Column("message_id", sa.Text, primary_key=True),
        sa.Column("seq", sa.BigInteger, nullable=False),
        sa.Column("at_ms", sa.BigInteger, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("run_id", sa.BigInteger),
        sa.Column("target", sa.Text, nullable=False),
        sa.Column("queue", sa.Text, nullable=False),
        sa.Column("secret", sa.Text),
        sa.Column("body", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("tries", sa.BigInteger, nullable=False),
        sa.Column("next_ms", sa.BigInteger, nullable=False),
        sa.Column("error", sa.Text, nullable=False),
        sa.Column("ended_ms", sa.BigInteger),
    )
    op.create_index("notices_state", "notices", ["state", "queue", "next_ms"])
    op.create_index("notices_run", "notices", ["run_id"])
    op.create_table(
        "notice_cursor",
        sa.Column("one", _NUMBER, primary_key=True, autoincrement=False),
        sa.Column("seq", sa.BigInteger, nullable=False),
    )
    op.execute(
        "INSERT INTO notice_cursor (one, seq) SELECT 1, max(seq) FROM journal HAVING max(seq) IS NOT NULL"
    )
