"""The workload: what one run asks for, after every spelling of the YAML has been normalised.

Owns: the frozen types, their JSON form, the canonical form that idempotency compares, and its hash.
Must not know: YAML, files, pools that exist, the clock.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from airyard.core.notify import NotifyRule

Pairs = tuple[tuple[str, str], ...]
"""A frozen map of text to text, sorted by name."""

DEFAULT_ENVIRONMENT_VERSION = "6"
DEFAULT_MAX_RETRIES = 3
WORKLOAD_FORMAT = 1
CPU = "CPU"

RUN_NAME_PATTERN = r"(?!\d+$)[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}"
RUN_NAME_RULE = "a run name: 1 to 100 ASCII letters, digits, '-', '_' and '.', not only digits"
"""A name must not read as the number of a run, nor as ``@last`` or ``tag:``."""

RESERVED_VARIABLES = frozenset(
    {
        "NUM_NODES", "NODE_RANK", "POD_RANK", "RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE",
        "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "LOCAL_ADDR", "CUDA_VISIBLE_DEVICES",
        "CODE_SOURCE", "CODE_SOURCE_PATH", "HYPERPARAMETERS_PATH",
    }
)  # fmt: skip
"""Names that Airyard or the user's launcher sets on a node, beside everything that begins with AIRYARD_."""

_ACCELERATOR = re.compile(r"GPU_([1-9][0-9]{0,2})x([A-Za-z0-9][A-Za-z0-9_.-]{0,62})")


class Priority(Enum):
    """Who goes first: a CRITICAL run may evict the others of its pool, a BEST_EFFORT one may be evicted."""

    CRITICAL = "CRITICAL"
    NORMAL = "NORMAL"
    BEST_EFFORT = "BEST_EFFORT"

    @property
    def rank(self) -> int:
        """0 for the class that goes first."""
        return _PRIORITY_RANK[self]


_PRIORITY_RANK = {Priority.CRITICAL: 0, Priority.NORMAL: 1, Priority.BEST_EFFORT: 2}


