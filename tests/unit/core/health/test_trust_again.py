"""On the way back to work: each test has its own time, and what a job prints ends no probation."""

from __future__ import annotations

from dataclasses import replace

from airyard.core.health import ladder, machine
from airyard.core.health.facts import CheckStatus, Remedy, Retest, Severity
from airyard.core.health.states import HealthState, Hit, NodeHealth

MINUTE_MS = 60_000


def hit(*, confirmed: bool, weight: float = 4.0) -> Hit:
    return Hit(
        event_id="e1",
        rule="r",
        weight=weight,
        at_ms=1_000,
        confirmed=confirmed,
        severity=Severity.HIGH,
    )


def test_two_long_tests_each_have_the_whole_deadline() -> None:
    for state in (HealthState.RETESTING, HealthState.ENROLLING):
        health = NodeHealth(state=state, since_ms=0, remedy=Remedy.REBOOT)
        at_ms = ladder.RETEST_MS - MINUTE_MS
        assert machine.aged(health, at_ms) is health
        once = machine.retested(health, CheckStatus.PASS, "", at_ms)
        assert once.state is state
        assert machine.aged(once, at_ms + ladder.RETEST_MS - MINUTE_MS) is once
        late = machine.aged(once, at_ms + ladder.RETEST_MS)
        assert late.state is HealthState.QUARANTINED


def test_on_probation_a_confirmed_suspicion_is_enough() -> None:
    health = NodeHealth(state=HealthState.PROBATION, since_ms=0)
    suspected = machine.reported(health, [hit(confirmed=True)], 2_000)
    assert machine.verdict(suspected) is HealthState.CORDONED


def test_on_probation_what_a_job_prints_takes_no_node_out() -> None:
    health = NodeHealth(state=HealthState.PROBATION, since_ms=0)
    printed = machine.reported(health, [hit(confirmed=False, weight=8.0)], 2_000)
    assert machine.verdict(printed) is None
    little = machine.reported(
        printed, [replace(hit(confirmed=True, weight=2.0), event_id="e2", rule="s")], 3_000
    )
    assert machine.verdict(little) is None


def test_a_test_in_pairs_has_the_time_to_wait_for_idle_nodes() -> None:
    health = NodeHealth(state=HealthState.RETESTING, since_ms=0, remedy=Remedy.REBOOT, retest=Retest.T4)
    assert machine.aged(health, ladder.RETEST_MS + 35 * MINUTE_MS) is health
    assert machine.aged(health, ladder.retest_ms(Retest.T4)).state is HealthState.QUARANTINED
