"""Which idle nodes are tested next: by risk, a few at a time, never one that somebody wants."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from airyard.core.health.idle import (
    DEEP_EVERY_MS,
    HOUR_MS,
    IDLE_SHARE,
    LIGHT_AFTER_MS,
    SLICE_MS,
    YIELD_MS,
    IdleNode,
    IdleTest,
    Ongoing,
    due,
    plan,
    risk,
)

NOW = 1_000 * HOUR_MS


def node(name: str, **fields: object) -> IdleNode:
    well = IdleNode(
        name=name,
        pool="p",
        idle_since_ms=NOW - 2 * HOUR_MS,
        passed_ms=NOW - HOUR_MS,
        deep_ms=NOW - HOUR_MS,
        paired_ms=NOW - HOUR_MS,
    )
    return replace(well, **fields)  # type: ignore[arg-type]  # each case gives some fields


def fleet(count: int, **fields: object) -> list[IdleNode]:
    return [node(f"n{number:02}", **fields) for number in range(count)]


def test_nothing_is_due_on_a_node_that_passed_all() -> None:
    assert plan(fleet(10), (), NOW) == plan((), (), NOW)


def test_age_and_signals_make_a_light_test_due_and_a_day_a_deep_one() -> None:
    assert due(node("a", passed_ms=None), NOW) is IdleTest.LIGHT
    assert due(node("a", passed_ms=NOW - 4 * HOUR_MS), NOW) is IdleTest.LIGHT
    assert due(node("a", signals=1), NOW) is IdleTest.LIGHT
    assert due(node("a", changed=True), NOW) is IdleTest.LIGHT
    assert due(node("a", deep_ms=NOW - DEEP_EVERY_MS), NOW) is IdleTest.DEEP
    assert due(node("a", strikes=3), NOW) is None


def test_the_riskiest_go_first() -> None:
    nodes = [
        node("old", passed_ms=NOW - 9 * HOUR_MS),
        node("struck", passed_ms=NOW - 5 * HOUR_MS, strikes=1),
        node("never", passed_ms=None),
        node("signal", passed_ms=NOW - 5 * HOUR_MS, signals=1),
        *fleet(16),
    ]
    begun = plan(nodes, (), NOW).begin
    assert [name for name, _ in begun] == ["never", "struck", "signal", "old"]
    assert risk(nodes[2], NOW) > risk(nodes[1], NOW) > risk(nodes[3], NOW) > risk(nodes[0], NOW)


def test_never_a_node_that_somebody_wants_that_is_closed_busy_or_was_just_left() -> None:
    nodes = [
        node("wanted", passed_ms=None, wanted=True),
        node("closed", passed_ms=None, open=False),
        node("busy", passed_ms=None, idle_since_ms=None),
        node("left", passed_ms=None, idle_since_ms=NOW - LIGHT_AFTER_MS + 1),
    ]
    made = plan(nodes, (), NOW)
    assert made.begin == ()
    assert made.sweep is None


def test_a_test_in_the_way_is_asked_then_killed() -> None:
    wanted = node("n1", wanted=True, idle_since_ms=None)
    began = Ongoing(node="n1", kind=IdleTest.LIGHT, began_ms=NOW - 1_000)
    assert plan([wanted], [began], NOW).ask == ("n1",)
    asked = replace(began, asked_ms=NOW)
    assert plan([wanted], [asked], NOW + YIELD_MS - 1).kill == ()
    assert plan([wanted], [asked], NOW + YIELD_MS).kill == ("n1",)


def test_a_test_longer_than_its_slice_is_killed_and_one_of_a_node_that_is_gone_asked() -> None:
    late = Ongoing(node="n1", kind=IdleTest.LIGHT, began_ms=NOW - SLICE_MS)
    assert plan([node("n1")], [late], NOW).kill == ("n1",)
    assert plan([], [replace(late, began_ms=NOW)], NOW).ask == ("n1",)


def test_a_pool_with_idle_nodes_is_swept_once_a_day_when_nothing_else_is_due() -> None:
    stale = fleet(6, paired_ms=NOW - DEEP_EVERY_MS)
    made = plan(stale, (), NOW)
    assert made.sweep is not None
    assert made.sweep.nodes == tuple(f"n{number:02}" for number in range(6))
    assert made.sweep.at_once == 2
    assert plan(stale[:3], (), NOW).sweep is None
    assert plan([*stale, node("x", passed_ms=None)], (), NOW).sweep is None
    assert plan(fleet(6), (), NOW).sweep is None
    assert plan(fleet(60, paired_ms=None), (), NOW).sweep is not None


def test_nodes_whose_gang_failed_are_paired_first_and_do_not_wait_for_their_day() -> None:
    others = [*fleet(6, pool="big", paired_ms=None), *fleet(9)]
    two = [node("y", doubted=True), node("z", doubted=True)]
    made = plan([*others, *two], (), NOW)
    assert made.sweep is not None
    assert (made.sweep.pool, made.sweep.nodes) == ("p", ("n00", "n01", "y", "z"))
    assert plan([*others, *two[:1]], (), NOW).sweep is not None
    # Too few to compare with: the other pool's turn.
    alone = plan([*fleet(6, pool="big", paired_ms=None), *two], (), NOW).sweep
    assert alone is not None
    assert alone.pool == "big"
    all_of_them = plan([node(f"d{number:03}", doubted=True) for number in range(80)], (), NOW).sweep
    assert all_of_them is not None
    assert len(all_of_them.nodes) == 64


def test_a_pool_in_doubt_does_not_keep_others_from_their_turn() -> None:
    """Its sweep may be broken off again and again; meanwhile it rests, and among several in doubt turns are taken."""
    doubted = [node(f"a{number}", pool="a", doubted=True) for number in range(4)]
    others = fleet(6, pool="big", paired_ms=None)
    first = plan([*doubted, *others], (), NOW).sweep
    assert first is not None
    assert first.pool == "a"
    then = plan([*doubted, *others], (), NOW, resting_pools={"a"}).sweep
    assert then is not None
    assert then.pool == "big"
    assert plan(doubted, (), NOW, resting_pools={"a"}).sweep is None
    tried = [replace(one, paired_tried_ms=NOW - 1) for one in doubted]
    more = [node(f"b{number}", pool="b", doubted=True, paired_tried_ms=NOW - 2) for number in range(4)]
    turn = plan([*tried, *more], (), NOW).sweep
    assert turn is not None
    assert turn.pool == "b"


@given(st.integers(0, 60), st.integers(0, 2**32))
def test_at_most_a_fifth_and_the_same_in_any_order(count: int, seed: int) -> None:
    chance = Random(seed)
    nodes = [
        node(
            f"n{number:02}",
            idle_since_ms=chance.choice([None, NOW - HOUR_MS]),
            passed_ms=chance.choice([None, NOW - 5 * HOUR_MS, NOW]),
            deep_ms=chance.choice([None, NOW]),
            wanted=chance.random() < 0.2,
            strikes=chance.randrange(3),
        )
        for number in range(count)
    ]
    made = plan(nodes, (), NOW)
    idle = [one for one in nodes if one.idle_since_ms is not None and not one.wanted]
    assert len(made.begin) <= max(1, IDLE_SHARE * len(idle))
    assert {name for name, _ in made.begin} <= {one.name for one in idle}
    shuffled = list(nodes)
    chance.shuffle(shuffled)
    assert plan(shuffled, (), NOW) == made
    # What runs already counts.
    ongoing = [Ongoing(node=name, kind=kind, began_ms=NOW) for name, kind in made.begin]
    assert len(plan(nodes, ongoing, NOW).begin) + len(ongoing) <= max(1, IDLE_SHARE * len(idle))
