"""The answer of the native API about why an attempt failed, as pydantic models.

Owns: shapes and types. Must not know: routes, how a verdict is found. ``FailureCause.as_json`` builds it.
"""

from __future__ import annotations

from pydantic import Field

from airyard.wire.native import Answer


class EvidenceDoc(Answer):
    """A line that speaks for the verdict; ``line`` counts from 1 in the stream ``file``."""

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


class TriageAnswer(Answer):
    """The verdict on one attempt of a run, from the logs of all its members."""

    run_id: int
    attempt: int
    verdict: VerdictDoc
