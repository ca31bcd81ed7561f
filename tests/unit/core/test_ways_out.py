"""Whatever a person asks of a node in whatever state: the step that is told is one that is taken, and leads to work.

What a node waits for, and until when, is what happens then.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable

import pytest

from airyard.core import commands as c
from airyard.core.actions import RunRemedy, RunRetest
from airyard.core.decide import Operated
from airyard.core.decide.awaiting import Awaiting
from airyard.core.errors import Conflict, Fix
from airyard.core.health import ladder
from airyard.core.health.facts import CheckStatus, Component, HealthEvent, Severity, Source
from airyard.core.health.states import WORKING, HealthState, RemedyOutcome
from airyard.core.health.waiting import Wait, WaitFor
from airyard.core.health.ways_out import in_words
from core_yard import Yard, node, workload

S = HealthState


def state_of(yard: Yard) -> HealthState:
    """Where the node is."""
    known = yard.state.health.get("a")
    return known.state if known is not None else S.HEALTHY


def fault(
    yard: Yard, severity: Severity = Severity.CRITICAL, *, name: str = "a", rule: str = "nic.down"
) -> None:
    """Have a monitor report one."""
    event = HealthEvent(
        event_id=f"{name}{yard.now_ms}{rule}",
        rule=rule,
        machine=name,
        node=name,
        at_ms=yard.now_ms,
        component=Component.NETWORK,
        severity=severity,
        source=Source.KERNEL,
        message="down",
    )
    yard.do(c.HealthReported(events=(event,)))


def answered(yard: Yard, remedy: RemedyOutcome, test: CheckStatus | None = None) -> None:
    """Answer what the node's cure asks for, until it asks for nothing that this has an answer to."""
    pending = list(yard.actions)
    for _ in range(10):
        if not pending:
            return
        action = pending.pop(0)
        if isinstance(action, RunRemedy):
            yard.do(c.RemedyDone(node="a", name=action.name, outcome=remedy))
        elif isinstance(action, RunRetest) and test is not None:
            yard.do(c.RetestDone(node="a", name=action.name, status=test))
        else:
            continue
        pending.extend(yard.actions)


def come_to(state: HealthState) -> Yard:
    """Return a yard whose node ``a`` came to a state as it does in life."""
    yard = Yard(*(node(name) for name in "abcde"))
    if state is S.HEALTHY:
        return yard
    if state in (S.MAINTENANCE, S.ENROLLING):
        yard.do(c.SetMaintenance(nodes=("a",), by="op", on=True))
        if state is S.ENROLLING:
            yard.do(c.SetMaintenance(nodes=("a",), by="op", on=False))
        return yard
    if state is S.SUSPECT:
        fault(yard, Severity.HIGH)
        return yard
    if state is S.DRAINING:
        yard.do(c.CordonNodes(nodes=tuple("bcde"), by="op"))
        yard.submit(workload("GPU_8xH100"))
        yard.place()
        yard.do(c.UncordonNodes(nodes=tuple("bcde"), by="op"))
    fault(yard)
    if state is S.DRAINING:
        return yard
    yard.tick(1)
    if state is S.QUARANTINED:
        return yard
    yard.tick(1)
    if state is S.RETIRED:
        answered(yard, RemedyOutcome.SUCCEEDED, CheckStatus.FAIL)
    elif state is S.RETESTING:
        answered(yard, RemedyOutcome.SUCCEEDED)
    elif state is S.PROBATION:
        answered(yard, RemedyOutcome.SUCCEEDED, CheckStatus.PASS)
    return yard


STATES = [state for state in S if state is not S.CORDONED]
"""A node is never seen in CORDONED: it is being emptied with the same word."""
VERBS: dict[str, Callable[[], c.Command]] = {
    "uncordon": lambda: c.UncordonNodes(nodes=("a",), by="op"),
    "cordon": lambda: c.CordonNodes(nodes=("a",), by="op"),
    "drain": lambda: c.DrainNodes(nodes=("a",), by="op"),
    "health acquit": lambda: c.AcquitNodes(nodes=("a",), by="op"),
    "health maintenance on": lambda: c.SetMaintenance(nodes=("a",), by="op", on=True),
    "health maintenance off": lambda: c.SetMaintenance(nodes=("a",), by="op", on=False),
    "confirm-dead": lambda: c.ConfirmDead(name="a", by="op"),
}


