"""Runs migrations on the connection that ``journal_schema`` hands over, in its transaction.

Owns: nothing but Alembic's wiring. Must not know: where the database is.
"""

from __future__ import annotations

from alembic import context

context.configure(connection=context.config.attributes["connection"], transaction_per_migration=False)
context.run_migrations()
