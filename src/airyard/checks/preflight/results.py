"""Results of checks as JSON, and back.

Owns: that form. Must not know: what a result means.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from airyard.core.health.facts import CheckResult, CheckStatus, Component, Remedy, Retest

MOST = 4_096
"""So many results of one round are read: a hundred checks of sixteen GPUs have room."""


def result_to_json(result: CheckResult) -> dict[str, Any]:
    """Return one result with every field."""
    return {
        **asdict(result),
        "status": result.status.value,
        "component": result.component.value,
        "remedy": result.remedy.value,
        "retest": result.retest.value,
        "details": dict(result.details),
    }


def result_from_json(data: Mapping[str, Any]) -> CheckResult:
    """Build from ``result_to_json`` without fields of later releases. Raises: KeyError, ValueError, TypeError."""
    details = data.get("details") or {}
    return CheckResult(
        check=str(data["check"]),
        status=CheckStatus(data["status"]),
        message=str(data["message"]),
        node=str(data.get("node", "")),
        device=_whole("device", data.get("device")),
        value=_number("value", data.get("value")),
        threshold=_number("threshold", data.get("threshold")),
        unit=str(data.get("unit", "")),
        next_step=str(data.get("next_step", "")),
        duration_ms=_whole("duration_ms", data.get("duration_ms")) or 0,
        component=Component(data.get("component", Component.HOST.value)),
        remedy=Remedy(data.get("remedy", Remedy.NONE.value)),
        retest=Retest(data.get("retest", Retest.T1.value)),
        details={str(name): str(text) for name, text in details.items()},
    )


def results_from_json(data: Sequence[Mapping[str, Any]]) -> list[CheckResult]:
    """Build the results of a round, as many as are read; of more it is told. Raises: as for one."""
    found = [result_from_json(each) for each in data[:MOST]]
    if len(data) > MOST:
        message = f"{len(data) - MOST} more results of this round were not read"
        found.append(CheckResult(check="preflight.results", status=CheckStatus.UNKNOWN, message=message))
    return found


def _whole(name: str, value: Any) -> int | None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
        raise TypeError(f"{name} is no whole number: {value!r}")
    return value


def _number(name: str, value: Any) -> float | None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise TypeError(f"{name} is no number: {value!r}")
    return value
