"""Facts that the journal keeps: the closed set of everything that may change the state.

Owns: event types and the recorded envelope. Must not know: how they are stored, or what they cause.
A new field needs a default, a changed meaning needs a new event; ``tests/unit/core/golden`` guards both.
"""

from __future__ import annotations

from dataclasses import dataclass

from airyard.core.access.tokens import Token
from airyard.core.cluster import Machine, Node
from airyard.core.health.fabric_faults import FabricFault
from airyard.core.health.facility import Incident, Slowdown
from airyard.core.health.idle_records import SweepNote, TestNote
from airyard.core.health.states import NodeHealth
from airyard.core.meeting import Meeting
from airyard.core.policy import Policy, Reservation
from airyard.core.run import (
    Attempt,
    Cause,
    Checkpoint,
    Exit,
    Failure,
    LogClose,
    Outcome,
    Run,
    StallNote,
    StopRequest,
    Tracking,
)
from airyard.core.triage.causes import Judgement
from airyard.core.workload import Priority


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochBegan:
    """A server took over the journal; whatever an older epoch still writes is refused."""

    epoch: int
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LeadBegan:
    """The server of an epoch is ready to lead: its configuration holds. One that is refused its policy never is."""

    epoch: int
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineJoined:
    """A machine and its nodes are as stated; replaces what was known of them."""

    machine: Machine
    nodes: tuple[Node, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineLeft:
    """The engine cannot reach the machine's agent; its members may well live."""

    machine: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCordoned:
    """No new member may be placed on the node."""

    node: str
    by: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeDrainOrdered:
    """Who is on a cordoned node is asked to leave: at once (``deadline_ms`` None), or so as to be gone by then.

    It replaces an earlier drain of the node.
    """

    node: str
    by: str
    reason: str = ""
    deadline_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineConfirmedDead:
    """Somebody gave their word that nothing runs any more on a machine that is away; its members are lost."""

    machine: str
    by: str
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeUncordoned:
    """The node takes members again."""

    node: str
    by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeHealthChanged:
    """What is thought of a node's health is as stated now. ``budget``: what kept it from being taken out, if anything.

    ``rule`` is that of what was seen now, where something was (else that in ``health``); ``evidence``: its raw lines.
    """

    node: str
    health: NodeHealth
    why: str
    by: str
    evidence: tuple[str, ...] = ()
    budget: str = ""
    rule: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleTested:
    """A test of an idle node was finished. One that was stopped for work says nothing and is not here."""

    node: str
    test: TestNote


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricTested:
    """Idle nodes of a pool were tested in pairs, and this is the verdict."""

    pool: str
    sweep: SweepNote
    begun: tuple[FabricFault, ...] = ()
    """Faults between nodes that did not stand before."""
    ended: tuple[FabricFault, ...] = ()
    """... and those that stood, and are well again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerOpened:
    """Too much broke at once in a pool: none of its nodes is taken out any more until a person says so."""

    pool: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerReset:
    """Nodes of the pool may be taken out again."""

    pool: str
    by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowdownSeen:
    """A monitor saw that a node is slowed down by its power or its cooling."""

    slowdown: Slowdown


@dataclass(frozen=True, slots=True, kw_only=True)
class FacilityIncidentBegan:
    """Several nodes that share a supply were slowed down at once."""

    incident: Incident


@dataclass(frozen=True, slots=True, kw_only=True)
class FacilityIncidentEnded:
    """None of them was for a while."""

    incident: Incident


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseDeclared:
    """From now on the answer to a runner's poll grants so long a lease; none counts one longer than ``longest_ms``."""

    lease_ms: int
    longest_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgingDeclared:
    """From now on failed attempts are judged; the end of one that its owner would pay for waits so long for it."""

    wait_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KeysExpired:
    """Idempotency keys noted before this time are forgotten."""

    before_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyDeclared:
    """Pools, projects and users are as stated; replaces what was declared before.

    ``source`` is ``api`` or ``config``; ``digest`` (SHA-256, hex) of a configured one tells an edited file from
    a restart.
    """

    policy: Policy
    by: str
    source: str
    digest: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReservationMade:
    """Nodes are set aside for a time."""

    reservation: Reservation


@dataclass(frozen=True, slots=True, kw_only=True)
class ReservationEnded:
    """A reservation was taken back, or its time is over (then ``by`` is ``clock``)."""

    reservation_id: int
    by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenCreated:
    """Somebody was given a token; only its digest is here."""

    token: Token


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRevoked:
    """A token counts no more."""

    token_id: str
    by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSubmitted:
    """A run was accepted."""

    run: Run


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResumed:
    """An ended run is queued again for a further attempt."""

    run: Run
    by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptPlaced:
    """Devices are booked for a new attempt; its runners are to be started."""

    run_id: int
    attempt: Attempt
    simulated: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberPreparing:
    """The member's runner is alive and has fetched its orders."""

    run_id: int
    attempt: int
    member: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberReady:
    """Code and environment are in place; the member waits for GO."""

    run_id: int
    attempt: int
    member: int
    report: int
    address: str
    prepared: tuple[tuple[str, int], ...]
    meeting: Meeting | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PortReassigned:
    """The rendezvous port was taken; member 0 is to check another one."""

    run_id: int
    attempt: int
    report: int
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptReleased:
    """GO: all members may start the command; RUNNING begins."""

    run_id: int
    attempt: int
    address: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberStarted:
    """The command's process exists on the member's node."""

    run_id: int
    attempt: int
    member: int
    report: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointAcknowledged:
    """Member 0 wrote its acknowledgement: the gang's state up to this step is safe."""

    run_id: int
    attempt: int
    report: int
    checkpoint: Checkpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberExited:
    """The member's whole process tree is gone; its devices are free."""

    run_id: int
    attempt: int
    member: int
    report: int
    exit: Exit


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberLost:
    """The member's runner is proved dead without a word; its devices are free."""

    run_id: int
    attempt: int
    member: int
    exit: Exit


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberLogsClosed:
    """The member's log ends here; with all records up to ``last_seq`` it is complete."""

    run_id: int
    attempt: int
    member: int
    report: int
    logs: LogClose


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberLogsGivenUp:
    """No end of the member's log will ever come; what is there is all there is."""

    run_id: int
    attempt: int
    member: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StopOrdered:
    """The attempt is to end."""

    run_id: int
    attempt: int
    stop: StopRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptStalled:
    """The gang makes no progress, or the verdict on that is another one than before."""

    run_id: int
    attempt: int
    stall: StallNote


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptMovedOn:
    """A gang that made no steps makes some again."""

    run_id: int
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictAwaited:
    """A verdict on a failed attempt is due; where the attempt has not ended, its end waits until then at most."""

    run_id: int
    attempt: int
    until_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptJudged:
    """What triage made of a failed attempt; after the attempt's end it changes nothing of what followed."""

    run_id: int
    attempt: int
    judgement: Judgement


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptEnded:
    """All members are gone and the gang was judged."""

    run_id: int
    attempt: int
    outcome: Outcome
    cause: Cause | None
    failure: Failure | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackingChanged:
    """The attempt's MLflow run was opened, deferred or closed."""

    run_id: int
    attempt: int
    tracking: Tracking


@dataclass(frozen=True, slots=True, kw_only=True)
class RunQueuedAgain:
    """A further attempt will be made. Counters are the new values, not differences."""

    run_id: int
    not_before_ms: int
    retries_spent: int
    download_retries: int
    failures_in_row: int
    recent_faults_ms: tuple[int, ...]
    avoid_nodes: tuple[str, ...]
    last_crash: tuple[str, int] | None
    text_excuses: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunUpdated:
    """Somebody changed a run after its submit; None leaves a field as it is.

    ``begin_ms`` 0 takes an earlier begin back; ``attempt_timeout_s`` 0 takes the limit away.
    """

    run_id: int
    by: str
    priority: Priority | None = None
    project: str | None = None
    attempt_timeout_s: int | None = None
    begin_ms: int | None = None
    held: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnded:
    """Nothing more will be tried."""

    run_id: int
    outcome: Outcome
    cause: Cause | None
    failure: Failure | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunArchived:
    """An ended run owes nothing more and leaves memory; it lives on in the read tables."""

    run_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRemoved:
    """Somebody had an ended run removed: its logs, tracking and rows are gone. This line is the audit."""

    run_id: int
    by: str


ClusterEvent = (
    EpochBegan
    | LeadBegan
    | MachineJoined
    | MachineLeft
    | NodeCordoned
    | NodeUncordoned
    | NodeDrainOrdered
    | MachineConfirmedDead
    | NodeHealthChanged
    | IdleTested
    | FabricTested
    | BreakerOpened
    | BreakerReset
    | SlowdownSeen
    | FacilityIncidentBegan
    | FacilityIncidentEnded
    | KeysExpired
    | LeaseDeclared
    | JudgingDeclared
    | PolicyDeclared
    | ReservationMade
    | ReservationEnded
    | TokenCreated
    | TokenRevoked
)
ArrivalEvent = RunSubmitted | RunResumed
AttemptEvent = (
    MemberPreparing
    | MemberReady
    | PortReassigned
    | AttemptReleased
    | MemberStarted
    | CheckpointAcknowledged
    | MemberExited
    | MemberLost
    | MemberLogsClosed
    | MemberLogsGivenUp
    | StopOrdered
    | AttemptStalled
    | AttemptMovedOn
    | VerdictAwaited
    | AttemptJudged
    | AttemptEnded
    | TrackingChanged
)
RunEvent = AttemptPlaced | AttemptEvent | RunQueuedAgain | RunUpdated | RunEnded
DepartureEvent = RunArchived | RunRemoved
Event = ClusterEvent | ArrivalEvent | RunEvent | DepartureEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """An event with its place in the journal: ``seq`` from 1, time, and the epoch of the server that wrote it."""

    seq: int
    at_ms: int
    epoch: int
    event: Event
