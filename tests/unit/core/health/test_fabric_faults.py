"""Faults between nodes: told when they begin, kept while nothing says otherwise, over when they were found well."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from airyard.core.health.fabric import Measured, Outcome, PairResult, Verdict
from airyard.core.health.fabric_faults import (
    FORGOTTEN_MS,
    KEPT,
    Blamed,
    FabricFault,
    Standing,
    edge_fault,
    edges_to_see,
    faults_of,
    found_well,
    in_words,
    taken_in,
)
from airyard.core.health.sweeping import Swept, steps
from airyard.core.health.tournament import Pair

EDGE = edge_fault(("n1", "n0"))
LEAF = FabricFault(what=Blamed.LEAF, where="f/r1")
RAIL = FabricFault(what=Blamed.RAIL, where="10.1.3.0/24")
NODES = [f"n{number}" for number in range(8)]


def result(a: str, b: str, outcome: Outcome, *slow: bool) -> PairResult:
    """A test; ``slow``: whether the rail was, where it was measured."""
    return PairResult(pair=Pair(a=a, b=b), outcome=outcome, rails=tuple((RAIL.where, one) for one in slow))


def test_what_stays_bad_begins_once_and_ends_once() -> None:
    first = taken_in((), (EDGE, LEAF), (), 10)
    assert (first.begun, first.ended) == ((EDGE, LEAF), ())
    again = taken_in(first.standing, (EDGE,), (), 20)
    assert (again.begun, again.ended) == ((), ())
    assert {one.fault: (one.since_ms, one.seen_ms) for one in again.standing} == {
        EDGE: (10, 20),
        LEAF: (10, 10),
    }
    over = taken_in(again.standing, (), (EDGE, RAIL), 30)  # the rail never stood
    assert (over.begun, over.ended) == ((), (EDGE,))
    assert [one.fault for one in over.standing] == [LEAF]
    back = taken_in(over.standing, (EDGE,), (), 40)
    assert back.begun == (EDGE,)


def test_one_that_no_sweep_sees_any_more_is_forgotten_and_never_more_than_some_are_kept() -> None:
    old = Standing(fault=EDGE, since_ms=0, seen_ms=5)
    assert taken_in((old,), (), (), FORGOTTEN_MS + 4).standing == (old,)
    assert taken_in((old,), (), (), FORGOTTEN_MS + 5).standing == ()
    many = faults_of([], [f"l{number}" for number in range(KEPT + 9)], [])
    kept = taken_in((), many, (), 1).standing
    assert [one.fault for one in kept] == list(many[9:])


@pytest.mark.parametrize(
    ("outcomes", "well"),
    [
        ((Outcome.PASS, Outcome.PASS), True),
        ((Outcome.PASS, Outcome.UNKNOWN), False),
        ((Outcome.PASS, Outcome.PASS, Outcome.FAIL), False),
        ((), False),
    ],
)
def test_an_edge_is_well_when_it_passed_each_way(outcomes: Sequence[Outcome], well: bool) -> None:
    tests = [
        result(*(("n0", "n1") if place % 2 else ("n1", "n0")), one) for place, one in enumerate(outcomes)
    ]
    tests += [result("n1", "n2", Outcome.PASS)] * 3
    verdict = Verdict(certified=("n0", "n1", "n2"), bad=())
    assert found_well((EDGE,), tests, verdict, {}) == ((EDGE,) if well else ())
    assert found_well((EDGE,), tests, Verdict(certified=(), bad=(), edges=(("n0", "n1"),)), {}) == ()


def test_a_leaf_is_well_when_half_of_its_nodes_are_and_a_rail_when_its_tests_passed() -> None:
    leaf_of = {"n0": "f/r1", "n1": "f/r1", "n2": "f/r1", "n3": "f/r2", "n4": "f/r2"}
    tests = [
        result("n0", "n3", Outcome.PASS),
        result("n1", "n4", Outcome.PASS),
        result("n2", "n3", Outcome.FAIL),
    ]
    assert found_well((LEAF,), tests, Verdict(certified=("n0", "n1"), bad=()), leaf_of) == (LEAF,)
    assert found_well((LEAF,), tests, Verdict(certified=("n0", "n3", "n4"), bad=()), leaf_of) == ()
    rails = [result("n0", "n1", Outcome.PASS, False), result("n2", "n1", Outcome.FAIL, False)]
    verdict = Verdict(certified=(), bad=())
    assert found_well((RAIL,), rails, verdict, {}) == (RAIL,)
    assert found_well((RAIL,), [*rails, result("n3", "n1", Outcome.PASS, True)], verdict, {}) == ()
    assert found_well((RAIL,), [result("n0", "n1", Outcome.PASS)] * 4, verdict, {}) == ()


def sweep(
    number: int,
    bad: bool,
    see: Sequence[FabricFault],
    ill: str = "",
    doubted: Sequence[tuple[str, str]] = (),
    ways: Sequence[tuple[str, str]] = (("n0", "n1"), ("n1", "n0")),
) -> Swept:
    """Play a sweep of eight nodes in which one edge, in some of its ways, or one node may be slow."""
    made = steps(NODES, number, see=edges_to_see(see, NODES), doubted_edges=doubted)
    try:
        wave = next(made)
        while True:
            slow = [(bad and (pair.a, pair.b) in ways) or ill in pair.edge for pair in wave]
            wave = made.send(
                [
                    Measured(pair=pair, busbw_gb_s=20.0 if one else 100.0, latency_p95_us=9.0)
                    for pair, one in zip(wave, slow, strict=True)
                ]
            )
    except StopIteration as end:
        swept: Swept = end.value
    return swept


def test_an_edge_that_stands_is_looked_at_in_every_sweep_whoever_its_rounds_meet() -> None:
    for number in range(7):
        still = sweep(number, True, [EDGE])
        assert (still.verdict.edges, still.verdict.bad) == ((("n0", "n1"),), ())
        mended = sweep(number, False, [EDGE])
        assert found_well([EDGE], mended.tests, mended.verdict, {}) == (EDGE,)
    # Without it some sweeps do not meet the edge at all, and say nothing of it.
    blind = [sweep(number, False, []) for number in range(7)]
    assert () in [found_well([EDGE], one.tests, one.verdict, {}) for one in blind]


def test_a_doubted_edge_is_looked_at_both_ways_and_bad_when_both_fail() -> None:
    doubted = [("n0", "n1"), ("n2", "n3")]
    for number in range(7):
        assert sweep(number, True, [], doubted=doubted).verdict.edges == (("n0", "n1"),)
        assert sweep(number, False, [], doubted=doubted).verdict.edges == ()
    once = [
        sweep(number, True, [], doubted=doubted, ways=[("n0", "n1")]).verdict.edges for number in range(7)
    ]
    blind = [sweep(number, True, []).verdict.edges for number in range(7)]
    assert () in once, "a single failure is as likely an error of the test"
    assert () in blind


def test_an_edge_of_a_bad_node_is_neither_bad_nor_well() -> None:
    for number in range(7):
        found = sweep(number, False, [EDGE], ill="n1")
        assert (found.verdict.bad, found.verdict.edges) == (("n1",), ())
        assert found_well([EDGE], found.tests, found.verdict, {}) == ()


def test_words_name_the_first_few() -> None:
    assert in_words([EDGE, LEAF, RAIL]) == "edge n0 - n1, leaf switch f/r1, rail 10.1.3.0/24"
    assert in_words([EDGE] * 7).endswith("and 2 more")
    assert edges_to_see([LEAF, EDGE], {"n0"}) == ()
