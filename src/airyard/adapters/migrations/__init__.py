"""Alembic's folder: how an older journal becomes a current one. Run by ``journal_schema``, never by hand."""
