"""The fields of a workload file, as pydantic models: the one source of validation, help, schema and docs.

Owns: every field of every generation of the YAML, its kind, default and description.
Must not know: rules between fields (`rules`), files, positions.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema

from airyard.core.notify import MAX_RULES
from airyard.spec.fields import (
    MAX_DURATION_S,
    AcceleratorType,
    ArtifactLocation,
    Branch,
    Command,
    Commit,
    Dependencies,
    Duration,
    EnvironmentVersion,
    ExperimentDirectory,
    ExperimentName,
    GitRemote,
    HangActionName,
    IncludePath,
    LegacyPriority,
    NotBlank,
    NotifyOn,
    NotifyTarget,
    OnOff,
    Origin,
    PermissionLevel,
    PolicyId,
    PoolName,
    PriorityClass,
    ProjectName,
    RunName,
    SecretReference,
    Shown,
    Signal,
    Size,
    TagName,
    VariableName,
    VolumePath,
    setting,
)

Natural = Annotated[int, Field(ge=0)]
Cores = Annotated[float, Field(gt=0, le=100_000, allow_inf_nan=False), Shown(text="number of cores")]
TagValue = Annotated[
    str, Field(max_length=500), WithJsonSchema({"type": ["string", "number", "boolean"]}), Shown(text="text")
]
Variables = dict[VariableName, str]
Secrets = dict[VariableName, SecretReference]


class Block(BaseModel):
    """Strict reading: no unknown keys, no silent conversions."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, defer_build=True)


class ComputeBlock(Block):
    """What the run needs: a gang of nodes with equal numbers of one device each."""

    accelerator_type: AcceleratorType = setting(
        "Which accelerator, and how many of it on each node. GPU_<k>x<MODEL> asks k devices of the model on "
        "each node, up to what a node has; CPU asks no accelerator. `airyard pools` lists what is there.",
        required=True,
        examples=["GPU_1xA10", "GPU_8xH100", "CPU"],
    )
    num_accelerators: Annotated[int, Field(ge=1, le=1_000_000)] | None = setting(
        "Accelerators of the whole run, a multiple of those per node: the number of nodes is this divided by "
        "them. For CPU it counts nodes and may be left out.",
        shown_default="1 node for CPU; required otherwise",
        examples=[1, 16],
    )
    pool_id: PoolName | None = setting("Run in this pool only.", shown_default="any pool that fits")
    pool_name: PoolName | None = setting("Older spelling of pool_id.", origin=Origin.OLDER)
    provisioned_capacity_id: PoolName | None = setting("Older spelling of pool_id.", origin=Origin.OLDER)
    node_pool_id: PoolName | None = setting("Older spelling of pool_id.", origin=Origin.OLDER)
    priority_class: PriorityClass | None = setting(
        "Who goes first: CRITICAL may evict others of its pool, BEST_EFFORT may be evicted. Needs no pool.",
        shown_default="NORMAL",
    )
    same_fabric: bool | None = setting(
        "Wait for nodes of one fabric instead of spreading over several.",
        shown_default="false",
        origin=Origin.AIRYARD,
    )
    cpus: Cores | None = setting(
        "CPU cores on each node.",
        shown_default="the node's share per device asked",
        origin=Origin.AIRYARD,
    )
    memory: Size | None = setting(
        "Host memory on each node.",
        shown_default="the node's share per device asked",
        origin=Origin.AIRYARD,
        examples=["64GiB"],
    )
    shm: Size | None = setting(
        "Size of /dev/shm on each node.",
        shown_default="the machine's",
        origin=Origin.AIRYARD,
        examples=["16GiB"],
    )


class ContainerVariablesBlock(Block):
    """Variables of one role."""

    variables: Variables | None = setting(
        "Name → text; {{secrets/scope/key}} as the whole text refers to a secret.", shown_default="empty"
    )


