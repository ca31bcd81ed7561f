"""The bodies of the native API as pydantic models: what requests may hold, and what the answers' documents are.

Owns: shapes, types and sizes; nothing here acts. Must not know: routes, the state. The answers are built by
``app.views`` as plain dictionaries; the models below describe them for OpenAPI and are checked against them by tests.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue

from airyard.core.notify import MAX_RULES, check_target
from airyard.core.workload import (
    RUN_NAME_PATTERN,
    RUN_NAME_RULE,
    Workload,
    is_reserved_variable,
    parse_accelerator,
)
from airyard.wire.answer import Answer
from airyard.wire.moment import Moment
from airyard.wire.verdicts import AttemptStallDoc, JudgementDoc

MAX_SOURCE_CHARACTERS = 1 << 20
MAX_COMMAND_CHARACTERS = 1 << 20
MAX_DIFF_BYTES = 1 << 20
_HEX = re.compile(r"[0-9a-f]{64}")
_SECRET = re.compile(r"[^/\s]+/[^/\s]+")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def _accelerator(text: str) -> str:
    parse_accelerator(text)
    return text


def _secret(text: str) -> str:
    if not _SECRET.fullmatch(text):
        raise ValueError("is not scope/key")
    return text


def _variable(name: str) -> str:
    if not _VARIABLE.fullmatch(name):
        raise ValueError("is not a name of an environment variable")
    if is_reserved_variable(name):
        raise ValueError("is set by Airyard on every node and cannot be overridden")
    return name


def _run_name(name: str) -> str:
    if not re.fullmatch(RUN_NAME_PATTERN, name):
        raise ValueError(f"{name!r} is not {RUN_NAME_RULE}")
    return name


def _no_nul(text: str) -> str:
    if "\0" in text:
        raise ValueError("contains a NUL character")
    return text


def _tree_hash(text: str) -> str:
    if not _HEX.fullmatch(text):
        raise ValueError("is not a SHA-256 in lower-case hex")
    return text


def _git_diff(text: str) -> str:
    size = len(text.encode())
    if size > MAX_DIFF_BYTES:
        raise ValueError(f"has {size:,} bytes; a diff may have {MAX_DIFF_BYTES:,}")
    return text


Name = Annotated[str, Field(min_length=1, max_length=255), AfterValidator(_no_nul)]
Text = Annotated[str, Field(max_length=MAX_COMMAND_CHARACTERS), AfterValidator(_no_nul)]
Seconds = Annotated[int, Field(ge=1, le=10 * 366 * 86_400)]
Variable = Annotated[str, AfterValidator(_variable)]
SecretReference = Annotated[str, AfterValidator(_secret)]
TreeHash = Annotated[str, AfterValidator(_tree_hash)]
Variables = dict[Variable, Text]
SecretReferences = dict[Variable, SecretReference]


class Part(BaseModel):
    """A part of a request: no field but those named, no value but of its type."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class ComputePart(Part):
    """The gang."""

    accelerator: Annotated[str, AfterValidator(_accelerator)]
    nodes: Annotated[int, Field(ge=1, le=100_000)] = 1
    pool: Name | None = None
    priority: Literal["CRITICAL", "NORMAL", "BEST_EFFORT"] = "NORMAL"
    same_fabric: bool = False
    cpus: Annotated[float, Field(gt=0)] | None = None
    memory_bytes: Annotated[int, Field(gt=0)] | None = None
    shm_bytes: Annotated[int, Field(ge=0)] | None = None


class EnvironmentPart(Part):
    """The software."""

    version: Name = "6"
    ai: bool = False
    dependencies: Annotated[list[Text], Field(max_length=10_000)] = []


class RolePart(Part):
    """A part of a gang with a command of its own."""

    name: Name
    command: Text
    ranks: Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]
    env_variables: Variables = {}
    secrets: SecretReferences = {}


class TimeoutsPart(Part):
    """Limits beside the one per attempt."""

    queue_s: Seconds | None = None
    environment_s: Seconds | None = None
    total_s: Seconds | None = None


class PreemptionPart(Part):
    """How the run is asked to leave."""

    grace_s: Annotated[int, Field(ge=0, le=86_400)] | None = None
    signal: Annotated[str, Field(pattern=r"^SIG[A-Z0-9+]{2,12}$")] = "SIGTERM"
    max_loss_s: Seconds | None = None


class HangPart(Part):
    """When a gang that tells of its steps counts as hanging, and what is done then."""

    timeout_s: Annotated[int, Field(ge=1, le=86_400)] | None = None
    action: Literal["report", "restart", "off"] = "report"


class TrackingPart(Part):
    """Where the MLflow runs go."""

    enabled: bool = True
    run_name: Name | None = None
    experiment_directory: Annotated[str, Field(min_length=1, max_length=1024)] | None = None
    artifact_location: Annotated[str, Field(min_length=1, max_length=4096)] | None = None


