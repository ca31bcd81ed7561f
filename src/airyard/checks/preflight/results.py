"""Results of checks as JSON, and back.

Owns: that form. Must not know: what a result means.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from airyard.core.health.facts import CheckResult, CheckStatus, Component, Remedy, Retest


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
    """Build from ``result_to_json``. Raises: KeyError, ValueError, TypeError."""
    kinds: dict[str, Any] = {
        "status": CheckStatus,
        "component": Component,
        "remedy": Remedy,
        "retest": Retest,
    }
    read: dict[str, Any] = {name: kinds.get(name, _same)(value) for name, value in data.items()}
    return CheckResult(**read)


def _same(value: Any) -> Any:
    return value
