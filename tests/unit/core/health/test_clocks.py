"""Clocks of a gang: what is certain of an offset, who is off, and that nobody is who might be right."""

from __future__ import annotations

import random

import pytest

from airyard.core.health.clocks import Reading, clocks_off, estimate


def told(*readings: tuple[float, float]) -> dict[int, dict[str, str]]:
    return {
        member: {"node": f"n{member}", **Reading(offset_ms=offset, error_ms=error).facts()}
        for member, (offset, error) in enumerate(readings)
    }


def odd(facts: dict[int, dict[str, str]], most_ms: float = 500.0) -> set[int]:
    off = clocks_off(facts, most_ms)
    assert off is not None
    return set(off.odd.members) if off.odd is not None else set()


def test_the_truth_lies_within_the_bounds_whatever_the_way_does() -> None:
    chance = random.Random(7)
    for _ in range(500):
        ahead_ms = chance.uniform(-2000, 2000)
        asked = []
        for _ in range(5):
            there, back = chance.uniform(0.05, 80), chance.uniform(0.05, 80)
            sent = chance.uniform(0, 1e6)
            theirs = sent - ahead_ms + there
            asked.append((int(sent * 1e6), int(theirs * 1e6), int((sent + there + back) * 1e6)))
        found = estimate(asked)
        assert found is not None
        assert abs(found.offset_ms - ahead_ms) <= found.error_ms + 0.01
        assert found.error_ms == pytest.approx(min(received - sent for sent, _, received in asked) / 2e6)


def test_no_answer_and_a_clock_that_was_set_back_say_nothing() -> None:
    assert estimate([]) is None
    assert estimate([(2_000, 1_000, 1_500)]) is None


def test_the_node_that_is_off_from_the_median_is_named_with_what_is_certain() -> None:
    off = clocks_off(told((0.1, 0.4), (2000.0, 0.5), (-0.2, 0.3)), 500.0)
    assert off is not None
    assert off.odd is not None
    assert off.odd.members == {1}
    assert off.odd.message.startswith("the clock of node n1 is 1999 ms or more from the median")
    assert (off.odd.check, off.odd.tied) == ("net.clock", False)


def test_of_two_members_the_server_says_which_is_off() -> None:
    assert odd(told((0.0, 0.4), (-900.0, 0.4))) == {1}


def test_where_the_servers_own_clock_is_off_nobody_is() -> None:
    assert odd(told((900.0, 0.4), (900.2, 0.4), (899.9, 0.4))) == set()


def test_two_camps_of_one_size_name_nobody() -> None:
    assert odd(told((0.0, 0.4), (900.0, 0.4), (900.0, 0.4))) == set()


def test_what_a_slow_way_hides_is_never_called_off() -> None:
    assert odd(told((0.0, 0.4), (900.0, 450.0), (0.0, 0.4))) == set()
    assert odd(told((0.0, 0.4), (900.0, 350.0), (0.0, 0.4))) == {1}
    # One way that is slow does not blind all: the median is known by the others.
    assert odd(told((0.0, 3000.0), (900.0, 0.4), (0.0, 0.4), (0.1, 0.4))) == {1}


@pytest.mark.parametrize(
    "said", [{}, {"clock_ms": "nan", "clock_error_ms": "0"}, {"clock_ms": "9e99", "clock_error_ms": "0"}]
)
def test_a_member_that_tells_nothing_sane_is_left_out(said: dict[str, str]) -> None:
    assert clocks_off({0: said, 1: told((0.0, 1.0))[0]}, 500.0) is None
    assert odd({**told((0.0, 0.4), (0.0, 0.4)), 2: said}) == set()


def test_no_draw_of_bounds_calls_a_right_clock_off() -> None:
    chance = random.Random(11)
    for _ in range(2000):
        count = chance.randrange(2, 9)
        bounds = [chance.uniform(0.01, 400) for _ in range(count)]
        readings = [(chance.uniform(-bound, bound), bound) for bound in bounds]  # all clocks are right
        assert odd(told(*readings), 10.0) == set()