class NotifyPart(Part):
    """Who is told of what."""

    on: Annotated[list[Literal["failed", "preempted", "stalled", "done"]], Field(min_length=1, max_length=4)]
    to: Annotated[str, AfterValidator(check_target)]
    secret: SecretReference | None = None


class PermissionPart(Part):
    """One grant; stored, not enforced yet."""

    level: Name
    user_name: Name | None = None
    group_name: Name | None = None
    service_principal_name: Name | None = None


class GitPart(Part):
    """Where the code came from."""

    schema_version: int = 1
    packaging_mode: Name
    base_commit: Name | None = None
    branch: Name | None = None
    repo_url: Annotated[str, Field(max_length=4096)] | None = None
    dirty: bool = False
    diff_status: Name = "clean"
    diff_bytes: Annotated[int, Field(ge=0)] = 0
    diff_hash: TreeHash | None = None


class CodePart(Part):
    """The code snapshot, already uploaded under its hash."""

    tree_hash: TreeHash
    directory_name: Annotated[str, Field(min_length=1, max_length=255, pattern=r"^[^/\x00]+$")]
    size_bytes: Annotated[int, Field(ge=0)]
    file_count: Annotated[int, Field(ge=0)] = 0
    git: GitPart | None = None


class WorkloadPart(Part):
    """``Workload.to_json()`` of ``airyard.core.workload``."""

    format: Literal[1] = 1
    experiment: Name
    name: Annotated[str, AfterValidator(_run_name)] | None = None
    project: Name | None = None
    tags: dict[Name, Annotated[str, Field(max_length=5000)]] = {}
    command: Text
    roles: list[RolePart] = []
    compute: ComputePart
    environment: EnvironmentPart = EnvironmentPart()
    env_variables: Variables = {}
    secrets: SecretReferences = {}
    parameters: dict[str, JsonValue] | None = None
    max_retries: Annotated[int, Field(ge=0, le=1000)] = 3
    attempt_timeout_s: Seconds | None = None
    timeouts: TimeoutsPart = TimeoutsPart()
    preemption: PreemptionPart = PreemptionPart()
    hang: HangPart = HangPart()
    tracking: TrackingPart = TrackingPart()
    notify: Annotated[list[NotifyPart], Field(max_length=MAX_RULES)] = []
    permissions: list[PermissionPart] = []
    run_as: Name | None = None
    usage_policy_name: Name | None = None
    usage_policy_id: Name | None = None
    code: CodePart | None = None

    def workload(self) -> Workload:
        """Return the core's record. Raises: ValueError for what only all fields together show."""
        workload = Workload.from_json(self.model_dump())
        _check_roles(workload)
        return workload


def _check_roles(workload: Workload) -> None:
    """Raise ValueError unless every node rank has exactly one command that is not blank."""
    if not workload.roles:
        if not workload.command.strip():
            raise ValueError("workload.command is empty: nothing would run")
        return
    ranks = sorted(rank for role in workload.roles for rank in role.ranks)
    if ranks != list(range(workload.compute.nodes)):
        raise ValueError(
            f"workload.roles must give each of the node ranks 0 to {workload.compute.nodes - 1} to one role; "
            f"they name {ranks[:20]}"
        )
    empty = [role.name for role in workload.roles if not role.command.strip()]
    if empty:
        raise ValueError(f"workload.roles: {', '.join(empty)} has an empty command")


class SubmitRequest(Part):
    """``POST /runs``."""

    workload: WorkloadPart
    source_yaml: Annotated[str, Field(max_length=MAX_SOURCE_CHARACTERS)] | None = None
    git_diff: Annotated[str, AfterValidator(_git_diff)] | None = None
    idempotency_key: Annotated[str, Field(min_length=1, max_length=255)] | None = None
    dry_run: bool = False
    allow_no_durable: bool = True
    held: bool = False
    begin_at: Moment | None = None


class SecretRequest(Part):
    """``PUT /secrets/{scope}/{key}``."""

    value: Annotated[str, Field(max_length=1 << 16)]
    unmasked: bool = False
    project: Name | None = None
    """Whose it is; one's own without."""


class CollectRequest(Part):
    """``POST /admin/gc``."""

    dry_run: bool = False


class ShutdownRequest(Part):
    """``POST /admin/shutdown``."""

    runs: Literal["refuse", "keep", "cancel"] = "refuse"


class FixDoc(Answer):
    """The next step; ``command`` and ``patch`` only where one would do."""

    text: str
    command: str | None = None
    patch: dict[str, Any] | None = None


class ErrorBody(Answer):
    """What went wrong, why, and what to do."""

    code: str
    kind: str
    message: str
    retryable: bool
    retry_after_ms: int | None
    fix: FixDoc | None
    details: dict[str, Any]


class ErrorAnswer(Answer):
    """Every answer with a status of 400 and above."""

    error_code: str
    message: str
    error: ErrorBody


class PhaseDoc(Answer):
    """One phase of the newest attempt; ``duration_ms`` is null while it goes on."""

    name: str
    started_at: str
    duration_ms: int | None


class EtaDoc(Answer):
    """When something is expected: in the median case, and at the latest nine times in ten."""

    p50: str
    p90: str


