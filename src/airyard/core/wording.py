"""How times, spans and amounts read in messages of the core.

Owns: pure formatting. Must not know: zones (the core speaks UTC), runs, who reads it.
"""

from __future__ import annotations

from datetime import UTC, datetime


def moment(at_ms: int) -> str:
    """``2026-12-02 08:00 UTC``; with seconds where it is not a full minute."""
    at = datetime.fromtimestamp(at_ms // 1000, UTC)
    return f"{at:%Y-%m-%d %H:%M:%S} UTC" if at.second else f"{at:%Y-%m-%d %H:%M} UTC"


def span(duration_ms: int) -> str:
    """``45 s``, ``3 min 20 s``, ``2 h 5 min``, ``3 d 4 h``: the two largest units, rounded down."""
    seconds = max(duration_ms, 0) // 1000
    for unit_s, unit, part_s, part in ((86_400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if seconds >= unit_s:
            rest = seconds % unit_s // part_s
            return f"{seconds // unit_s} {unit}" + (f" {rest} {part}" if rest else "")
    return f"{seconds} s"


def hours(amount: float) -> str:
    """``2.6``, ``0.26``, ``0.0012``: GPU-hours, with two figures where they are few."""
    return f"{amount:.1f}" if amount >= 1 or amount < 0.0001 else f"{amount:.2g}"
