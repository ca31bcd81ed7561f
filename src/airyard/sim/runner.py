"""The runner's shell under virtual time: it carries out what the production machine (``node.machine``) instructs.

Owns: the simulated preparation, process, timers and the three conversations with the server.
Must not know: rules; they are the machine's, and this shell does only what the real one does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airyard.core.ids import MemberKey
from airyard.node import machine_events as m
from airyard.node.lease import is_stale, pace_of
from airyard.node.machine import Phase, RunnerState, step
from airyard.node.verdict import Evidence
from airyard.sim.behaviour import Behaviour, behaviour_of
from airyard.sim.network import AWAY, Network
from airyard.sim.process import SimTree
from airyard.sim.setting import Setting

if TYPE_CHECKING:
    from airyard.sim.machine import Folder, SimMachine

OVER = "over"
REPORTS_TIMEOUT_MS = 30_000
LOGS_TIMEOUT_MS = 60_000
FIRST_PATIENCE_MS = 100
LAST_PATIENCE_MS = 5_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Poll:
    """What a runner says when it asks for orders."""

    key: MemberKey
    after: int
    wait_ms: int
    epoch: int
    lease_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    """Orders, and the epoch of the leader that gives them."""

    epoch: int
    orders: list[dict[str, Any]]


class SimRunner:
    """One runner process. ``die`` is kill -9: nothing it had planned happens any more."""

    def __init__(self, setting: Setting, network: Network, machine: SimMachine, folder: Folder) -> None:
        self._setting = setting
        self._network = network
        self._machine = machine
        self._folder = folder
        self._key = folder.action.key
        # Anchored once, as the real runner's clock: a later jump of the node's clock does not move it.
        self._offset_ms = machine.clock_offset_ms
        self._lease_s: float | None = None
        self._state = RunnerState()
        self._behaviour = Behaviour()
        self._has_epilog = False
        self._poll_patience_ms = self._report_patience_ms = FIRST_PATIENCE_MS
        self._reporting = False
        self._acknowledged = 0
        self._interrupt: Callable[[], None] | None = None
        self._paused_until_ms = 0
        self.stop_heard = False
        self.dead = False
        self._later(0, self._poll)

    # --- life

    def die(self) -> None:
        """End at once, leaving everything as it is."""
        self.dead = True

    def pause(self, duration_ms: int) -> None:
        """Be stopped (SIGSTOP) for a while; the command runs on."""
        self._paused_until_ms = self._setting.time.now_ms() + duration_ms

    @property
    def works(self) -> bool:
        """True unless it is dead or stopped."""
        return not self.dead and self._paused_until_ms <= self._setting.time.now_ms()

    def _guarded(self, act: Callable[[], None]) -> None:
        if self.dead:
            return
        until_ms = max(self._paused_until_ms, self._machine.asleep_until_ms)
        if until_ms > self._setting.time.now_ms():
            self._setting.time.at(until_ms, lambda: self._guarded(act))
            return
        act()

    def _later(self, delay_ms: int, act: Callable[[], None]) -> None:
        self._setting.later(delay_ms, lambda: self._guarded(act))

    def _now_ms(self) -> int:
        return self._machine.clock.now_ms() + self._offset_ms

    def tell(self, event: m.Event, delay_ms: int = 0) -> None:
        """Queue an event for the machine."""
        self._later(delay_ms, lambda: self._feed(event))

    def _feed(self, event: m.Event) -> None:
        if isinstance(event, m.OrderReceived) and event.kind == "STOP":
            self.stop_heard = True
        before = self._state
        self._state, instructions = step(self._state, event, self._now_ms())
        if self._state is not before:
            self._setting.trace(f"runner {self._key}", f"{_short(event)} -> {self._state.phase.value}")
        for instruction in instructions:
            self._do(instruction)
        if self._state.outbox is not before.outbox:
            self._report()
        if self._state.over is not None and before.over is None and "lease" in self._state.over:
            self._machine.truth.lease_ended(self._key)
        if self._state.over is not None and self._state.phase is Phase.CLOSING:
            self.tell(m.OutputClosed(last_seq=self._folder.last_seq, sha256=""))

    # --- instructions

    def _do(self, instruction: m.Instruction) -> None:
        match instruction:
            case m.Prepare():
                self._prepare(instruction)
            case m.InterruptPreparation():
                if self._interrupt is not None:
                    self._later(self._setting.chance.between(1, 500), self._interrupt)
            case m.CheckPort():
                self._check_port(instruction.port)
            case m.Launch():
                self._launch()
            case m.Signal():
                if self._folder.tree is not None:
                    self._folder.tree.signal()
            case m.KillTree():
                if self._folder.tree is not None:
                    self._folder.tree.kill()
            case m.ReapTree():
                self._reap()
            case m.CloseLogs():
                self._ship()
            case m.SetTimer():
                self._set_timer(instruction)
            case m.WriteExitRecord():
                self._folder.exit = dict(instruction.exited)
                self._folder.logs = dict(instruction.logs) if instruction.logs else None
            case m.Leave():
                self.dead = True
                self._machine.runner_ended(self._folder)
            case m.Report() | m.WriteStopFile():
                pass  # the outbox is posted as a whole; the simulated command reads no stop file

    def _prepare(self, instruction: m.Prepare) -> None:
        order = instruction.order
        self._behaviour = behaviour_of(str(order["command"]), self._key.member, self._key.attempt)
        self._has_epilog = bool(order.get("epilog"))
        answered = False

        def answer(event: m.Event) -> None:
            nonlocal answered
            if not answered:
                answered = True
                self._feed(event)

        self._interrupt = lambda: answer(m.PrepareFailed(cause="CANCELLED", message="interrupted"))
        kind = self._behaviour.prepare
        if kind == "broken":
            event: m.Event = m.PrepareFailed(
                cause="ENVIRONMENT", message="no version of nonsense", permanent=True
            )
        elif kind == "unfit" and order.get("prolog"):
            event = m.PrepareFailed(cause="NODE", message="the prolog exited with 1", fault="prolog")
        elif kind == "download":
            event = m.PrepareFailed(cause="ENVIRONMENT", message="the index did not answer")
        else:
            event = m.Prepared(address=self._machine.name, environment_ms=7)
        slow = kind == "slow"
        delay_ms = (
            self._setting.chance.between(20_000, 90_000) if slow else self._setting.chance.between(5, 900)
        )
        self._later(delay_ms, lambda: answer(event))

    def _check_port(self, port: int) -> None:
        taken = self._behaviour.port == "taken" and not self._folder.port_refused
        self._folder.port_refused |= taken
        self.tell(m.PortChecked(port=port, ok=not taken), 1)

    def _launch(self) -> None:
        tree = self._machine.launch(self._folder, self._behaviour, self.stop_heard)
        self.tell(m.ProcessStarted(pid=1))
        if self._behaviour.saves_ms is not None and self._key.member == 0:
            self._save(tree, 1)

    def _save(self, tree: SimTree, number: int) -> None:
        def look() -> None:
            if tree.running and self._state.phase is Phase.RUNNING:
                self._feed(m.CheckpointSeen(step=number, path=f"step-{number}"))
                self._save(tree, number + 1)

        assert self._behaviour.saves_ms is not None
        self._later(self._behaviour.saves_ms, look)

    def process_exited(self, code: int | None, signal: int | None) -> None:
        """Hear of the end of the main process."""
        self.tell(m.ProcessExited(code=code, signal=signal), 1)

    def _reap(self) -> None:
        tree = self._folder.tree
        if tree is not None and tree.alive:
            tree.kill()
            self._later(20, self._reap)
            return
        clash = self._behaviour.port == "clash" and tree is not None and not tree.touched
        tail = f"RuntimeError: address already in use: port {self._state.port}" if clash else ""
        evidence = Evidence(
            stderr_tail=tail, oom_kills=1 if self._behaviour.out_of_memory and tree is not None else 0
        )
        dirty = self._behaviour.prepare == "dirty" and self._has_epilog
        fault, message = ("epilog", "the epilog exited with 1") if dirty else ("", "")
        self.tell(m.TreeGone(evidence=evidence, fault=fault, fault_message=message))

    def _set_timer(self, instruction: m.SetTimer) -> None:
        at_ms = instruction.at_ms - self._offset_ms
        if instruction.timer is m.Timer.LEASE:
            self._folder.lease_until_ms = at_ms
        self.tell(m.TimerFired(timer=instruction.timer), self._machine.clock.away_ms(at_ms))

    # --- conversations

    def _poll(self) -> None:
        pace = pace_of(self._lease_s)
        poll = Poll(
            key=self._key,
            after=self._state.last_order,
            wait_ms=int(pace.wait_s * 1000),
            epoch=self._state.epoch,
            lease_s=self._lease_s or 0.0,
        )
        sent_ms = self._now_ms()
        self._network.call(
            self._machine.name,
            lambda server, answer: server.orders(poll, answer),
            lambda answer: self._later(0, lambda: self._polled(sent_ms, answer)),
            timeout_ms=int(pace.timeout_s * 1000),
        )

    def _polled(self, sent_ms: int, answer: Any) -> None:
        if answer == OVER:
            self._feed(m.AttemptOver())
            return
        if answer is AWAY or is_stale(answer.epoch, self._state.epoch):
            self._later(self._poll_patience_ms, self._poll)
            longest_ms = min(LAST_PATIENCE_MS, int(pace_of(self._lease_s).pause_s * 1000))
            self._poll_patience_ms = min(longest_ms, 2 * self._poll_patience_ms)
            return
        self._poll_patience_ms = FIRST_PATIENCE_MS
        self._feed(m.ServerAnswered(sent_ms=sent_ms, epoch=answer.epoch))
        for order in answer.orders:
            body = {name: value for name, value in order.items() if name not in ("number", "kind")}
            number, kind = order["number"], order["kind"]
            self._lease_s = body["seconds"] if kind == "LEASE" else self._lease_s
            self._feed(m.OrderReceived(number=number, kind=kind, body=body, epoch=answer.epoch))
        self._later(1, self._poll)

    def _report(self) -> None:
        waiting = [report for report in self._state.outbox if report.number > self._acknowledged]
        if self._reporting or not waiting:
            return
        self._reporting = True
        body = {
            "epoch": self._folder.action.epoch,
            "sent_ns": self._now_ms() * 1_000_000,
            "reports": [report.as_json() for report in waiting],
        }
        self._network.call(
            self._machine.name,
            lambda server, answer: server.reports(self._key, body, answer),
            lambda answer: self._later(0, lambda: self._reported(answer)),
            timeout_ms=REPORTS_TIMEOUT_MS,
        )

    def _reported(self, answer: Any) -> None:
        self._reporting = False
        if answer == OVER:
            self._reporting = True  # the reporter has ended
            self._feed(m.AttemptOver())
            return
        if answer is AWAY:
            self._later(self._report_patience_ms, self._report)
            self._report_patience_ms = min(LAST_PATIENCE_MS, 2 * self._report_patience_ms)
            return
        self._report_patience_ms = FIRST_PATIENCE_MS
        self._acknowledged = max(self._acknowledged, answer)
        self._feed(m.ReportAcknowledged(number=answer))
        self._later(50, self._report)

    def _ship(self) -> None:
        last_seq = self._folder.last_seq
        self._network.call(
            self._machine.name,
            lambda server, answer: server.logs(self._key, last_seq, answer),
            lambda answer: self._later(0, lambda: self._shipped(answer)),
            timeout_ms=LOGS_TIMEOUT_MS,
        )

    def _shipped(self, answer: Any) -> None:
        if answer is AWAY:
            self._later(1_000, self._ship)
            return
        self._feed(m.OutputClosed(last_seq=self._folder.last_seq, sha256="0"))
        self._feed(m.LogsShipped())


def _short(event: m.Event) -> str:
    if isinstance(event, m.OrderReceived):
        return f"order {event.number} {event.kind}"
    return type(event).__name__
