"""The bodies of the native API about pools, projects and quotas, as pydantic models.

Owns: shapes, types and sizes; what makes sense is the core's matter (``core.policy_rules``). Must not know: routes,
the state. The answers are built by ``app.policy_views`` as plain dictionaries and checked against these by tests.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from airyard.core.policy import Policy
from airyard.core.policy_json import policy_from_json
from airyard.wire.answer import Answer
from airyard.wire.native import Name, Part

MAX_POOLS = 1000
MAX_PROJECTS = 10_000
MAX_PEOPLE = 100_000
Whole = Annotated[int, Field(ge=-(10**9), le=10**9)]
Number = Annotated[float, Field(ge=-(10.0**12), le=10.0**12, allow_inf_nan=False)]
People = Annotated[list[Name], Field(max_length=MAX_PEOPLE)]


class SlicingPart(Part):
    """Time slicing, in seconds."""

    first_slice_s: Whole = 7200
    apart_s: Whole = 3600


class NodeCommandPart(Part):
    """A command around each member, its time limit in seconds."""

    command: Annotated[str, Field(max_length=65_536)]
    timeout_s: Whole = 60


class PoolPart(Part):
    """One pool."""

    name: Name
    accelerator: Name
    labels: dict[Name, Annotated[str, Field(max_length=255)]] = Field(default_factory=dict)
    nodes: Annotated[list[Name], Field(max_length=MAX_PEOPLE)] = Field(default_factory=list)
    order: Literal["fifo", "fair", "predicted"] = "predicted"
    share: bool = True
    slicing: SlicingPart | None = None
    ageing_s: Whole = 7 * 86_400
    reservations: Whole = 8
    prolog: NodeCommandPart | None = None
    epilog: NodeCommandPart | None = None
    preflight: Literal["auto", "off", "fast", "full"] = "auto"
    thresholds: Annotated[
        dict[Name, Annotated[dict[Name, Number], Field(max_length=1000)]], Field(max_length=100)
    ] = Field(default_factory=dict)
    storage: Annotated[list[Annotated[str, Field(max_length=4096)]], Field(max_length=100)] = Field(
        default_factory=list
    )


class SharePart(Part):
    """A project's part of one pool, in devices."""

    pool: Name
    guarantee: Whole = 0
    ceiling: Whole | None = None
    weight: Number = 1.0


class BudgetPart(Part):
    """GPU-hours of a calendar month (UTC)."""

    gpu_hours: Number
    over: Literal["refuse", "pause"] = "refuse"


class UserLimitsPart(Part):
    """What one user may have in the project at a time."""

    waiting: Whole | None = None
    running: Whole | None = None
    devices: Whole | None = None


class ProjectPart(Part):
    """One project."""

    name: Name
    pools: Annotated[list[SharePart], Field(max_length=MAX_POOLS)] = Field(default_factory=list)
    budget: BudgetPart | None = None
    per_user: UserLimitsPart = UserLimitsPart()
    members: People = Field(default_factory=lambda: ["*"])
    critical: People = Field(default_factory=list)
    slicing: bool | None = None


class UserPart(Part):
    """One user."""

    name: Name
    project: Name


class PolicyPart(Part):
    """All that is declared: it replaces what was declared before."""

    pools: Annotated[list[PoolPart], Field(max_length=MAX_POOLS)] = Field(default_factory=list)
    projects: Annotated[list[ProjectPart], Field(max_length=MAX_PROJECTS)] = Field(default_factory=list)
    users: Annotated[list[UserPart], Field(max_length=MAX_PEOPLE)] = Field(default_factory=list)
    half_life_s: Whole = 7 * 86_400

    def policy(self) -> Policy:
        """Return the core's record."""
        return policy_from_json(self.model_dump())


class DeclareRequest(Part):
    """``PUT /policy``; ``dry_run`` checks everything and changes nothing."""

    policy: PolicyPart
    dry_run: bool = False


class ChangeDoc(Answer):
    """One difference, in the words of yard.yaml."""

    kind: Literal["added", "removed", "changed"]
    path: str
    before: str
    after: str


