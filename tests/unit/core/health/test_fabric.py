"""Votes over pair tests: who is certified, who is bad, and when an edge, a leaf or an adapter is to blame instead."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from random import Random

import pytest

from airyard.core.health.fabric import (
    QUICK,
    Measured,
    Outcome,
    PairResult,
    Verdict,
    against,
    concluded,
    first_pass,
    judged,
)
from airyard.core.health.tournament import Pair, once_more, second_pass, sweep

Fails = Callable[[Pair], bool]


def names(count: int) -> list[str]:
    return [f"n{number:02}" for number in range(count)]


def outcomes(pairs: Iterable[Pair], fails: Fails) -> list[PairResult]:
    return [PairResult(pair=pair, outcome=Outcome.FAIL if fails(pair) else Outcome.PASS) for pair in pairs]


def swept(
    nodes: Sequence[str],
    fails: Fails,
    *,
    number: int = 0,
    leaf_of: dict[str, str] | None = None,
) -> Verdict:
    rounds = sweep(nodes, number, leaf_of=leaf_of)
    tests = outcomes([pair for waves in rounds for wave in waves for pair in wave], fails)
    first = first_pass(nodes, tests, leaf_of=leaf_of)
    again = [
        *second_pass((*first.suspects, *first.bad), first.certified, number),
        *once_more(first.edges),
    ]
    return concluded(first, tests, outcomes(again, fails))


def touching(*bad: str) -> Fails:
    return lambda pair: not set(bad).isdisjoint(pair.edge)


def test_one_bad_node_is_found_and_its_partners_are_not_blamed() -> None:
    verdict = swept(names(16), touching("n07"))
    assert verdict.bad == ("n07",)
    assert len(verdict.certified) == 15
    assert verdict.edges == ()
    assert "pair tests failed" in verdict.why["n07"]


@pytest.mark.parametrize("count", [8, 9])
def test_half_of_a_small_pool_may_be_bad(count: int) -> None:
    bad = ("n00", "n02", "n04")
    for number in range(7):
        assert swept(names(count), touching(*bad), number=number).bad == bad


def test_a_pair_that_alone_fails_twice_is_an_edge() -> None:
    edge = sweep(names(16), 0)[0][0][0].edge
    verdict = swept(names(16), lambda pair: pair.edge == edge)
    assert verdict.edges == (edge,)
    assert verdict.bad == ()
    assert len(verdict.certified) == 16


def test_a_pair_that_fails_once_is_nothing() -> None:
    first = sweep(names(16), 0)[0][0][0]
    verdict = swept(names(16), lambda pair: pair == first)
    assert verdict.edges == verdict.bad == ()


def test_a_leaf_with_failing_nodes_is_blamed_rather_than_they() -> None:
    leaf_of = {name: f"leaf{place // 4}" for place, name in enumerate(names(16))}
    down = {name for name, leaf in leaf_of.items() if leaf == "leaf1"}
    verdict = swept(names(16), lambda pair: not down.isdisjoint(pair.edge), leaf_of=leaf_of)
    assert verdict.leaves == ("leaf1",)
    assert verdict.bad == verdict.edges == ()
    assert len(verdict.certified) == 12


def test_one_bad_node_is_no_bad_leaf() -> None:
    leaf_of = {name: f"leaf{place // 4}" for place, name in enumerate(names(16))}
    verdict = swept(names(16), touching("n05"), leaf_of=leaf_of)
    assert verdict.leaves == ()
    assert verdict.bad == ("n05",)


def test_with_one_leaf_nothing_can_be_said_of_it() -> None:
    leaf_of = dict.fromkeys(names(8), "leaf0")
    assert swept(names(8), touching("n01", "n02"), leaf_of=leaf_of).bad == ("n01", "n02")


def test_stopped_tests_say_nothing() -> None:
    pairs = [pair for waves in sweep(names(8), 0) for wave in waves for pair in wave]
    tests = [PairResult(pair=pair, outcome=Outcome.UNKNOWN) for pair in pairs]
    first = first_pass(names(8), tests)
    assert first.unknown == tuple(names(8))
    assert first.certified == first.bad == first.suspects == ()


def test_suspects_whose_second_tests_were_stopped_stay_unknown() -> None:
    fails = {"n01"}
    pairs = [pair for waves in sweep(names(8), 0) for wave in waves for pair in wave]
    # Two of its five fail: not enough to be called bad.
    mine = [pair for pair in pairs if not fails.isdisjoint(pair.edge)][:2]
    tests = outcomes(pairs, lambda pair: pair in mine)
    first = first_pass(names(8), tests)
    assert first.suspects == ("n01",)
    again = [
        PairResult(pair=pair, outcome=Outcome.UNKNOWN) for pair in second_pass(["n01"], first.certified, 0)
    ]
    assert concluded(first, tests, again).unknown == ("n01",)


def test_when_all_fail_nobody_is_certified() -> None:
    verdict = swept(names(8), lambda pair: True)
    assert verdict.certified == ()


def test_the_quick_way_has_two_passes() -> None:
    tests = outcomes(sweep(names(8), 0, rounds=1)[0][0], touching("n02"))
    first = first_pass(names(8), tests, voting=QUICK)
    assert "n02" in first.suspects
    assert len(first.suspects) == 2
    again = outcomes(second_pass(first.suspects, first.certified, 0, tests=1), touching("n02"))
    assert concluded(first, tests, again, voting=QUICK).bad == ("n02",)


def test_recall_with_tests_that_err() -> None:
    chance, nodes, found, wrong = Random(7), names(64), 0, 0
    for _ in range(150):
        bad = set(chance.sample(nodes, 3))

        def errs(pair: Pair, bad: set[str] = bad) -> bool:
            ill = not bad.isdisjoint(pair.edge)
            return chance.random() >= 0.02 if ill else chance.random() < 0.01

        said = set(swept(nodes, errs, number=chance.randrange(12)).bad)
        found, wrong = found + len(said & bad), wrong + len(said - bad)
    assert found >= 0.99 * 450
    assert wrong <= 3


def measured(count: int, **odd: object) -> list[Measured]:
    pairs = [Pair(a=f"a{number}", b=f"b{number}") for number in range(count)]
    read = [Measured(pair=pair, busbw_gb_s=100.0, latency_p95_us=20.0) for pair in pairs]
    if odd:
        fields = {"busbw_gb_s": 100.0, "latency_p95_us": 20.0, **odd}
        read[0] = Measured(pair=pairs[0], **fields)  # type: ignore[arg-type]  # each case gives one field
    return read


@pytest.mark.parametrize(
    ("odd", "says"),
    [
        ({"busbw_gb_s": 84.0}, "median is 100"),
        ({"busbw_gb_s": 40.0}, "at least 50 are due"),
        ({"latency_p95_us": 31.0}, "p95 of 31"),
        ({"correct": False}, "a result was wrong"),
        ({"errors_grown": 3}, "3 link errors"),
        ({"hung": True}, "did not end in time"),
    ],
)
def test_a_pair_fails_for_each_reason(odd: dict[str, object], says: str) -> None:
    first, *others = judged(measured(8, **odd), floor_gb_s=50.0)
    assert first.outcome is Outcome.FAIL
    assert says in first.why
    assert all(test.outcome is Outcome.PASS for test in others)


def test_a_pair_at_the_limits_passes_and_a_stopped_one_is_unknown() -> None:
    assert judged(measured(8, busbw_gb_s=85.0))[0].outcome is Outcome.PASS
    assert judged(measured(8, latency_p95_us=30.0))[0].outcome is Outcome.PASS
    assert judged(measured(8, stopped=True))[0].outcome is Outcome.UNKNOWN
    # Two pairs have no median worth the name.
    assert judged(measured(2, busbw_gb_s=60.0))[0].outcome is Outcome.PASS


def test_only_what_was_measured_alike_is_compared() -> None:
    summed = [
        Measured(pair=Pair(a=f"n{number}", b=f"m{number}"), busbw_gb_s=400.0, method="nccl")
        for number in range(3)
    ]
    by_tcp = Measured(pair=Pair(a="a", b="b"), busbw_gb_s=4.0, method="tcp")
    assert [result.outcome for result in judged([*summed, by_tcp])] == [Outcome.PASS] * 4
    assert against(by_tcp, summed).outcome is Outcome.PASS
    slow = replace(by_tcp, method="nccl")
    assert "between other nodes it is 400" in against(slow, summed[:1]).why
    assert against(slow, summed[:1], least=2).outcome is Outcome.PASS
    assert "at least 5 are due" in against(replace(by_tcp, due_gb_s=5.0), ()).why