class ContainerBlock(Block):
    """One role: a command of its own on some of the nodes."""

    name: RunName = setting("Name of the role.", required=True)
    command: Command = setting("What the nodes of this role run.", required=True)
    ranks: Annotated[list[Natural], Field(min_length=1)] = setting(
        "Node ranks of this role, from 0; every node belongs to exactly one role.", required=True
    )
    environment_variables: ContainerVariablesBlock | None = setting("Variables of this role.")
    env_variables: Variables | None = setting(
        "Variables of this role, over those of the workload.", origin=Origin.AIRYARD, shown_default="empty"
    )
    secrets: Secrets | None = setting(
        "Secrets of this role: name of the variable → scope/key.",
        origin=Origin.AIRYARD,
        shown_default="empty",
    )
    unity_catalog_image: NotBlank | None = setting("Image of this role. Not supported yet.")


class DockerImageBlock(Block):
    """An image of an older generation. Not supported yet."""

    url: NotBlank = setting("Image to run in.", required=True, origin=Origin.OLDER)
    tag_policy: Literal["auto", "latest"] | None = setting(
        "Whether the tag is looked up again before each run.", shown_default="auto", origin=Origin.OLDER
    )
    credentials_scope: NotBlank | None = setting("Scope of the registry's credentials.", origin=Origin.OLDER)
    credentials_key: NotBlank | None = setting("Key of the registry's credentials.", origin=Origin.OLDER)


class EnvironmentBlock(Block):
    """The software the command finds; without this block, the base of the default version."""

    version: EnvironmentVersion | None = setting(
        "Base of the environment, as the yard's configuration defines it.",
        shown_default="6",
        examples=[6, "databricks_ai_v6"],
    )
    dependencies: Dependencies | None = setting(
        "Requirements on top of the base, installed by uv in the order given: requirement, URL, absolute "
        "path of a wheel, `-r FILE` (relative to this file; its lines are taken in), index options (--index-url, "
        "--extra-index-url, --find-links), and options for the next entry (--no-deps, --no-build-isolation, "
        "--no-cache-dir, --force-reinstall). Or the path of a YAML with `version` and `dependencies`.",
        shown_default="empty",
        examples=[["torch==2.9.0", "-r requirements.txt"]],
    )
    env_variables: Variables | None = setting(
        "Older place of the top-level env_variables.", origin=Origin.OLDER, shown_default="empty"
    )
    secrets: Secrets | None = setting(
        "Older place of the top-level secrets.", origin=Origin.OLDER, shown_default="empty"
    )
    unity_catalog_image: NotBlank | None = setting(
        "Image catalog.schema.image:tag to run in; excludes version and dependencies. Not supported yet."
    )
    docker_image: DockerImageBlock | None = setting(
        "Image to run in; excludes version and dependencies. Not supported yet.", origin=Origin.OLDER
    )
    custom_image_tag: NotBlank | None = setting(
        "Image to run in; excludes the other fields. Not supported yet.", origin=Origin.OLDER
    )


class GitBlock(Block):
    """Send a committed tree instead of the working tree."""

    branch: Branch | None = setting(
        "Head of this local branch; never fetched. An error when the tree under root_path has changes."
    )
    commit: Commit | None = setting(
        "This commit, which must exist locally. Changes in the tree are left out."
    )
    remote: GitRemote | None = setting("Only false: commits are never fetched.", shown_default="false")


class SnapshotBlock(Block):
    """The nested form of the fields of code_source."""

    root_path: NotBlank = setting("Folder to send.", required=True, origin=Origin.OLDER)
    include_paths: Annotated[list[IncludePath], Field(min_length=1)] | None = setting(
        "Send only these paths below root_path.", origin=Origin.OLDER, shown_default="everything"
    )
    git: GitBlock | None = setting("Send a committed tree.", origin=Origin.OLDER)
    remote_volume: VolumePath | None = setting(
        "Where to put the archive. Not supported yet.", origin=Origin.OLDER
    )


class CodeSourceBlock(Block):
    """The code that goes along; without this block nothing is sent."""

    root_path: NotBlank | None = setting(
        "Folder to send, relative to this file; environment variables and ~ are expanded, a leading "
        "project_root/ means this file's folder. Ignored files (.gitignore, at every level) stay behind. Its "
        "name becomes the last part of CODE_SOURCE_PATH.",
        shown_default="required in this form",
        examples=["."],
    )
    include_paths: Annotated[list[IncludePath], Field(min_length=1)] | None = setting(
        "Send only these paths below root_path.", shown_default="everything"
    )
    git: GitBlock | None = setting("Send a committed tree instead of the working tree.")
    remote_volume: VolumePath | None = setting("Where to put the archive. Not supported yet.")
    type: Literal["snapshot"] | None = setting("Goes with the nested form.", origin=Origin.OLDER)
    snapshot: SnapshotBlock | None = setting("The nested form of the fields above.", origin=Origin.OLDER)


