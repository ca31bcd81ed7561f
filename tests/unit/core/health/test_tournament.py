"""Schedules of pair tests: every edge once, nobody twice at a time, half of a leaf left free."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from airyard.core.health.tournament import Pair, disjoint, once_more, round_of, rounds_of, second_pass, sweep

NAMES = st.integers(2, 33).map(lambda count: [f"n{number:02}" for number in range(count)])


@given(NAMES)
def test_all_rounds_together_meet_every_edge_once(names: list[str]) -> None:
    edges = Counter(pair.edge for number in range(rounds_of(names)) for pair in round_of(names, number))
    assert len(edges) == len(names) * (len(names) - 1) // 2
    assert set(edges.values()) == {1}


@given(NAMES, st.integers(0, 1000))
def test_a_round_has_nobody_twice_and_leaves_out_one_at_most(names: list[str], number: int) -> None:
    busy = [node for pair in round_of(names, number) for node in pair.edge]
    assert len(busy) == len(set(busy)) == len(names) - len(names) % 2


@given(NAMES, st.integers(0, 50))
def test_a_sweep_tests_everybody_five_times_at_least(names: list[str], number: int) -> None:
    tests = Counter(
        node for waves in sweep(names, number) for wave in waves for pair in wave for node in pair.edge
    )
    assert min(tests[name] for name in names) >= (5 if len(names) > 5 else 4)


def test_the_next_sweep_meets_other_edges() -> None:
    names = [f"n{number:02}" for number in range(16)]
    first, second = (
        {pair.edge for waves in sweep(names, number) for wave in waves for pair in wave} for number in (0, 1)
    )
    assert len(first) == len(second) == 40
    assert not first & second


@given(NAMES, st.integers(1, 8), st.integers(0, 20))
def test_at_most_half_of_a_leaf_is_at_work(names: list[str], width: int, number: int) -> None:
    leaf_of = {name: f"leaf{place // width}" for place, name in enumerate(names)}
    size = Counter(leaf_of.values())
    for waves in sweep(names, number, leaf_of=leaf_of):
        for wave in waves:
            busy = Counter(leaf_of[node] for pair in wave for node in pair.edge)
            for leaf in (leaf for leaf, count in busy.items() if count > size[leaf] // 2):
                assert sum(leaf in {leaf_of[pair.a], leaf_of[pair.b]} for pair in wave) == 1


def test_suspects_are_tested_against_different_certified_nodes_in_both_directions() -> None:
    pairs = second_pass(["n1", "n2"], ["n1", "n3", "n4", "n5"], 0)
    mine = [pair for pair in pairs if "n1" in pair.edge]
    assert {pair.a == "n1" for pair in mine} == {True, False}
    assert {node for pair in mine for node in pair.edge} == {"n1", "n3", "n4", "n5"}
    assert not second_pass(["n1"], [], 0)
    assert len(second_pass(["n1"], ["n9"], 5)) == 3  # one certified node serves three times


def test_waves_of_the_second_pass_are_disjoint() -> None:
    pairs = second_pass([f"s{number}" for number in range(6)], ["g1", "g2"], 3)
    waves = disjoint(pairs)
    assert sorted((pair.a, pair.b) for wave in waves for pair in wave) == sorted((p.a, p.b) for p in pairs)
    for wave in waves:
        busy = [node for pair in wave for node in pair.edge]
        assert len(busy) == len(set(busy))


def test_few_nodes() -> None:
    assert sweep([], 0) == sweep(["n1"], 3) == ()
    assert once_more((("n1", "n2"),)) == (Pair(a="n2", b="n1"),)
