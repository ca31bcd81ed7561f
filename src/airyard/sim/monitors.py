"""What monitors report of the nodes of a simulated yard, what remedies and tests come to, and who cleans up after.

Owns: which faults are seen where and when, how often they are told. Must not know: what follows. A fault may be told
again, late, of a node that is well, or of a whole pool at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airyard.core.actions import RunRemedy, RunRetest
from airyard.core.commands import (
    AcquitNodes,
    Command,
    HealthReported,
    IdleTestDone,
    RemedyDone,
    ResetBreaker,
    RetestDone,
    SetMaintenance,
    SweepDone,
)
from airyard.core.errors import AiryardError
from airyard.core.health.facts import CheckStatus, Component, HealthEvent, Remedy, Severity, Source
from airyard.core.health.idle import IdleTest
from airyard.core.health.idle_records import SweepNote, TestNote
from airyard.core.health.states import WORKING, HealthState, RemedyOutcome
from airyard.sim.chance import Chance
from airyard.sim.people import People
from airyard.sim.setting import Setting
from airyard.sim.truth import Truth

if TYPE_CHECKING:
    from airyard.core.cluster import Node

REPORTS = 4
FAULTS = (
    ("xid.79", 79, 0, Severity.CRITICAL, Remedy.REBOOT),
    ("xid.48", 48, 0, Severity.CRITICAL, Remedy.GPU_RESET),
    ("host.panic", None, None, Severity.CRITICAL, Remedy.REBOOT),
    ("nic.down", None, None, Severity.HIGH, Remedy.REBOOT),
    ("disk.slow", None, None, Severity.WARNING, Remedy.NONE),
)
"""Rule, Xid, device, severity, what it asks for."""


class Monitors:
    """Everything that watches nodes, and the person who closes what it opened."""

    def __init__(self, setting: Setting, people: People, truth: Truth, nodes: Sequence[Node]) -> None:
        self._setting = setting
        self._people = people
        self._truth = truth
        self._nodes = nodes
        self._told = 0

    def begin(self, within_ms: int) -> None:
        """See a few faults within a time; in some worlds on every node, in others idle nodes are tested, too."""
        chance = self._setting.chance
        if not chance.roll(0.4):
            return
        for _ in range(chance.between(1, REPORTS)):
            self._setting.later(chance.between(0, within_ms), self._see)
        if chance.roll(0.4):
            self._setting.later(chance.between(0, within_ms), self._flood)
        else:
            self._setting.later(chance.between(0, within_ms), self._test_idle)

    def _see(self) -> None:
        chance = self._setting.chance
        if chance.healed:
            return
        state = self._truth.state
        in_use = sorted(
            {m.node for _, attempt in state.live_attempts() for m in attempt.members if not m.released}
        )
        names = in_use if in_use and chance.roll(0.8) else [node.name for node in self._nodes]
        event = self._event(chance.pick(names), chance.between(0, len(FAULTS) - 1))
        for _ in range(chance.between(1, 2)):
            self._ask("report", HealthReported(events=(event,)))

    def _flood(self) -> None:
        if self._setting.chance.healed:
            return
        fault = self._setting.chance.between(0, len(FAULTS) - 1)
        events = tuple(self._event(node.name, fault) for node in self._nodes)
        self._ask("report", HealthReported(events=events))

    def _test_idle(self) -> None:
        """Tell what became of a test of one node and of a sweep over all, well or ill; they may be in use by now."""
        chance, at_ms = self._setting.chance, self._setting.time.now_ms()
        if chance.healed:
            return
        names = [node.name for node in self._nodes]
        name, status = (
            chance.pick(names),
            chance.pick((CheckStatus.PASS, CheckStatus.FAIL, CheckStatus.UNKNOWN)),
        )
        test = TestNote(kind=chance.pick((IdleTest.LIGHT, IdleTest.DEEP)), at_ms=at_ms, status=status)
        fault = (self._event(name, chance.between(0, len(FAULTS) - 1)),) if status is CheckStatus.FAIL else ()
        self._ask("idle test", IdleTestDone(node=name, test=test, events=fault))
        bad = (name,) if chance.roll(0.5) else ()
        sweep = SweepNote(
            number=0,
            at_ms=at_ms,
            tests=5,
            certified=tuple(other for other in names if other not in bad),
            bad=bad,
        )
        self._ask("sweep", SweepDone(pool=self._truth.state.policy.pool_of(self._nodes[0]), sweep=sweep))

    def _event(self, node: str, fault: int) -> HealthEvent:
        rule, code, device, severity, remedy = FAULTS[fault]
        self._told += 1
        machine = next(one.machine for one in self._nodes if one.name == node)
        return HealthEvent(
            event_id=f"{rule}-{self._told}",
            rule=rule,
            machine=machine,
            node=node,
            at_ms=self._setting.time.now_ms(),
            component=Component.HOST if device is None else Component.GPU,
            severity=severity,
            source=Source.KERNEL,
            message=f"{rule} was seen",
            device=device,
            code=code,
            remedy=remedy,
        )

    def mend(self) -> None:
        """After the trouble a person sees to every node that does not work: nobody else brings them all back."""
        state = self._truth.state
        if state.breakers:
            self._ask("reset the breaker", ResetBreaker(by="op"))
        for name, health in sorted(state.health.items()):
            if health.state is HealthState.QUARANTINED:
                self._ask("acquit", AcquitNodes(nodes=(name,), by="op"))
            elif health.state is HealthState.MAINTENANCE:
                self._ask("maintenance off", SetMaintenance(nodes=(name,), by="op", on=False))
            elif health.state is HealthState.RETIRED:
                self._ask("maintenance on", SetMaintenance(nodes=(name,), by="op", on=True))

    def unhealthy(self) -> set[str]:
        """Return the nodes that are out for their health: an operator cannot just open them."""
        return {name for name, health in self._truth.state.health.items() if health.state not in WORKING}

    def _ask(self, what: str, command: Command) -> None:
        def then(answer: Any) -> None:
            refused = " refused" if isinstance(answer, AiryardError) else ""
            self._setting.chance.seen[f"monitors: {what}{refused}"] += 1

        self._people.ask(command, then)


def outcome_of(action: RunRemedy | RunRetest, chance: Chance) -> RemedyDone | RetestDone:
    """Return what a remedy or a test comes to: as a rule it does what it should, after the trouble always."""
    well = chance.healed or chance.roll(0.7)
    if isinstance(action, RunRemedy):
        outcome = RemedyOutcome.SUCCEEDED if well else chance.pick(tuple(RemedyOutcome))
        return RemedyDone(node=action.node, name=action.name, outcome=outcome)
    status = CheckStatus.PASS if well else chance.pick(tuple(CheckStatus))
    return RetestDone(node=action.node, name=action.name, status=status)
