"""Which waiting runs have to be told a new expectation, because others like them have ended.

Owns: the runs that wait, by likeness, and what each likeness was last told. Must not know: the planner, durations.
"""

from __future__ import annotations

from collections import OrderedDict

from airyard.core.forecast.predictor import Likeness

TOLD_WITHIN = 1.2
"""A prediction that moved by less than this factor is not worth sorting the queue again."""


class Expectations:
    """Runs that wait, by likeness."""

    def __init__(self) -> None:
        self._like: dict[int, Likeness] = {}
        self._runs: dict[Likeness, dict[int, None]] = {}
        self._told: dict[Likeness, int] = {}
        self._pools: dict[str, OrderedDict[Likeness, None]] = {}
        """Pool → the likenesses of it that wait; who was looked at last is last."""
        self._stirred: dict[str, int] = {}
        """Pool → how many of these have not been looked at since a run of the pool has ended."""

    def wait(self, run_id: int, like: Likeness, told_ms: int) -> None:
        """Note that a run waits, and what is expected of runs like it that are new."""
        if self._like.get(run_id) != like:
            self.leave(run_id)
            self._like[run_id] = like
            self._runs.setdefault(like, {})[run_id] = None
            self._pools.setdefault(like.pool, OrderedDict()).setdefault(like)
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
            likes = self._pools[like.pool]
            del likes[like]
            if not likes:
                del self._pools[like.pool]

    def outdated(self, like: Likeness, expected_ms: int) -> tuple[int, ...]:
        """Return the waiting runs to tell, when what is expected of runs like these has moved far enough; it is noted.

        Cost: constant while it has not.
        """
        told_ms = self._told.get(like)
        if told_ms is None or told_ms == expected_ms:
            return ()
        if told_ms / TOLD_WITHIN < expected_ms < told_ms * TOLD_WITHIN:
            return ()
        self._told[like] = expected_ms
        return tuple(self._runs[like])

    def stir(self, pool: str) -> None:
        """Note that a run of a pool has ended: of all likenesses there another duration may be expected now."""
        likes = self._pools.get(pool)
        if likes is not None:
            self._stirred[pool] = len(likes)

    def to_look_at(self, most: int) -> list[Likeness]:
        """Return the next likenesses to look at, each pool's in turn: each of them once after a run has ended.

        Cost: ``most``, however many wait.
        """
        found: list[Likeness] = []
        for pool in list(self._stirred):
            likes, left = self._pools.get(pool, OrderedDict()), self._stirred.pop(pool)
            count = min(left, len(likes), most - len(found))
            for _ in range(count):
                like = next(iter(likes))
                likes.move_to_end(like)
                found.append(like)
            if count < min(left, len(likes)):
                self._stirred[pool] = left - count  # behind the other pools
                break
        return found
