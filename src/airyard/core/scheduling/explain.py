"""Why a waiting run waits: reason, place, who is ahead and by which rule, its expected start, and what would help.

Owns: the record of it, and its message. Must not know: how plans and expected starts are made, who reads it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from airyard.core.scheduling.book import Book
from airyard.core.scheduling.counterfactual import Counterfactual, Lasting, counterfactuals
from airyard.core.scheduling.eta import Eta
from airyard.core.scheduling.overtakes import Begun, Overtake, passed
from airyard.core.scheduling.places import Place, Rule, place_of, rule_between
from airyard.core.scheduling.plan import Hold, Plan, Reason, Shape, Waiting
from airyard.core.scheduling.prospects import Prospect, prospect
from airyard.core.scheduling.waits import refusal_of

NAMED = 5
"""So many runs are named, of however many there are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ahead:
    """Runs that are considered first by one rule, and that ask for the same pools; the first of them named."""

    rule: Rule
    count: int
    runs: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WaysOut:
    """What would let a run start now, and whom it may have evicted later. ``failed``: the search broke off."""

    counterfactuals: tuple[Counterfactual, ...] = ()
    prospect: Prospect | None = None
    failed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """All that is known of one run's waiting. ``position`` counts from 1 among ``waiting`` runs; parked ones have none.

    ``promise``: devices that it is sure of, from when on. ``passed``: the newest of ``passed_count`` runs that were
    queued later and started first.
    """

    run_id: int
    reason: Reason
    message: str
    evidence: Mapping[str, Any]
    waiting: int
    position: int | None = None
    ahead: tuple[Ahead, ...] = ()
    eta: Eta | None = None
    expected_ms: int
    likely_ms: int
    limit_ms: int | None
    promise: Hold | None = None
    ways_out: WaysOut = field(default_factory=WaysOut)
    passed: tuple[Overtake, ...] = ()
    passed_count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What was found out of the queue as a whole: places in order, and the newest starts first."""

    order: Sequence[Place]
    begun: Iterable[Begun] = field(default_factory=tuple)


def ways_out(
    book: Book, plan: Plan | None, want: Waiting, eta: Eta | None, now_ms: int, lasting: Lasting | None = None
) -> WaysOut:
    """Look for what would help a waiting run. Cost: dozens of plans."""
    expected_ms = eta.p50_ms if eta is not None else None
    found = counterfactuals(book, want, now_ms, expected_ms=expected_ms, lasting=lasting)
    others_leave = plan is not None and want.run_id in plan.of_runs
    later = None
    if not others_leave and want.run_id not in book.queue.parked:
        later = prospect(book, want, now_ms, expected_ms)
    return WaysOut(counterfactuals=tuple(found), prospect=later)


def explain(
    book: Book,
    plan: Plan | None,
    want: Waiting,
    seen: Seen,
    eta: Eta | None,
    now_ms: int,
    ways: WaysOut | None = None,
) -> Explanation:
    """Explain a waiting run. Cost: the queue."""
    refusal = refusal_of(plan, want, now_ms)
    position = next((at for at, place in enumerate(seen.order, 1) if place.run_id == want.run_id), None)
    holds = (*plan.kept, *plan.holds) if plan is not None else ()
    others = passed(book, want, seen.begun, now_ms)
    return Explanation(
        run_id=want.run_id,
        reason=refusal.reason if refusal is not None else Reason.NOT_YET,
        message=refusal.message if refusal is not None else "the planner has not come to it yet",
        evidence=refusal.evidence if refusal is not None else {},
        waiting=len(book.queue.runs),
        position=position,
        ahead=tuple(_ahead(book, want, seen.order[: position - 1], now_ms)) if position is not None else (),
        eta=eta,
        expected_ms=want.expected_ms,
        likely_ms=want.likely_ms,
        limit_ms=want.limit_ms,
        promise=next((hold for hold in holds if hold.run_id == want.run_id), None),
        ways_out=ways or WaysOut(),
        passed=tuple(others[:NAMED]),
        passed_count=len(others),
    )


def _ahead(book: Book, want: Waiting, before: Sequence[Place], now_ms: int) -> Iterable[Ahead]:
    """Return who is considered first, by rule, among those that ask for the same pools."""
    pools = book.nodes.fitting(want.shape).keys()
    place = place_of(book, want, now_ms)
    order = book.pool(book.primary(want.shape)).order
    competes: dict[Shape, bool] = {}
    found: dict[Rule, list[int]] = {}
    for other in before:
        shape = book.queue.runs[other.run_id].shape
        rival = competes.get(shape)
        if rival is None:
            rival = competes[shape] = not pools.isdisjoint(book.nodes.fitting(shape))
        if rival:
            found.setdefault(rule_between(other, place, order), []).append(other.run_id)
    for rule in Rule:
        if rule in found:
            yield Ahead(rule=rule, count=len(found[rule]), runs=tuple(found[rule][:NAMED]))