class DoubtDoc(Answer):
    """What is legal and probably not what was meant."""

    rule: str
    path: str
    message: str
    fix: str


class DeclareAnswer(Answer):
    """What was changed or, of a dry run, would be."""

    changed: bool
    applied: bool
    changes: list[ChangeDoc]
    warnings: list[DoubtDoc]


class DeclarationDoc(Answer):
    """Who declared a policy, when, and whence (``api`` or ``config``)."""

    seq: int
    at: str
    by: str
    source: str
    digest: str | None


class PolicyAnswer(Answer):
    """What is declared; ``declared`` is null when nobody ever did, or so long ago that the journal forgot it."""

    policy: PolicyPart
    declared: DeclarationDoc | None


class HistoryDoc(DeclarationDoc):
    """One declaration and what it changed."""

    changes: list[ChangeDoc]


class HistoryAnswer(Answer):
    """The newest declarations, newest first."""

    history: list[HistoryDoc]


class SlicingDoc(Answer):
    """Time slicing of a pool."""

    first_slice_s: int
    apart_s: int


class NodeCommandDoc(Answer):
    """A command that runs on each node around a member."""

    command: str
    timeout_s: int


class PoolRulesDoc(Answer):
    """Which nodes a pool takes and how its queue is served."""

    labels: dict[str, str]
    nodes: list[str]
    order: str
    share: bool
    slicing: SlicingDoc | None
    ageing_s: int
    reservations: int
    prolog: NodeCommandDoc | None
    epilog: NodeCommandDoc | None
    preflight: str
    thresholds: dict[str, dict[str, float]] = Field(default_factory=dict)
    storage: list[str] = Field(default_factory=list)


class PoolDoc(Answer):
    """One pool: its nodes, what of them is free, guaranteed, used and borrowed (in devices), and its rules."""

    name: str
    accelerator: str
    declared: bool
    nodes: int
    devices: int
    open_devices: int
    free_devices: int
    whole_free_nodes: int
    guaranteed: int
    guaranteed_now: int
    used: int
    borrowed: int
    rules: PoolRulesDoc


class PoolsAnswer(Answer):
    """All pools: the declared ones in their order, then one for each type of what is left."""

    pools: list[PoolDoc]


class ShareDoc(Answer):
    """A project's part of one pool."""

    pool: str
    guarantee: int
    ceiling: int | None
    weight: float


class BudgetDoc(Answer):
    """A project's budget."""

    gpu_hours: float
    over: str


class UserLimitsDoc(Answer):
    """What one user may have in the project at a time."""

    waiting: int | None
    running: int | None
    devices: int | None


class ProjectDoc(Answer):
    """One project; ``mine``: the caller may submit to it."""

    name: str
    declared: bool
    mine: bool
    pools: list[ShareDoc]
    budget: BudgetDoc | None
    per_user: UserLimitsDoc
    members: list[str]
    critical: list[str]
    slicing: bool | None
    default_for: list[str]
    gpu_hours_this_month: float
    month_ends_at: str
    queued: int
    active: int


class ProjectsAnswer(Answer):
    """The declared projects, then others that have live runs, and ``default``."""

    projects: list[ProjectDoc]


class QuotaRowDoc(Answer):
    """A project in a pool, in devices. ``guarantee_now`` is less than ``guarantee`` while nodes are missing."""

    project: str
    pool: str
    guarantee: int
    guarantee_now: int
    ceiling: int | None
    weight: float
    used: int
    best_effort: int
    borrowed: int
    mine: int
    decayed_device_hours: float
    decayed_share: float
    decayed_share_per_weight: float


class BudgetUseDoc(Answer):
    """What of a project's budget is used up."""

    project: str
    used_gpu_hours: float
    gpu_hours: float
    over: str


class MineDoc(Answer):
    """The caller's own part."""

    projects: list[str]
    default_project: str
    devices: int
    queued: int
    active: int


class QuotaAnswer(Answer):
    """Who may have, has and had how much of which pool."""

    user: str
    at: str
    half_life_s: int
    rows: list[QuotaRowDoc]
    budgets: list[BudgetUseDoc]
    month_ends_at: str
    mine: MineDoc
