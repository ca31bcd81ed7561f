"""What every route may use: the parts that the composition root has put together.

Owns: the list of parts, and the caller's identity. Must not know: how the parts are made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airyard.app.changes import ChangeFeed
from airyard.app.gang_signs import GangSigns
from airyard.app.gang_slowness import Throttles
from airyard.app.gang_steps import GangSteps
from airyard.app.loop import ControlLoop
from airyard.core.access.people import People
from airyard.core.access.principals import Principal
from airyard.core.ids import MemberKey
from airyard.core.workload import Workload
from airyard.ports.blob_store import BlobStore
from airyard.ports.clock import Clock
from airyard.ports.journal import Journal
from airyard.ports.log_store import LogStore
from airyard.ports.notice_store import NoticeStore
from airyard.ports.read_store import ReadStore
from airyard.ports.secrets import SecretStore
from airyard.server.audit import AuditLog
from airyard.server.fleet_values import FleetValues
from airyard.server.gauges import Gauges

if TYPE_CHECKING:
    from airyard.app.retention import RetentionPolicy
    from airyard.ports.tracker import Tracker
    from airyard.server.logins import LoginDesk
    from airyard.server.node_rounds import NodeRounds
    from airyard.server.pair_desk import PairDesk


__all__ = ["AccessParts", "Principal", "ServerContext"]


@dataclass(slots=True, kw_only=True)
class AccessParts:
    """Who there is, who calls, and what is written down about it."""

    authorise: Callable[[str | None, str | None], Principal]
    """(Authorization header, session cookie) -> who it is. Raises: Denied."""
    still: Callable[[Principal], bool]
    """Whether the token that a request came with counts still."""
    proof: Callable[[str, str | None], str]
    """(nonce, token id or None) -> hex HMAC-SHA256 under the owner's token, or under the digest of that token."""
    link: Callable[[Principal], str]
    """A fresh one-time code by which a browser gets the caller's session."""
    redeem: Callable[[str], str]
    """One-time code → session. Raises: Denied for one that was used, or is too old."""
    session: Callable[[str], str]
    """Token id → a session that ends with the token."""
    people: Callable[[], People]
    audit: AuditLog
    used_ms: MutableMapping[str, int] = field(default_factory=dict)
    """Token id → when it was used last."""
    problem: Callable[[], str | None] = lambda: None
    """What is wrong with the newest users file, while an older one counts."""
    insecure: bool = False
    """True where plain HTTP leaves this machine."""
    logins: LoginDesk | None = None
    """Where a yard has a login provider."""


@dataclass(slots=True, kw_only=True)
class ServerContext:
    """The parts of one running server. Routes get it as ``request.app.state.context``."""

    home: Path
    url: str
    started_ms: int
    owner: str
    loop: ControlLoop
    journal: Journal
    """For verification and pruning; only the loop appends."""
    reads: ReadStore
    logs: LogStore
    blobs: BlobStore
    secrets: SecretStore
    tracker: Tracker
    changes: ChangeFeed
    clock: Clock
    retention: RetentionPolicy
    tracking_off: bool
    environment_versions: frozenset[str]
    """The versions of the base environment that the configuration defines."""
    engine_name: str
    simulate: Mapping[str, int]
    has_environment: Callable[[Workload], bool | None]
    """Whether the workload's environment is built on the nodes; None when they cannot be asked. Blocks."""
    tidy_nodes: Callable[[int | None, int | None, bool], Mapping[str, Any]]
    """(age in ms, cap in bytes, dry run) -> what of the environments on nodes went, or would go."""
    rounds: NodeRounds
    """Checks of nodes, for persons."""
    pairs: PairDesk
    """Tests of two nodes, for persons."""
    containment: Callable[[], Mapping[str, Any]]
    access: AccessParts
    shutdown: Callable[[], None]
    notices: NoticeStore | None = None
    """What is to be told, and was; None in a server that tells nothing."""
    servers: tuple[str, ...] = ()
    """All servers of which one leads, this one first; empty where there is no standby."""
    fleet: FleetValues = field(default_factory=FleetValues)
    gauges: Gauges = field(default_factory=Gauges)
    clock_offsets_ns: dict[MemberKey, int] = field(default_factory=dict)
    older_runners: set[MemberKey] = field(default_factory=set)
    """Members whose runners were started by an older release, as their polls say."""
    progress: dict[MemberKey, tuple[str, str]] = field(default_factory=dict)
    """What a preparing member is at (phase, detail); never journalled."""
    steps: GangSteps = field(default_factory=GangSteps)
    """What running gangs tell of their steps; never journalled."""
    throttles: Throttles = field(default_factory=Throttles)
    """Throttled GPUs that monitors tell of; never journalled by themselves."""
    signs: GangSigns = field(default_factory=GangSigns)
    """What else shows that attempts get on; never journalled."""

    def ask(self, command: Any) -> Future[Any]:
        """Shorthand for ``loop.submit``."""
        return self.loop.submit(command)
