"""What is remembered of throttled GPUs, and how it meets what a gang tells of its steps."""

from __future__ import annotations

from dataclasses import replace

from airyard.app.gang_slowness import MOST_KEPT, MOST_TOLD, Throttles, effects
from airyard.app.gang_steps import GangSteps
from airyard.core.cluster import Node
from airyard.core.health.facts import Component, HealthEvent, Severity, Source
from airyard.core.ids import MemberKey
from airyard.core.run import Attempt, Member, MemberPhase
from core_samples import ATTEMPT
from core_yard import node

NODES: dict[str, Node] = {name: node(name) for name in ("n0", "n1")}


def sighting(device: int, machine: str = "n1") -> HealthEvent:
    return HealthEvent(
        event_id=f"{machine}.{device}",
        rule="gpu.throttled_long",
        machine=machine,
        at_ms=0,
        component=Component.GPU,
        severity=Severity.HIGH,
        source=Source.NVML,
        message="slowed down",
        device=device,
        device_uuid=f"{machine}-{device}",
        value=0.8,
        clock_reasons=0x40,
    )


def gang() -> Attempt:
    members = tuple(
        Member(index=place, node=f"n{place}", machine=f"n{place}", devices=(4, 5), phase=MemberPhase.RUNNING)
        for place in (0, 1)
    )
    return replace(ATTEMPT, run_id=1, number=0, members=members)


def stepping(steps: GangSteps, begin_ms: int, *, slow: int | None, windows: int = 5) -> None:
    """Have four ranks tell of windows of 20 steps, a second each."""
    for window in range(1, windows + 1):
        for member in (0, 1):
            told = [
                {
                    "rank": rank,
                    "step": window,
                    "count": begin_ms + 20 * window,
                    "age_ms": 0,
                    "compute_ms": 140.0 if rank == slow else 100.0,
                }
                for rank in (2 * member, 2 * member + 1)
            ]
            steps.put(MemberKey(1, 0, member), told, begin_ms + 1000 * window)


def test_the_device_of_a_slow_rank_is_found_by_its_place_in_the_member() -> None:
    steps, throttles = GangSteps(), Throttles()
    throttles.put([sighting(5)], 500)
    stepping(steps, 0, slow=3)
    (one,) = effects(steps, throttles, gang(), NODES, 6000)
    assert (one.slow.rank, one.slow.node, one.device, one.device_uuid) == (3, "n1", 5, "n1-5")
    other = Throttles()
    other.put([sighting(4), sighting(5, "n0")], 500)
    assert effects(steps, other, gang(), NODES, 6000) == []
    # Neither a member that has left the yard nor one that told nothing does any harm.
    assert [one.device for one in effects(steps, throttles, gang(), {}, 6000)] == [5]
    assert effects(GangSteps(), throttles, gang(), NODES, 6000) == []


def test_a_rank_that_was_slow_long_before_is_slow_by_something_else() -> None:
    steps, throttles = GangSteps(), Throttles()
    stepping(steps, 0, slow=3)
    stepping(steps, 400_000, slow=3)
    throttles.put([sighting(5)], 395_000)
    assert effects(steps, throttles, gang(), NODES, 406_000) == []


def test_a_row_of_sightings_has_one_beginning_and_an_end() -> None:
    throttles = Throttles()
    for at_ms in (0, 60_000, 120_000):
        throttles.put([sighting(5)], at_ms)
    (one,) = throttles.on(["n1"], 121_000)
    assert (one.since_ms, one.at_ms) == (0, 120_000)
    assert throttles.on(["n0"], 121_000) == []
    assert throttles.on(["n1"], 301_000) == []
    throttles.put([sighting(5)], 900_000)
    assert [one.since_ms for one in throttles.on(["n1"], 900_000)] == [900_000]


def test_what_is_remembered_is_bounded() -> None:
    throttles = Throttles()
    throttles.put([sighting(0, f"m{number}") for number in range(MOST_KEPT + 3)], 0)
    assert throttles.on(["m2"], 0) == []
    assert len(throttles.on(["m3"], 0)) == 1
    for number in range(MOST_TOLD + 3):
        throttles.told(str(number))
    assert not throttles.was_told("2")
    assert throttles.was_told("3")
