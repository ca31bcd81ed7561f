"""Runs, attempts and members as records.

Owns: what is remembered of an execution. Must not know: which moves are legal (``lifecycle.py``) or why (``decide``).
All times are integer milliseconds since 1970 on the server's clock unless a field says otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from airyard.core.cause import Cause as Cause  # it is spoken of as the run's everywhere
from airyard.core.ids import AttemptKey, MemberKey
from airyard.core.meeting import LOOPBACK, Meeting, meeting_addresses
from airyard.core.triage.causes import Judgement
from airyard.core.workload import Workload


class RunState(Enum):
    """Where a run is in its life."""

    QUEUED = "QUEUED"
    ACTIVE = "ACTIVE"
    ENDED = "ENDED"


class AttemptState(Enum):
    """Where an attempt is in its life."""

    PLACED = "PLACED"
    PREPARING = "PREPARING"
    RUNNING = "RUNNING"
    STOPPING = "STOPPING"
    ENDED = "ENDED"


class MemberPhase(Enum):
    """Where one member is. EXITED and LOST mean that its devices are free again."""

    STARTING = "STARTING"
    PREPARING = "PREPARING"
    READY = "READY"
    RUNNING = "RUNNING"
    EXITED = "EXITED"
    LOST = "LOST"


class Outcome(Enum):
    """How a run or attempt ended. PREEMPTED and LOST are for attempts only."""

    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    TIMED_OUT = "TIMED_OUT"
    CANCELLED = "CANCELLED"
    PREEMPTED = "PREEMPTED"
    LOST = "LOST"


class StopReason(Enum):
    """Why an attempt is being stopped."""

    CANCELLED = "CANCELLED"
    TIME_LIMIT = "TIME_LIMIT"
    PREEMPTED = "PREEMPTED"
    MEMBER_FAILED = "MEMBER_FAILED"
    DRAIN = "DRAIN"
    NOT_READY = "NOT_READY"
    DEVICE_FAULT = "DEVICE_FAULT"
    NODE_FAULT = "NODE_FAULT"
    STALLED = "STALLED"


class TrackingState(Enum):
    """How far the attempt's MLflow run is."""

    OFF = "OFF"
    PENDING = "PENDING"
    DEFERRED = "DEFERRED"
    OPEN = "OPEN"
    CLOSED = "CLOSED"


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRequest:
    """A wish that the attempt end: by whom, why, and with how much grace."""

    reason: StopReason
    by: str
    at_ms: int
    grace_s: int
    message: str = ""
    for_run: int | None = None
    """The run for which an evicted one makes room."""
    rule: str = ""
    """By what right it is evicted: ``priority``, ``reclaim`` or ``slice``."""
    node: str = ""
    """The node whose fault it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A numbered instruction to every member of an attempt; number 1 is PREPARE and is not stored."""

    number: int
    kind: str
    data: tuple[tuple[str, str | int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """What a runner said of its member's end; the whole process tree is gone.

    ``cause`` is None for success. ``stop_reason`` is set when a stop had reached the process before it ended.
    ``permanent``: the same command can never do better. ``fingerprint`` groups equal crashes. ``at_ms`` is corrected to
    the server's clock.
    """

    code: int | None
    signal: int | None
    started: bool
    cause: Cause | None
    message: str
    at_ms: int
    duration_ms: int = 0
    out_of_memory: bool = False
    address_in_use: bool = False
    stop_reason: str = ""
    permanent: bool = False
    fingerprint: str = ""
    fault: str = ""
    """What found the node unfit: the pool's ``prolog`` or ``epilog``, or ``preflight``."""
    fault_message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogClose:
    """The end of a member's log as its runner stated it."""

    last_seq: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """The command on one node of an attempt."""

    index: int
    node: str
    machine: str
    devices: tuple[int, ...]
    phase: MemberPhase = MemberPhase.STARTING
    address: str | None = None
    prepared: tuple[tuple[str, int], ...] = ()
    meeting: Meeting | None = None
    exit: Exit | None = None
    logs: LogClose | None = None
    logs_given_up: bool = False
    last_report: int = 0

    @property
    def released(self) -> bool:
        """True when nothing of the member is left on its devices."""
        return self.phase in (MemberPhase.EXITED, MemberPhase.LOST)


def gang_addresses(members: Sequence[Member]) -> list[str]:
    """Return where each ready member is reached by the others."""
    known = [member.address or LOOPBACK for member in members]
    return meeting_addresses(known, [member.meeting for member in members])


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """The newest acknowledged checkpoint of a run."""

    step: int
    path: str
    at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Tracking:
    """The attempt's MLflow run."""

    state: TrackingState
    experiment_id: str = ""
    run_id: str = ""
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """The first thing that went wrong in an attempt: which member, what, and what to do about it."""

    cause: Cause
    message: str
    next_step: str
    member: int | None = None
    node: str | None = None
    exit_code: int | None = None
    signal: int | None = None
    fingerprint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StallNote:
    """That an attempt made no steps, or gave no other signs of progress, and the verdict on it.

    Its terms are those of ``core.health.hangs``, or of ``core.health.signs`` where ``source`` is not ``steps``.
    """

    case: str
    ranks: tuple[int, ...]
    nodes: tuple[str, ...]
    step: int
    at_ms: int
    message: str
    confidence: float = 0.0
    suspect_node: str = ""
    evidence: tuple[str, ...] = ()
    over_ms: int = 0
    """When it made steps again; 0: not yet."""
    source: str = "steps"
    """What it was judged by: steps, metrics, logs, gpu."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One try of a run on one placement; all its members share one fate."""

    run_id: int
    number: int
    epoch: int
    cookie: str
    state: AttemptState
    members: tuple[Member, ...]
    port: int
    orders: tuple[Order, ...]
    tracking: Tracking
    placed_ms: int
    preparing_ms: int | None = None
    ready_ms: int | None = None
    running_ms: int | None = None
    stopping_ms: int | None = None
    ended_ms: int | None = None
    stop: StopRequest | None = None
    checkpoint: Checkpoint | None = None
    checkpoint_journalled_ms: int | None = None
    failure: Failure | None = None
    outcome: Outcome | None = None
    cause: Cause | None = None
    pool: str = ""
    """The pool whose devices it holds; empty in records from before pools were declared."""
    stall: StallNote | None = None
    """The last time that it made no steps."""
    verdict_until_ms: int | None = None
    """Until when its end, or more evidence, waits for the verdict on it; None: nobody was asked for one."""
    judged_ms: int | None = None
    judgement: Judgement | None = None
    """What triage made of it, if it failed."""

    @property
    def key(self) -> AttemptKey:
        """The attempt's key."""
        return AttemptKey(self.run_id, self.number)

    def member_key(self, index: int) -> MemberKey:
        """The key of one member."""
        return MemberKey(self.run_id, self.number, index)

    @property
    def gone(self) -> bool:
        """True when no member holds anything any more; its end may still wait for the verdict on it."""
        return all(member.released for member in self.members)

    @property
    def live(self) -> bool:
        """True until the attempt has ended."""
        return self.state is not AttemptState.ENDED

    @property
    def next_order(self) -> int:
        """The number the next order gets; PREPARE is 1. Orders that were overtaken may be missing before it."""
        return self.orders[-1].number + 1 if self.orders else 2

    @property
    def logs_closed(self) -> bool:
        """True when every member's log is closed, or known never to be."""
        return all(member.logs is not None or member.logs_given_up for member in self.members)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One execution of a workload: what was asked, by whom, and what became of it.

    ``not_before_ms`` holds a retry back. ``recent_faults_ms`` are the times of retries that cost the user nothing,
    kept for a day, because those are bounded too. ``version`` is the journal's number of the last event that
    touched it. ``held``: it waits until it is released; ``begin_ms``: and not before this time. ``eligible_ms`` is when
    a hold or a begin was taken back: what limits a wait counts from there.
    ``source_hash`` names the stored workload file (SHA-256, hex); empty when none was sent.
    """

    run_id: int
    name: str
    owner: str
    project: str
    workload: Workload
    spec_hash: str
    idempotency_key: str
    task_key: str
    state: RunState
    submitted_ms: int
    queued_ms: int
    tracking_off: bool = False
    simulated: bool = False
    attempts: tuple[Attempt, ...] = ()
    retries_spent: int = 0
    download_retries: int = 0
    recent_faults_ms: tuple[int, ...] = ()
    failures_in_row: int = 0
    not_before_ms: int = 0
    avoid_nodes: tuple[str, ...] = ()
    last_crash: tuple[str, int] | None = None
    text_excuses: int = 0
    """Retries that cost nothing on the word of job logs alone; a job could print anything, so they are few."""
    started_ms: int | None = None
    ended_ms: int | None = None
    outcome: Outcome | None = None
    cause: Cause | None = None
    failure: Failure | None = None
    source_hash: str = ""
    held: bool = False
    begin_ms: int = 0
    eligible_ms: int = 0
    token_id: str = ""
    """The token with which it was submitted, or resumed last: its attempts are charged to it."""
    unix_user: str = ""
    """The Unix account that its commands run as; empty: as the agents of its nodes do."""
    version: int = 0

    @property
    def attempt(self) -> Attempt | None:
        """The newest attempt."""
        return self.attempts[-1] if self.attempts else None

    @property
    def checkpoint(self) -> Checkpoint | None:
        """The newest acknowledged checkpoint over all attempts."""
        return next((a.checkpoint for a in reversed(self.attempts) if a.checkpoint), None)
