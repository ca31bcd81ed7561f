"""What every plan keeps, for any yard, policy and queue.

``invariants.violations`` holds most of it and is checked in every step of the simulator too: no device twice, gangs
whole and in one pool, quotas, rights to evict, promises in time. Here it meets yards that the simulator never makes.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TypeVar

from hypothesis import given, settings
from hypothesis import strategies as st

from airyard.core.scheduling.book import Book
from airyard.core.scheduling.invariants import drift, violations
from airyard.core.scheduling.listing import in_order
from airyard.core.scheduling.plan import Snapshot
from airyard.core.scheduling.planner import plan, plan_snapshot
from planner_seeds import HOUR_MS, NOW_MS, snapshot_of
from planner_truth import could_start, parked

T = TypeVar("T")
SEEDS = st.integers(0, 2**48)
EXAMPLES = settings(max_examples=250, deadline=None)


@EXAMPLES
@given(SEEDS)
def test_a_plan_is_sound(seed: int) -> None:
    book = Book.of(snapshot_of(seed), NOW_MS)
    assert violations(book, plan(book, NOW_MS), NOW_MS) == []


@EXAMPLES
@given(SEEDS)
def test_planning_leaves_the_book_as_it_was_and_comes_to_the_same_again(seed: int) -> None:
    snapshot = snapshot_of(seed)
    book = Book.of(snapshot, NOW_MS)
    made = plan(book, NOW_MS)
    assert drift(book, Book.of(snapshot, NOW_MS), NOW_MS) == []
    assert plan(book, NOW_MS) == made


@EXAMPLES
@given(SEEDS, st.randoms(use_true_random=False))
def test_the_order_of_the_input_does_not_matter(seed: int, shuffler: random.Random) -> None:
    def mixed(items: tuple[T, ...]) -> tuple[T, ...]:
        return tuple(shuffler.sample(items, len(items)))

    snapshot = snapshot_of(seed)
    other = replace(
        snapshot,
        nodes=mixed(snapshot.nodes),
        waiting=mixed(snapshot.waiting),
        running=mixed(snapshot.running),
        reservations=mixed(snapshot.reservations),
        usage=mixed(snapshot.usage),
    )
    assert plan_snapshot(other, NOW_MS) == plan_snapshot(snapshot, NOW_MS)
    assert in_order(Book.of(other, NOW_MS), NOW_MS) == in_order(Book.of(snapshot, NOW_MS), NOW_MS)


@EXAMPLES
@given(SEEDS)
def test_nobody_waits_who_could_start(seed: int) -> None:
    """Whoever waits does not fit beside what the plan started and keeps, on nodes promised to nobody."""
    snapshot = snapshot_of(seed)
    made = plan_snapshot(snapshot, NOW_MS)
    started = {start.run_id for start in made.starts}
    for want in snapshot.waiting:
        if want.run_id not in started and not parked(want):
            assert not could_start(snapshot, made, want)


@EXAMPLES
@given(SEEDS)
def test_no_lower_class_is_served_from_what_a_higher_one_could_have(seed: int) -> None:
    """Whoever waits would not fit if no run of a lower class had been started, promised or kept anything either."""
    snapshot = snapshot_of(seed)
    made = plan_snapshot(snapshot, NOW_MS)
    started = {start.run_id for start in made.starts}
    for want in snapshot.waiting:
        if want.run_id not in started and not parked(want):
            rank = want.rank
            assert not could_start(snapshot, made, want, beside=lambda other, rank=rank: other <= rank)


@EXAMPLES
@given(SEEDS)
def test_a_run_of_a_lower_class_changes_nothing_for_a_higher_one(seed: int) -> None:
    snapshot = snapshot_of(seed)
    for rank in (0, 1):
        upper = replace(snapshot, waiting=tuple(want for want in snapshot.waiting if want.rank <= rank))
        ids = {want.run_id for want in upper.waiting}
        assert _served(snapshot, ids) == _served(upper, ids)


def _served(snapshot: Snapshot, ids: set[int]) -> tuple[object, ...]:
    made = plan_snapshot(snapshot, NOW_MS)
    return (
        [start for start in made.starts if start.run_id in ids],
        [eviction for eviction in made.evictions if eviction.for_run in ids],
        [hold for hold in (*made.kept, *made.holds) if hold.run_id in ids],
    )


@EXAMPLES
@given(SEEDS, st.floats(0, 1))
def test_nothing_changes_before_the_plan_wakes(seed: int, share: float) -> None:
    """Where nobody is leaving and nobody is overdue, time alone lets nobody start or be evicted before ``wake_ms``."""
    snapshot = snapshot_of(seed)
    made = plan_snapshot(snapshot, NOW_MS)
    ends = [one.end_ms for one in snapshot.running]
    if made.starts or made.evictions or any(one.stopping for one in snapshot.running):
        return
    until_ms = min([*ends, made.wake_ms or NOW_MS + 1000 * HOUR_MS])
    for now_ms in {
        NOW_MS + int((until_ms - 1 - NOW_MS) * part) for part in (share, 1) if until_ms > NOW_MS + 1
    }:
        later = plan_snapshot(snapshot, now_ms)
        assert (later.starts, later.evictions) == ((), ())
