"""The answer of the native API about why an attempt failed, as pydantic models.

Owns: shapes and types. Must not know: routes, how a verdict is found. ``FailureCause.as_json`` builds it.
"""

from __future__ import annotations

from airyard.wire.answer import Answer
from airyard.wire.verdicts import VerdictDoc


class TriageAnswer(Answer):
    """The verdict on one attempt of a run. ``judged_at``: found then; null: its logs were read now.

    ``logs`` of ``members`` were whole; ``missing``: what was not looked at, in words.
    """

    run_id: int
    attempt: int
    verdict: VerdictDoc
    judged_at: str | None = None
    logs: int | None = None
    members: int | None = None
    missing: str = ""
