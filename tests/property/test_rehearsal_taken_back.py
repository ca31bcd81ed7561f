"""Whatever is tried on the book, afterwards it is what it was: expected starts and counterfactuals leave no trace."""

from __future__ import annotations

from copy import deepcopy

from hypothesis import given, settings
from hypothesis import strategies as st

from airyard.core.scheduling.book import Book
from airyard.core.scheduling.eta import etas
from airyard.core.scheduling.listing import in_order
from airyard.core.scheduling.places import place_of, places
from airyard.core.scheduling.planner import plan
from planner_seeds import NOW_MS, snapshot_of

SEEDS = st.integers(min_value=0, max_value=1 << 32)


@settings(max_examples=150, deadline=None)
@given(seed=SEEDS)
def test_expected_starts_leave_the_book_as_it_was(seed: int) -> None:
    book = Book.of(snapshot_of(seed), NOW_MS)
    before, made = deepcopy(book.picture()), plan(book, NOW_MS)
    found = etas(book, NOW_MS)
    assert book.picture() == before
    assert plan(book, NOW_MS) == made
    assert found.keys() <= book.queue.runs.keys()
    assert all(NOW_MS <= eta.p50_ms <= eta.p90_ms for eta in found.values())


@settings(max_examples=150, deadline=None)
@given(seed=SEEDS)
def test_places_are_those_of_the_listing(seed: int) -> None:
    book = Book.of(snapshot_of(seed), NOW_MS)
    found = places(book, NOW_MS)
    assert [place.run_id for place in found] == in_order(book, NOW_MS)[: len(found)]
    assert [place_of(book, book.queue.runs[place.run_id], NOW_MS) for place in found] == found
