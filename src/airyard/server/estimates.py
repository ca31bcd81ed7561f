"""Keeps what was said of starts over restarts, and has something said where nobody asks.

Owns: when that happens. Must not know: how starts are expected or compared.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace

import structlog

from airyard.app import explaining
from airyard.app.estimates import Unsaved
from airyard.app.loop import ControlLoop
from airyard.app.planning import Planning
from airyard.app.run_lookup import run_from
from airyard.core.errors import AiryardError
from airyard.core.run import RunState
from airyard.ports.clock import Clock
from airyard.ports.estimate_store import Estimate, EstimateStore
from airyard.ports.read_store import ReadStore

EVERY_S = 10.0
ANSWER_S = 60.0
"""How long the planner is waited for; a plan may be in the making."""

_log = structlog.get_logger("airyard.estimates")


class EstimateKeeper:
    """Saves, and samples the queue, every few seconds on a thread of its own."""

    def __init__(self, loop: ControlLoop, reads: ReadStore, store: EstimateStore, clock: Clock) -> None:
        self._loop = loop
        self._reads = reads
        self._store = store
        self._clock = clock
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="estimates", daemon=True)

    def start(self) -> None:
        """Go on with what was kept, then begin."""
        stored = self._store.load()
        now = [self._as_of_now(one) for one in stored]
        kept = [one for one in now if one is not None]
        self._save(
            [one for was, one in zip(stored, now, strict=True) if one is not None and one != was],
            [was.run_id for was, one in zip(stored, now, strict=True) if one is None],
        )
        self._loop.inquire(lambda planning: planning.estimates.load(kept)).result(timeout=ANSWER_S)
        self._thread.start()

    def stop(self) -> None:
        """Save once more, and end. To be called while the loop still answers."""
        self._stopping.set()
        self._thread.join(timeout=ANSWER_S)
        self._round(sampling=False)

    def _as_of_now(self, one: Estimate) -> Estimate | None:
        """Return an estimate with the start that came while nobody watched; None for a run that never started."""
        if one.started_ms is not None:
            return one
        row = self._reads.run(one.run_id)
        if row is None:
            return None
        run = run_from(row)
        started = [attempt.placed_ms for attempt in run.attempts if attempt.placed_ms >= one.asked_ms]
        if started:
            return replace(one, started_ms=min(started))
        return one if run.state is RunState.QUEUED else None

    def _run(self) -> None:
        while not self._stopping.wait(EVERY_S):
            self._round(sampling=True)

    def _round(self, *, sampling: bool) -> None:
        now_ms = self._clock.now_ms()

        def turn(planning: Planning) -> Unsaved:
            if sampling and planning.book.queue.runs:
                explaining.sample(planning, now_ms)
            return planning.estimates.take_unsaved()

        try:
            found = self._loop.inquire(turn).result(timeout=ANSWER_S)
            self._save(found.estimates, found.forgotten)
        except (AiryardError, TimeoutError) as error:
            # They are figures for people: the next round brings others.
            _log.warning("estimates_not_saved", error=str(error))
        except Exception:
            _log.exception("estimates_broke")

    def _save(self, estimates: Sequence[Estimate], forgotten: Sequence[int]) -> None:
        if estimates or forgotten:
            self._store.save(estimates, forgotten)
