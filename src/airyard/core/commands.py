"""Asks and observed facts that come to the control loop: the closed set of its inputs.

Owns: command types. Must not know: who sends them. Times are the server's, stamped by the shell.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from airyard.core.access.tokens import Token
from airyard.core.cluster import Machine, Node
from airyard.core.health.facts import CheckStatus, HealthEvent
from airyard.core.health.idle_records import SweepNote, TestNote
from airyard.core.health.states import RemedyOutcome
from airyard.core.ids import MemberKey
from airyard.core.meeting import Meeting
from airyard.core.policy import Policy, Reservation
from airyard.core.run import Checkpoint, Exit, LogClose, Run, StallNote, Tracking
from airyard.core.scheduling.plan import Plan
from airyard.core.triage.causes import Judgement
from airyard.core.workload import Priority, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginEpoch:
    """This server owns the journal now."""

    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginToLead:
    """This server is ready: nothing of its configuration was refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclareLease:
    """A leader grants leases of this length from now on, and says it again to prove that it still leads.

    ``begins``: it does so for the first time, and takes every machine to be away until it has seen it. ``settled``:
    so long after its begin that no runner counts a lease of an earlier leader any more.
    """

    lease_ms: int
    begins: bool = False
    settled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitRun:
    """Somebody wants a workload run. ``dry_run`` decides everything and changes nothing."""

    owner: str
    workload: Workload
    idempotency_key: str
    tracking_off: bool = False
    source_hash: str = ""
    begin_ms: int = 0
    held: bool = False
    token_id: str = ""
    """The token that pays for it; empty for the owner's own."""
    unix_user: str = ""
    """The Unix account that its commands are to run as; empty leaves it to the nodes' agents."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelRun:
    """Somebody wants a run to end."""

    run_id: int
    by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeRun:
    """Somebody wants a further attempt of an ended run; ``run`` is its stored record."""

    run: Run
    by: str
    token_id: str = ""
    """As for ``SubmitRun``: the attempts from now on are charged to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveRun:
    """Somebody wants an ended run gone. The shell has checked the read tables that it has ended."""

    run_id: int
    by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitPlan:
    """The planner's answer to an earlier state; checked again against the present one."""

    plan: Plan


