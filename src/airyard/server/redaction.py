"""A run as it is shown to somebody who may not see it: that it is there, where, and how large it is.

Owns: which fields stay. Must not know: who may see what.
"""

from __future__ import annotations

from airyard.app.views import Document

_KEPT = frozenset(
    {
        "run_id",
        "state",
        "status",
        "simulated",
        "accelerator",
        "nodes",
        "devices_per_node",
        "priority",
        "pool",
        "submitted_at",
        "version",
        "position",
        "max_retries",
        "retries_spent",
        "held",
        "logs_complete",
    }
)
_KEPT_OF_PENDING = frozenset({"reason", "eta", "position"})


def redacted(run: Document) -> Document:
    """Return a RunDoc without names, commands, parameters, tags and people; ``hidden`` says so."""
    out = {name: value if name in _KEPT else _nothing(value) for name, value in run.items()}
    pending = run.get("pending")
    if isinstance(pending, dict):
        out["pending"] = {
            name: value if name in _KEPT_OF_PENDING else _nothing(value) for name, value in pending.items()
        }
    return {**out, "hidden": True}


def _nothing(value: object) -> object:
    """Return the empty value of the same type."""
    if isinstance(value, str):
        return ""
    if isinstance(value, list):
        return []
    return {} if isinstance(value, dict) else None
