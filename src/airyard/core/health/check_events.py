"""What failed checks say of a node's health, as events for its state machine.

Owns: which failures become events, how grave each is. Must not know: who ran the checks, which checks there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from airyard.core.health import shared
from airyard.core.health.blame import CHECK
from airyard.core.health.facts import CheckResult, CheckStatus, Component, HealthEvent, Severity, Source

_STOPS_RUNS = frozenset({"gpu.lost"})
"""What runs on such a device cannot go on."""
_UNTOLD = "preflight"


def events_of(
    results: Iterable[CheckResult],
    *,
    round_name: str,
    node: str,
    machine: str,
    at_ms: int,
    is_sure: Callable[[str], bool],
) -> tuple[HealthEvent, ...]:
    """Return an event for each failure; the same round says the same events. Only FAIL speaks against a node.

    A sure check alone takes the node out; one that is not (its limit may be a guess) makes a suspect.
    """
    return tuple(
        HealthEvent(
            event_id=f"check/{round_name}/{one.check}/{'' if one.device is None else one.device}",
            rule=f"{CHECK}{one.check}",
            machine=machine,
            node=node,
            at_ms=at_ms,
            component=one.component,
            severity=_severity(one.check, is_sure),
            source=Source.CHECK,
            message=one.message,
            device=one.device,
            value=one.value,
            unit=one.unit,
            remedy=one.remedy,
            retest=one.retest,
            evidence=(line_of(one),),
        )
        for one in results
        if one.status is CheckStatus.FAIL
    )


def refused_start(
    said: str, *, round_name: str, node: str, machine: str, at_ms: int, device: int | None, on_device: bool
) -> HealthEvent:
    """Return the event of a preflight that refused its member, from the runner's words: all that a report holds.

    ``device``: the member's only one, where the fault is on a device. The node is taken out; others on it stay.
    Not so for what machines share.
    """
    found = shared.REFUSED.match(said)
    return HealthEvent(
        event_id=f"check/{round_name}",
        rule=f"{CHECK}{found[1] if found else _UNTOLD}",
        machine=machine,
        node=node,
        at_ms=at_ms,
        component=Component.GPU if on_device else Component.HOST,
        severity=Severity.WARNING if shared.refused_by(said) else Severity.HIGH,
        source=Source.CHECK,
        message=said,
        device=device,
        evidence=(said,),
    )


def line_of(result: CheckResult) -> str:
    """Return one result as a line of evidence: what was measured, what was allowed, what to do."""
    text = f"{result.status.value.lower()} {result.check}: {result.message}"
    if result.value is not None and result.threshold is not None:
        unit = f" {result.unit}" if result.unit else ""
        whose = result.details.get("limit", "")
        said = f": {whose}" if whose else ""
        text += f" (measured {result.value:g}, limit {result.threshold:g}{unit}{said})"
    return f"{text}; next: {result.next_step}" if result.next_step else text


def _severity(check: str, is_sure: Callable[[str], bool]) -> Severity:
    if check in _STOPS_RUNS:
        return Severity.CRITICAL
    return Severity.HIGH if is_sure(check) else Severity.WARNING
