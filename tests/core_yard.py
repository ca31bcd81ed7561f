"""A yard driven by commands alone: decisions are applied as the control loop would, time is a number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from airyard.core import commands as c
from airyard.core import events as e
from airyard.core.actions import Action
from airyard.core.cluster import Device, Machine, Node
from airyard.core.decide import Acknowledged, Decision, Submitted, decide
from airyard.core.events import Recorded
from airyard.core.ids import MemberKey
from airyard.core.invariants import check
from airyard.core.run import Attempt, Cause, Checkpoint, Exit, LogClose, Run
from airyard.core.scheduling.plan import Plan, Refusal
from airyard.core.scheduling.planner import plan_snapshot
from airyard.core.scheduling.snapshot import take_snapshot, waiting_of
from airyard.core.scheduling.waits import refusal_of
from airyard.core.state import ClusterState
from airyard.core.workload import Compute, Priority, Tracking, Workload

START_MS = 1_000_000


def node(name: str, model: str | None = "H100", count: int = 8, *, machine: str | None = None) -> Node:
    """A node; a CPU slot when ``model`` is None."""
    return Node(
        name=name,
        machine=machine or name,
        accelerator=f"GPU_{count}x{model}" if model else "CPU",
        model=model,
        devices=tuple(Device(index=index, uuid=f"{name}-{index}") for index in range(count if model else 1)),
        cpus=32.0,
        memory_bytes=256 << 30,
        simulated=True,
    )


def workload(
    accelerator: str = "GPU_8xH100",
    nodes: int = 1,
    *,
    priority: Priority = Priority.NORMAL,
    tracked: bool = False,
    **fields: Any,
) -> Workload:
    """A workload without tracking unless asked for."""
    compute = replace(Compute.of(accelerator, nodes=nodes), priority=priority)
    return Workload(
        experiment="test", command="true", compute=compute, tracking=Tracking(enabled=tracked), **fields
    )


def ended(cause: Cause | None = None, *, at_ms: int = START_MS, **fields: Any) -> Exit:
    """An end; of a command that exits 0 unless a cause is given."""
    code = 0 if cause is None else 1
    defaults: dict[str, Any] = {"code": code, "signal": None, "started": True, "message": "it ended"}
    return Exit(cause=cause, at_ms=at_ms, **{**defaults, **fields})


class Yard:
    """State, time and the journal of one test."""

    def __init__(self, *nodes: Node) -> None:
        self.state = ClusterState()
        self.now_ms = START_MS
        self.journal: list[Recorded] = []
        self.actions: list[Action] = []
        self._numbers: dict[MemberKey, int] = {}
        self.do(c.BeginEpoch(version="test"))
        for machine in dict.fromkeys(one.machine for one in nodes):
            self.hello(machine, [one for one in nodes if one.machine == machine])

    def do(self, command: c.Command) -> Decision:
        """Decide and apply; the state must stay sound and replay to itself."""
        decision = decide(self.state, command, self.now_ms)
        for event in decision.events:
            epoch = event.epoch if isinstance(event, e.EpochBegan) else self.state.epoch
            recorded = Recorded(seq=self.state.seq + 1, at_ms=self.now_ms, epoch=epoch, event=event)
            self.state.apply(recorded)
            self.journal.append(recorded)
        assert check(self.state) == []
        self.actions = list(decision.actions)
        return decision

    def later(self, seconds: float) -> Yard:
        """Let time pass."""
        self.now_ms += int(seconds * 1000)
        return self

    def tick(self, seconds: float = 0) -> Decision:
        """Let time pass and have the deadlines looked at."""
        return self.later(seconds).do(c.Tick())

    def hello(
        self, machine: str, nodes: Sequence[Node] | None = None, *members: c.SeenMember, boot: str = "b1"
    ) -> Decision:
        """An agent says hello with these nodes (those known, if None) and attempt folders."""
        if nodes is None:
            nodes = [replace(n, cordoned=False) for n in self.state.nodes.values() if n.machine == machine]
        seen = Machine(name=machine, boot_id=boot, address=f"{machine}.test")
        return self.do(c.MachineSeen(machine=seen, nodes=tuple(nodes), members=members))

    def submit(self, wanted: Workload, key: str | None = None) -> int:
        """Submit; return the run id."""
        command = c.SubmitRun(
            owner="ada", workload=wanted, idempotency_key=key or f"key-{self.state.next_run_id}"
        )
        reply = self.do(command).reply
        assert isinstance(reply, Submitted)
        return reply.run_id

    def plan(self) -> Plan:
        """Make the plan of the moment."""
        return plan_snapshot(take_snapshot(self.state, self.now_ms), self.now_ms)

    def place(self) -> Decision:
        """Plan and commit."""
        return self.do(c.CommitPlan(plan=self.plan()))

    def refusal(self, run_id: int) -> Refusal | None:
        """Say why a run waits."""
        return refusal_of(self.plan(), waiting_of(self.state.runs[run_id]), self.now_ms)

    def run(self, run_id: int) -> Run:
        """The record of a run that is still in memory."""
        return self.state.runs[run_id]

    def attempt(self, run_id: int) -> Attempt:
        """Its newest attempt."""
        attempt = self.state.runs[run_id].attempt
        assert attempt is not None
        return attempt

    # --- what runners say

    def report(self, key: str, kind: str, **fields: Any) -> Decision:
        """A runner's next report; ``number`` to repeat an old one."""
        member = MemberKey.parse(key)
        number = fields.pop("number", None) or self._numbers.get(member, 0) + 1
        self._numbers[member] = max(number, self._numbers.get(member, 0))
        report = c.Report(number=number, kind=c.ReportKind(kind), at_ms=self.now_ms, **fields)
        epoch = self.state.runs[member.run_id].attempts[member.attempt].epoch if self.knows(key) else 1
        return self.do(c.MemberReports(key=member, epoch=epoch, reports=(report,)))

    def knows(self, key: str) -> bool:
        """True while the member is remembered."""
        return self.state.member(MemberKey.parse(key)) is not None

    def poll(self, key: str) -> Acknowledged:
        """A runner asks for orders."""
        member = MemberKey.parse(key)
        epoch = self.state.runs[member.run_id].attempts[member.attempt].epoch if self.knows(key) else 1
        reply = self.do(c.MemberReports(key=member, epoch=epoch, reports=())).reply
        assert isinstance(reply, Acknowledged)
        return reply

    def ready(self, *keys: str) -> None:
        """Runners poll and are ready."""
        for key in keys:
            self.poll(key)
            self.report(key, "READY", address=f"{key}.test")

    def start(self, *keys: str) -> None:
        """Runners become ready and, after GO, start."""
        self.ready(*keys)
        for key in keys:
            self.report(key, "STARTED")

    def exit(self, key: str, cause: Cause | None = None, **fields: Any) -> Decision:
        """A member's tree is gone."""
        return self.report(key, "EXITED", exit=ended(cause, at_ms=self.now_ms, **fields))

    def close(self, *keys: str) -> None:
        """The members' logs end."""
        for key in keys:
            self.report(key, "LOGS_CLOSED", logs=LogClose(last_seq=3, sha256="ab"))

    def save(self, key: str, step: int) -> Decision:
        """A checkpoint is acknowledged."""
        return self.report(
            key, "CHECKPOINT", checkpoint=Checkpoint(step=step, path=f"s{step}", at_ms=self.now_ms)
        )

    def gone(self, key: str, state: str = "died", exit_: Exit | None = None) -> Decision:
        """The agent says that a runner has ended."""
        seen = c.SeenMember(key=MemberKey.parse(key), state=c.SeenState(state), exit=exit_)
        return self.do(c.MemberGone(seen=seen))


def kinds(decision: Decision) -> list[str]:
    """The names of a decision's events."""
    return [type(event).__name__ for event in decision.events]


def acts(decision: Decision) -> list[str]:
    """The names of a decision's actions."""
    return [type(action).__name__ for action in decision.actions]
