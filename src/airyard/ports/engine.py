"""The engine as the server sees it: finds machines, starts and stops runners on them, reports their death.

Owns: the ``Engine`` Protocol and the facts it delivers. Must not know: agents, sockets, Ray, who decides.

Nothing here waits for an answer: a request is delivered as soon as the machine's agent can be reached, again
after a lost connection, and its outcome comes back as a fact. Every request is idempotent by its member key.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from airyard.core.actions import ForgetMember, KillMember, ShipLogs, StartMember
from airyard.core.commands import MachineAway, MachineSeen, MemberGone
from airyard.core.health.facts import HealthEvent
from airyard.core.ids import MemberKey


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """System metrics of the node of one live member, by MLflow's names without a prefix."""

    key: MemberKey
    node: str
    time_ms: int
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """A round of samples. Never journalled."""

    samples: tuple[Sample, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainmentSeen:
    """How a machine contains its members: ``cgroup`` or ``cookie``, what it limits, and why not more."""

    machine: str
    containment: Mapping[str, str | bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthSeen:
    """What the monitors of a machine saw. It is said again until ``taken`` was called, after the commit."""

    machine: str
    events: tuple[HealthEvent, ...]
    taken: Callable[[], None]


Fact = MachineSeen | MachineAway | MemberGone | Samples | ContainmentSeen | HealthSeen
"""What an engine tells: most are commands of the control loop as they are."""

FactSink = Callable[[Fact], None]
"""Takes a fact, quickly, on a thread of the engine."""


class Engine(Protocol):
    """What runs members for the server."""

    @property
    def lease_s(self) -> float | None:
        """How long a runner lets its member run without the server; None: death is always proved (one machine)."""
        ...

    @property
    def is_fleet(self) -> bool:
        """True where machines come and go: those that the journal knows are away until they say hello."""
        ...

    def await_ready(self) -> bool:
        """Wait until machines can be had at all; return whether one has to say hello before a submit can be judged.

        Raises: Unavailable when they cannot be had. Blocks; called after ``connect``.
        """
        ...

    def connect(self, sink: FactSink) -> None:
        """Begin to deliver facts to ``sink``; a MachineSeen first, again after every reconnection."""
        ...

    def start(self, action: StartMember, token: str) -> None:
        """Have a runner started; ``token`` lets it speak to the server. A refusal comes as MemberGone."""
        ...

    def kill(self, action: KillMember) -> None:
        """Have a member's tree and runner killed; MemberGone follows."""
        ...

    def ship(self, action: ShipLogs, token: str) -> None:
        """Have what a dead runner left of its log sent to the server and closed with LOGS_CLOSED.

        Nothing happens while the runner lives. Idempotent; what cannot be read stays a gap.
        """
        ...

    def forget(self, action: ForgetMember) -> None:
        """Have the remains of a dead runner removed."""
        ...

    def warm(self, base: Mapping[str, Any]) -> None:
        """Have the machines build a base environment before anybody asks; not waited for.

        ``base`` holds ``version``, ``python`` and ``base_packages``, as in a PREPARE order.
        """
        ...

    def has_environment(self, environment: Mapping[str, Any]) -> bool | None:
        """Return whether a machine has this ``environment`` of a PREPARE order built; None when it cannot be asked.

        Blocks for the answer, some seconds at most. Nothing is resolved or built.
        """
        ...

    def tidy(self, *, age_ms: int | None, cap_bytes: int | None, dry_run: bool) -> Mapping[str, Any]:
        """Remove environments unused for ``age_ms``, then the longest unused until under ``cap_bytes``.

        Returns ``{"count", "bytes"}`` of what went (or would go), or ``{"away": reason}``. Blocks for the answer.
        """
        ...

    def check_node(
        self, machine: str, asked: Mapping[str, Any], *, should_stop: Callable[[], bool]
    ) -> Mapping[str, Any]:
        """Have a round of checks run on a node; return ``{state, results, took_s?}`` of the ``check`` operation.

        ``asked`` holds ``name`` (the same again replaces the first), ``node``, ``profile`` and ``python``. Blocks until
        ``should_stop`` at most, which ends the round. Raises: Unavailable with the code MACHINE_AWAY,
        AGENT_TOO_OLD, or the agent's own: CHECKS_BUSY, NODE_IN_USE, UNKNOWN_NODE.
        """
        ...

    def pair_nodes(
        self, machines: tuple[str, str], asked: Mapping[str, Any], *, should_stop: Callable[[], bool]
    ) -> Mapping[str, Any]:
        """Have two nodes tested against each other: the first serves, the second calls; ``machines`` are theirs.

        ``asked`` holds ``name`` (of this test alone), ``nodes`` and ``python``. Returns ``{state, served, called,
        problem}``, the sides as each has measured; ``state`` is ``done``, ``hung`` (a side was late), ``apart`` (they
        did not come together, ``problem`` says why) or ``stopped`` (for work, by ``should_stop``, or because a side
        crashed: it says nothing). Blocks until ``should_stop`` at most. Raises: Unavailable as ``check_node``.
        """
        ...

    def renew(self) -> None:
        """Have every machine that can be reached say hello again: a fact of it could not be taken in."""
        ...

    def close(self) -> None:
        """Stop delivering facts; members live on."""
        ...

    def stop_agent(self) -> None:
        """End what is kept on the server's own machine for it (``airyard down``), and close; members live on."""
        ...
