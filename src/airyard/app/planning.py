"""The planning side: a book kept up to date by deltas, the forecast, the newest plan, and what is asked of them.

Owns: the book and its forecast. Must not know: threads (one thread calls everything), the journal, how plans are
carried out. The production loop runs it on the planner's thread; the simulator calls the same object.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from itertools import islice

from airyard.app.estimates import Estimates
from airyard.app.forecasting import LearntForecast
from airyard.app.outlook import Outlook
from airyard.core.run import Run, RunState
from airyard.core.scheduling.book import Book
from airyard.core.scheduling.eta import Eta
from airyard.core.scheduling.overtakes import Begun, begun_by
from airyard.core.scheduling.plan import Plan
from airyard.core.scheduling.planner import plan as make_plan
from airyard.core.scheduling.snapshot import (
    Delta,
    overdue,
    running_of,
    used_of,
    waiting_of,
)

NEVER_MS = 1 << 60

TOLD_AT_ONCE = 1_000
"""So many waiting runs are told a new expectation at a time: each is sorted into the queue anew."""

BEGUN_KEPT = 1_000
"""Of so many starts it is kept before whom they went."""


class Planning:
    """What the planner knows. Takes deltas in order; each plan is made on the state of the newest."""

    def __init__(self) -> None:
        self.forecast = LearntForecast()
        self.book = Book()
        self.plan: Plan | None = None
        """The newest plan."""
        self.begun: deque[Begun] = deque(maxlen=BEGUN_KEPT)
        """The newest starts that others waited through, newest first."""
        self.estimates = Estimates()
        self._outlook = Outlook(self.book, None, self.begun)
        self._outlook_holds = True
        self._active: dict[int, Run] = {}
        self._waiting: dict[int, Run] = {}
        self._untold: dict[int, None] = {}
        """Waiting runs of which another duration is expected than they were told."""
        self._ends: list[tuple[int, int]] = []

    def absorb(self, delta: Delta, now_ms: int) -> None:
        """Take in what has changed."""
        self._outlook_holds = False
        if delta.fresh:
            self.book = Book()
            self._active.clear()
            for run_id in tuple(self._waiting):
                self._waits_no_more(run_id)
            self._ends.clear()
        book = self.book
        if delta.policy is not None:
            book.declare(delta.policy, delta.nodes or (), now_ms)
        elif delta.nodes is not None:
            self._nodes(delta)
        if delta.reservations is not None:
            book.reserve(delta.reservations)
        for run in delta.ended:
            self._note_start(run)
        for run_id in delta.gone:
            book.drop(run_id)
            self._active.pop(run_id, None)
            self._waits_no_more(run_id)
            self.estimates.void(run_id)
        for run in delta.runs:
            self._put(run, now_ms)
        self.learn(delta.ended, now_ms)
        book.account(used_of(delta.usage, now_ms, delta.half_life_ms), delta.spent)
        book.seq = delta.seq

    def _nodes(self, delta: Delta) -> None:
        kept = set()
        for view in delta.nodes or ():
            kept.add(view.name)
            self.book.put_node(view)
        for name in [name for name in self.book.nodes.slots if name not in kept]:
            self.book.drop_node(name)

    def _put(self, run: Run, now_ms: int) -> None:
        attempt = run.attempt
        if run.state is RunState.QUEUED:
            self._active.pop(run.run_id, None)
            self._waiting[run.run_id] = run
            self.forecast.wait(run)
            self.book.put_waiting(waiting_of(run, self.forecast), now_ms)
            if run.held:
                self.estimates.void(run.run_id)
        elif attempt is not None and attempt.live:
            self._waits_no_more(run.run_id)
            self._note_start(run)
            self.forecast.named(run)
            running = running_of(run, attempt, self.forecast)
            before = self.book.running.get(run.run_id)
            if before is not None and before.attempt == running.attempt and not running.stopping:
                # It has been given a later end by now, because it outlived the first.
                must_ms = running.limit_end_ms if running.limit_end_ms is not None else NEVER_MS
                end_ms = min(max(before.end_ms, running.end_ms), must_ms)
                late_end_ms = min(max(before.late_end_ms, running.late_end_ms), must_ms)
                running = replace(running, end_ms=end_ms, late_end_ms=late_end_ms)
            self._active[run.run_id] = run
            self.book.put_running(running)
            heapq.heappush(self._ends, (running.end_ms, run.run_id))

    def _note_start(self, run: Run) -> None:
        """Compare what was said of a run's start with the start."""
        if run.attempt is not None:
            self.estimates.started(run.run_id, run.attempt.placed_ms)

    def _waits_no_more(self, run_id: int) -> None:
        self._untold.pop(run_id, None)
        if self._waiting.pop(run_id, None) is not None:
            self.forecast.waiting.leave(run_id)

    def learn(self, ended: Iterable[Run], now_ms: int) -> None:
        """Let the forecast learn from runs that have ended, oldest first, and tell the waiting ones like them."""
        self._outlook_holds = False
        for run in ended:
            self._untold.update(dict.fromkeys(self.forecast.observe(run)))
        self._tell(now_ms)

    def _tell(self, now_ms: int) -> None:
        """Tell waiting runs what is expected of them by now, a bounded number at a time."""
        self._untold.update(dict.fromkeys(self.forecast.moved()))
        for run_id in list(islice(self._untold, TOLD_AT_ONCE)):
            del self._untold[run_id]
            self.book.put_waiting(waiting_of(self._waiting[run_id], self.forecast), now_ms)

    def expect_anew(self, now_ms: int) -> None:
        """Tell every run what is expected of it by now: after much was learnt at once. Cost: all runs."""
        self._outlook_holds = False
        self._untold.clear()
        for run_id, run in self._waiting.items():
            self.forecast.waiting.leave(run_id)
            self.forecast.wait(run)
            self.book.put_waiting(waiting_of(run, self.forecast), now_ms)
        for run in self._active.values():
            if run.attempt is not None and run.attempt.stop is None:
                running = running_of(run, run.attempt, self.forecast)
                self.book.put_running(running)
                heapq.heappush(self._ends, (running.end_ms, run.run_id))
        self._outlived(now_ms)

    def make(self, now_ms: int) -> Plan:
        """Make a plan."""
        self._outlived(now_ms)
        self._tell(now_ms)
        made = make_plan(self.book, now_ms)
        if made.refusals and self._ends:
            # Promises rest on expected ends: when one has passed, another end is expected, and more may start.
            next_ms = self._ends[0][0]
            made = replace(made, wake_ms=next_ms if made.wake_ms is None else min(made.wake_ms, next_ms))
        self.plan = made
        self.begun.extendleft(begun_by(self.book, made, BEGUN_KEPT))
        self._outlook_holds = False
        return made

    def outlook(self) -> Outlook:
        """Return what the newest plan says of the waiting runs; kept until something changes."""
        if not self._outlook_holds:
            self._outlook = Outlook(self.book, self.plan, self.begun, self._outlook)
            self._outlook_holds = True
        return self._outlook

    def etas(self, now_ms: int) -> dict[int, Eta]:
        """Return when each waiting run is expected to start; found out once a plan."""
        return self.outlook().etas(now_ms)

    def _outlived(self, now_ms: int) -> None:
        """Give attempts that should have ended by now another expected end."""
        while self._ends and self._ends[0][0] <= now_ms:
            end_ms, run_id = heapq.heappop(self._ends)
            running, run = self.book.running.get(run_id), self._active.get(run_id)
            if running is None or run is None or running.end_ms != end_ms or running.stopping:
                continue
            later = overdue(running, run, self.forecast, now_ms)
            if later.end_ms > end_ms:
                self.book.put_running(later)
                heapq.heappush(self._ends, (later.end_ms, run_id))
