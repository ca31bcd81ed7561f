"""Estimates of starts in a table of the journal's database, on a connection of their own.

Owns: the table's rows and their number. Must not know: what estimates mean.
A commit here waits for no disk: it survives the end of the process, and may be lost with the machine's power. So an
append to the journal never waits for it longer than writing a few rows takes.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from sqlalchemy import delete, func, select

from airyard.adapters.journal_tables import eta_samples
from airyard.adapters.sql_database import Database, database_of, upsert
from airyard.ports.estimate_store import Estimate

MOST_ROWS = 10_000
LOADED = 1_000
"""So many compared estimates are loaded."""
_CHANGING = ("p50_ms", "p90_ms", "position", "started_ms")


class SqlEstimateStore:
    """The table ``eta_samples`` of a journal that ``SqlJournal.open`` has prepared. A path is that of a SQLite file."""

    def __init__(self, place: Path | Database) -> None:
        self._database = database_of(place)
        self._engine = self._database.write_engine(durable=False)
        self._lock = threading.Lock()

    def load(self) -> Sequence[Estimate]:
        """Return the newest compared estimates in the order of their starts, then the open ones."""
        compared = (
            select(eta_samples)
            .where(eta_samples.c.started_ms.is_not(None))
            .order_by(eta_samples.c.started_ms.desc(), eta_samples.c.run_id)
            .limit(LOADED)
        )
        still = select(eta_samples).where(eta_samples.c.started_ms.is_(None)).order_by(eta_samples.c.asked_ms)
        with self._lock, self._database.errors(), self._engine.begin() as reader:
            rows = [*reversed(reader.execute(compared).mappings().all()), *reader.execute(still).mappings()]
        return [Estimate(**row) for row in rows]

    def save(self, estimates: Sequence[Estimate], forgotten: Sequence[int]) -> None:
        """Write in one transaction; beyond ``MOST_ROWS`` the oldest go."""
        rows = [asdict(one) for one in estimates]
        with self._lock, self._database.errors(), self._engine.begin() as writer:
            for run_id in forgotten:
                writer.execute(
                    delete(eta_samples).where(
                        eta_samples.c.run_id == run_id, eta_samples.c.started_ms.is_(None)
                    )
                )
            if rows:
                writer.execute(upsert(self._engine, eta_samples, _CHANGING), rows)
            count = writer.execute(select(func.count()).select_from(eta_samples)).scalar_one()
            if count > MOST_ROWS:
                oldest = select(eta_samples.c.asked_ms).order_by(eta_samples.c.asked_ms)
                bound = oldest.offset(count - MOST_ROWS).limit(1).scalar_subquery()
                writer.execute(delete(eta_samples).where(eta_samples.c.asked_ms < bound))

    def close(self) -> None:
        """Release the connection, once nothing is being written over it."""
        with self._lock:
            self._engine.dispose()
