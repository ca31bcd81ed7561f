"""One sweep as steps: bad nodes are found and confirmed, what was stopped says nothing, never more than the share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from airyard.core.health.adapters import LaneRead
from airyard.core.health.fabric import Measured, Verdict
from airyard.core.health.fabric_faults import Blamed, FabricFault, found_well
from airyard.core.health.sweeping import Swept, steps
from airyard.core.health.tournament import Pair, Wave

Measure = Callable[[Pair], Measured]


def names(count: int) -> list[str]:
    return [f"n{number:02}" for number in range(count)]


def slow(*bad: str, by: float = 0.5) -> Measure:
    def measure(pair: Pair) -> Measured:
        ill = any(node in bad for node in pair.edge)
        return Measured(pair=pair, busbw_gb_s=100.0 * (by if ill else 1.0), latency_p95_us=20.0)

    return measure


def play(
    nodes: Sequence[str], measure: Measure, number: int = 0, **given: object
) -> tuple[Verdict, Swept, list[Wave]]:
    """Return the verdict, the whole end, and what was under test at once."""
    made = steps(nodes, number, **given)  # type: ignore[arg-type]  # each case gives some
    shown: list[Wave] = []
    try:
        wave = next(made)
        while True:
            shown.append(wave)
            wave = made.send([measure(pair) for pair in wave])
    except StopIteration as end:
        swept: Swept = end.value
    return swept.verdict, swept, shown


def test_a_slow_node_is_bad_and_all_others_are_certified() -> None:
    for count in (4, 5, 8, 16, 33):
        verdict, _, _ = play(names(count), slow("n02"))
        assert verdict.bad == ("n02",), count
        assert verdict.certified == tuple(name for name in names(count) if name != "n02")
        assert "GB/s" in verdict.why["n02"]


def test_nobody_is_bad_where_all_are_well_or_all_are_alike() -> None:
    assert play(names(8), slow())[0].bad == ()
    everybody, _, _ = play(names(8), slow(*names(8)))
    assert (everybody.bad, len(everybody.certified)) == ((), 8)


def test_where_nobody_is_certified_nobody_can_be_confirmed() -> None:
    verdict, _, _ = play(names(6), lambda pair: Measured(pair=pair, hung=True))
    assert (verdict.bad, verdict.certified) == ((), ())
    assert verdict.unknown == tuple(names(6))


def test_one_bad_edge_blames_the_edge_and_no_node() -> None:
    def measure(pair: Pair) -> Measured:
        return Measured(
            pair=pair, busbw_gb_s=30.0 if pair.edge == ("n00", "n01") else 100.0, latency_p95_us=20.0
        )

    found = [play(names(4), measure, number)[0] for number in range(3)]
    assert all(one.bad == () for one in found)
    assert any(one.edges == (("n00", "n01"),) for one in found)


def rail_of(place: int) -> str:
    return f"10.{place}.0.0/16"


def by_adapters(*bad: tuple[str, int], rail: int | None = None) -> Measure:
    """Nodes with four adapters. ``bad``: some of a node; ``rail``: all of one switch. All together look well enough."""

    def measure(pair: Pair) -> Measured:
        reads = tuple(
            LaneRead(
                a=f"eth{place}",
                b=f"eth{place}",
                kind="k",
                gb_s=1.0 if place == rail or any((node, place) in bad for node in pair.edge) else 10.0,
                rail=rail_of(place),
            )
            for place in range(4)
        )
        return Measured(pair=pair, busbw_gb_s=100.0, latency_p95_us=20.0, adapters=reads)

    return measure


def test_one_slow_adapter_is_its_nodes_and_named() -> None:
    for count in (4, 5, 16):
        verdict, swept, _ = play(names(count), by_adapters(("n02", 3)))
        assert (verdict.bad, verdict.rails, verdict.edges) == (("n02",), (), ()), count
        assert "adapter eth3 of n" in verdict.why["n02"]
        standing = FabricFault(what=Blamed.RAIL, where=rail_of(1))
        assert found_well([standing], swept.tests, verdict, {}) == (standing,)
        assert found_well([replace(standing, where=rail_of(3))], swept.tests, verdict, {}) == ()


def test_a_slow_rail_is_blamed_and_no_node_for_it() -> None:
    for count in (4, 5, 16):
        verdict, _, _ = play(names(count), by_adapters(rail=2))
        assert (verdict.rails, verdict.bad, verdict.edges) == ((rail_of(2),), (), ()), count
        assert verdict.certified == tuple(names(count))


def test_beside_a_slow_rail_a_bad_node_is_found_still() -> None:
    verdict, _, _ = play(names(16), by_adapters(("n05", 0), rail=2))
    assert (verdict.rails, verdict.bad) == ((rail_of(2),), ("n05",))
    assert "adapter eth0 of n" in verdict.why["n05"]


def test_a_rail_that_fails_on_half_of_its_nodes_is_the_rail() -> None:
    half = names(16)[::2]
    verdict, _, _ = play(names(16), by_adapters(*((node, 1) for node in half)))
    assert (verdict.rails, verdict.bad) == ((rail_of(1),), ())
    few, _, _ = play(names(16), by_adapters(("n01", 1), ("n04", 1)))
    assert (few.rails, few.bad) == ((), ("n01", "n04")), "two of sixteen are two adapters"


def test_a_bad_leaf_switch_is_blamed_and_its_nodes_are_not() -> None:
    nodes = names(16)
    leaf_of = {name: f"leaf{place // 4}" for place, name in enumerate(nodes)}
    there = [name for name, leaf in leaf_of.items() if leaf == "leaf1"]
    verdict, _, _ = play(nodes, slow(*there), leaf_of=leaf_of)
    assert (verdict.leaves, verdict.bad) == (("leaf1",), ())
    assert not set(there) & set(verdict.certified)


def test_a_sweep_that_was_stopped_everywhere_tells_nothing() -> None:
    verdict, end, _ = play(names(8), lambda pair: Measured(pair=pair, stopped=True))
    assert not end.is_telling
    assert (verdict.bad, verdict.certified, len(verdict.unknown)) == ((), (), 8)
    assert play(names(4), slow())[1].is_telling


def test_a_suspect_whose_second_pass_was_stopped_stays_doubtful() -> None:
    told = 0

    def measure(pair: Pair) -> Measured:
        nonlocal told
        told += 1
        return slow("n02")(pair) if told <= 20 else Measured(pair=pair, stopped=True)

    verdict, end, _ = play(names(8), measure)
    assert (verdict.bad, end.doubtful, verdict.unknown) == ((), ("n02",), ("n02",))


@settings(max_examples=60, deadline=None)
@given(st.integers(4, 40), st.integers(0, 50), st.integers(2, 12), st.integers(1, 5), st.integers(0, 2**32))
def test_any_sweep_keeps_its_share_and_never_blames_a_well_node(
    count: int, number: int, at_once: int, racks: int, seed: int
) -> None:
    chance = Random(seed)
    nodes = names(count)
    bad = set(chance.sample(nodes, min(chance.randrange(3), count // 4)))
    leaf_of = {name: f"leaf{place % racks}" for place, name in enumerate(nodes)} if racks > 1 else {}
    truth = slow(*bad)

    def measure(pair: Pair) -> Measured:
        return Measured(pair=pair, stopped=True) if chance.random() < 0.1 else truth(pair)

    verdict, _, shown = play(nodes, measure, number, at_once=at_once, leaf_of=leaf_of)
    assert set(verdict.bad) <= bad
    assert not set(verdict.certified) & set(verdict.bad)
    for wave in shown:
        under_test = [node for pair in wave for node in pair.edge]
        assert len(under_test) == len(set(under_test)) <= max(at_once // 2 * 2, 2)
        for leaf in set(leaf_of.values()):
            there = sum(leaf_of[node] == leaf for node in under_test)
            pairs = sum(leaf in (leaf_of[pair.a], leaf_of[pair.b]) for pair in wave)
            whole = sum(found == leaf for found in leaf_of.values())
            assert there <= whole // 2 or pairs == 1
