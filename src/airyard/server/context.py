"""What every route may use: the parts that the composition root has put together.

Owns: the list of parts, and the caller's identity. Must not know: how the parts are made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airyard.app.changes import ChangeFeed
from airyard.app.loop import ControlLoop
from airyard.core.ids import MemberKey
from airyard.core.workload import Workload
from airyard.ports.blob_store import BlobStore
from airyard.ports.clock import Clock
from airyard.ports.journal import Journal
from airyard.ports.log_store import LogStore
from airyard.ports.read_store import ReadStore
from airyard.ports.secrets import SecretStore

if TYPE_CHECKING:
    from airyard.app.retention import RetentionPolicy
    from airyard.ports.tracker import Tracker


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """Who sent a request: a person (``member`` is None), or the runner or user code of one member."""

    name: str
    member: MemberKey | None = None


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
    containment: Callable[[], Mapping[str, Any]]
    authorise: Callable[[str | None, str | None], Principal]
    """(Authorization header, session cookie) -> who it is. Raises: Denied."""
    identity_proof: Callable[[str], str]
    """nonce -> hex HMAC-SHA256 under the owner's token."""
    session_cookie: Callable[[], str]
    """A fresh one-time token for ``airyard open``."""
    shutdown: Callable[[], None]
    clock_offsets_ns: dict[MemberKey, int] = field(default_factory=dict)
    progress: dict[MemberKey, tuple[str, str]] = field(default_factory=dict)
    """What a preparing member is at (phase, detail); never journalled."""

    def ask(self, command: Any) -> Future[Any]:
        """Shorthand for ``loop.submit``."""
        return self.loop.submit(command)
