"""Reads whether a write of user code to MLflow tells of progress.

Owns: which operations and metrics do. Must not know: whose write it is, what follows. Cost: a small body is parsed.
"""

from __future__ import annotations

import json
from typing import Any

LOGGING = frozenset({"runs/log-metric", "runs/log-batch"})
_READ_BYTES = 256 * 1024
_LONGEST_STEP = 1 << 53


def progress_in(operation: str, body: bytes) -> tuple[bool, int | None]:
    """Return whether a write logs a metric of user code's, and the newest step that it names.

    MLflow's own sampler goes on in a thread while the program hangs: its ``system/`` metrics are no progress.
    A body too large to be looked into counts as one: no sampler writes as much.
    """
    if operation not in LOGGING:
        return False, None
    if len(body) > _READ_BYTES:
        return True, None
    try:
        request = json.loads(body)
    except (ValueError, RecursionError):
        return False, None  # MLflow will refuse it
    if not isinstance(request, dict):
        return False, None
    metrics = [request] if operation == "runs/log-metric" else request.get("metrics")
    own = [one for one in metrics if _is_own(one)] if isinstance(metrics, list) else []
    return bool(own), max((_step(one.get("step")) for one in own), default=None)


def _is_own(metric: Any) -> bool:
    key = metric.get("key") if isinstance(metric, dict) else None
    return isinstance(key, str) and not key.startswith("system/")


def _step(value: object) -> int:
    """Return a step; MLflow's client sends a number, others may send its text."""
    try:
        return min(max(0, int(value)), _LONGEST_STEP) if isinstance(value, int | str) else 0
    except ValueError:
        return 0
