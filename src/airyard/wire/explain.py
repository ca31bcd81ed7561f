"""The answers of the native API about why runs wait or run, as pydantic models.

Owns: shapes and types. Must not know: routes, the state. The answers are built by ``app.explain_views`` as plain
dictionaries and checked against these by tests.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from airyard.wire.answer import Answer
from airyard.wire.facility import SlowedDoc
from airyard.wire.native import CounterfactualDoc, EtaDoc, FixDoc, RunDoc
from airyard.wire.verdicts import JudgementDoc


class EstimatesDoc(Answer):
    """How good expected starts have been: of ``count`` the parts that started before p50 and p90."""

    count: int
    before_p50: float
    before_p90: float
    median_error_ms: int


class QueueAnswer(Answer):
    """A page of the waiting runs, in the order in which they are considered, then those that are parked."""

    runs: list[RunDoc]
    waiting: int
    next_offset: int | None
    estimates: EstimatesDoc | None


class AheadDoc(Answer):
    """Runs that ask for the same pools and are considered first by one rule; the first of them named."""

    rule: str
    count: int
    runs: list[int]
    text: str


class PredictedDoc(Answer):
    """How long the run is predicted to last from here, and what that rests on."""

    p50_ms: int
    p90_ms: int
    limit_ms: int | None
    samples: int
    source: str
    text: str


class PromiseDoc(Answer):
    """Devices that are kept for the run from a time on."""

    nodes: list[str]
    devices_per_node: int
    from_at: str


class MayEvictDoc(Answer):
    """Runs that may be evicted for a waiting one from a time on, unless there is room before, and by which rules."""

    runs: list[int]
    rules: list[str]
    from_at: str
    text: str


class OvertakeDoc(Answer):
    """That a later run started while an earlier one went on waiting, and by which rule."""

    later: int
    earlier: int
    rule: str
    at: str
    text: str


class OvertakesDoc(Answer):
    """The newest of ``count``."""

    count: int
    runs: list[OvertakeDoc]


class PreemptionDoc(Answer):
    """Who may evict a live attempt, from when on, and what it would lose now (since ``since``).

    Nobody may when it is ``leaving`` already.
    """

    classes: list[str]
    own_class: str
    owners: list[str]
    younger: bool
    from_at: str
    younger_from_at: str | None
    evicted_at: str | None
    spared_until: str | None
    lost_device_seconds: int
    since: str
    acknowledged: bool
    ends: EtaDoc
    leaving: bool


class EvictedDoc(Answer):
    """For whom a live run had to leave last and by what right; of one that is leaving, for whom it leaves."""

    attempt: int
    at: str
    for_run: int | None
    rule: str | None
    text: str


class StallDoc(Answer):
    """That a running gang makes no steps, and which ranks hold it up; ``suspect_node`` blames nobody."""

    case: str
    ranks: list[int]
    nodes: list[str]
    confidence: float
    silent_ms: int
    limit_ms: int
    step: int
    text: str
    suspect_node: str | None
    evidence: list[str]
    source: str = "steps"


class ThrottledDoc(Answer):
    """The throttled GPU that explains a slow rank; ``share`` of the last minute, null where only its clock is low.

    ``facility``: the power brake alone, which speaks against no node.
    """

    device: int
    rule: str
    reasons: str
    share: float | None
    facility: bool


class StragglerDoc(Answer):
    """A rank that computes slower than the others; ``score`` is the usual time over its own."""

    rank: int
    node: str
    level: str
    score: float
    compute_ms: float
    median_ms: float
    whole_node: bool
    text: str
    throttled: ThrottledDoc | None = None


class ProgressDoc(Answer):
    """What a running attempt tells of its steps by ``airyard.step``, or by ``source`` where it tells of none.

    ``age_ms`` and ``limit_ms``: since its last sign, and how long none may come; only where steps are not told.
    """

    step: int
    source: str = "steps"
    age_ms: int | None = None
    limit_ms: int | None = None
    stall: StallDoc | None
    stragglers: list[StragglerDoc]


class NotificationDoc(Answer):
    """One message to one receiver (docs/notifications.md); ``to`` without path and query, which may be secret."""

    id: str
    kind: str
    at: str
    run_id: int | None
    to: str
    state: Literal["WAITING", "DELIVERED", "GIVEN_UP"]
    tries: int
    next_at: str | None
    ended_at: str | None
    error: str | None


class NotificationsAnswer(Answer):
    """What is kept of messages, newest first, and how many there are in each state."""

    notifications: list[NotificationDoc]
    counts: dict[str, int]


class ExplainAnswer(Answer):
    """Why a run is where it is. What does not apply in its state is null or empty."""

    run_id: int
    state: str
    reason: str | None
    message: str
    evidence: dict[str, Any]
    position: int | None
    waiting: int | None
    ahead: list[AheadDoc]
    eta: EtaDoc | None
    predicted: PredictedDoc | None
    promise: PromiseDoc | None
    may_evict: MayEvictDoc | None
    counterfactuals: list[CounterfactualDoc]
    counterfactuals_failed: bool
    passed_by: OvertakesDoc | None
    went_before: OvertakesDoc | None
    preemption: PreemptionDoc | None
    evicted: EvictedDoc | None
    judgement: JudgementDoc | None = None
    estimates: EstimatesDoc | None
    progress: ProgressDoc | None
    slowed: list[SlowedDoc] = Field(default_factory=list)
    """By power or cooling, now."""
    notifications: list[NotificationDoc]
    """Those that have not arrived."""
    fix: FixDoc | None