class PreemptionBlock(Block):
    """How the run is asked to leave when a more urgent one needs its place, or when it is cancelled."""

    grace_seconds: Annotated[int, Field(ge=0, le=3600)] | None = setting(
        "Time between the signal and the kill.",
        shown_default="120; 30 for BEST_EFFORT",
        origin=Origin.AIRYARD,
    )
    signal: Signal | None = setting(
        "Sent to the process group after the stop file has appeared.",
        shown_default="SIGTERM",
        origin=Origin.AIRYARD,
    )
    max_loss: Duration | None = setting(
        "A NORMAL run that would lose more work than this, counted from its last acknowledged checkpoint or else "
        "from its start, is evicted only when there is no other choice. docs/checkpoints.md has more.",
        shown_default="no limit",
        origin=Origin.AIRYARD,
        examples=["30m"],
    )


class HangBlock(Block):
    """When a run that makes no progress counts as hanging, and what is done then: docs/health.md."""

    timeout_seconds: Annotated[int, Field(ge=1, le=86_400)] | None = setting(
        "No step (airyard.step) for so long is a hang, unless user code says otherwise for a part of its own. Of a run "
        "that tells of no steps: no metric, else no log line, once they came regularly for as long.",
        shown_default="60, or 5 times the longest of the last 50 steps if that is more; without steps 10 to 30 minutes "
        "at least",
        origin=Origin.AIRYARD,
    )
    action: HangActionName | None = setting(
        "report notes it; restart ends the attempt, and the next one keeps away from the nodes of the ranks that "
        "held the others up; off looks for none.",
        shown_default="report",
        origin=Origin.AIRYARD,
    )


class TimeoutsBlock(Block):
    """Limits beside timeout_minutes."""

    queue: Duration | None = setting(
        "Give up when the run waited this long in the queue.",
        shown_default="no limit",
        origin=Origin.AIRYARD,
        examples=["2h"],
    )
    environment: Duration | None = setting(
        "Give up preparing code and environment after this.",
        shown_default="the server's",
        origin=Origin.AIRYARD,
    )
    total: Duration | None = setting(
        "From submit to the end, waiting and retries included.",
        shown_default="no limit",
        origin=Origin.AIRYARD,
    )


class NotifyBlock(Block):
    """Whom to tell when something becomes of the run: docs/notifications.md."""

    on: Annotated[list[NotifyOn], Field(min_length=1)] = setting(
        "On which occasions: failed (ended in failure or out of time), preempted (had to leave, waits again), "
        "stalled (makes no progress), done (ended, however it did).",
        required=True,
        origin=Origin.AIRYARD,
        examples=[["failed", "preempted"]],
    )
    to: NotifyTarget = setting(
        "Where a signed POST goes: an address, or {{secrets/scope/key}} for one that is a secret.",
        required=True,
        origin=Origin.AIRYARD,
        examples=["https://hooks.example.org/airyard"],
    )
    secret: SecretReference | None = setting(
        "The secret (scope/key) by which messages are signed.",
        shown_default="the yard's; unsigned where it has none",
        origin=Origin.AIRYARD,
    )


class PermissionBlock(Block):
    """One grant: exactly one principal and a level."""

    user_name: NotBlank | None = setting("A user.")
    group_name: NotBlank | None = setting("A group.")
    service_principal_name: NotBlank | None = setting("A service principal.")
    level: PermissionLevel = setting("What the principal may do.", required=True)


