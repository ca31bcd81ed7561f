"""What a node that is not well waits for, and until when: a time, room in the budgets, a test, a person.

Owns: that answer for each state; a quarantined node is mended exactly when it waits for nothing. Must not know: who
asks, other nodes (``Fleet`` says what of them counts). Pure: time is an argument.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from airyard.core.health import budget, ladder, machine
from airyard.core.health.budget import Fleet
from airyard.core.health.states import HealthState, NodeHealth
from airyard.core.health.ways_out import way_out

_S = HealthState


class WaitFor(Enum):
    """What has to happen before the next move."""

    RUNS = "RUNS"
    """The runs on it leave."""
    BACK_OFF = "BACK_OFF"
    """A time, before the next remedy."""
    BUDGET = "BUDGET"
    """Other nodes of its pool come back first."""
    BREAKER = "BREAKER"
    """A person closes its pool's breaker."""
    REMEDY = "REMEDY"
    TEST = "TEST"
    TRUST = "TRUST"
    """It works, and is watched."""
    PERSON = "PERSON"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """What a node waits for. ``until_ms``: when that is over at the latest, by itself; None where nobody knows."""

    what: WaitFor
    text: str
    until_ms: int | None = None


def waits(
    node: str,
    health: NodeHealth,
    now_ms: int,
    fleet: Callable[[], Fleet],
    *,
    pool: str = "",
    empty_by_ms: int | None = None,
) -> Wait | None:
    """Return what a node waits for; None when it is well, or goes on at the next tick."""
    since_ms = health.since_ms
    match health.state:
        case _S.SUSPECT | _S.PROBATION if machine.verdict(health) is _S.CORDONED:
            return Wait(what=WaitFor.BUDGET, text="it is taken out when the budgets of its pool allow it")
        case _S.SUSPECT:
            return Wait(
                what=WaitFor.TRUST,
                text="watched until nothing more was seen for a day",
                until_ms=since_ms + ladder.SUSPECT_MS,
            )
        case _S.CORDONED | _S.DRAINING:
            return Wait(what=WaitFor.RUNS, text="its runs leave", until_ms=empty_by_ms)
        case _S.QUARANTINED:
            return before_remedy(node, health, now_ms, fleet, pool=pool)
        case _S.RESETTING:
            span_ms = ladder.DEADLINE_MS.get(health.remedy, ladder.RETEST_MS)
            said = f"{health.remedy.value}, remedy {health.remedies} of {ladder.ATTEMPTS}"
            return Wait(what=WaitFor.REMEDY, text=said, until_ms=since_ms + span_ms)
        case _S.RETESTING | _S.ENROLLING:
            said = f"test {health.retest.value}, {health.passes} of {ladder.PASSES} passed"
            return Wait(what=WaitFor.TEST, text=said, until_ms=since_ms + ladder.retest_ms(health.retest))
        case _S.PROBATION:
            said = f"{health.clean} of {ladder.CLEAN_RUNS} runs ended well on it"
            return Wait(what=WaitFor.TRUST, text=said, until_ms=since_ms + ladder.PROBATION_MS)
        case _S.MAINTENANCE | _S.RETIRED:
            return Wait(what=WaitFor.PERSON, text=for_person(node, health))
        case _S.HEALTHY:
            return None


def before_remedy(
    node: str, health: NodeHealth, now_ms: int, fleet: Callable[[], Fleet], *, pool: str = ""
) -> Wait | None:
    """Return what a quarantined node waits for before it is mended or retired; None: now."""
    if health.waits_for:
        return Wait(what=WaitFor.PERSON, text=for_person(node, health))
    # Where nothing is tried any more there is nothing to wait for: a person is told now.
    end = machine.beyond_cure(health, now_ms)
    if not end and now_ms < health.not_before_ms:
        return Wait(what=WaitFor.BACK_OFF, text=_why_later(health), until_ms=health.not_before_ms)
    there = fleet()
    if there.breaker_open:
        of_pool = f" of {pool}" if pool else ""
        close = "airyard health breaker reset" + (f" --pool {pool}" if pool else "")
        return Wait(
            what=WaitFor.BREAKER, text=f"the breaker{of_pool} is open: `{close}` when somebody has looked"
        )
    if not end and not budget.may_remedy(there):
        said = f"{there.remedies} of {there.nodes} nodes of its pool are being mended, as many as may be at a time"
        return Wait(what=WaitFor.BUDGET, text=said)
    return None


def for_person(node: str, health: NodeHealth) -> str:
    """Return what a person has to do, with the command that follows; empty while it goes on by itself."""
    if health.state in (_S.MAINTENANCE, _S.RETIRED) or health.waits_for:
        asked, step = health.waits_for, way_out(node, health.state).text
        if "`airyard health" in asked:
            return asked
        return f"{asked}; {step}" if asked else step
    return ""


def _why_later(health: NodeHealth) -> str:
    if health.attempt:
        return "the last remedy could not be begun"
    return f"it came back and failed again (strike {health.strikes})"
