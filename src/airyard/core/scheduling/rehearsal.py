"""Plans made one after the other on the book itself, with every end as expected; then all of it is taken back.

Owns: what happens between two plans of a rehearsal. Must not know: how a plan is made.
"""

from __future__ import annotations

import heapq
from dataclasses import replace
from types import TracebackType

from airyard.core.scheduling.book import Book
from airyard.core.scheduling.plan import Eviction, Plan, Running, Start, Waiting
from airyard.core.scheduling.planner import plan
from airyard.core.scheduling.sandbox import Sandbox

GRACE_MS = (120_000, 120_000, 30_000)
"""What is taken for the grace of an attempt that a plan evicts, by its class."""


class Rehearsal:
    """A context in which time goes by; ``late`` lets everything last as long as one time in ten."""

    def __init__(self, book: Book, now_ms: int, *, late: bool = False) -> None:
        self.book = book
        self.now_ms = now_ms
        self.starts: dict[int, int] = {}
        self._late = late
        self._sandbox = Sandbox(book, now_ms)
        self._ends: list[tuple[int, int]] = []
        self._returning: dict[int, Waiting] = {}

    def __enter__(self) -> Rehearsal:
        """Begin with the ends that the book expects."""
        self._sandbox.__enter__()
        for running in list(self.book.running.values()):
            end_ms = max(running.late_end_ms if self._late else running.end_ms, self.now_ms + 1)
            if end_ms != running.end_ms:
                self._put(replace(running, end_ms=end_ms))
            self._ends.append((end_ms, running.run_id))
        heapq.heapify(self._ends)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Put everything back."""
        self._sandbox.__exit__(kind, error, trace)

    def _put(self, record: Running | Waiting) -> None:
        self._sandbox.put(record, self.now_ms)

    # Time goes by.

    def play(self, plans: int, left: set[int] | None) -> None:
        """Make so many plans, and let happen what comes between them; ends when nobody of ``left`` is left to start.

        ``left`` None: when nothing waits any more. Those that have started are taken out of it.
        """
        for _ in range(plans):
            made = plan(self.book, self.now_ms)
            self._carry_out(made)
            if left is not None:
                left.difference_update(self.starts)
            if not self.book.queue.runs or (left is not None and not left):
                return
            next_ms = min(
                (at for at in (self._ends[0][0] if self._ends else None, made.wake_ms) if at is not None),
                default=None,
            )
            if next_ms is None:
                return
            self.now_ms = next_ms
            self._let_end()

    def _carry_out(self, made: Plan) -> None:
        for eviction in made.evictions:
            self._evict(eviction)
        for start in made.starts:
            self._start(start)

    def _start(self, start: Start) -> None:
        want = self.book.queue.runs[start.run_id]
        lasts_ms = want.bound_ms if self._late else min(want.expected_ms, want.bound_ms)
        end_ms = self.now_ms + max(lasts_ms, 1)
        self.starts.setdefault(start.run_id, self.now_ms)
        self._put(
            Running(
                run_id=want.run_id,
                attempt=-1,
                rank=want.rank,
                placed_ms=self.now_ms,
                seats=start.seats,
                stopping=False,
                project=want.project,
                owner=want.owner,
                pool=self.book.nodes.slots[start.seats[0].node].view.pool,
                end_ms=end_ms,
                late_end_ms=end_ms,
                safe_ms=self.now_ms,
                acknowledges=want.acknowledges,
                served_ms=want.served_ms,
                evicted_ms=want.evicted_ms,
            )
        )
        heapq.heappush(self._ends, (end_ms, want.run_id))

    def _evict(self, eviction: Eviction) -> None:
        running = self.book.running[eviction.run_id]
        end_ms = min(running.end_ms, self.now_ms + GRACE_MS[running.rank])
        self._returning[running.run_id] = _again(self.book, running, eviction.for_run, self.now_ms)
        self._put(
            replace(
                running,
                stopping=True,
                evicted=True,
                end_ms=end_ms,
                evicted_ms=self.now_ms,
                leaving_for=eviction.for_run,
            )
        )
        heapq.heappush(self._ends, (end_ms, running.run_id))

    def _let_end(self) -> None:
        while self._ends and self._ends[0][0] <= self.now_ms:
            end_ms, run_id = heapq.heappop(self._ends)
            running = self.book.running.get(run_id)
            if running is None or running.end_ms != end_ms:
                continue
            self._sandbox.drop(run_id)
            again = self._returning.pop(run_id, None)
            if again is not None:
                self._put(again)


def _again(book: Book, running: Running, for_run: int, now_ms: int) -> Waiting:
    """Return how an evicted attempt queues again: its place kept, and what it has not saved to do once more."""
    seat = next(seat for seat in running.seats if seat.node in book.nodes.slots)
    view = book.nodes.slots[seat.node].view
    lost_ms = max(now_ms - running.safe_ms, 0)
    lasts_ms = max(running.end_ms - now_ms, 1) + lost_ms
    return Waiting(
        run_id=running.run_id,
        rank=running.rank,
        queued_ms=running.placed_ms,
        accelerator=view.accelerator,
        model=view.model,
        devices_per_node=len(seat.devices),
        nodes=len(running.seats),
        project=running.project,
        owner=running.owner,
        expected_ms=lasts_ms,
        likely_ms=lasts_ms,
        served_ms=running.served_ms + now_ms - running.placed_ms - lost_ms,
        acknowledges=running.acknowledges,
        evicted_ms=now_ms,
        left_for=for_run,
        placed_ms=running.placed_ms,
    )