def typed(yard: Yard, line: str) -> None:
    """Do what a person types. What only looks changes nothing."""
    words = shlex.split(line)
    assert words[0] == "airyard"
    match words[1:]:
        case ["nodes", "a"]:
            return
        case ["health", "acquit", "a"]:
            yard.do(VERBS["health acquit"]())
        case ["health", "maintenance", "a", ("on" | "off") as word]:
            reply = yard.do(VERBS[f"health maintenance {word}"]()).reply
            assert isinstance(reply, Operated)
            assert reply.notes[0].changed, f"{line} does nothing"
        case ["drain", "a"]:
            yard.do(VERBS["drain"]())
        case _:
            pytest.fail(f"nobody knows {line!r}")


def commands_in(text: str) -> list[str]:
    """Return the commands that a text quotes."""
    return re.findall(r"`(airyard [^`]+)`", text)


def asked(yard: Yard, verb: str) -> tuple[str, list[str]]:
    """Ask for something; return why it was refused (empty: it was done), and all commands that are told."""
    try:
        reply = yard.do(VERBS[verb]()).reply
    except Conflict as refused:
        fix = refused.fix or Fix(text="")
        return refused.message, [fix.command or "", *commands_in(fix.text)]
    assert isinstance(reply, Operated)
    return "", [step for note in reply.notes for step in commands_in(note.message)]


@pytest.mark.parametrize("state", STATES, ids=lambda state: state.value)
@pytest.mark.parametrize("verb", VERBS)
def test_no_step_is_told_that_the_state_machine_refuses(state: HealthState, verb: str) -> None:
    yard = come_to(state)
    assert state_of(yard) is state
    refusal, steps = asked(yard, verb)
    assert "()" not in refusal
    if refusal and verb != "confirm-dead":
        assert in_words(state) in refusal
    for step in dict.fromkeys(steps):
        typed(come_to(state) if state_of(yard) is state else yard, step)


@pytest.mark.parametrize("state", STATES, ids=lambda state: state.value)
@pytest.mark.parametrize("verb", ["uncordon", "health acquit"])
def test_who_does_what_is_told_has_a_node_that_works_in_the_end(state: HealthState, verb: str) -> None:
    yard = come_to(state)
    for _ in range(5):
        if state_of(yard) in WORKING:
            break
        refusal, steps = asked(yard, verb)
        if refusal:
            typed(yard, steps[0])
        answered(yard, RemedyOutcome.SUCCEEDED, CheckStatus.PASS)
        yard.tick(60)
        answered(yard, RemedyOutcome.SUCCEEDED, CheckStatus.PASS)
        for run, attempt in list(yard.state.live_attempts()):
            yard.gone(f"{run.run_id}.{attempt.number}.0")
    assert state_of(yard) in WORKING
    assert asked(yard, "uncordon")[0] == ""


def awaited(yard: Yard, name: str = "a") -> Wait | None:
    """What the node waits for now."""
    return Awaiting(yard.state, yard.now_ms).of(name)


WAITS = {
    S.SUSPECT: WaitFor.TRUST,
    S.DRAINING: WaitFor.RUNS,
    S.RESETTING: WaitFor.REMEDY,
    S.RETESTING: WaitFor.TEST,
    S.PROBATION: WaitFor.TRUST,
    S.MAINTENANCE: WaitFor.PERSON,
    S.ENROLLING: WaitFor.TEST,
    S.RETIRED: WaitFor.PERSON,
}