class SeenState(Enum):
    """What an agent says of a member's runner."""

    ALIVE = "alive"
    EXITED = "exited"
    DIED = "died"


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenMember:
    """One attempt folder on a machine. ``exit`` and ``logs`` come from its exit record, if it left one."""

    key: MemberKey
    state: SeenState
    exit: Exit | None = None
    logs: LogClose | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineSeen:
    """An agent said hello: its machine, nodes, and every attempt folder it holds."""

    machine: Machine
    nodes: tuple[Node, ...]
    members: tuple[SeenMember, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineAway:
    """The engine lost the machine's agent."""

    machine: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberGone:
    """The agent saw a runner end: with its exit record, or without one (then ``exit`` says what the agent found)."""

    seen: SeenMember


@dataclass(frozen=True, slots=True, kw_only=True)
class CordonNodes:
    """An operator closes nodes for new members; who is on them stays."""

    nodes: tuple[str, ...]
    by: str
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class UncordonNodes:
    """An operator opens nodes again; a drain of them is called off."""

    nodes: tuple[str, ...]
    by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainNodes:
    """An operator wants nodes empty: at once, or by ``deadline_ms`` at the latest."""

    nodes: tuple[str, ...]
    by: str
    reason: str = ""
    deadline_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfirmDead:
    """An operator gives their word that nothing runs any more on a machine that is away.

    ``name`` is the machine or a node of it. ``boot_id``: only if it is the system that was seen last; empty is any.
    """

    name: str
    by: str
    reason: str = ""
    boot_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclarePolicy:
    """Somebody states which pools, projects and users there are. ``dry_run`` checks everything and changes nothing."""

    policy: Policy
    by: str
    source: str = "api"
    digest: str = ""
    dry_run: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateRun:
    """Somebody changes a run after its submit; None leaves a field as it is (see ``events.RunUpdated``)."""

    run_id: int
    by: str
    priority: Priority | None = None
    project: str | None = None
    attempt_timeout_s: int | None = None
    begin_ms: int | None = None
    held: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MakeReservation:
    """Somebody wants nodes set aside; ``reservation_id`` of the given one is not looked at.

    ``evict``: runs that are on nodes reserved from now on are asked to leave; else such a reservation is refused.
    """

    reservation: Reservation
    evict: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class EndReservation:
    """Somebody takes a reservation back."""

    reservation_id: int
    by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateToken:
    """Somebody gives out a token; the shell has made its secret and checked the right to."""

    token: Token


@dataclass(frozen=True, slots=True, kw_only=True)
class RevokeToken:
    """Somebody takes a token back."""

    token_id: str
    by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthReported:
    """Monitors saw something. Any event may come again, and late."""

    events: tuple[HealthEvent, ...]
    by: str = "agent"


@dataclass(frozen=True, slots=True, kw_only=True)
class RemedyDone:
    """What became of the remedy of this name; of one that is not in flight any more it changes nothing."""

    node: str
    name: str
    outcome: RemedyOutcome
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetestDone:
    """What a test of this name came to; as for ``RemedyDone``."""

    node: str
    name: str
    status: CheckStatus
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleTestDone:
    """A test of an idle node was finished. ``events``: what failed, as monitors would say it."""

    node: str
    test: TestNote
    events: tuple[HealthEvent, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepDone:
    """Idle nodes of a pool were tested in pairs."""

    pool: str
    sweep: SweepNote


@dataclass(frozen=True, slots=True, kw_only=True)
class SetMaintenance:
    """A person takes nodes over (``on``), or gives them back to be tested."""

    nodes: tuple[str, ...]
    by: str
    on: bool
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AcquitNodes:
    """A person says that these nodes are well: it was a false alarm."""

    nodes: tuple[str, ...]
    by: str
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetBreaker:
    """A person has looked: nodes of the pool may be taken out again. Without a pool it is all of them."""

    by: str
    pool: str = ""


class ReportKind(Enum):
    """What a runner may report."""

    READY = "READY"
    PORT_TAKEN = "PORT_TAKEN"
    STARTED = "STARTED"
    CHECKPOINT = "CHECKPOINT"
    EXITED = "EXITED"
    LOGS_CLOSED = "LOGS_CLOSED"


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One numbered word of a runner. Only the fields of its kind are set; times are corrected to the server's clock."""

    number: int
    kind: ReportKind
    at_ms: int
    address: str = ""
    prepared: Mapping[str, int] = field(default_factory=dict)
    meeting: Meeting | None = None
    port: int = 0
    checkpoint: Checkpoint | None = None
    last: bool = False
    """Of a checkpoint: the member's last one, said before its end."""
    exit: Exit | None = None
    logs: LogClose | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberReports:
    """A runner's reports in order; an empty list still says that the runner is alive and has its orders."""

    key: MemberKey
    epoch: int
    reports: tuple[Report, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackingAnswered:
    """The tracker opened, deferred or closed an attempt's MLflow run."""

    run_id: int
    attempt: int
    tracking: Tracking


@dataclass(frozen=True, slots=True, kw_only=True)
class GangJudged:
    """The verdict on a gang's steps; None: it makes some."""

    run_id: int
    attempt: int
    stall: StallNote | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclareJudging:
    """This server judges failed attempts; ends that their owners would pay for wait so long for it."""

    wait_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictReached:
    """Triage has judged an attempt; said again, or of an attempt that is not known any more, it changes nothing."""

    run_id: int
    attempt: int
    judgement: Judgement


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """Time has passed; deadlines are looked at.

    ``jumped_ms``: by so much the server's clock was set ahead since the last one; that time has not passed.
    """

    jumped_ms: int = 0


HealthCommand = (
    HealthReported
    | RemedyDone
    | RetestDone
    | IdleTestDone
    | SweepDone
    | SetMaintenance
    | AcquitNodes
    | ResetBreaker
)
Command = (
    BeginEpoch
    | BeginToLead
    | SubmitRun
    | CancelRun
    | ResumeRun
    | RemoveRun
    | CommitPlan
    | MachineSeen
    | MachineAway
    | MemberGone
    | CordonNodes
    | UncordonNodes
    | DrainNodes
    | ConfirmDead
    | DeclarePolicy
    | UpdateRun
    | MakeReservation
    | EndReservation
    | CreateToken
    | RevokeToken
    | MemberReports
    | TrackingAnswered
    | GangJudged
    | DeclareLease
    | HealthCommand
    | DeclareJudging
    | VerdictReached
    | Tick
)
