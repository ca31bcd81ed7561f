"""What the forecast learns at the start of a server: the runs that ended last, read from the read tables.

Owns: how many, and in what pieces. Must not know: SQL, predictions.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from airyard.app.control import Control
from airyard.app.loop import ControlLoop
from airyard.app.planning import Planning
from airyard.app.run_lookup import run_from
from airyard.core.run import Run, RunState
from airyard.ports.clock import Clock
from airyard.ports.read_store import ReadStore, RunFilter

REMEMBERED = 2_000
PIECE = 200
"""Runs that are learnt from at a time, so that plans are made in between."""


def teach(loop: ControlLoop, reads: ReadStore, clock: Clock) -> int:
    """Let the planner's forecast learn from the last ended runs, oldest first; return how many there were.

    Raises: Unavailable when the loop is stopping. Cost: some hundred microseconds a run; blocks.
    """
    newest_first: list[Run] = []
    before: int | None = None
    while len(newest_first) < REMEMBERED:
        rows = reads.runs(RunFilter(states=(RunState.ENDED.value,), before=before, limit=PIECE))
        newest_first += [run_from(row) for row in rows]
        if len(rows) < PIECE:
            break
        before = rows[-1].run_id
    ended = sorted(newest_first, key=lambda run: (run.ended_ms or 0, run.run_id))
    for first in range(0, len(ended), PIECE):
        learn = partial(_learn, ended[first : first + PIECE], clock.now_ms())
        loop.inquire(learn).result()
    if ended:
        loop.inquire(partial(_tell, clock.now_ms())).result()
        loop.query(Control.plan_again).result()
    return len(ended)


def _learn(piece: Sequence[Run], now_ms: int, planning: Planning) -> None:
    planning.learn(piece, now_ms)


def _tell(now_ms: int, planning: Planning) -> None:
    planning.expect_anew(now_ms)
