"""Who may take the seat, and when."""

from __future__ import annotations

from dataclasses import replace

from airyard.app.leadership import MARGIN_MS, SeatWatch
from airyard.ports.leadership import Seat

LEASE_MS = 4_000
SEAT = Seat(term=3, beat=7, holder="a", url="http://a", free=False)


def test_a_seat_that_is_empty_free_or_ones_own_is_taken_at_once() -> None:
    watch = SeatWatch("b", LEASE_MS)
    assert watch.saw(None, 0)
    assert watch.saw(replace(SEAT, free=True), 0)
    assert watch.saw(replace(SEAT, holder="b"), 0)
    assert not watch.saw(SEAT, 0)


def test_a_silent_leader_is_waited_for_from_when_it_was_first_seen_so() -> None:
    watch = SeatWatch("b", LEASE_MS)
    assert not watch.saw(SEAT, 1_000_000)
    over_ms = 1_000_000 + LEASE_MS + MARGIN_MS
    assert not watch.saw(SEAT, over_ms - 1)
    assert watch.saw(SEAT, over_ms)


def test_each_renewal_begins_the_wait_anew_and_so_does_another_leader() -> None:
    watch = SeatWatch("b", LEASE_MS)
    assert not watch.saw(SEAT, 0)
    assert not watch.saw(replace(SEAT, beat=8), 4_999)
    assert not watch.saw(replace(SEAT, beat=8), 9_998)
    assert not watch.saw(replace(SEAT, term=4, beat=8), 9_999)
    assert not watch.saw(replace(SEAT, term=4, beat=8), 14_998)
    assert watch.saw(replace(SEAT, term=4, beat=8), 14_999)


def test_the_reign_that_was_seen_last_is_over_a_lease_after_it_was_seen() -> None:
    watch = SeatWatch("b", LEASE_MS)
    watch.saw(Seat(term=1, beat=3, holder="a", url="", free=False), 1_000)
    watch.saw(Seat(term=1, beat=3, holder="a", url="", free=False), 2_000)
    assert watch.over_ms == 1_000 + LEASE_MS
    watch.saw(Seat(term=1, beat=4, holder="a", url="", free=False), 2_500)
    assert watch.over_ms == 2_500 + LEASE_MS