def parse_accelerator(accelerator: str) -> tuple[str | None, int]:
    """Split ``GPU_8xH100`` into ``("H100", 8)`` and ``CPU`` into ``(None, 0)``.

    Raises: ValueError when the text is neither.
    """
    if accelerator == CPU:
        return None, 0
    match = _ACCELERATOR.fullmatch(accelerator)
    if match is None:
        raise ValueError(f"{accelerator!r} is neither GPU_<count>x<MODEL> nor CPU")
    return match.group(2), int(match.group(1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Compute:
    """The gang: ``devices_per_node`` devices of ``model`` on each of ``nodes`` nodes, all at once."""

    accelerator: str
    """As written in the YAML: ``GPU_8xH100`` or ``CPU``."""
    model: str | None = None
    """``H100``; None for CPU."""
    devices_per_node: int = 0
    """0 for CPU."""
    nodes: int = 1
    pool: str | None = None
    priority: Priority = Priority.NORMAL
    same_fabric: bool = False
    cpus: float | None = None
    """CPU cores per node; None is the node's share per device asked."""
    memory_bytes: int | None = None
    """Host memory per node; None is the node's share per device asked."""
    shm_bytes: int | None = None
    """Size of /dev/shm per node; None leaves the machine's."""

    @classmethod
    def of(cls, accelerator: str, *, nodes: int = 1) -> Compute:
        """Build a plain gang from an accelerator type. Raises: ValueError for a malformed type."""
        model, devices = parse_accelerator(accelerator)
        return cls(accelerator=accelerator, model=model, devices_per_node=devices, nodes=nodes)

    @property
    def is_cpu(self) -> bool:
        """True when no accelerator is asked."""
        return self.devices_per_node == 0

    @property
    def num_accelerators(self) -> int:
        """Devices of the whole gang; for CPU the number of nodes, as in the YAML."""
        return self.nodes * max(self.devices_per_node, 1)

    @property
    def local_world_size(self) -> int:
        """What ``LOCAL_WORLD_SIZE`` says on each node: its devices, 1 for CPU."""
        return max(self.devices_per_node, 1)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "accelerator": self.accelerator,
            "nodes": self.nodes,
            "pool": self.pool,
            "priority": self.priority.value,
            "same_fabric": self.same_fabric,
            "cpus": self.cpus,
            "memory_bytes": self.memory_bytes,
            "shm_bytes": self.shm_bytes,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Compute:
        """Rebuild from ``to_json``. Raises: KeyError, ValueError for something else."""
        model, devices = parse_accelerator(data["accelerator"])
        return cls(
            accelerator=data["accelerator"],
            model=model,
            devices_per_node=devices,
            nodes=data["nodes"],
            pool=data.get("pool"),
            priority=Priority(data.get("priority", "NORMAL")),
            same_fabric=data.get("same_fabric", False),
            cpus=data.get("cpus"),
            memory_bytes=data.get("memory_bytes"),
            shm_bytes=data.get("shm_bytes"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """The software a member finds: a base of the yard's configuration plus dependency lines for uv."""

    version: str = DEFAULT_ENVIRONMENT_VERSION
    """A number as text."""
    ai: bool = False
    """The AI variant was asked (``databricks_ai_vN``); a yard without one serves the plain base."""
    dependencies: tuple[str, ...] = ()
    """Requirement lines and options in the order given; ``-r`` files are already inlined."""

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {"version": self.version, "ai": self.ai, "dependencies": list(self.dependencies)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Environment:
        """Rebuild from ``to_json``."""
        return cls(
            version=data.get("version", DEFAULT_ENVIRONMENT_VERSION),
            ai=data.get("ai", False),
            dependencies=tuple(data.get("dependencies", ())),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """One part of a gang whose nodes run different commands; ``ranks`` are node ranks."""

    name: str
    command: str
    ranks: tuple[int, ...]
    env_variables: Pairs = ()
    secrets: Pairs = ()

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "name": self.name,
            "command": self.command,
            "ranks": list(self.ranks),
            "env_variables": dict(self.env_variables),
            "secrets": dict(self.secrets),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Role:
        """Rebuild from ``to_json``."""
        return cls(
            name=data["name"],
            command=data["command"],
            ranks=tuple(data["ranks"]),
            env_variables=pairs(data.get("env_variables", {})),
            secrets=pairs(data.get("secrets", {})),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """Limits in seconds beside the one per attempt; None is no limit."""

    queue_s: int | None = None
    """Waiting in the queue, each time."""
    environment_s: int | None = None
    """Preparing: code and environment, per attempt."""
    total_s: int | None = None
    """From submit to the end, retries and waiting included."""

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {"queue_s": self.queue_s, "environment_s": self.environment_s, "total_s": self.total_s}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Timeouts:
        """Rebuild from ``to_json``."""
        return cls(
            queue_s=data.get("queue_s"), environment_s=data.get("environment_s"), total_s=data.get("total_s")
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PreemptionRules:
    """How a run is asked to leave: the signal, then the time it has."""

    grace_s: int | None = None
    """None is the default of the priority class (120 s; 30 s for BEST_EFFORT)."""
    signal: str = "SIGTERM"
    max_loss_s: int | None = None
    """A NORMAL run that would lose more than this is evicted only when there is no other choice."""

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form. What was added later is left out while unset, so that older hashes stay."""
        out: dict[str, Any] = {"grace_s": self.grace_s, "signal": self.signal}
        return out if self.max_loss_s is None else {**out, "max_loss_s": self.max_loss_s}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> PreemptionRules:
        """Rebuild from ``to_json``."""
        return cls(
            grace_s=data.get("grace_s"),
            signal=data.get("signal", "SIGTERM"),
            max_loss_s=data.get("max_loss_s"),
        )


class HangAction(Enum):
    """What becomes of a gang that makes no progress."""

    REPORT = "report"
    RESTART = "restart"
    OFF = "off"


@dataclass(frozen=True, slots=True, kw_only=True)
class HangRules:
    """When a gang counts as hanging, by its steps or other signs, and what is done then."""

    timeout_s: int | None = None
    """None: it follows from the times of steps, metrics or lines."""
    action: HangAction = HangAction.REPORT

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {"timeout_s": self.timeout_s, "action": self.action.value}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> HangRules:
        """Rebuild from ``to_json``."""
        return cls(timeout_s=data.get("timeout_s"), action=HangAction(data.get("action", "report")))


@dataclass(frozen=True, slots=True, kw_only=True)
class Tracking:
    """Where the MLflow run of each attempt goes and what it is called."""

    enabled: bool = True
    run_name: str | None = None
    """None is the experiment's name."""
    experiment_directory: str | None = None
    artifact_location: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "enabled": self.enabled,
            "run_name": self.run_name,
            "experiment_directory": self.experiment_directory,
            "artifact_location": self.artifact_location,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Tracking:
        """Rebuild from ``to_json``."""
        return cls(
            enabled=data.get("enabled", True),
            run_name=data.get("run_name"),
            experiment_directory=data.get("experiment_directory"),
            artifact_location=data.get("artifact_location"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Permission:
    """One grant as written: to a user, a group or a service, on this run."""

    level: str
    user_name: str | None = None
    group_name: str | None = None
    service_principal_name: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form: the one principal that is set, and the level."""
        out = {
            "user_name": self.user_name,
            "group_name": self.group_name,
            "service_principal_name": self.service_principal_name,
            "level": self.level,
        }
        return {key: value for key, value in out.items() if value is not None}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Permission:
        """Rebuild from ``to_json``."""
        return cls(
            level=data["level"],
            user_name=data.get("user_name"),
            group_name=data.get("group_name"),
            service_principal_name=data.get("service_principal_name"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GitState:
    """Where the code came from; best effort, never a reason to refuse a run."""

    packaging_mode: str
    """``git_archive`` for a pinned commit or branch, ``plain_tar`` for the working tree."""
    base_commit: str | None = None
    """The commit the working tree stands on, or the pinned one."""
    branch: str | None = None
    repo_url: str | None = None
    """The remote without credentials."""
    dirty: bool = False
    diff_status: str = "clean"
    """``clean``, ``captured``, ``size_exceeded``, ``not_text`` (not UTF-8), ``looks_secret``, ``timeout`` or
    ``failed``."""
    diff_bytes: int = 0
    diff_hash: str | None = None
    """SHA-256 (hex) of the diff's octets; None when it was not captured."""

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form (``git_state.json`` of the AI Runtime, less its paths and time)."""
        return {
            "schema_version": 1,
            "packaging_mode": self.packaging_mode,
            "base_commit": self.base_commit,
            "branch": self.branch,
            "repo_url": self.repo_url,
            "dirty": self.dirty,
            "diff_status": self.diff_status,
            "diff_bytes": self.diff_bytes,
            "diff_hash": self.diff_hash,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> GitState:
        """Rebuild from ``to_json``."""
        return cls(
            packaging_mode=data["packaging_mode"],
            base_commit=data.get("base_commit"),
            branch=data.get("branch"),
            repo_url=data.get("repo_url"),
            dirty=data.get("dirty", False),
            diff_status=data.get("diff_status", "clean"),
            diff_bytes=data.get("diff_bytes", 0),
            diff_hash=data.get("diff_hash"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeReference:
    """A code snapshot the server holds, named by the hash of its tree."""

    tree_hash: str
    directory_name: str
    """The one top folder of the archive; the last part of ``CODE_SOURCE_PATH``."""
    size_bytes: int
    """Sum of the file sizes, not of the archive."""
    file_count: int = 0
    git: GitState | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "tree_hash": self.tree_hash,
            "directory_name": self.directory_name,
            "size_bytes": self.size_bytes,
            "file_count": self.file_count,
            "git": self.git.to_json() if self.git else None,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> CodeReference:
        """Rebuild from ``to_json``."""
        git = data.get("git")
        return cls(
            tree_hash=data["tree_hash"],
            directory_name=data["directory_name"],
            size_bytes=data["size_bytes"],
            file_count=data.get("file_count", 0),
            git=GitState.from_json(git) if git else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One normalised workload: hashable, comparable, and complete without its YAML file."""

    experiment: str
    command: str
    """The script of every node; empty when ``roles`` carry the commands."""
    compute: Compute
    roles: tuple[Role, ...] = ()
    name: str | None = None
    project: str | None = None
    tags: Pairs = ()
    environment: Environment = field(default_factory=Environment)
    env_variables: Pairs = ()
    secrets: Pairs = ()
    """Name of the variable → ``scope/key``; never a value."""
    parameters_json: str | None = None
    """The ``parameters`` tree as JSON text in the order written; None when the block is absent."""
    max_retries: int = DEFAULT_MAX_RETRIES
    attempt_timeout_s: int | None = None
    """Per attempt, counted from RUNNING."""
    timeouts: Timeouts = field(default_factory=Timeouts)
    preemption: PreemptionRules = field(default_factory=PreemptionRules)
    hang: HangRules = field(default_factory=HangRules)
    tracking: Tracking = field(default_factory=Tracking)
    notify: tuple[NotifyRule, ...] = ()
    permissions: tuple[Permission, ...] = ()
    run_as: str | None = None
    """The user of the yard whose Unix account the commands run as; None leaves it to yard and pool."""
    usage_policy_name: str | None = None
    usage_policy_id: str | None = None
    code: CodeReference | None = None
    """None when no code is sent, and until the snapshot is packed."""

    @property
    def diff_hash(self) -> str | None:
        """The hash of the captured git diff of the code; None without one."""
        return self.code.git.diff_hash if self.code and self.code.git else None

    @property
    def parameters(self) -> dict[str, Any] | None:
        """A fresh copy of the ``parameters`` tree, or None."""
        return None if self.parameters_json is None else json.loads(self.parameters_json)

    def command_of(self, node_rank: int) -> str:
        """Return the script of one node."""
        role = self.role_of(node_rank)
        return role.command if role else self.command

    def role_of(self, node_rank: int) -> Role | None:
        """Return the role that holds this node rank; None in a gang of one command."""
        return next((role for role in self.roles if node_rank in role.ranks), None)

    def env_variables_of(self, node_rank: int) -> dict[str, str]:
        """Return the user's variables of one node: the workload's, then its role's."""
        role = self.role_of(node_rank)
        return {**dict(self.env_variables), **(dict(role.env_variables) if role else {})}

    def secrets_of(self, node_rank: int) -> dict[str, str]:
        """Return the secret references (``scope/key`` by variable) of one node."""
        role = self.role_of(node_rank)
        return {**dict(self.secrets), **(dict(role.secrets) if role else {})}

    def with_code(self, code: CodeReference | None) -> Workload:
        """Return the same workload with its packed snapshot."""
        return replace(self, code=code)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form that the server stores and the wire carries.

        What was added later is left out while unset, so that older hashes stay.
        """
        out = self._json()
        if self.hang != HangRules():
            out["hang"] = self.hang.to_json()
        if self.notify:
            out["notify"] = [rule.to_json() for rule in self.notify]
        return out if self.run_as is None else {**out, "run_as": self.run_as}

    def _json(self) -> dict[str, Any]:
        return {
            "format": WORKLOAD_FORMAT,
            "experiment": self.experiment,
            "name": self.name,
            "project": self.project,
            "tags": dict(self.tags),
            "command": self.command,
            "roles": [role.to_json() for role in self.roles],
            "compute": self.compute.to_json(),
            "environment": self.environment.to_json(),
            "env_variables": dict(self.env_variables),
            "secrets": dict(self.secrets),
            "parameters": self.parameters,
            "max_retries": self.max_retries,
            "attempt_timeout_s": self.attempt_timeout_s,
            "timeouts": self.timeouts.to_json(),
            "preemption": self.preemption.to_json(),
            "tracking": self.tracking.to_json(),
            "permissions": [grant.to_json() for grant in self.permissions],
            "usage_policy_name": self.usage_policy_name,
            "usage_policy_id": self.usage_policy_id,
            "code": self.code.to_json() if self.code else None,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Workload:
        """Rebuild from ``to_json``. Raises: KeyError, TypeError or ValueError for something else."""
        if data.get("format", WORKLOAD_FORMAT) != WORKLOAD_FORMAT:
            raise ValueError(f"workload format {data['format']!r}; this version reads {WORKLOAD_FORMAT}")
        code = data.get("code")
        return cls(
            experiment=data["experiment"],
            name=data.get("name"),
            project=data.get("project"),
            tags=pairs(data.get("tags", {})),
            command=data["command"],
            roles=tuple(Role.from_json(role) for role in data.get("roles", ())),
            compute=Compute.from_json(data["compute"]),
            environment=Environment.from_json(data.get("environment", {})),
            env_variables=pairs(data.get("env_variables", {})),
            secrets=pairs(data.get("secrets", {})),
            parameters_json=freeze_parameters(data.get("parameters")),
            max_retries=data.get("max_retries", DEFAULT_MAX_RETRIES),
            attempt_timeout_s=data.get("attempt_timeout_s"),
            timeouts=Timeouts.from_json(data.get("timeouts", {})),
            preemption=PreemptionRules.from_json(data.get("preemption", {})),
            hang=HangRules.from_json(data.get("hang", {})),
            tracking=Tracking.from_json(data.get("tracking", {})),
            notify=tuple(NotifyRule.from_json(rule) for rule in data.get("notify", ())),
            permissions=tuple(Permission.from_json(grant) for grant in data.get("permissions", ())),
            run_as=data.get("run_as"),
            usage_policy_name=data.get("usage_policy_name"),
            usage_policy_id=data.get("usage_policy_id"),
            code=CodeReference.from_json(code) if code else None,
        )

    def canonical(self) -> dict[str, Any]:
        """Return what makes two submissions the same: the JSON form, of the code only its tree."""
        out = self.to_json()
        if self.code:
            out["code"] = {"tree_hash": self.code.tree_hash, "directory_name": self.code.directory_name}
        return out

    def spec_hash(self) -> str:
        """Return the SHA-256 (hex) of the canonical form."""
        text = json.dumps(self.canonical(), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return hashlib.sha256(text.encode()).hexdigest()


def is_reserved_variable(name: str) -> bool:
    """True for a variable that a workload may not set."""
    return name in RESERVED_VARIABLES or name.startswith("AIRYARD_")


def pairs(mapping: Mapping[str, str]) -> Pairs:
    """Freeze a map of text to text, sorted by name."""
    return tuple(sorted(mapping.items()))


def freeze_parameters(parameters: Mapping[str, Any] | None) -> str | None:
    """Return the ``parameters`` tree as JSON text. Raises: TypeError, ValueError if JSON cannot hold it."""
    if parameters is None:
        return None
    return json.dumps(parameters, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def first_difference(one: Workload, other: Workload) -> str | None:
    """Return the dotted path of the first field in which two workloads differ; None when they do not."""
    return _first_difference(one.canonical(), other.canonical(), "")


def _first_difference(one: Any, other: Any, path: str) -> str | None:
    if not (isinstance(one, dict) and isinstance(other, dict)):
        return None if one == other and type(one) is type(other) else path
    for key in [*one, *(key for key in other if key not in one)]:
        below = f"{path}.{key}" if path else key
        if (key in one) != (key in other):
            return below
        found = _first_difference(one[key], other[key], below)
        if found is not None:
            return found
    return None