class CounterfactualDoc(Answer):
    """A change that would let a run start; ``text`` goes on after "it would start".

    ``at``: when it comes by itself. ``evicts``: who would have to leave first. ``command`` makes the change.
    """

    change: str
    text: str
    detail: dict[str, Any]
    at: str | None
    evicts: list[int]
    command: str | None


class PendingDoc(Answer):
    """Why a queued run waits; ``eta`` and ``position`` where they are quickly known."""

    reason: str
    message: str
    evidence: dict[str, Any]
    not_before: str | None
    eta: EtaDoc | None
    position: int | None


class FailureDoc(Answer):
    """The first thing that went wrong."""

    cause: str
    attempt: int | None
    member: int | None
    node: str | None
    exit_code: int | None
    signal: int | None
    message: str
    next_step: str


class TrackingDoc(Answer):
    """The attempt's MLflow run."""

    state: str
    experiment_id: str | None
    run_id: str | None
    url: str | None


class StopDoc(Answer):
    """A request to stop."""

    reason: str
    by: str
    at: str
    message: str
    for_run: int | None
    rule: str | None


class CheckpointDoc(Answer):
    """The newest acknowledged checkpoint."""

    step: int
    path: str
    at: str


class PreparedDoc(Answer):
    """What preparing a member took."""

    environment_ms: int
    code_ms: int
    environment_hit: bool


class MemberLogsDoc(Answer):
    """How a member's log ended; ``complete`` is false when its end never came."""

    last_seq: int | None
    sha256: str
    complete: bool


class MemberDoc(Answer):
    """The command on one node."""

    member: int
    node: str
    machine: str
    devices: list[int]
    phase: str
    network: str | None = None
    exit_code: int | None
    signal: int | None
    message: str | None
    prepared: PreparedDoc | None
    logs: MemberLogsDoc | None


class AttemptDoc(Answer):
    """One try of a run."""

    attempt: int
    state: str
    outcome: str | None
    cause: str | None
    placed_at: str
    ready_at: str | None
    started_at: str | None
    ended_at: str | None
    stop: StopDoc | None
    checkpoint: CheckpointDoc | None
    stall: AttemptStallDoc | None
    members: list[MemberDoc]
    tracking: TrackingDoc | None
    failure: FailureDoc | None
    judgement: JudgementDoc | None = None


class RunDoc(Answer):
    """One run."""

    run_id: int
    name: str
    experiment: str
    owner: str
    unix_user: str | None
    project: str
    tags: dict[str, str]
    state: Literal["QUEUED", "ACTIVE", "ENDED"]
    status: str
    outcome: str | None
    cause: str | None
    simulated: bool
    accelerator: str
    nodes: int
    devices_per_node: int
    priority: str
    pool: str | None
    timeout_s: int | None
    held: bool
    begin_at: str | None
    submitted_at: str
    started_at: str | None
    ended_at: str | None
    duration_ms: int | None
    version: int
    phases: list[PhaseDoc]
    attempt: int | None
    attempts: list[AttemptDoc]
    max_retries: int
    retries_spent: int
    pending: PendingDoc | None
    failure: FailureDoc | None
    tracking: TrackingDoc | None
    code: dict[str, Any] | None
    logs_complete: bool
    exit_code: int | None
    parameters: dict[str, Any]
    position: int | None = None
    hidden: bool = False
    """True in a queue for a run that the caller may not see: names, people, parameters are left out."""


class RunAnswer(Answer):
    """One run."""

    run: RunDoc


class RunsAnswer(Answer):
    """A page of runs, newest first; ``next_before`` asks for the next page."""

    runs: list[RunDoc]
    next_before: int | None = None


class WaitAnswer(Answer):
    """The runs waited for; ``done`` when all (or any) have ended."""

    done: bool
    runs: list[RunDoc]


class DryRunEnvironment(Answer):
    """The environment a workload asks for; ``cached`` is null when the nodes could not be asked."""

    version: str
    dependencies: int
    cached: bool | None


class DryRunDoc(Answer):
    """What would become of a workload now."""

    would_start_now: bool
    nodes: list[str]
    accelerator: str
    devices: int
    pool: str
    environment: DryRunEnvironment
    gpu_hours_at_limit: float | None
    reason: str | None
    message: str
    position: int | None
    eta: EtaDoc | None
    counterfactuals: list[CounterfactualDoc]
    counterfactuals_failed: bool
    evidence: dict[str, Any]
    warnings: list[str]


class SubmitAnswer(Answer):
    """The run that was made, or the one the key had made before; of a dry run ``dry_run``."""

    run: RunDoc | None = None
    existing: bool = False
    warnings: list[str] = Field(default_factory=list)
    dry_run: DryRunDoc | None = None


class CancelAnswer(Answer):
    """What a cancel found."""

    run_id: int
    already_ended: bool


class SourceAnswer(Answer):
    """What the run was submitted with."""

    source_yaml: str | None
    git_diff: str | None
    workload: dict[str, Any]
