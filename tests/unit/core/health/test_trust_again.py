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


def test_good_runs_do_not_clear_a_node_on_probation_that_only_a_budget_keeps_at_work() -> None:
    health = NodeHealth(state=HealthState.PROBATION, since_ms=0, clean=ladder.CLEAN_RUNS - 1)
    assert machine.ran_well(health, 2_000).state is HealthState.HEALTHY
    kept = machine.reported(health, [hit(confirmed=True, weight=8.0)], 2_000)
    assert machine.ran_well(kept, 3_000) is kept


def test_a_test_in_pairs_has_the_time_to_wait_for_idle_nodes() -> None:
    health = NodeHealth(state=HealthState.RETESTING, since_ms=0, remedy=Remedy.REBOOT, retest=Retest.T4)
    assert machine.aged(health, ladder.RETEST_MS + 35 * MINUTE_MS) is health
    assert machine.aged(health, ladder.retest_ms(Retest.T4)).state is HealthState.QUARANTINED


def passed(health: NodeHealth, at_ms: int) -> NodeHealth:
    """Return the record after the tests that it needs, all passed."""
    for _ in range(ladder.PASSES):
        health = machine.retested(health, CheckStatus.PASS, "", at_ms)
    return health


def given_back(health: NodeHealth, at_ms: int) -> NodeHealth:
    """Return the record of a node that a person took over and gives back."""
    return machine.maintained(machine.maintained(health, at_ms, on=True), at_ms, on=False)


SOFT = replace(hit(confirmed=True), event_id="e2", rule="s", retest=Retest.T2, at_ms=5_000)


def test_the_level_of_a_test_is_that_of_the_faults_since_the_node_worked_last() -> None:
    grave = replace(hit(confirmed=True, weight=8.0), retest=Retest.T4)
    out = machine.cordoned(machine.reported(NodeHealth(), [grave], 2_000), 2_000)
    more = machine.reported(out, [SOFT], 5_000)
    assert (out.retest, more.retest) == (Retest.T4, Retest.T4)
    for back in (
        passed(replace(more, state=HealthState.RETESTING), 6_000),
        machine.acquitted(more, 6_000),
        passed(given_back(more, 6_000), 6_000),
    ):
        assert back.retest is Retest.T1
        assert given_back(back, 7_000).retest is Retest.T1
        # Once more, by another rule, after the cure.
        again = machine.reported(back, [replace(SOFT, event_id="e3", at_ms=8_000)], 8_000)
        assert again.retest is Retest.T2
    # A record of an older release has kept it on a node that is well.
    old = NodeHealth(state=HealthState.HEALTHY, retest=Retest.T4)
    assert given_back(old, 7_000).retest is Retest.T1
    assert machine.reported(old, [SOFT], 5_000).retest is Retest.T2


def test_what_a_person_takes_over_keeps_the_level_of_its_faults_until_a_test_was_passed() -> None:
    grave = replace(hit(confirmed=True, weight=8.0), retest=Retest.T4)
    suspect = machine.suspected(machine.reported(NodeHealth(), [grave], 2_000), 2_000)
    enrolling = given_back(suspect, 3_000)
    assert enrolling.retest is Retest.T4
    untold = machine.retested(enrolling, CheckStatus.UNKNOWN, "", 4_000)
    assert given_back(untold, 5_000).retest is Retest.T4


def test_a_node_that_a_person_gave_back_is_not_taken_for_one_that_fails_for_the_second_time() -> None:
    lost = replace(hit(confirmed=True, weight=8.0), rule="xid.79")
    out = machine.cordoned(machine.reported(NodeHealth(), [lost], 2_000), 2_000)
    well = passed(given_back(replace(out, state=HealthState.QUARANTINED), 3_000), 4_000)
    assert (well.state, well.rule, well.past_rules) == (HealthState.HEALTHY, "", ())
    again = machine.reported(well, [replace(lost, event_id="e9", at_ms=5_000)], 5_000)
    assert machine.beyond_cure(machine.cordoned(again, 5_000), 6_000) == ""


def test_a_fault_counts_although_the_clock_was_ahead_when_the_last_one_was_cured() -> None:
    first = replace(hit(confirmed=True, weight=8.0), at_ms=10_000_000)
    out = machine.cordoned(machine.reported(NodeHealth(), [first], 10_000_000), 10_000_000)
    back = passed(replace(out, state=HealthState.RETESTING), 10_000_000)
    # In order, what is older than the cure was settled by it.
    early = replace(first, event_id="e2", at_ms=9_000_000)
    assert machine.reported(back, [early], 11_000_000) is back
    # The clock was set right, or another server leads whose clock is behind.
    new = replace(first, event_id="e3", at_ms=5_000_000)
    assert machine.verdict(machine.reported(back, [new], 5_000_000)) is HealthState.CORDONED
    assert machine.reported(back, [replace(first, at_ms=5_000_000)], 5_000_000) is back
