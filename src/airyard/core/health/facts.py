"""What is seen of a machine's health: events of its monitors and results of checks, as every room names them.

Owns: the types, and their form on the wire and in the journal. Must not know: how a thing was measured (``checks/``),
what it means for the node (``core/health``'s judges), who acts on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from itertools import islice
from typing import Any

from airyard.core.plain import MESSAGE, is_number, plain, plain_evidence, plain_lines, plain_name


class Component(Enum):
    """Which part of a machine a fact is about."""

    GPU = "GPU"
    GPU_MEMORY = "GPU_MEMORY"
    NVLINK = "NVLINK"
    DRIVER = "DRIVER"
    NETWORK = "NETWORK"
    HOST = "HOST"
    DISK = "DISK"
    STORAGE = "STORAGE"
    FACILITY = "FACILITY"
    """Power or cooling of a rack: no fault of the one machine that shows it."""


class Severity(Enum):
    """How bad a fact is by itself."""

    INFO = "INFO"
    WARNING = "WARNING"
    HIGH = "HIGH"
    CRITICAL = "CRITICAL"


class Source(Enum):
    """Who says so. Only what the agent reads itself can confirm a fault; a job's own log never does."""

    NVML = "NVML"
    KERNEL = "KERNEL"
    RDMA = "RDMA"
    HOST = "HOST"
    CHECK = "CHECK"
    JOB_LOG = "JOB_LOG"
    OPERATOR = "OPERATOR"


class Remedy(Enum):
    """What can be done for a device or a node, from the mildest to the last."""

    NONE = "NONE"
    GPU_RESET = "GPU_RESET"
    REBOOT = "REBOOT"
    POWER_CYCLE = "POWER_CYCLE"
    REPLACE = "REPLACE"
    """A person has to: vendor, new part."""


class Retest(Enum):
    """How thorough a test has to be before a node counts as cured, from the shortest to the longest."""

    T1 = "T1"
    """Static reading of the devices."""
    T2 = "T2"
    """T1, compute, copies and a memory pattern."""
    T3 = "T3"
    """T2, all-reduce within the node, NIC loopback, burn-in."""
    T4 = "T4"
    """T3 and pairwise fabric tests against certified nodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthEvent:
    """One thing that a monitor saw. The same ``event_id`` again is the same event.

    ``rule`` names the rule of the catalogue that made it (``xid.79``, ``gpu.lost``, ``ecc.uncorrected``).
    ``node`` is empty for what concerns the whole machine, ``device`` None for what concerns the whole node.
    ``confirmed``: the agent read it itself, so that it may move a node's state alone.
    """

    event_id: str
    rule: str
    machine: str
    at_ms: int
    component: Component
    severity: Severity
    source: Source
    message: str
    node: str = ""
    device: int | None = None
    device_uuid: str = ""
    code: int | None = None
    """The Xid or SXid, where it is one."""
    value: float | None = None
    unit: str = ""
    remedy: Remedy = Remedy.NONE
    retest: Retest = Retest.T1
    confirmed: bool = True
    evidence: tuple[str, ...] = ()
    """Raw lines or readings, at most a few, each cut to 500 characters."""
    rule_version: int = 1
    clock_reasons: int = 0
    """What held a GPU's clocks, where it is about that (``clock_reasons.py``); 0 also from older agents."""

    def __post_init__(self) -> None:
        """Make plain what others wrote: it is journalled, sent and shown from here on."""
        for name in ("event_id", "rule", "machine", "node", "device_uuid", "unit"):
            object.__setattr__(self, name, plain_name(getattr(self, name)))
        object.__setattr__(self, "message", plain(self.message))
        object.__setattr__(self, "evidence", plain_evidence(self.evidence))
        if not is_number(self.value):
            object.__setattr__(self, "value", None)

    def as_json(self) -> dict[str, Any]:
        """Return the wire form; what is at its default is left out."""
        said: dict[str, Any] = {
            "event_id": self.event_id,
            "rule": self.rule,
            "machine": self.machine,
            "at_ms": self.at_ms,
            "component": self.component.value,
            "severity": self.severity.value,
            "source": self.source.value,
            "message": self.message,
            "remedy": self.remedy.value,
            "retest": self.retest.value,
            "confirmed": self.confirmed,
            "rule_version": self.rule_version,
        }
        optional = {
            "node": self.node,
            "device_uuid": self.device_uuid,
            "unit": self.unit,
            "evidence": list(self.evidence),
            "clock_reasons": self.clock_reasons,
        }
        said.update({name: value for name, value in optional.items() if value})
        numbers = {"device": self.device, "code": self.code, "value": self.value}
        said.update({name: value for name, value in numbers.items() if value is not None})
        return said

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> HealthEvent:
        """Build from the wire form. Raises: KeyError, ValueError, TypeError for what is none."""
        device, code, value = data.get("device"), data.get("code"), data.get("value")
        return cls(
            event_id=str(data["event_id"]),
            rule=str(data["rule"]),
            machine=str(data["machine"]),
            at_ms=int(data["at_ms"]),
            component=Component(data["component"]),
            severity=Severity(data["severity"]),
            source=Source(data["source"]),
            message=str(data["message"]),
            node=str(data.get("node", "")),
            device=int(device) if device is not None else None,
            device_uuid=str(data.get("device_uuid", "")),
            code=int(code) if code is not None else None,
            value=float(value) if value is not None and is_number(value) else None,
            unit=str(data.get("unit", "")),
            remedy=Remedy(data.get("remedy", Remedy.NONE.value)),
            retest=Retest(data.get("retest", Retest.T1.value)),
            confirmed=bool(data.get("confirmed", True)),
            evidence=tuple(str(line) for line in data.get("evidence", ())),
            rule_version=int(data.get("rule_version", 1)),
            clock_reasons=int(data.get("clock_reasons", 0)),
        )


_MOST_DETAILS = 20


class CheckStatus(Enum):
    """What a check came to. Only FAIL counts against a node; UNKNOWN (crashed, stopped) and SKIP change nothing."""

    PASS = "PASS"
    WARN = "WARN"
    FAIL = "FAIL"
    SKIP = "SKIP"
    UNKNOWN = "UNKNOWN"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """One check on one node or device: what was measured, what was allowed, and what to do about it."""

    check: str
    status: CheckStatus
    message: str
    node: str = ""
    device: int | None = None
    value: float | None = None
    threshold: float | None = None
    unit: str = ""
    next_step: str = ""
    duration_ms: int = 0
    component: Component = Component.HOST
    remedy: Remedy = Remedy.NONE
    retest: Retest = Retest.T1
    details: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Make plain what a check wrote, as of an event. Raises: ValueError for a value that is no number."""
        for name in ("check", "node", "unit"):
            object.__setattr__(self, name, plain_name(getattr(self, name)))
        object.__setattr__(self, "message", plain(self.message))
        object.__setattr__(self, "next_step", plain(self.next_step))
        for name in ("value", "threshold"):
            number = getattr(self, name)
            if number is not None and not is_number(number):
                raise ValueError(f"{self.check}: {name} is no number: {number!r}")
        kept = islice(self.details.items(), _MOST_DETAILS)
        said = {plain_name(name): plain_lines(text, 2 * MESSAGE) for name, text in kept}
        object.__setattr__(self, "details", said)
