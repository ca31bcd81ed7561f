"""What the yard's operators declared: pools, projects, users, and the rights and shares they have.

Owns: the declared records and the few questions that are answered from them alone. Must not know: YAML, who asks,
which runs there are. The empty policy is that of a yard nobody has declared anything for: one pool for each accelerator
type, any project name, every class open to everybody.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from airyard.core.cluster import Node
from airyard.core.health.limit_names import Limit

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
EVERYBODY = "*"
DEFAULT_PROJECT = "default"


class PoolOrder(Enum):
    """How a pool orders its queue below the priority class.

    ``FIFO``: submit order. ``FAIR``: the project served least for its weight, then submit order. ``PREDICTED``:
    guarantees first, then the shortest predicted duration with ageing.
    """

    FIFO = "fifo"
    FAIR = "fair"
    PREDICTED = "predicted"


class Preflight(Enum):
    """Which checks a node passes before a member's code. ``AUTO``: ``FAST`` on nodes with real GPUs, else ``OFF``."""

    AUTO = "auto"
    OFF = "off"
    FAST = "fast"
    FULL = "full"


class OverBudget(Enum):
    """What a spent budget does: new runs are refused at submit, or wait until the month ends."""

    REFUSE = "refuse"
    PAUSE = "pause"


@dataclass(frozen=True, slots=True, kw_only=True)
class Slicing:
    """Time slicing of runs that acknowledge checkpoints.

    A run holds the front for ``first_slice_ms`` of service; then it queues behind runs that have had less and may be
    evicted for them, at most once in ``apart_ms``.
    """

    first_slice_ms: int = 2 * HOUR_MS
    apart_ms: int = HOUR_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCommand:
    """A shell command that runs on the node of each member: before it is prepared, or once nothing of it is left."""

    command: str
    timeout_ms: int = 60_000
    """After so long it is killed, and has failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolPolicy:
    """A named set of nodes of one accelerator type, and how its queue is served.

    A node belongs to the first declared pool whose ``accelerator`` is the node's type (``GPU_8xH100``, ``CPU``), and
    whose ``labels`` it carries all, and, if ``nodes`` names any, that names it. ``share``: part-node gangs of several
    runs may stand on one node. ``ageing_ms``: a run that has waited this long goes to the front of its class.
    ``reservations``: how many of the first blocked runs hold devices in time.
    """

    name: str
    accelerator: str
    labels: tuple[tuple[str, str], ...] = ()
    nodes: tuple[str, ...] = ()
    order: PoolOrder = PoolOrder.PREDICTED
    share: bool = True
    slicing: Slicing | None = None
    ageing_ms: int = 11 * DAY_MS + 12 * HOUR_MS
    reservations: int = 8
    prolog: NodeCommand | None = None
    epilog: NodeCommand | None = None
    preflight: Preflight = Preflight.AUTO
    thresholds: tuple[Limit, ...] = ()
    """Limits of health checks for its nodes, over the packaged ones and those of the machine; sorted."""
    storage: tuple[str, ...] = ()
    """Folders of file servers that runs write to: checks try them on each node."""

    def takes(self, node: Node) -> bool:
        """True when the node is of the pool's type, labels and names; an earlier pool may have it all the same."""
        named = not self.nodes or node.name in self.nodes
        return (
            self.accelerator == node.accelerator and named and set(self.labels) <= (node.labels or {}).items()
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """A project's part of one pool, in devices. ``ceiling`` None is no limit."""

    pool: str
    guarantee: int = 0
    ceiling: int | None = None
    weight: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """GPU-hours a calendar month (UTC), over all pools but those of CPU slots."""

    gpu_hours: float
    over: OverBudget = OverBudget.REFUSE


@dataclass(frozen=True, slots=True, kw_only=True)
class UserLimits:
    """What one user may have in the project at a time; None is no limit.

    ``waiting`` refuses at submit; beyond the others runs wait.
    """

    waiting: int | None = None
    running: int | None = None
    devices: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectPolicy:
    """An owner of quota. ``members`` may submit to it and ``critical`` may use CRITICAL; ``*`` is everybody."""

    name: str
    shares: tuple[Share, ...] = ()
    budget: Budget | None = None
    per_user: UserLimits = UserLimits()
    members: tuple[str, ...] = (EVERYBODY,)
    critical: tuple[str, ...] = ()
    slicing: bool | None = None
    """True or False decides for the project's runs; None leaves it to the pool."""

    def admits(self, user: str) -> bool:
        """True when the user may submit to the project."""
        return EVERYBODY in self.members or user in self.members

    def share_of(self, pool: str) -> Share:
        """Return the declared share of a pool, or the plain one: no guarantee, no ceiling, weight 1."""
        return next((share for share in self.shares if share.pool == pool), Share(pool=pool))


@dataclass(frozen=True, slots=True, kw_only=True)
class UserPolicy:
    """What is known of one user."""

    name: str
    default_project: str = DEFAULT_PROJECT


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """All that was declared. ``half_life_ms``: how fast past usage is forgotten."""

    pools: tuple[PoolPolicy, ...] = ()
    projects: tuple[ProjectPolicy, ...] = ()
    users: tuple[UserPolicy, ...] = ()
    half_life_ms: int = 7 * DAY_MS

    def pool_of(self, node: Node) -> str:
        """Return the pool of a node: the first declared one that takes it, else the one named after its type."""
        return next((pool.name for pool in self.pools if pool.takes(node)), node.accelerator)

    def pool(self, name: str) -> PoolPolicy:
        """Return a pool's rules; of one that nobody declared, the defaults."""
        return next(
            (pool for pool in self.pools if pool.name == name), PoolPolicy(name=name, accelerator=name)
        )

    def project(self, name: str) -> ProjectPolicy | None:
        """Return a declared project."""
        return next((project for project in self.projects if project.name == name), None)

    def project_for(self, user: str) -> str:
        """Return where a run goes that names no project."""
        return next((u.default_project for u in self.users if u.name == user), DEFAULT_PROJECT)

    def may_be_critical(self, user: str, project: str) -> bool:
        """True when the user has the right to CRITICAL in the project; without declared projects everybody has it."""
        if not self.projects:
            return True
        found = self.project(project)
        return found is not None and (EVERYBODY in found.critical or user in found.critical)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """Nodes set aside from ``from_ms`` to ``to_ms``, for one project, or for maintenance (then for nobody)."""

    reservation_id: int
    nodes: tuple[str, ...]
    from_ms: int
    to_ms: int
    by: str
    maintenance: bool = False
    project: str | None = None
    note: str = ""

    def bars(self, node: str, project: str, from_ms: int, to_ms: int) -> bool:
        """True when a run of ``project`` may not be on the node at some time of ``from_ms``..``to_ms``."""
        if node not in self.nodes or (not self.maintenance and self.project == project):
            return False
        return from_ms < self.to_ms and to_ms > self.from_ms
