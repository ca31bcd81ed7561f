"""What is said of an attempt's failure or standstill, in the native API's answers, as pydantic models.

Owns: shapes and types. Must not know: routes, how a verdict is found.
"""

from __future__ import annotations

from pydantic import Field

from airyard.wire.answer import Answer


class AttemptStallDoc(Answer):
    """The last time that an attempt made no progress, and which ranks held it up (docs/health.md)."""

    case: str
    ranks: list[int]
    nodes: list[str]
    step: int
    at: str
    over_at: str | None
    message: str
    confidence: float
    suspect_node: str | None
    evidence: list[str]
    source: str = "steps"


class EvidenceDoc(Answer):
    """A line that speaks for a verdict; ``line`` counts from 1 in the stream ``file``."""

    file: str
    line: int
    rank: int | None
    kernel: bool
    text: str


class VerdictDoc(Answer):
    """Why an attempt failed. ``class`` is hardware, driver, network, config, user or unknown."""

    failure_class: str = Field(alias="class")
    cause: str
    action: str
    rule: str
    message: str
    next_step: str
    confidence: float
    confirmed: bool
    first_rank: int | None
    blamed_node: str | None
    blamed_device: str | None
    evidence: list[EvidenceDoc]
    also_seen: list[str]
    rank_why: str = ""
    """How ``first_rank`` is known where its own line does not say so, or why it is null."""


class JudgementDoc(Answer):
    """What triage made of a failed attempt: ``logs`` of ``members`` were whole. ``verdict`` null: nothing.

    ``in_time``: it was there when the attempt's end was decided; else the end is what it was without it.
    """

    attempt: int
    at: str
    in_time: bool
    logs: int
    members: int
    missing: str
    verdict: VerdictDoc | None
