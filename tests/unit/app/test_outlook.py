"""What a plan says of waiting runs is found out once, and carried over only where it may be."""

from __future__ import annotations

from copy import deepcopy

import pytest

from airyard.app import outlook as module
from airyard.app.outlook import FRESH_MS, STALE_MS, Outlook
from airyard.core.scheduling.book import Book
from airyard.core.scheduling.eta import Eta
from airyard.core.scheduling.explain import WaysOut
from airyard.core.scheduling.plan import Waiting
from airyard.core.scheduling.planner import plan
from explain_yard import NOW_MS, at, book_of, minutes, runs, waits, yard

WHOLE = range(8)


@pytest.fixture
def book() -> Book:
    waiting = [waits(1, lasts=30, queued=-30), waits(2, lasts=30, queued=-20), waits(3, held=True)]
    return book_of(yard(1, waiting, [runs(9, {"n0": WHOLE}, ends=10)]))


def look(book: Book, before: Outlook | None = None) -> Outlook:
    return Outlook(book, plan(book, NOW_MS), (), before)


def starts(found: dict[int, Eta]) -> dict[int, float]:
    return {run_id: minutes(eta.p50_ms) for run_id, eta in found.items()}


def test_order_positions_and_reasons(book: Book) -> None:
    found = look(book)
    assert found.queue(NOW_MS) == [1, 2, 3]
    assert [found.position(run_id, NOW_MS) for run_id in (1, 2, 3)] == [1, 2, None]
    reasons = [found.refusal(run_id, NOW_MS) for run_id in (1, 3, 99)]
    assert [one.reason.value if one else None for one in reasons] == ["NO_FREE_NODES", "PAUSED", None]


def test_expected_starts_are_found_out_once(book: Book) -> None:
    found = look(book)
    assert found.known_etas([1, 2]) == {}
    assert starts(found.etas(NOW_MS, [2])) == {2: 40}
    book.put_running(runs(9, {"n0": WHOLE}, ends=90))
    assert starts(found.etas(NOW_MS, [2])) == {2: 40}
    assert starts(found.etas(NOW_MS + FRESH_MS + 1, [2])) == {2: 120}


def test_a_run_whose_start_is_not_in_sight_is_not_asked_for_again(book: Book) -> None:
    found = look(book)
    assert found.etas(NOW_MS, [3]) == {}
    book.put_waiting(waits(3), NOW_MS)
    assert found.etas(NOW_MS, [3]) == {}


def test_another_plan_finds_them_out_anew(book: Book) -> None:
    first = look(book)
    first.etas(NOW_MS)
    book.put_running(runs(9, {"n0": WHOLE}, ends=90))
    assert starts(look(book, first).etas(NOW_MS)) == {1: 90, 2: 120}


def test_deep_in_a_long_queue_they_may_be_a_little_old(book: Book, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LONG_QUEUE", 2)
    monkeypatch.setattr(module, "FRONT", 1)
    first = look(book)
    first.etas(NOW_MS)
    book.put_running(runs(9, {"n0": WHOLE}, ends=90))
    assert starts(look(book, first).etas(NOW_MS + 1, [2])) == {2: 40}
    assert starts(look(book, first).etas(NOW_MS + 1, [1])) == {1: 90}
    assert starts(look(book, first).etas(NOW_MS + STALE_MS + 1, [2])) == {2: 120}


def test_who_waits_no_more_is_not_carried_over(book: Book) -> None:
    first = look(book)
    first.etas(NOW_MS)
    book.drop(2)
    assert look(book, first).recent_etas([1, 2], NOW_MS).keys() == {1}
    assert look(book, first).recent_etas([1], NOW_MS + FRESH_MS + 1) == {}


def test_an_explanation_is_made_once_a_plan(book: Book) -> None:
    found = look(book)
    first = found.explain(1, NOW_MS)
    assert first is not None
    assert first.eta == found.etas(NOW_MS, [1])[1]
    assert found.explain(1, at(0.1)) is first
    assert found.explain(9, NOW_MS) is None


def test_a_fault_in_the_search_for_what_would_help_leaves_the_rest(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fails(changed: Waiting) -> tuple[int, int]:
        raise NameError(f"no forecast for {changed.run_id}")

    book = book_of(yard(2, [waits(1, 8, 2)], [runs(9, {"n0": WHOLE}, ends=10)]))
    before = deepcopy(book.picture())
    one = look(book).explain(1, NOW_MS, fails)
    assert one is not None
    assert (one.reason.value, one.position) == ("NO_FREE_NODES", 1)
    assert one.eta is not None
    assert one.ways_out == WaysOut(failed=True)
    assert "no forecast for 1" in capsys.readouterr().out
    assert book.picture() == before
