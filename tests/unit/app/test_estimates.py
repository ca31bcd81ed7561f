"""What was said of starts, compared with them."""

from __future__ import annotations

from airyard.app import estimates
from airyard.app.estimates import Estimates, Figures
from airyard.core.scheduling.eta import Eta
from airyard.ports.estimate_store import Estimate

MINUTE_MS = 60_000


def eta(p50: int, p90: int) -> Eta:
    return Eta(p50_ms=p50 * MINUTE_MS, p90_ms=p90 * MINUTE_MS)


def told(*starts: int | None) -> Estimates:
    """Say of each run that it starts after 10 minutes, at the latest 20, and let it start after so many."""
    record = Estimates()
    for run_id, start in enumerate(starts):
        record.said(run_id, eta(10, 20), 1, 0)
        if start is not None:
            record.started(run_id, start * MINUTE_MS)
    return record


def test_figures_over_all_that_have_started() -> None:
    record = told(5, 10, 15, 25, None)
    assert record.figures() == Figures(
        count=4, before_p50=0.5, before_p90=0.75, median_error_ms=5 * MINUTE_MS
    )
    assert record.open() == (4,)


def test_nothing_compared_is_no_figure() -> None:
    assert told(None).figures() is None


def test_only_the_first_estimate_of_a_wait_counts() -> None:
    record = told(None)
    record.said(0, eta(50, 50), 9, 5 * MINUTE_MS)
    record.started(0, 10 * MINUTE_MS)
    found = record.figures()
    assert found is not None
    assert (found.before_p50, found.median_error_ms) == (1.0, 0)


def test_what_is_about_to_start_proves_nothing() -> None:
    record = Estimates()
    record.said(1, eta(10, 20), 1, 10 * MINUTE_MS)
    assert not record.has(1)


def test_a_run_that_never_starts_is_forgotten() -> None:
    record = told(None, None)
    record.void(0)
    record.started(0, MINUTE_MS)
    assert (record.figures(), record.open()) == (None, (1,))


def test_a_start_from_before_the_question_is_none() -> None:
    record = Estimates()
    record.said(1, eta(90, 95), 1, 50 * MINUTE_MS)
    record.started(1, 40 * MINUTE_MS)
    assert (record.figures(), record.open()) == (None, ())


def test_changes_are_handed_out_once() -> None:
    record = told(5, None)
    record.void(1)
    found = record.take_unsaved()
    assert [(one.run_id, one.started_ms) for one in found.estimates] == [(0, 5 * MINUTE_MS)]
    assert found.forgotten == (1,)
    assert record.take_unsaved() == estimates.Unsaved()


def test_stored_estimates_go_on() -> None:
    record = Estimates()
    stored = Estimate(run_id=7, asked_ms=0, p50_ms=MINUTE_MS, p90_ms=2 * MINUTE_MS, position=3)
    record.load([stored])
    record.started(7, MINUTE_MS)
    found = record.figures()
    assert found is not None
    assert (found.count, found.before_p50) == (1, 1.0)
    assert [one.run_id for one in record.take_unsaved().estimates] == [7]
