"""Effects that a decision asks for: the closed set of what the outside world is told to do.

Every action is idempotent by its key: it may be issued again after a crash, and the doer must not do it twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from airyard.core.health.facts import Remedy, Retest
from airyard.core.ids import MemberKey


@dataclass(frozen=True, slots=True, kw_only=True)
class StartMember:
    """Have the machine's agent start a runner for this member."""

    key: MemberKey
    machine: str
    node: str
    devices: tuple[int, ...]
    epoch: int
    cookie: str
    limits: Mapping[str, Any] | None = None
    """What the node's monitors are told of its pool's limits, by who carries this out; empty: there are none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KillMember:
    """Have the agent kill the member's tree and its runner: the runner did not obey in time."""

    key: MemberKey
    machine: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ShipLogs:
    """Have the agent send what a dead runner left of its log, and close it."""

    key: MemberKey
    machine: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetMember:
    """Have the agent remove what is left of a member that owes nothing more."""

    key: MemberKey
    machine: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTracking:
    """Create the attempt's MLflow run; answer with TrackingOpened or TrackingDeferred."""

    run_id: int
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseTracking:
    """End the attempt's MLflow run with its logs and tags; answer with TrackingClosed."""

    run_id: int
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRemedy:
    """Have a node mended; answer with RemedyDone. ``again``: a server of before may have begun it already."""

    node: str
    machine: str
    name: str
    remedy: Remedy
    simulated: bool
    again: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRetest:
    """Have a node tested; answer with RetestDone."""

    node: str
    machine: str
    name: str
    level: Retest
    simulated: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeAttempt:
    """Have a failed attempt judged; answer with VerdictReached. ``until_ms``: evidence may be waited for until then."""

    run_id: int
    attempt: int
    until_ms: int


Action = (
    StartMember
    | KillMember
    | ShipLogs
    | ForgetMember
    | OpenTracking
    | CloseTracking
    | RunRemedy
    | RunRetest
    | JudgeAttempt
)