@pytest.mark.parametrize("state", WAITS, ids=lambda state: state.value)
def test_what_a_node_waits_for_is_told_and_happens_when_it_is_said(state: HealthState) -> None:
    yard = come_to(state)
    wait = awaited(yard)
    assert wait is not None
    assert wait.what is WAITS[state]
    if wait.what is WaitFor.PERSON:
        steps = commands_in(wait.text)
        assert steps
        typed(yard, steps[0])
        assert state_of(yard) is not state
    elif wait.what is WaitFor.RUNS:
        drain = yard.state.cordons["a"].drain
        assert drain is not None
        assert wait.until_ms == drain.deadline_ms
    else:
        assert wait.until_ms is not None
        yard.now_ms = wait.until_ms - 1
        yard.tick()
        assert state_of(yard) is state
        yard.now_ms = wait.until_ms
        yard.tick()
        assert state_of(yard) is not state


def test_a_node_that_is_well_or_about_to_be_mended_waits_for_nothing() -> None:
    assert awaited(come_to(S.HEALTHY)) is None
    yard = come_to(S.QUARANTINED)
    assert awaited(yard) is None
    yard.tick()
    assert state_of(yard) is S.RESETTING


def test_a_node_that_came_back_and_failed_again_says_when_its_next_remedy_is() -> None:
    yard = come_to(S.PROBATION)
    yard.later(1)
    fault(yard)
    yard.tick()
    wait = awaited(yard)
    assert wait is not None
    assert (wait.what, wait.until_ms) == (WaitFor.BACK_OFF, yard.now_ms + ladder.BACK_OFF_MS)
    assert "strike 1" in wait.text
    yard.tick(ladder.BACK_OFF_MS / 1000 - 1)
    assert state_of(yard) is S.QUARANTINED
    yard.tick(1)
    assert state_of(yard) is S.RESETTING


def test_a_remedy_that_could_not_be_begun_says_when_it_is_tried_again() -> None:
    yard = come_to(S.RESETTING)
    answered(yard, RemedyOutcome.TRANSIENT)
    wait = awaited(yard)
    assert wait is not None
    assert (wait.what, wait.until_ms) == (WaitFor.BACK_OFF, yard.now_ms + ladder.MINUTE_MS)
    yard.tick(60)
    assert state_of(yard) is S.RESETTING


@pytest.mark.parametrize(
    ("remedy", "test"),
    [(RemedyOutcome.PERMANENT, None), (RemedyOutcome.SUCCEEDED, CheckStatus.UNKNOWN)],
)
def test_what_a_person_is_asked_for_names_the_step_that_follows(
    remedy: RemedyOutcome, test: CheckStatus | None
) -> None:
    yard = come_to(S.RESETTING)
    answered(yard, remedy, test)
    wait = awaited(yard)
    assert wait is not None
    assert (state_of(yard), wait.what) == (S.QUARANTINED, WaitFor.PERSON)
    typed(yard, commands_in(wait.text)[0])
    assert state_of(yard) is S.PROBATION


def test_who_waits_for_other_nodes_or_for_the_breaker_says_so() -> None:
    yard = Yard(*(node(name) for name in "abcdefghij"))
    for name in "ab":
        fault(yard, name=name, rule=f"disk.{name}")
    yard.tick(1)
    yard.tick(1)
    assert state_of(yard) is S.RESETTING
    wait = awaited(yard, "b")
    assert wait is not None
    assert (wait.what, wait.until_ms) == (WaitFor.BUDGET, None)
    for name in "cdef":
        fault(yard, Severity.HIGH, name=name, rule="fan")
    fault(yard, name="g", rule="fan")
    assert list(yard.state.breakers) == ["GPU_8xH100"]
    wait = awaited(yard, "b")
    assert wait is not None
    assert wait.what is WaitFor.BREAKER
    assert commands_in(wait.text) == ["airyard health breaker reset --pool GPU_8xH100"]
    answered(yard, RemedyOutcome.SUCCEEDED, CheckStatus.PASS)
    yard.do(c.ResetBreaker(by="op", pool="GPU_8xH100"))
    held = awaited(yard, "g")
    assert held is not None
    assert held.what is WaitFor.BUDGET
