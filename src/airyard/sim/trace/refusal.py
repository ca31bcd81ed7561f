"""How a trace file is refused: file, line, column, what was found, what was expected, and what to do.

Owns: the wording and the codes of refusals. Must not know: any file format.
"""

from __future__ import annotations

from dataclasses import dataclass

from airyard.core.errors import Fix, UserError

LONGEST_SHOWN = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where something stands: ``line`` counts from 1 and is None for the file as a whole."""

    source: str
    line: int | None = None
    column: str | None = None

    def __str__(self) -> str:
        parts = [self.source]
        if self.line is not None:
            parts.append(f"line {self.line}")
        if self.column is not None:
            parts.append(f"column {self.column}")
        return ", ".join(parts)


def shown(value: str) -> str:
    """Return a value in quotes, cut and with everything unprintable escaped."""
    cut = value if len(value) <= LONGEST_SHOWN else value[: LONGEST_SHOWN - 1] + "…"
    return repr(cut)


def wrong_value(place: Place, value: str, expected: str, *, fix: Fix | str | None = None) -> UserError:
    """Return the refusal of one value."""
    return UserError(
        f"{place}: found {shown(value)}, expected {expected}.",
        code="BAD_TRACE",
        fix=fix or "Correct the line, or make the file anew; nothing of it was used.",
        details={
            "file": place.source,
            "line": place.line,
            "column": place.column,
            "value": value[:LONGEST_SHOWN],
            "expected": expected,
        },
    )


def refused(place: Place, problem: str, *, fix: Fix | str) -> UserError:
    """Return the refusal of a line or of a whole file; ``problem`` is a sentence without its full stop."""
    return UserError(
        f"{place}: {problem}.",
        code="BAD_TRACE",
        fix=fix,
        details={"file": place.source, "line": place.line, "column": place.column},
    )
