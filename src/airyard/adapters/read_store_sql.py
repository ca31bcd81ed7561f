"""Queries on the read tables, on connections of their own that cannot write.

Owns: turning filters into SQL. Must not know: the state in memory, who appends.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Select, exists, func, select

from airyard.adapters.journal_rows import event_of, run_of
from airyard.adapters.journal_tables import journal, nodes, run_tags, runs
from airyard.adapters.sql_database import Database, database_of
from airyard.core.events import Recorded
from airyard.ports.journal import RunRow
from airyard.ports.read_store import RunFilter

_PAGE_EVENTS = 500


class SqlReadStore:
    """The read side of a journal that ``SqlJournal.open`` has prepared. A path is that of a SQLite file."""

    def __init__(self, place: Path | Database) -> None:
        self._database = database_of(place)
        self._engine = self._database.read_engine()

    def run(self, run_id: int) -> RunRow | None:
        """Return one run."""
        found = self._rows(select(runs).where(runs.c.run_id == run_id))
        return found[0] if found else None

    def runs(self, wanted: RunFilter) -> Sequence[RunRow]:
        """Return runs, newest first."""
        return self._rows(_filtered(wanted).order_by(runs.c.run_id.desc()).limit(wanted.limit))

    def counts(self) -> Mapping[str, int]:
        """Return how many runs there are in each state."""
        query = select(runs.c.state, func.count()).group_by(runs.c.state)
        with self._database.errors(), self._engine.begin() as reader:
            return {row[0]: row[1] for row in reader.execute(query)}

    def nodes(self) -> Mapping[str, Mapping[str, Any]]:
        """Return the encoded nodes by name."""
        with self._database.errors(), self._engine.begin() as reader:
            rows = reader.execute(select(nodes.c.name, nodes.c.data)).all()
        # Sorted here: databases differ in how they order names.
        return {name: json.loads(data) for name, data in sorted(map(tuple, rows))}

    def events_of(self, run_id: int) -> Iterator[Recorded]:
        """Yield one run's events in order, page by page."""
        seq = 0
        columns = (journal.c.seq, journal.c.at_ms, journal.c.epoch, journal.c.kind, journal.c.data)
        while True:
            page = select(*columns).where(journal.c.run_id == run_id, journal.c.seq > seq)
            with self._database.errors(), self._engine.begin() as reader:
                rows = reader.execute(page.order_by(journal.c.seq).limit(_PAGE_EVENTS)).all()
            for row in rows:
                yield event_of(*row)
            if len(rows) < _PAGE_EVENTS:
                return
            seq = rows[-1][0]

    def yard_events(self, kind: str, limit: int) -> Sequence[Recorded]:
        """Return the newest events of a kind that is about no run; the index on runs finds them, as they have none."""
        columns = (journal.c.seq, journal.c.at_ms, journal.c.epoch, journal.c.kind, journal.c.data)
        query = select(*columns).where(journal.c.run_id.is_(None), journal.c.kind == kind)
        with self._database.errors(), self._engine.begin() as reader:
            rows = reader.execute(query.order_by(journal.c.seq.desc()).limit(limit)).all()
        return [event_of(*row) for row in rows]

    def code_hashes(self) -> frozenset[str]:
        """Return the code snapshots that some kept run refers to."""
        query = select(runs.c.code_hash).where(runs.c.code_hash.is_not(None)).distinct()
        with self._database.errors(), self._engine.begin() as reader:
            return frozenset(reader.execute(query).scalars())

    def close(self) -> None:
        """Release the connections."""
        self._engine.dispose()

    def _rows(self, query: Select[Any]) -> list[RunRow]:
        with self._database.errors(), self._engine.begin() as reader:
            found = reader.execute(query).mappings().all()
            tags = _tags(reader, [row["run_id"] for row in found])
        return [run_of(dict(row), tags.get(row["run_id"], ())) for row in found]


def _tags(reader: Connection, run_ids: list[int]) -> dict[int, tuple[tuple[str, str], ...]]:
    out: dict[int, tuple[tuple[str, str], ...]] = {}
    # In pieces: SQLite bounds the parameters of one statement.
    for start in range(0, len(run_ids), _PAGE_EVENTS):
        piece = run_ids[start : start + _PAGE_EVENTS]
        query = select(run_tags.c.run_id, run_tags.c.key, run_tags.c.value).where(
            run_tags.c.run_id.in_(piece)
        )
        # Sorted here: databases differ in how they order names.
        for run_id, key, value in sorted(map(tuple, reader.execute(query))):
            out[run_id] = (*out.get(run_id, ()), (key, value))
    return out


def _filtered(wanted: RunFilter) -> Select[Any]:
    query = select(runs)
    if wanted.states:
        query = query.where(runs.c.state.in_(wanted.states))
    if wanted.statuses:
        query = query.where(runs.c.status.in_(wanted.statuses))
    if wanted.ids:
        query = query.where(runs.c.run_id.in_(wanted.ids))
    for column, value in (
        (runs.c.experiment, wanted.experiment),
        (runs.c.owner, wanted.owner),
        (runs.c.name, wanted.name),
    ):
        if value is not None:
            query = query.where(column == value)
    if wanted.before is not None:
        query = query.where(runs.c.run_id < wanted.before)
    if wanted.ended_before_ms is not None:
        query = query.where(runs.c.ended_ms < wanted.ended_before_ms)
    for key, value in wanted.tags:
        tag = exists().where(
            run_tags.c.run_id == runs.c.run_id, run_tags.c.key == key, run_tags.c.value == value
        )
        query = query.where(tag)
    return query
