"""Estimates of starts: kept over restarts, bounded, beside a journal at work."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from airyard.adapters import estimates_sql
from airyard.adapters.estimates_sql import SqlEstimateStore
from airyard.adapters.journal_sql import SqlJournal
from airyard.adapters.sql_database import Database
from airyard.ports.estimate_store import Estimate
from journal_place import place_of


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path | Database]:
    place = place_of(request, tmp_path)
    journal = SqlJournal(place)
    journal.open()
    yield place
    journal.close()


def said(run_id: int, asked_ms: int = 1, **changes: int) -> Estimate:
    return Estimate(
        **{"run_id": run_id, "asked_ms": asked_ms, "p50_ms": 5, "p90_ms": 9, "position": 2, **changes}
    )


def test_what_was_saved_is_there_after_a_restart(place: Path | Database) -> None:
    store = SqlEstimateStore(place)
    store.save([said(1), said(2, started_ms=8), said(3, started_ms=7)], [])
    store.close()
    assert SqlEstimateStore(place).load() == [said(3, started_ms=7), said(2, started_ms=8), said(1)]


def test_a_start_replaces_the_open_estimate(place: Path | Database) -> None:
    store = SqlEstimateStore(place)
    store.save([said(1), said(2)], [])
    store.save([said(1, started_ms=6)], [])
    assert store.load() == [said(1, started_ms=6), said(2)]


def test_only_the_open_estimate_of_a_run_is_forgotten(place: Path | Database) -> None:
    store = SqlEstimateStore(place)
    store.save([said(1, started_ms=3), said(1, asked_ms=50)], [])
    store.save([], [1])
    assert store.load() == [said(1, started_ms=3)]


def test_the_oldest_go(place: Path | Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimates_sql, "MOST_ROWS", 3)
    store = SqlEstimateStore(place)
    store.save([said(run_id, asked_ms=run_id, started_ms=run_id) for run_id in range(1, 7)], [])
    assert [one.run_id for one in store.load()] == [4, 5, 6]
