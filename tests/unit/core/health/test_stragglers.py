"""Which ranks count as slow."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airyard.core.health.stragglers import Level, judge

NODES = {rank: f"n{rank // 2}" for rank in range(8)}


def windows(count: int = 5, **slow: float) -> list[dict[int, float]]:
    return [
        {rank: 100.0 * slow.get(f"r{rank}", 1.0) + rank % 3 * 0.1 for rank in range(8)} for _ in range(count)
    ]


@pytest.mark.parametrize(("factor", "level"), [(1.3, Level.WATCH), (1.5, Level.ACT)])
def test_a_slow_rank_is_named(factor: float, level: Level) -> None:
    (one,) = judge(windows(r5=factor), NODES)
    assert (one.rank, one.node, one.level, one.whole_node) == (5, "n2", level, False)
    assert one.score == pytest.approx(1 / factor, rel=0.01)


def test_a_whole_node_is_told_from_a_rank_of_it() -> None:
    assert all(one.whole_node for one in judge(windows(r4=1.5, r5=1.5), NODES))
    assert not any(one.whole_node for one in judge(windows(r4=1.5, r5=1.5, r1=1.5), NODES))


def test_two_windows_are_too_few_and_three_of_five_are_enough() -> None:
    slow, well = windows(1, r5=1.5)[0], windows(1)[0]
    assert judge([slow, slow, well, well, well], NODES) == []
    assert [one.rank for one in judge([slow, well, slow, well, slow], NODES)] == [5]
    assert judge([slow, slow, slow, well, well, well, well, well], NODES) == []


def test_of_two_ranks_nobody_is_named() -> None:
    assert judge([{0: 100.0, 1: 300.0}] * 5, NODES) == []


@given(st.floats(0, 1e6), st.integers(1, 8))
def test_equal_speeds_are_never_flagged(speed: float, count: int) -> None:
    assert judge([dict.fromkeys(range(count), speed)] * 5, NODES) == []


@given(st.permutations(range(8)), st.lists(st.floats(1, 1000), min_size=8, max_size=8))
def test_names_of_ranks_do_not_matter(other: list[int], times: list[float]) -> None:
    nodes = {rank: f"n{rank}" for rank in range(8)}
    plain = judge([dict(enumerate(times))] * 5, nodes)
    mixed = judge([{other[rank]: value for rank, value in enumerate(times)}] * 5, nodes)
    assert {other[one.rank] for one in plain} == {one.rank for one in mixed}
