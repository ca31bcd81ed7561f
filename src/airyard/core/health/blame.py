"""How much what was seen speaks against a node: weights as data, and the score.

Owns: the weights, the thresholds, which events never count. Must not know: states, budgets, clocks.
What a job can print itself makes a suspect and is told, but never is the evidence that takes a node out: that has to
reach the threshold without it. User-class faults weigh nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

from airyard.core.health import shared
from airyard.core.health.facts import Component, HealthEvent, Remedy, Severity, Source
from airyard.core.health.slowing import SLOWNESS
from airyard.core.health.states import Hit
from airyard.core.triage.xid import Weight, xid_facts

SUSPECT_FROM = 3.0
CORDON_FROM = 6.0
TEXT_AT_MOST = 5.0
"""What unconfirmed evidence adds up to at most."""
COUNTS_MS = 86_400_000
"""Evidence is forgotten after this."""
HITS_KEPT = 32

WEIGHT_OF_XID = {Weight.HARD: 8.0, Weight.SOFT: 2.0, Weight.NEVER: 0.0, Weight.CASCADE: 0.0}
WEIGHT_OF_SEVERITY = {
    Severity.CRITICAL: 8.0,
    Severity.HIGH: 4.0,
    Severity.WARNING: 2.0,
    Severity.INFO: 0.0,
}
WEIGHT_OF_CHECK = {
    Severity.CRITICAL: 8.0,
    Severity.HIGH: 6.0,
    Severity.WARNING: 4.0,
    Severity.INFO: 0.0,
}
"""A check that failed was measured on the node itself: alone it makes a suspect, and a sure one takes the node out."""
CHECK = "check."
"""How the rules of failed checks begin: ``check.gpu.rows``."""
HIGH_WITH_REMEDY = 6.0
"""A grave fault for which a remedy is known: the node is worth being mended."""
STORAGE_AT_MOST = WEIGHT_OF_CHECK[Severity.WARNING]
"""What checks and monitors say of storage adds up to at most: a file server that is away fails them all at once."""
WEIGHT_OF_ALONE = {shared.ALONE: 1.0, shared.AGAIN: 1.0}
"""That others pass what a node fails: beside the failure both take it out, one alone does not."""

_SEVERITIES = tuple(Severity)
_REMEDIES = frozenset({Remedy.GPU_RESET, Remedy.REBOOT, Remedy.POWER_CYCLE, Remedy.REPLACE})


def weight(event: HealthEvent) -> float:
    """Return how much one event speaks against its node."""
    if event.component is Component.FACILITY or event.severity is Severity.INFO or event.rule in SLOWNESS:
        return 0.0
    if event.rule in WEIGHT_OF_ALONE:
        return WEIGHT_OF_ALONE[event.rule]
    if event.code is not None and event.rule.startswith("xid."):
        return WEIGHT_OF_XID[xid_facts(event.code).weight]
    if event.source is Source.CHECK and event.rule.startswith(CHECK):
        return WEIGHT_OF_CHECK[event.severity]
    if event.severity is Severity.HIGH and event.remedy in _REMEDIES:
        return HIGH_WITH_REMEDY
    return WEIGHT_OF_SEVERITY[event.severity]


def hit_of(event: HealthEvent) -> Hit:
    """Return what is kept of an event."""
    return Hit(
        event_id=event.event_id,
        rule=event.rule,
        weight=weight(event),
        at_ms=event.at_ms,
        confirmed=event.confirmed and event.source is not Source.JOB_LOG,
        severity=event.severity,
        device=event.device,
        rule_version=event.rule_version,
        remedy=event.remedy,
        retest=event.retest,
        message=event.message,
        evidence=event.evidence,
        component=event.component,
    )


def joined(hits: Iterable[Hit], now_ms: int) -> tuple[Hit, ...]:
    """Return the evidence that counts now: the gravest of each rule and device, whatever order it came in.

    More evidence never weighs less: what was lighter must not hide what is heavier because it came earlier.
    """
    worst: dict[tuple[str, int | None, bool], Hit] = {}
    for hit in sorted(hits, key=_gravity):
        if hit.weight > 0 and hit.at_ms > now_ms - COUNTS_MS:
            worst.setdefault((hit.rule, hit.device, hit.confirmed), hit)
    # Where there are too many the gravest are kept, and no text drives out what was confirmed.
    kept = sorted(worst.values(), key=lambda hit: (not hit.confirmed, _gravity(hit)))[:HITS_KEPT]
    return tuple(sorted(kept, key=_age))


def score(hits: Iterable[Hit]) -> float:
    """Return the sum of the weights. It is ``CORDON_FROM`` or more only where what is confirmed alone is.

    What a job could have printed counts ``TEXT_AT_MOST`` beside that.
    """
    kept = list(hits)
    sure = [hit for hit in kept if hit.confirmed]
    storage = sum(hit.weight for hit in sure if hit.rule in shared.OF_STORAGE)
    confirmed = sum(hit.weight for hit in sure) - storage + min(storage, STORAGE_AT_MOST)
    text = min(sum(hit.weight for hit in kept if not hit.confirmed), TEXT_AT_MOST)
    return confirmed + text if confirmed >= CORDON_FROM else min(confirmed + text, TEXT_AT_MOST)


def gravest(hits: Iterable[Hit]) -> Hit | None:
    """Return the evidence that decides: confirmed before text, then the heaviest, then the first."""
    return min(hits, key=lambda hit: (not hit.confirmed, -hit.weight, *_age(hit)), default=None)


def _gravity(hit: Hit) -> tuple[float, bool, int, int, str]:
    """Order by what counts most: the weight, that it is confirmed, how bad it is, then the earliest."""
    return -hit.weight, not hit.confirmed, -_SEVERITIES.index(hit.severity), *_age(hit)


def _age(hit: Hit) -> tuple[int, str]:
    return hit.at_ms, hit.event_id
