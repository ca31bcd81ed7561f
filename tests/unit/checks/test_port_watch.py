"""RDMA ports: the time that they are down counts, not how often; counters count when they grow."""

from __future__ import annotations

from typing import Any

import pytest

from airyard.checks.port_watch import PortReading, PortWatch

UP, DOWN = True, False


def port(up: bool = UP, **counters: int) -> PortReading:
    return PortReading(name="mlx5_0/1", up=up, counters=counters)


def looked(*states: Any, every_s: float = 1.0, watch: PortWatch | None = None) -> list[str]:
    """Look once a second; each state is a reading, or None for an adapter that is away."""
    watch = watch or PortWatch()
    return [
        one.rule
        for turn, state in enumerate(states)
        for one in watch.look([] if state is None else [state], int(turn * every_s * 1000))
    ]


def test_a_port_that_is_up_says_nothing() -> None:
    assert looked(*[port()] * 600) == []


def test_one_outage_of_half_of_what_nccl_waits_is_told_of_once() -> None:
    assert looked(port(), *[port(DOWN)] * 14, port()) == []
    assert looked(port(), *[port(DOWN)] * 20, port(), port()) == ["rdma.down"]


def test_short_flaps_are_harmless_until_they_add_up() -> None:
    flap = [port(DOWN), port(UP)]
    assert looked(port(), *flap * 29) == []
    assert looked(port(), *flap * 30) == ["rdma.downtime"]


def test_a_day_later_an_outage_is_forgotten() -> None:
    watch = PortWatch()
    times = [(0, UP), (1, DOWN), (21, UP), (90_000, UP), (90_001, DOWN), (90_012, UP)]
    found = [one.rule for at, up in times for one in watch.look([port(up)], at * 1000)]
    assert found == []


def test_a_port_that_stays_down_takes_the_node_out() -> None:
    found = looked(port(), *[port(DOWN)] * 300)
    assert [found.count(rule) for rule in ("rdma.down", "rdma.gone")] == [1, 1]


def test_a_port_without_a_cable_is_nobodys_fault() -> None:
    assert looked(*[port(DOWN)] * 600) == []


def test_an_adapter_that_vanishes_is_missed_at_the_third_look() -> None:
    assert looked(port(), None, None, port(), None, None) == []
    assert looked(port(), None, None, None, None) == ["rdma.gone"]
    assert looked(port(DOWN), None, None, None, None) == []


def test_a_flap_between_two_looks_counts_by_its_counter() -> None:
    assert looked(*[port(link_downed=number) for number in range(30)], every_s=5) == []
    assert looked(*[port(link_downed=number) for number in range(31)], every_s=5) == ["rdma.downtime"]


def test_counters_that_were_high_before_were_reset_or_leapt_say_nothing() -> None:
    assert looked(port(local_link_integrity_errors=900), port(local_link_integrity_errors=900)) == []
    assert looked(port(local_link_integrity_errors=9), port(local_link_integrity_errors=1)) == []
    assert looked(port(symbol_error=0), port(symbol_error=1 << 40)) == []
    assert looked(port(symbol_error=1), port(), port(symbol_error=2)) == []


def test_fatal_counters_and_many_symbol_errors() -> None:
    grows = looked(port(excessive_buffer_overrun_errors=1), port(excessive_buffer_overrun_errors=2))
    assert grows == ["rdma.errors"]
    assert looked(port(rnr_nak_retry_err=0), port(rnr_nak_retry_err=1)) == ["rdma.errors"]
    assert looked(*[port(symbol_error=60 * number) for number in range(3)], every_s=60) == []
    assert looked(*[port(symbol_error=61 * number) for number in range(3)], every_s=60) == ["rdma.symbols"]
    assert looked(*[port(symbol_error=61 * number) for number in range(9)], every_s=3600) == []


@pytest.mark.parametrize(
    ("counter", "calm", "fast"),
    [("link_error_recovery", 5, 6), ("roce_slow_restart", 600, 601)],
)
def test_a_link_that_errs_fast_wears_and_is_grave_at_the_third_minute_of_an_hour(
    counter: str, calm: int, fast: int
) -> None:
    def severities(each_minute: int, every_s: int) -> list[str]:
        watch, found = PortWatch(), []
        for turn in range(5):
            grown = each_minute * turn * max(every_s, 60) // 60
            found += watch.look([port(**{counter: grown})], turn * every_s * 1000)
        assert {one.rule for one in found} <= {"rdma.wears"}
        return [one.severity.value for one in found]

    assert severities(calm, 60) == []
    assert severities(fast, 60) == ["WARNING", "WARNING", "HIGH", "HIGH"]
    assert severities(fast, 1_860) == ["WARNING"] * 4


def test_errors_that_come_within_seconds_are_one_bad_minute() -> None:
    assert looked(*[port(link_error_recovery=6 * number) for number in range(20)]) == ["rdma.wears"]
    assert looked(*[port(link_error_recovery=number) for number in range(40)], every_s=12) == []
    assert looked(*[port(link_error_recovery=40 * number) for number in range(4)], every_s=600) == []
