"""Which waiting runs have to be told a new expectation, because others like them have ended.

Owns: the runs that wait, by likeness, and what each likeness was last told. Must not know: the planner, durations.
"""

from __future__ import annotations

from airyard.core.forecast.predictor import Likeness

TOLD_WITHIN = 1.2
"""A prediction that moved by less than this factor is not worth sorting the queue again."""


class Expectations:
    """Runs that wait, by likeness."""

    def __init__(self) -> None:
        self._like: dict[int, Likeness] = {}
        self._runs: dict[Likeness, dict[int, None]] = {}
        self._told: dict[Likeness, int] = {}

    def wait(self, run_id: int, like: Likeness, told_ms: int) -> None:
        """Note that a run waits, and what is expected of runs like it that are new."""
        if self._like.get(run_id) != like:
            self.leave(run_id)
            self._like[run_id] = like
            self._runs.setdefault(like, {})[run_id] = None
        self._told.setdefault(like, told_ms)

    def leave(self, run_id: int) -> None:
        """Note that a run waits no more; one that did not is no matter."""
        like = self._like.pop(run_id, None)
        if like is None:
            return
        runs = self._runs[like]
        del runs[run_id]
        if not runs:
            del self._runs[like]
            self._told.pop(like, None)

    def outdated(self, like: Likeness, expected_ms: int) -> tuple[int, ...]:
        """Return the waiting runs to tell, when what is expected of runs like these has moved far enough; it is noted.

        Cost: constant while it has not.
        """
        told_ms = self._told.get(like)
        if told_ms is None or told_ms / TOLD_WITHIN < expected_ms < told_ms * TOLD_WITHIN:
            return ()
        self._told[like] = expected_ms
        return tuple(self._runs[like])
