"""Which throttled GPUs speak against their nodes: those alone that make a rank slower than its peers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airyard.core.health import slowing
from airyard.core.health.blame import hit_of, weight
from airyard.core.health.facts import Component, HealthEvent, Severity, Source
from airyard.core.health.slowing import Effect, Seat, Throttle, event_of, judge, seats, throttle_of
from airyard.core.health.states import NodeHealth
from airyard.core.health.stragglers import Rows, Straggler
from airyard.core.health.stragglers import judge as name_slow

NOW_MS = 10_000_000
MINUTE_MS = 60_000
DEVICES = [(index, f"GPU-{index}") for index in range(8)]
SEATS = [*seats(range(8), "n0", "n0", DEVICES), *seats(range(8, 16), "n1", "n1", DEVICES)]


def sighting(device: int = 3, node: str = "n0", **changes: Any) -> HealthEvent:
    plain: dict[str, Any] = {
        "event_id": f"{node}.{device}",
        "rule": "gpu.throttled_long",
        "machine": node,
        "node": "",
        "at_ms": NOW_MS,
        "component": Component.GPU,
        "severity": Severity.HIGH,
        "source": Source.NVML,
        "message": f"GPU {device} was slowed down in 80% of the last minute at work by heat",
        "device": device,
        "device_uuid": f"GPU-{device}",
        "value": 0.8,
        "clock_reasons": 0x48,
        "evidence": ("clock reasons 0x048, 92 °C, 1200 MHz, 500.0 W",),
    }
    return HealthEvent(**{**plain, **changes})


def throttle(
    device: int = 3, node: str = "n0", *, ago_s: float = 30, since_s: float = 600, **changes: Any
) -> Throttle:
    found = throttle_of(sighting(device, node, **changes), NOW_MS)
    assert found is not None
    return replace(found, at_ms=NOW_MS - int(ago_s * 1000), since_ms=NOW_MS - int(since_s * 1000))


def slow(*ranks: int, factor: float = 1.4, for_s: float = 300) -> list[Straggler]:
    """Name ranks of sixteen by the real rule, at so many times the usual 100 ms."""
    window = {rank: 100.0 * (factor if rank in ranks else 1.0) + rank % 3 * 0.1 for rank in range(16)}
    nodes = {rank: f"n{rank // 8}" for rank in range(16)}
    found = name_slow([window] * 5, nodes, dict.fromkeys(ranks, NOW_MS - int(for_s * 1000)))
    assert sorted(one.rank for one in found) == sorted(ranks)
    return found


def explained(named: list[Straggler], *throttles: Throttle) -> list[tuple[int, int]]:
    return sorted((one.slow.rank, one.device) for one in judge(named, SEATS, throttles, NOW_MS))


def test_a_throttled_gpu_of_a_slow_rank_explains_it() -> None:
    assert explained(slow(3), throttle(3)) == [(3, 3)]
    assert explained(slow(11), throttle(3, "n1")) == [(11, 3)]


def test_throttling_without_a_slow_rank_and_a_slow_rank_without_throttling_give_nothing() -> None:
    assert explained([], throttle(3)) == []
    assert explained(slow(3)) == []
    # The one is slow, the other is throttled.
    assert explained(slow(4), throttle(3)) == []
    assert explained(slow(3), throttle(3, "n1")) == []


def test_what_slows_a_rank_begins_before_it_is_slow() -> None:
    """300 s slow: seen throttled since 600 s, or 3 minutes later at most; not one that was slow for an hour before."""
    named = slow(3, for_s=300)
    assert explained(named, throttle(3, since_s=121)) == [(3, 3)]
    assert explained(named, throttle(3, since_s=119)) == []
    assert explained(slow(3, for_s=3600), throttle(3, since_s=600)) == []
    # Another rule has seen the same device earlier.
    early = throttle(3, rule="gpu.throttled", severity=Severity.WARNING, since_s=600)
    assert explained(named, throttle(3, since_s=60), early) == [(3, 3)]


def test_a_sighting_that_is_not_said_again_is_over() -> None:
    assert explained(slow(3), throttle(3, ago_s=180)) == [(3, 3)]
    assert explained(slow(3), throttle(3, ago_s=181)) == []
    mild = {"rule": "gpu.throttled", "severity": Severity.WARNING}  # said again after ten minutes
    assert explained(slow(3), throttle(3, ago_s=719, since_s=900, **mild)) == [(3, 3)]
    assert explained(slow(3), throttle(3, ago_s=721, since_s=900, **mild)) == []


def test_where_others_are_as_fast_with_the_same_it_is_something_else() -> None:
    assert explained(slow(3), throttle(3), throttle(4)) == []
    assert explained(slow(3, 4), throttle(3), throttle(4), throttle(5)) == [(3, 3), (4, 4)]
    assert explained(slow(3), throttle(3), throttle(4), throttle(5)) == []
    # Throttled for a fifth of the time is not the same as for four fifths.
    assert explained(slow(3), throttle(3), throttle(4, value=0.2)) == [(3, 3)]
    assert explained(slow(3), throttle(3, value=0.2), throttle(4)) == []
    mild = {"rule": "gpu.throttled", "severity": Severity.WARNING, "value": 0.8}
    assert explained(slow(3), throttle(3), throttle(4, **mild)) == [(3, 3)]


def test_ranks_sit_on_their_members_devices_in_their_order() -> None:
    def on(ranks: int, devices: int) -> list[list[int]]:
        found = seats(range(ranks), "n", "m", DEVICES[:devices])
        return [[index for index, _ in one.devices] for one in found]

    assert on(8, 8) == [[index] for index in range(8)]
    assert on(4, 8) == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert on(1, 8) == [list(range(8))]
    assert on(3, 8) == [list(range(8))] * 3
    assert on(4, 2) == [[0, 1]] * 4
    assert on(0, 8) == on(0, 0) == []
    assert on(2, 0) == [[], []]


def test_a_device_is_known_by_its_uuid_where_both_tell_it() -> None:
    seat = Seat(rank=0, node="n0", machine="n0", devices=((0, "GPU-7"),))
    named = [replace(slow(3)[0], rank=0)]
    assert judge(named, [seat], [throttle(7)], NOW_MS)[0].device == 0
    assert judge(named, [seat], [throttle(0)], NOW_MS) == []
    assert judge(named, [seat], [throttle(0, device_uuid="")], NOW_MS)[0].device == 0
    # Nodes that one machine simulates have a device 0 each.
    bare = throttle(0, device_uuid="")
    assert len(judge(named, [seat], [replace(bare, node="n0")], NOW_MS)) == 1
    assert judge(named, [seat], [replace(bare, node="n5")], NOW_MS) == []


@pytest.mark.parametrize(
    "changes",
    [{"rule": "gpu.rows"}, {"device": None}, {"confirmed": False}, {"source": Source.JOB_LOG}],
)
def test_nothing_else_is_a_sighting_of_lower_clocks(changes: dict[str, Any]) -> None:
    assert throttle_of(sighting(**changes), NOW_MS) is None


def effect(**changes: Any) -> Effect:
    (one,) = judge(slow(3), SEATS, [throttle(3, **changes)], NOW_MS)
    return one


def told(one: Effect, health: NodeHealth | None = None, run_id: int = 7, now_ms: int = NOW_MS) -> HealthEvent:
    event = event_of(one, health, run_id=run_id, attempt=0, now_ms=now_ms)
    assert event is not None
    return event


def test_the_evidence_names_rank_node_device_how_much_and_why() -> None:
    event = told(effect())
    assert (event.rule, event.node, event.device, event.device_uuid) == ("gpu.slowing", "n0", 3, "GPU-3")
    assert event.message == "GPU 3 is throttled (heat) and its rank is 40% slower than usual"
    assert event.value == pytest.approx(1 / 1.4, abs=0.002)
    assert event.evidence[0] == (
        "rank 3 of run 7, attempt 0, on n0 computes 140.0 ms a step, the usual is 100.1 ms"
    )
    assert "80% of the last minute" in event.evidence[1]
    assert "92 °C" in event.evidence[2]


def test_points_come_with_the_effect_alone() -> None:
    assert {weight(sighting(rule=rule)) for rule in slowing.SLOWNESS} == {0.0}
    assert weight(told(effect())) == 4.0
    assert weight(told(effect(rule="gpu.throttled", severity=Severity.WARNING, value=0.2))) == 2.0


def test_the_power_brake_alone_is_the_facilitys() -> None:
    brake = effect(clock_reasons=0x88, component=Component.FACILITY)
    assert event_of(brake, None, run_id=7, attempt=0, now_ms=NOW_MS) is None
    assert "facility" in slowing.in_words(brake)


def test_the_same_attempt_says_the_same_and_another_run_says_it_again() -> None:
    first = told(effect())
    assert told(effect(), now_ms=NOW_MS + 3600_000).event_id == first.event_id
    assert told(effect(), now_ms=NOW_MS + slowing.DAY_MS).event_id != first.event_id
    health = NodeHealth(hits=(hit_of(first),))
    assert told(effect(), health).rule == "gpu.slowing"
    assert told(effect(), health, run_id=70).rule == "gpu.slowing_again"
    assert (
        told(effect(), replace(health, hits=(replace(health.hits[0], device=4),)), run_id=70).rule
        == "gpu.slowing"
    )


def test_since_when_a_rank_stands_out() -> None:
    rows = Rows()
    plain = dict.fromkeys(range(8), 100.0)
    for at_ms, factor in enumerate([1, 1.4, 1, 1, 1.4, 1.4, 1.4, 1.4, 1.4, 1.4]):
        rows.add({**plain, 5: 100.0 * factor}, at_ms)
    assert rows.since == {5: 1}
    for at_ms in range(10, 12):
        rows.add(plain, at_ms)
    assert rows.since == {5: 1}
    rows.add(plain, 12)
    assert rows.since == {}
    rows.add({**plain, 5: 140.0}, 13)
    assert rows.since == {5: 13}
    rows.add({0: 1.0, 1: 9.0}, 14)  # of two nobody can say
    assert rows.since == {5: 13}
