"""Halving: one node that fails is found whatever the group; two that fail only together are an interaction."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airyard.core.health.halving import Halving, begin, told

GOOD = [f"g{number}" for number in range(16)]


def ended(search: Halving, fails: Callable[[Sequence[str]], bool]) -> Halving:
    for _ in range(200):
        if search.ended:
            return search
        search = told(search, fails(search.group))
    raise AssertionError("it does not end")


@given(st.integers(1, 40), st.data())
def test_the_one_bad_node_is_found(count: int, data: st.DataObject) -> None:
    names = [f"n{number:02}" for number in range(count)]
    bad = data.draw(st.sampled_from(names))
    search = ended(begin(names, GOOD, size=count), lambda group: bad in group)
    assert search.found == bad


def test_groups_keep_their_size_with_certified_nodes() -> None:
    search = begin([f"n{number}" for number in range(16)], GOOD)
    assert len(search.group) == 16
    assert len(set(search.group) & set(GOOD)) == 8


def test_what_fails_only_with_many_is_found_because_the_size_is_kept() -> None:
    names = [f"n{number}" for number in range(16)]
    search = ended(begin(names, GOOD), lambda group: "n5" in group and len(group) >= 8)
    assert search.found == "n5"


def test_two_that_fail_only_together_are_an_interaction() -> None:
    names = [f"n{number}" for number in range(8)]
    search = ended(begin(names, GOOD), lambda group: {"n0", "n7"} <= set(group))
    assert search.interaction
    assert not search.found


def test_one_wrong_answer_changes_nothing_and_a_stopped_test_is_asked_for_again() -> None:
    search = begin(["n0", "n1"], GOOD)
    assert told(search, None) is search
    search = told(told(told(search, True), False), True)
    assert search.found == "n0"
    assert search.tests == 3


@pytest.mark.parametrize(("suspects", "found", "interaction"), [([], "", True), (["n1"], "n1", False)])
def test_nothing_to_halve(suspects: list[str], found: str, interaction: bool) -> None:
    search = begin(suspects, GOOD)
    assert (search.found, search.interaction, search.ended) == (found, interaction, True)
