"""What the runner's machine hears (events) and says (instructions): two closed unions.

Owns: their fields and what the shell owes for each.
Must not know: when which is legal (``machine.py``), or how it is carried out (``runner.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from airyard.node.verdict import Evidence


class Timer(Enum):
    """The timers a state may have running; setting one again moves it."""

    GRACE = "grace"
    TIME_LIMIT = "time_limit"
    LEASE = "lease"


# --- events -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderReceived:
    """An order of the server: PREPARE, PORT, GO, STOP, LIMIT or LEASE; ``body`` holds its other fields.

    LEASE comes with every answer and is not counted: its number is 0. ``epoch`` is that of its leader; 0: unsaid.
    """

    number: int
    kind: str
    body: Mapping[str, Any] = field(default_factory=dict)
    epoch: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressMade:
    """The preparation entered a phase."""

    phase: str
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """Code, environment and folders are there."""

    address: str = ""
    meeting: Mapping[str, Any] | None = None
    """What ``core.meeting.Meeting`` holds, as it goes over the wire."""
    environment_ms: int = 0
    code_ms: int = 0
    environment_hit: bool = True
    passed: tuple[str, ...] = ()
    """What the node has passed just now, for the report: see ``core/health/shared.py``."""
    measured: Mapping[str, Any] = field(default_factory=dict)
    """What it measured when it passed: see ``core/health/fleet_values.py``."""

    def as_report(self) -> dict[str, Any]:
        """Return the body of READY."""
        prepared = {
            "environment_ms": self.environment_ms,
            "code_ms": self.code_ms,
            "environment_hit": self.environment_hit,
            **dict.fromkeys(self.passed, 1),
        }
        body = {"address": self.address, "prepared": prepared, "meeting": self.meeting}
        return {**body, "measured": dict(self.measured)} if self.measured else body


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareFailed:
    """The preparation failed, or was interrupted as told. ``permanent``: trying again cannot help.

    ``fault``: the pool's own command that found the node unfit.
    """

    cause: str
    message: str
    permanent: bool = False
    fault: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PortChecked:
    """Whether this rendezvous port could be bound."""

    port: int
    ok: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessStarted:
    """The command runs."""

    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchFailed:
    """The command could not be started at all. ``fault``: see PrepareFailed."""

    cause: str
    message: str
    fault: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessExited:
    """The main process ended; the rest of its tree may still be there."""

    code: int | None = None
    signal: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeGone:
    """Nothing of the member is left on the machine, and its output was read to the end.

    ``fault`` and ``fault_message``: the pool's own command that found the node unfit after it.
    """

    evidence: Evidence = field(default_factory=Evidence)
    fault: str = ""
    fault_message: str = ""

    def fault_after(self, failure: PrepareFailed | None) -> dict[str, str]:
        """Return what EXITED says of the node: the first command of the pool that found it unfit, if one did."""
        if failure is not None and failure.fault:
            return {"fault": failure.fault, "fault_message": failure.message}
        return {"fault": self.fault, "fault_message": self.fault_message} if self.fault else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputClosed:
    """The log is complete on disk."""

    last_seq: int
    """-1 when nothing was written."""
    sha256: str
    """Over all frames in order, gaps included; empty when the runner could not see them all."""


@dataclass(frozen=True, slots=True)
class LogsShipped:
    """The server has acknowledged the last log record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportAcknowledged:
    """The server has journalled every report up to this number."""

    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSeen:
    """The acknowledgement file of user code changed."""

    step: int
    path: str
    time: float | str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepsSeen:
    """What the beats of the member's ranks say, as it goes over the wire."""

    ranks: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TimerFired:
    """A timer's time has come."""

    timer: Timer


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerAnswered:
    """An order poll sent at ``sent_ms`` was answered: renews the lease. Comes before its orders."""

    sent_ms: int
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class AttemptOver:
    """The server answered 410: it does not know this attempt any more."""


Event = (
    OrderReceived | ProgressMade | Prepared | PrepareFailed | PortChecked | ProcessStarted | LaunchFailed
    | ProcessExited | TreeGone | OutputClosed | LogsShipped | ReportAcknowledged | CheckpointSeen | StepsSeen
    | TimerFired | ServerAnswered | AttemptOver
)  # fmt: skip


# --- instructions -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepare:
    """Make folders, code and environment; answer Prepared or PrepareFailed, exactly once."""

    order: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class InterruptPreparation:
    """Give the preparation up; it still answers once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckPort:
    """Try to bind this port; answer PortChecked."""

    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A numbered message for the server, repeated until acknowledged."""

    number: int
    kind: str
    at_ns: int
    body: Mapping[str, Any]

    def as_json(self) -> dict[str, Any]:
        """Return the wire form."""
        return {"number": self.number, "kind": self.kind, "at_ns": self.at_ns, **self.body}


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Start the command as the GO order says; answer ProcessStarted, then ProcessExited, or LaunchFailed."""

    go: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteStopFile:
    """Replace the stop file."""

    reason: str
    deadline_ms: int
    grace_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """Send this signal to the process group."""

    signal: str


@dataclass(frozen=True, slots=True)
class KillTree:
    """Kill every process of the member now; ProcessExited follows by itself."""


@dataclass(frozen=True, slots=True)
class ReapTree:
    """Kill whatever is left, read the output to its end, answer TreeGone."""


@dataclass(frozen=True, slots=True)
class CloseLogs:
    """Close the log on disk; answer OutputClosed, and later LogsShipped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetTimer:
    """Fire this timer at ``at_ms``, replacing its earlier time. That of LEASE is also noted for the agent."""

    timer: Timer
    at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteExitRecord:
    """Replace ``exit.json`` durably."""

    exited: Mapping[str, Any]
    logs: Mapping[str, Any] | None
    delivered: bool


@dataclass(frozen=True, slots=True)
class Leave:
    """Clean up and end the runner."""


Instruction = (
    Prepare | InterruptPreparation | CheckPort | Report | Launch | WriteStopFile | Signal | KillTree
    | ReapTree | CloseLogs | SetTimer | WriteExitRecord | Leave
)  # fmt: skip
