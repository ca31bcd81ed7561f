"""Estimates of starts, kept over restarts so that their error can be shown. Any thread.

Owns: the record of one estimate. Must not know: how starts are expected, SQL.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What was said of a run's start, the first time that somebody asked; ``started_ms`` None: it waits still."""

    run_id: int
    asked_ms: int
    p50_ms: int
    p90_ms: int
    position: int
    started_ms: int | None = None


class EstimateStore(Protocol):
    """Bounded: the newest open estimates, and the newest that have been compared with a start."""

    def load(self) -> Sequence[Estimate]:
        """Return what is kept, in the order of its starts, open ones last."""
        ...

    def save(self, estimates: Sequence[Estimate], forgotten: Sequence[int]) -> None:
        """Add estimates or replace what is known of them; forget the open ones of the runs ``forgotten``.

        Raises: Unavailable when the disk refuses.
        """
        ...
