"""Why an attempt failed, as triage says it: class, cause, first failing rank, blame, evidence and a next step.

Owns: the types, and which class leads to which cause. Must not know: how logs are read, what becomes of a node.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from airyard.core.cause import Cause


class FailureClass(Enum):
    """Where a failure came from, as people speak of it."""

    HARDWARE = "hardware"
    DRIVER = "driver"
    NETWORK = "network"
    CONFIG = "config"
    USER = "user"
    UNKNOWN = "unknown"


class Action(Enum):
    """What the failure asks for."""

    NONE = "none"
    FIX_CODE = "fix_code"
    """The same code fails again anywhere: nothing to be tried elsewhere."""
    FIX_CONFIG = "fix_config"
    RETRY_SAME = "retry_same"
    RETRY_ELSEWHERE = "retry_elsewhere"
    """The nodes are weak suspects at most."""
    CORDON = "cordon"
    CORDON_RESET = "cordon_reset"
    CORDON_REBOOT = "cordon_reboot"
    REPLACE = "replace"


@dataclass(frozen=True, slots=True, kw_only=True)
class EvidenceLine:
    """A line that speaks for the verdict. ``number`` counts from 1 in its file."""

    file: str
    number: int
    text: str
    rank: int | None = None
    at_ms: int | None = None
    kernel: bool = False
    """From the kernel's own log, not from what a job printed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureCause:
    """The verdict on one failure. ``blamed_*`` are empty where nobody is blamed; ``confidence`` is 0 to 1.

    ``rule`` names the signature that decided. ``confirmed``: evidence that a job could not have printed (kernel, NVML)
    agrees; without it a node is a suspect at most.
    """

    failure_class: FailureClass
    cause: Cause
    action: Action
    rule: str
    message: str
    next_step: str
    confidence: float
    first_rank: int | None = None
    rank_why: str = ""
    """How the first rank is known where its own line does not say so, or why it is not known. Empty: nothing to say."""
    blamed_node: str = ""
    blamed_device: str = ""
    """UUID, PCI id or index as the evidence names it."""
    confirmed: bool = False
    evidence: tuple[EvidenceLine, ...] = ()
    cascade: tuple[str, ...] = ()
    """Rules that matched too and are effects of the first failure, or say nothing by themselves."""

    def as_json(self) -> dict[str, Any]:
        """Return the wire form; who is not blamed is null."""
        return {
            "class": self.failure_class.value,
            "cause": self.cause.value,
            "action": self.action.value,
            "rule": self.rule,
            "message": self.message,
            "next_step": self.next_step,
            "confidence": self.confidence,
            "confirmed": self.confirmed,
            "first_rank": self.first_rank,
            "rank_why": self.rank_why,
            "blamed_node": self.blamed_node or None,
            "blamed_device": self.blamed_device or None,
            "evidence": [
                {
                    "file": line.file,
                    "line": line.number,
                    "rank": line.rank,
                    "kernel": line.kernel,
                    "text": line.text,
                }
                for line in self.evidence
            ],
            "also_seen": list(self.cascade),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What triage made of one failed attempt, and from how much. ``verdict`` None: it could not be judged."""

    verdict: FailureCause | None
    logs: int = 0
    """So many members' logs were there to their end, of ``members``."""
    members: int = 0
    missing: str = ""
    """What was not looked at, in words; empty when everything was."""