class WorkloadFile(Block):
    """A workload: what to run, on what, with which software, code and settings."""

    bases: list[str] | None = setting(
        "Files to build on, relative to this one: maps are merged deeply, later wins, lists are replaced.",
        alias="_bases_",
        origin=Origin.OLDER,
    )
    experiment_name: ExperimentName = setting(
        "Names the MLflow experiment, which is created or appended to.", required=True
    )
    name: RunName | None = setting("A name for the run, to refer to it later.", origin=Origin.AIRYARD)
    project: ProjectName | None = setting(
        "Whose quota and budget the run uses; `airyard projects` lists yours.",
        shown_default="the user's, as declared; else default",
        origin=Origin.AIRYARD,
    )
    tags: dict[TagName, TagValue] | None = setting(
        "Free labels: name → text.", shown_default="empty", origin=Origin.AIRYARD
    )
    compute: ComputeBlock = setting("What the run needs.", required=True)
    command: Command | None = setting(
        "What runs once on each node, under bash, in the folder of the code.",
        shown_default="required, unless containers is given",
    )
    containers: Annotated[list[ContainerBlock], Field(min_length=1)] | None = setting(
        "Roles with commands of their own, instead of command."
    )
    environment: EnvironmentBlock | None = setting("The software the command finds.")
    env_variables: Variables | None = setting(
        "Variables of the command: name → text. Airyard's, rank and rendezvous names are refused.",
        shown_default="empty",
    )
    secrets: Secrets | None = setting(
        "Variables filled on the node from secrets: name of the variable → scope/key.", shown_default="empty"
    )
    code_source: CodeSourceBlock | None = setting("The code that goes along.", shown_default="none is sent")
    parameters: dict[str, Any] | None = setting(
        "Any tree of values; logged to MLflow, and written as a YAML file whose path is in "
        "HYPERPARAMETERS_PATH.",
        shown_default="none",
    )
    max_retries: Annotated[int, Field(ge=0, le=1000)] | None = setting(
        "How often a failed attempt is tried again; 0 turns it off. Faults of the yard do not count.",
        shown_default="3",
    )
    timeout_minutes: Annotated[int, Field(ge=1, le=MAX_DURATION_S // 60)] | None = setting(
        "Limit of each attempt, counted from when its command runs.", shown_default="no limit"
    )
    timeouts: TimeoutsBlock | None = setting("Limits beside timeout_minutes.", origin=Origin.AIRYARD)
    preemption: PreemptionBlock | None = setting("How the run is asked to leave.", origin=Origin.AIRYARD)
    hang: HangBlock | None = setting("What to do when the run makes no progress.", origin=Origin.AIRYARD)
    notify: Annotated[list[NotifyBlock], Field(max_length=MAX_RULES)] | None = setting(
        "Whom to tell when something becomes of the run.", origin=Origin.AIRYARD
    )
    idempotency_token: Annotated[str, Field(min_length=1, max_length=64)] | None = setting(
        "Submitting again with the same token gives the same run; --idempotency-key goes first.",
        shown_default="a new one each time",
    )
    tracking: OnOff | None = setting("off starts no MLflow run.", shown_default="on", origin=Origin.AIRYARD)
    mlflow_run_name: ExperimentName | None = setting(
        "Name of the MLflow run of each attempt.", shown_default="the experiment's name"
    )
    mlflow_experiment_directory: ExperimentDirectory | None = setting(
        "Folder the experiment's name is put below.", shown_default="none"
    )
    mlflow_artifact_location: ArtifactLocation | None = setting(
        "Where a new experiment keeps its artifacts; an existing one keeps its own.",
        shown_default="the tracking server's",
    )
    permissions: list[PermissionBlock] | None = setting(
        "Who else may see or manage the run: docs/operate/people.md."
    )
    run_as: NotBlank | None = setting(
        "User of the yard whose Unix account the command has: yourself, or a service lent to a group of yours.",
        origin=Origin.AIRYARD,
        shown_default="as yard and pool say",
    )
    usage_policy_name: Annotated[str, Field(min_length=1, max_length=127)] | None = setting(
        "Whom the cost goes to, by name. Not enforced yet."
    )
    usage_policy_id: PolicyId | None = setting("Whom the cost goes to, by id. Not enforced yet.")
    priority: LegacyPriority | None = setting("Older place of compute.priority_class.", origin=Origin.OLDER)
    job_type: Literal["standard", "udp"] | None = setting(
        "Only standard; udp is not supported.", shown_default="standard", origin=Origin.OLDER
    )
    udp: dict[str, Any] | None = setting("Batch inference. Not supported yet.", origin=Origin.OLDER)
