"""What a simulated node answers in a pair test: a good measurement, or what a file of made-up faults says.

Owns: that script. Must not know: sockets, the server, what a figure means.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

BUSBW_GB_S = 300.0
DUE_GB_S = 0.85 * BUSBW_GB_S
LATENCY_P95_US = 20.0
_MOST_BYTES = 1 << 20
_MOST_S = 60.0
_MOST = 1_000_000
_KINDS = {
    "busbw_share": float,
    "latency_factor": float,
    "correct": bool,
    "errors_grown": int,
    "seconds": float,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PairScript:
    """How one simulated node fares: shares of what is good, and how long a test takes."""

    busbw_share: float = 1.0
    latency_factor: float = 1.0
    correct: bool = True
    errors_grown: int = 0
    seconds: float = 0.1
    hangs: bool = False

    def said(self) -> dict[str, Any]:
        """Return what its side of a test has measured."""
        return {
            "busbw_gb_s": BUSBW_GB_S * self.busbw_share,
            "latency_p95_us": LATENCY_P95_US * self.latency_factor,
            "correct": self.correct,
            "errors_grown": self.errors_grown,
            "method": "simulated",
            "due_gb_s": DUE_GB_S,
        }


def script_for(file: Path, node: str) -> PairScript:
    """Return the last word of the file on a node; what is no such line is left out, and no file is a good node.

    ``{"node": "sim-8xh100-0", "pair": {"busbw_share": 0.4}}``; ``"hang"`` for what never answers, ``null`` for what is
    well again.
    """
    try:
        with file.open("rb") as opened:
            opened.seek(max(opened.seek(0, 2) - _MOST_BYTES, 0))
            lines = opened.read(_MOST_BYTES).splitlines()
    except OSError:
        return PairScript()
    for line in reversed(lines):
        try:
            said = json.loads(line)
            if said["node"] == node and "pair" in said:
                return script_of(said["pair"])
        except (ValueError, LookupError, TypeError):
            continue
    return PairScript()


def script_of(said: Any) -> PairScript:
    """Return what a line's ``pair`` means. Raises: ValueError that says what is wrong with it."""
    if said is None:
        return PairScript()
    if said == "hang":
        return PairScript(hangs=True)
    if not isinstance(said, dict) or not said:
        raise ValueError(f'pair is null, "hang" or an object of {", ".join(_KINDS)}')
    if unknown := sorted(set(said) - set(_KINDS)):
        raise ValueError(f"unknown in pair: {', '.join(unknown)}; there are {', '.join(_KINDS)}")
    for name, value in said.items():
        if (kind := _KINDS[name]) is not type(value) and not (kind is float and type(value) is int):
            raise ValueError(f"{name} of pair is no {kind.__name__}: {value!r}")
        if not (isinstance(value, int | float) and 0 <= value <= _MOST):
            raise ValueError(f"{name} of pair is no number from 0 to {_MOST:,}: {value!r}")
    script = PairScript(**said)
    return replace(script, seconds=min(script.seconds, _MOST_S))
