"""Which remedy comes first, and which after it: none for GPUs where the fault or the node has no GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airyard.core import commands as c
from airyard.core.actions import RunRemedy, RunRetest
from airyard.core.health import ladder, machine
from airyard.core.health.facts import CheckStatus, Component, HealthEvent, Remedy, Severity, Source
from airyard.core.health.states import HealthState, NodeHealth, RemedyOutcome
from core_yard import START_MS, Yard, node

RESET, REBOOT, CYCLE = Remedy.GPU_RESET, Remedy.REBOOT, Remedy.POWER_CYCLE


def carried_out(yard: Yard) -> list[Remedy]:
    """Return the remedies that are tried when none helps."""
    done, pending = [], list(yard.actions)
    while pending:
        action = pending.pop(0)
        if isinstance(action, RunRemedy):
            done.append(action.remedy)
            yard.do(c.RemedyDone(node="a", name=action.name, outcome=RemedyOutcome.SUCCEEDED))
        elif isinstance(action, RunRetest):
            yard.do(c.RetestDone(node="a", name=action.name, status=CheckStatus.FAIL))
        pending.extend(yard.actions)
    return done


@pytest.mark.parametrize(
    ("model", "component", "device", "asked", "tried"),
    [
        # A check of one's own on a slot of CPUs: a scratch disk that is not mounted.
        (None, Component.DISK, None, Remedy.NONE, [REBOOT, CYCLE, CYCLE]),
        ("H100", Component.DISK, None, Remedy.NONE, [REBOOT, CYCLE, CYCLE]),
        ("H100", Component.NETWORK, None, REBOOT, [REBOOT, CYCLE, CYCLE]),
        ("H100", Component.HOST, None, CYCLE, [CYCLE, CYCLE, CYCLE]),
        ("H100", Component.GPU, 0, Remedy.NONE, [RESET, REBOOT, CYCLE]),
        ("H100", Component.NVLINK, None, Remedy.NONE, [RESET, REBOOT, CYCLE]),
        ("H100", Component.HOST, None, RESET, [RESET, REBOOT, CYCLE]),
        (None, Component.GPU, 0, RESET, [REBOOT, CYCLE, CYCLE]),
    ],
)
def test_gpus_are_reset_only_for_a_fault_of_one(
    model: str | None, component: Component, device: int | None, asked: Remedy, tried: list[Remedy]
) -> None:
    yard = Yard(*(node(name, model) for name in "abcd"))
    fault = HealthEvent(
        event_id="e",
        rule="check.site.scratch",
        machine="a",
        node="a",
        at_ms=START_MS,
        component=component,
        severity=Severity.CRITICAL,
        source=Source.CHECK,
        message="not mounted",
        device=device,
        remedy=asked,
    )
    beside = HealthEvent(
        event_id="f",
        rule="gpu.pcie_replays",
        machine="a",
        node="a",
        at_ms=START_MS - 1,
        component=Component.GPU,
        severity=Severity.WARNING,
        source=Source.NVML,
        message="something of a GPU that decides nothing",
        device=0,
    )
    yard.do(c.HealthReported(events=(beside, fault)))
    yard.tick(1)
    yard.tick(1)
    assert carried_out(yard) == tried
    assert yard.state.health["a"].state is HealthState.RETIRED


def test_a_remedy_that_was_not_begun_is_the_next_one_again() -> None:
    yard = Yard(*(node(name, None) for name in "abcd"))
    fault = HealthEvent(
        event_id="e",
        rule="site.mount",
        machine="a",
        node="a",
        at_ms=START_MS,
        component=Component.DISK,
        severity=Severity.CRITICAL,
        source=Source.OPERATOR,
        message="not mounted",
    )
    yard.do(c.HealthReported(events=(fault,)))
    yard.tick(1)
    yard.tick(1)
    (first,) = yard.actions
    assert isinstance(first, RunRemedy)
    yard.do(c.RemedyDone(node="a", name=first.name, outcome=RemedyOutcome.TRANSIENT))
    yard.tick(60)
    (again,) = yard.actions
    assert isinstance(again, RunRemedy)
    assert (first.remedy, again.remedy) == (REBOOT, REBOOT)


def test_a_remedy_that_says_try_later_is_tried_later_and_never_scraps_its_node() -> None:
    """Exit status 75 of a command (EX_TEMPFAIL): three times was as good as three remedies that did not help."""
    yard = Yard(*(node(name, None) for name in "abcd"))
    fault = HealthEvent(
        event_id="e",
        rule="site.mount",
        machine="a",
        node="a",
        at_ms=START_MS,
        component=Component.DISK,
        severity=Severity.CRITICAL,
        source=Source.OPERATOR,
        message="not mounted",
    )
    yard.do(c.HealthReported(events=(fault,)))
    yard.tick(1)
    waits_s, names = [], []
    yard.tick(1)
    for _ in range(ladder.PUT_OFF_MOST):
        (asked,) = yard.actions
        assert isinstance(asked, RunRemedy)
        assert asked.remedy is REBOOT
        names.append(asked.name)
        yard.do(
            c.RemedyDone(
                node="a", name=asked.name, outcome=RemedyOutcome.TRANSIENT, message="75: BMC is busy"
            )
        )
        health = yard.state.health["a"]
        assert (health.state, health.remedies, health.remedied_ms) == (HealthState.QUARANTINED, 0, ())
        waits_s.append((health.not_before_ms - yard.now_ms) // 1000)
        yard.tick(waits_s[-1] - 1)
        assert yard.state.health["a"].state is HealthState.QUARANTINED
        yard.tick(1)
    assert waits_s == [60, 120, 240, 480, 960, 1800]
    assert len(set(names)) == len(names), (
        "an answer that comes late must not be taken for that of another try"
    )
    yard.tick(86_400)
    health = yard.state.health["a"]
    assert (health.state, yard.actions) == (HealthState.QUARANTINED, [])
    assert health.waits_for == "see why the REBOOT cannot be begun: it said so 6 times: 75: BMC is busy"


def test_tries_that_were_put_off_take_no_remedy_away() -> None:
    health = NodeHealth(state=HealthState.QUARANTINED, session=1)
    for number in range(1, ladder.ATTEMPTS + 1):
        health = machine.reserved(health, START_MS, gpus=False)
        health = machine.remedied(health, RemedyOutcome.TRANSIENT, "", START_MS)
        health = machine.reserved(health, START_MS, gpus=False)
        assert (health.state, health.remedies) == (HealthState.RESETTING, number)
        health = replace(health, state=HealthState.QUARANTINED)
    assert machine.beyond_cure(health, START_MS) == "3 remedies did not help"
    assert health.remedied_ms == (START_MS,) * 3


@pytest.mark.parametrize("in_test", [False, True])
def test_a_clock_that_is_set_ahead_makes_nothing_late_that_is_under_way(in_test: bool) -> None:
    yard = Yard(*(node(name, None) for name in "abcd"))
    fault = HealthEvent(
        event_id="e",
        rule="site.mount",
        machine="a",
        node="a",
        at_ms=START_MS,
        component=Component.DISK,
        severity=Severity.CRITICAL,
        source=Source.OPERATOR,
        message="not mounted",
    )
    yard.do(c.HealthReported(events=(fault,)))
    yard.tick(1)
    yard.tick(1)
    (action,) = yard.actions
    assert isinstance(action, RunRemedy)
    if in_test:
        yard.do(c.RemedyDone(node="a", name=action.name, outcome=RemedyOutcome.SUCCEEDED))
    state, hours = yard.state.health["a"].state, 3
    yard.later(hours * 3600).do(c.Tick(jumped_ms=hours * 3_600_000))
    assert yard.state.health["a"].state is state
    yard.tick(60)
    assert yard.state.health["a"].state is state
    # What is really late still is.
    yard.tick(ladder.RETEST_MS / 1000)
    assert yard.state.health["a"].state is HealthState.QUARANTINED
    assert "in time" in yard.state.health["a"].waits_for
