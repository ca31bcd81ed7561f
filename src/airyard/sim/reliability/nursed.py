"""Nodes in the care of the production control plane: monitors report, it judges, remedies and tests answer.


Owns: what monitors see and when, what remedies and tests come to. Must not know: rules of health: every change of a
node's state is a decision of ``decide``, applied to a real ``ClusterState``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from random import Random

from airyard.core import commands
from airyard.core.actions import Action, RunRemedy, RunRetest
from airyard.core.cluster import Device, Machine, Node
from airyard.core.decide import decide
from airyard.core.events import (
    BreakerOpened,
    Event,
    NodeCordoned,
    NodeHealthChanged,
    NodeUncordoned,
    Recorded,
)
from airyard.core.health import machine
from airyard.core.health.facts import (
    CheckStatus,
    Component,
    HealthEvent,
    Remedy,
    Retest,
    Severity,
    Source,
)
from airyard.core.health.states import TAKEN_OUT, WORKING, HealthState, NodeHealth, RemedyOutcome
from airyard.core.run import Cause
from airyard.core.state import ClusterState
from airyard.sim.reliability.draws import Alarm, Noise
from airyard.sim.reliability.world import Ill, World

START_MS = 1_700_000_000_000
SOON_S, RARELY_S = 30.0, 600.0
"""Ticks while a cure is waiting for one, and else. In production it is one a second."""
_SOURCES = {
    "kernel": Source.KERNEL,
    "nvml": Source.NVML,
    "rdma": Source.RDMA,
    "host": Source.HOST,
    "slow": Source.CHECK,
}
_MOVES_BY_TICK = frozenset({HealthState.CORDONED, HealthState.DRAINING, HealthState.QUARANTINED})


class Nursed:
    """The control plane's part in a world."""

    def __init__(self, world: World, seed: int) -> None:
        self.world = world
        self.known = world.known
        self.state = ClusterState()
        self._chance = Random(f"{seed}/nursed")
        self._number = 0
        self._ticks_at_s = float("inf")
        self._in_service = set(world.nodes)
        self._visited: set[str] = set()
        self._touched: set[str] = set()
        """Nodes that a person had in their hands since they were taken out."""
        self._struck_s: dict[int, float] = {}
        """The number of a fault → when it struck last."""
        self._seeing: Ill | None = None
        """What is being reported just now, if it is there."""
        self._at_start = False
        self._do(commands.BeginEpoch(version="sim"))
        for name in world.nodes:
            seen = commands.MachineSeen(
                machine=Machine(name=name, boot_id="1", address=name), nodes=(_node(name),), members=()
            )
            self._do(seen)
        world.after(RARELY_S, self._tick)

    @property
    def _now_ms(self) -> int:
        return START_MS + int(self.world.now_s * 1000)

    # The control plane.

    def _do(self, command: commands.Command) -> None:
        """Decide and apply, as the control loop does; then what follows in the world."""
        decision = decide(self.state, command, self._now_ms)
        changes = []
        for event in decision.events:
            before = self._health(event.node).state if isinstance(event, NodeHealthChanged) else None
            said = Recorded(seq=self.state.seq + 1, epoch=self.state.epoch, at_ms=self._now_ms, event=event)
            self.state.apply(said)
            if isinstance(event, NodeHealthChanged | NodeCordoned | NodeUncordoned):
                self._note_service(event.node)
            changes.append((event, before))
        for event, before in changes:
            self._follow(event, before)
        for action in decision.actions:
            self._act(action)
        if any(self._waits_for_tick(health) for health in self.state.health.values()):
            self._tick_at(self.world.now_s + SOON_S)

    def _note_service(self, node: str) -> None:
        if not self.state.nodes[node].cordoned and self._health(node).state in WORKING:
            self._in_service.add(node)
        else:
            self._in_service.discard(node)

    def _health(self, node: str) -> NodeHealth:
        return self.state.health.get(node, NodeHealth())

    @staticmethod
    def _waits_for_tick(health: NodeHealth) -> bool:
        return health.state in _MOVES_BY_TICK and not health.waits_for

    def _tick_at(self, at_s: float) -> None:
        if at_s < self._ticks_at_s:
            self._ticks_at_s = at_s
            self.world.at(at_s, self._tick)

    def _tick(self) -> None:
        if self.world.now_s < self._ticks_at_s < float("inf"):
            return  # an earlier one was asked for meanwhile, and this is the later
        self._ticks_at_s = float("inf")
        self._do(commands.Tick())
        self._tick_at(self.world.now_s + RARELY_S)

    # What follows from its decisions.

    def _follow(self, event: Event, before: HealthState | None) -> None:
        if isinstance(event, BreakerOpened):
            self.world.tally.breakers += 1
            self.world.after(
                self.known.person["breaker_h"] * 3600,
                lambda: self._do(commands.ResetBreaker(pool=event.pool, by="person")),
            )
        if not isinstance(event, NodeHealthChanged) or before is None:
            return
        node, after = event.node, event.health.state
        if after is HealthState.CORDONED and before is not HealthState.CORDONED:
            self._taken_out(node, event.health)
        elif before not in WORKING and after in WORKING:
            self._works_again(node)
        waits = bool(event.health.waits_for) or after is HealthState.RETIRED
        if waits and node not in self._visited:
            self._visited.add(node)
            self.world.after(
                self.world.between(self.known.person["repair_h"]) * 3600, partial(self._visit, node)
            )

    def _taken_out(self, node: str, health: NodeHealth) -> None:
        tally = self.world.tally
        ills = self.world.lasting(node)
        tally.cordons += 1
        tally.false_cordons += not ills
        critical = machine.is_critical(health)
        if self._seeing is not None and critical:
            kernel = self._seeing.fault.kind.channel == "kernel"
            spans = tally.kernel_to_cordon_s if kernel else tally.polled_to_cordon_s
            if self._at_start:
                tally.found_at_start += (
                    1  # that says nothing of how fast monitors are: this one may have missed it
                )
            else:
                spans.append(self.world.now_s - self._struck_s[self._seeing.fault.number])
        # After this decision is applied as a whole.
        self.world.after(0.0, partial(self.world.stop if critical else self.world.leave, node))

    def _works_again(self, node: str) -> None:
        tally = self.world.tally
        helped = node in self._touched
        tally.returned_helped += helped
        tally.returned_alone += not helped
        self._touched.discard(node)
        self.world.after(0.0, partial(self.world.back, node))

    def _visit(self, node: str) -> None:
        """A person mends a node for good, and gives it back."""
        self._visited.discard(node)
        if self._health(node).state in WORKING:
            return
        self.world.tally.visits += 1
        self._touched.add(node)
        self._do(commands.SetMaintenance(nodes=(node,), by="person", on=True, reason="new part"))
        self.world.mend(node)
        self._do(commands.SetMaintenance(nodes=(node,), by="person", on=False))

    # Its effects.

    def _act(self, action: Action) -> None:
        if isinstance(action, RunRemedy):
            span_s = self.world.between(self.known.remedies[action.remedy.value]) * 60
            self.world.after(span_s, partial(self._mended, action))
        elif isinstance(action, RunRetest):
            self.world.after(
                self.known.tests["minutes"][action.level.value] * 60, partial(self._tested, action)
            )

    def _mended(self, action: RunRemedy) -> None:
        draw, shares = self._chance.random(), self.known.remedies
        outcome = RemedyOutcome.SUCCEEDED
        if draw < shares["transient"]:
            outcome = RemedyOutcome.TRANSIENT
        elif draw < shares["transient"] + shares["permanent"]:
            outcome = RemedyOutcome.PERMANENT
        if outcome is RemedyOutcome.SUCCEEDED:
            for ill in list(self.world.ills.get(action.node, ())):
                if ill.fault.cure < ill.fault.kind.cured.get(action.remedy, 0.0):
                    self.world.cure(ill)
        self._do(commands.RemedyDone(node=action.node, name=action.name, outcome=outcome))

    def _tested(self, action: RunRetest) -> None:
        tests = self.known.tests
        fails = self._chance.random() < tests["false_fail"]
        for ill in self.world.lasting(action.node):
            found = tests["lemon"] if ill.fault.lemon else tests[action.level.value]
            fails |= self._chance.random() < found
        status = CheckStatus.FAIL if fails else CheckStatus.PASS
        self._do(commands.RetestDone(node=action.node, name=action.name, status=status))

    # What the world asks.

    def usable(self) -> list[str]:
        """Return the nodes that take runs."""
        return [node for node in self.world.nodes if self.in_service(node)]

    def in_service(self, node: str) -> bool:
        """True while the control plane would place a run there."""
        return node in self._in_service

    def struck(self, ill: Ill) -> None:
        """Let the monitors see a fault, if they do."""
        kind = ill.fault.kind
        self._struck_s[ill.fault.number] = self.world.now_s
        sight = ill.fault.sight if ill.strikes == 1 else self._chance.random()
        if kind.channel and sight < kind.seen:
            span_s = self.world.between(self.known.detection[kind.channel])
            self.world.after(span_s, partial(self._see, ill))
        if not kind.channel and kind.lasting and ill.strikes == 1:
            self.world.after(self.known.person["silent_h"] * 3600, partial(self._noticed, ill))

    def _see(self, ill: Ill, *, at_start: bool = False) -> None:
        kind = ill.fault.kind
        self._seeing, self._at_start = ill, at_start
        self._report(
            ill.fault.node,
            kind.rule,
            severity=kind.severity,
            component=kind.component,
            source=_SOURCES[kind.channel],
            remedy=kind.remedy,
            retest=kind.retest,
        )
        self._seeing = None

    def _noticed(self, ill: Ill) -> None:
        """Somebody finds out that a node computes wrongly, and says so."""
        if not ill.gone:
            kind = ill.fault.kind
            self.world.tally.visits += 1
            self._report(
                ill.fault.node,
                kind.rule,
                severity=Severity.CRITICAL,
                component=kind.component,
                source=Source.OPERATOR,
                remedy=Remedy.REPLACE,
                retest=kind.retest,
            )

    def alarm(self, alarm: Alarm) -> None:
        """Report a signal that means nothing."""
        remedy, confirmed, source = Remedy.NONE, True, Source.NVML
        severity = Severity.WARNING
        if alarm.noise is Noise.HIGH:
            severity = Severity.HIGH
        elif alarm.noise is Noise.HIGH_REMEDY:
            severity, remedy = Severity.HIGH, Remedy.GPU_RESET
        elif alarm.noise is Noise.CRITICAL:
            severity = Severity.CRITICAL
        elif alarm.noise is Noise.JOB_TEXT:
            severity, confirmed, source = Severity.CRITICAL, False, Source.JOB_LOG
        rule = f"{alarm.noise.value}.{alarm.rule if alarm.noise is not Noise.FLAP else 0}"
        self._report(alarm.node, rule, severity=severity, source=source, remedy=remedy, confirmed=confirmed)

    def _report(
        self,
        node: str,
        rule: str,
        *,
        severity: Severity,
        source: Source,
        component: Component = Component.GPU,
        remedy: Remedy = Remedy.NONE,
        retest: Retest = Retest.T1,
        confirmed: bool = True,
    ) -> None:
        self._number += 1
        event = HealthEvent(
            event_id=f"e{self._number}",
            rule=rule,
            machine=node,
            node=node,
            at_ms=self._now_ms,
            component=component,
            severity=severity,
            source=source,
            message=rule,
            code=int(rule[4:]) if rule.startswith("xid.") else None,
            remedy=remedy,
            retest=retest,
            confirmed=confirmed,
        )
        self._do(commands.HealthReported(events=(event,)))

    def hang_s(self, ill: Ill) -> float:
        """Return how long it takes to find out that a rank hangs."""
        return self.world.between(self.known.detection["hang"])

    def interrupted(self, ill: Ill) -> tuple[Cause, str]:
        """Return what triage makes of an attempt that ended by itself."""
        node = ill.fault.node
        if self._health(node).state in TAKEN_OUT:
            return Cause.DEVICE, node
        if self._chance.random() >= self.known.detection["first_rank_right"]:
            node = self._chance.choice(sorted(self.world.placed))
        # What ranks and logs say makes a suspect, never more.
        self._report(node, "job.failed", severity=Severity.HIGH, source=Source.JOB_LOG, confirmed=False)
        return Cause.PLATFORM, node

    def refused(self, nodes: Sequence[str]) -> str:
        """Return the first node whose driver itself says that a GPU is away."""
        for node in nodes:
            for ill in self.world.lasting(node):
                if ill.fault.kind.again_h == 0 and ill.fault.kind.channel == "kernel":
                    self.world.after(1.0, partial(self._see, ill, at_start=True))
                    return node
        return ""


def _node(name: str) -> Node:
    devices = tuple(Device(index=index, uuid=f"{name}-{index}") for index in range(8))
    return Node(
        name=name,
        machine=name,
        accelerator="GPU_8xH100",
        model="H100",
        devices=devices,
        cpus=96.0,
        memory_bytes=1 << 40,
    )
