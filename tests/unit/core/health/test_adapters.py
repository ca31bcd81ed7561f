"""Which adapters of two machines correspond, and which of them is slow beside its like."""

from __future__ import annotations

from airyard.core.health.adapters import MOST, Adapter, LaneRead, lanes, slow_lane
from airyard.core.health.fabric import Measured, Outcome, against
from airyard.core.health.tournament import Pair


def adapter(name: str, address: str, kind: str = "physical 100000 9000") -> Adapter:
    return Adapter(name=name, address=address, kind=kind)


def machine(number: int) -> list[Adapter]:
    return [adapter(f"eth{place}", f"10.{place}.0.{number}/24") for place in range(3)]


def read(name: str, gb_s: float = 10.0, kind: str = "k", problem: str = "") -> LaneRead:
    return LaneRead(a=name, b=name, kind=kind, gb_s=gb_s, problem=problem)


def test_what_is_alone_in_a_subnet_of_both_corresponds() -> None:
    found = lanes(machine(1), machine(2))
    assert [(one.mine, one.theirs, one.source, one.host) for one in found][:2] == [
        ("eth0", "eth0", "10.0.0.1", "10.0.0.2"),
        ("eth1", "eth1", "10.1.0.1", "10.1.0.2"),
    ]
    assert len(found) == 3
    # Two in one subnet: nobody knows which of them packets take.
    twice = [*machine(1), adapter("eth9", "10.2.0.9/24")]
    assert [one.mine for one in lanes(twice, machine(2))] == ["eth0", "eth1"]
    many = [
        [adapter(f"e{place:02}", f"10.{place}.0.{number}/24") for place in range(MOST + 3)]
        for number in (1, 2)
    ]
    assert len(lanes(many[0], many[1])) == MOST


def test_one_of_its_kind_or_the_same_address_is_not_compared() -> None:
    other = [adapter("eth0", "10.0.0.2/24"), adapter("eth1", "10.1.0.2/24", "physical 1000 1500")]
    assert lanes(machine(1), other) == ()
    assert lanes(machine(1), machine(1)) == ()
    assert lanes(machine(1)[:1], machine(2)) == ()


def test_less_than_half_of_its_like_is_slow_and_named() -> None:
    assert slow_lane([read("e0"), read("e1", 5.0)], "n1", "n2") == ""
    said = slow_lane([read("e0"), read("e1", 4.9)], "n1", "n2")
    assert said == "adapter e1 of n1 with e1 of n2: 4.9 GB/s, others of its kind have 10"
    assert slow_lane([read("e0"), read("e1", 0.1, kind="slower")], "n1", "n2") == ""
    assert "no way" in slow_lane([read("e0"), read("e1", 0.0, problem="no way")], "n1", "n2")
    # Where nothing passes at all it is no matter of one adapter.
    assert slow_lane([read("e0", problem="no way"), read("e1", problem="no way")], "n1", "n2") == ""


def test_a_pair_fails_by_one_adapter() -> None:
    well = Measured(
        pair=Pair(a="n1", b="n2"), busbw_gb_s=10.0, latency_p95_us=9.0, adapters=(read("e0"), read("e1"))
    )
    assert against(well, ()).outcome is Outcome.PASS
    slow = Measured(
        pair=well.pair, busbw_gb_s=10.0, latency_p95_us=9.0, adapters=(read("e0"), read("e1", 1.0))
    )
    assert (against(slow, ()).outcome, "adapter e1 of n1" in against(slow, ()).why) == (Outcome.FAIL, True)
