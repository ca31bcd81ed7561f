"""Turns of queues of messages: who fails takes no room from who answers, and nobody is forgotten."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from airyard.app import delivery_turns
from airyard.app.delivery_turns import AT_ONCE, LONGEST_REST_MS, OF_OWNER, Standing, Turns
from airyard.app.notifying import queue_of

NAMES = [f"user{number} host" for number in range(40)]


def taken(turns: Turns, names: list[str], now_ms: int = 0) -> list[str]:
    return [name for name in turns.waiting(names, now_ms) if turns.take(name, now_ms)]


def test_places_are_kept_for_those_that_answered() -> None:
    turns = Turns()
    for name in NAMES[:2]:
        turns.answered(name)
    first = taken(turns, NAMES)
    assert len(first) == AT_ONCE[Standing.ANSWERS]
    assert first[:2] == NAMES[:2]
    turns = Turns()
    assert len(taken(turns, NAMES[2:])) == AT_ONCE[Standing.NEW]
    turns.answered(NAMES[0])
    assert taken(turns, NAMES) == [NAMES[0]]


def test_those_that_fail_have_the_fewest_places_and_rest_longer_each_time() -> None:
    turns = Turns()
    for name in NAMES:
        turns.failed(name, 0, 1.0)
    assert turns.waiting(NAMES, 4_999) == []
    assert len(taken(turns, NAMES, 5_000)) == AT_ONCE[Standing.FAILS]
    for _ in range(20):
        turns.failed(NAMES[0], 0, 1.0)
    assert turns.waiting(NAMES[:1], LONGEST_REST_MS - 1) == []
    assert turns.waiting(NAMES[:1], LONGEST_REST_MS) == []  # it has a place
    turns.let_go(NAMES[0])
    assert turns.waiting(NAMES[:1], LONGEST_REST_MS) == NAMES[:1]
    turns.answered(NAMES[0])
    assert turns.waiting(NAMES[:1], 0) == NAMES[:1]


def test_one_owner_has_a_part_of_the_places() -> None:
    turns = Turns()
    mine = [f"ada host{number}" for number in range(20)]
    assert len(taken(turns, mine)) == OF_OWNER[Standing.NEW]
    assert taken(turns, ["bob host"]) == ["bob host"]


@given(st.lists(st.sampled_from(NAMES), min_size=1, max_size=40, unique=True))
def test_every_queue_gets_its_turn_before_any_gets_a_second_one(names: list[str]) -> None:
    turns, served = Turns(), set[str]()
    for round_ in range(len(names)):
        for name in taken(turns, names, round_ + 1):
            assert name not in served or served == set(names)
            served.add(name)
            turns.let_go(name)
        if served == set(names):
            return
    assert served == set(names)


def test_what_is_remembered_is_bounded() -> None:
    turns = Turns()
    for number in range(delivery_turns.MOST_KNOWN + 10):
        turns.take(f"u{number} h", number)
        turns.let_go(f"u{number} h")
    assert len(turns._known) <= delivery_turns.MOST_KNOWN


def test_two_addresses_on_one_host_are_two_queues_and_neither_shows_its_path() -> None:
    one, other = (
        queue_of("ada", "https://chat.example/T1/secret"),
        queue_of("ada", "https://chat.example/T2/x"),
    )
    assert one != other
    assert "secret" not in one
    assert one.startswith("ada https://chat.example ")
