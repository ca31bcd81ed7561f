"""The production loop: one thread owns the control plane, another one plans.

Owns: the inbox, batching, the planner thread, snapshots. Must not know: HTTP, what effects do.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

import structlog

from airyard.app.changes import ChangeFeed
from airyard.app.control import Batch, Control
from airyard.app.planning import Planning
from airyard.core.actions import Action
from airyard.core.commands import Command, CommitPlan, Tick
from airyard.core.decide import Reply
from airyard.core.errors import AiryardError, InvariantBroken, Unavailable
from airyard.core.scheduling.snapshot import Delta
from airyard.core.state import ClusterState
from airyard.ports.clock import Clock
from airyard.ports.journal import Journal

T = TypeVar("T")
INBOX_LIMIT = 20_000
BATCH_LIMIT = 256
TICK_MS = 1000
JUMP_MS = 30_000
"""Of a clock that was set ahead by less nothing is late that was not nearly so."""
SNAPSHOT_EVENTS = 10_000

_log = structlog.get_logger("airyard.loop")


@dataclass(frozen=True, slots=True)
class _News:
    """What the planner is told without being asked for a plan."""

    delta: Delta


class ControlLoop:
    """Runs a Control on its own thread. All public methods may be called from any thread."""

    def __init__(
        self,
        *,
        journal: Journal,
        clock: Clock,
        do: Callable[[Sequence[Action]], None],
        changes: ChangeFeed,
        planning: Planning | None = None,
        renew: Callable[[], None] = lambda: None,
    ) -> None:
        """``renew`` has every machine say hello again; it is called when starts or kills may never have been issued."""
        self._journal = journal
        self._clock = clock
        self._control = Control(journal, clock)
        self._do = do
        self._renew = renew
        self._changes = changes
        self._inbox: queue.Queue[tuple[Command | Callable[[Control], Any], Future[Any]] | None]
        self._inbox = queue.Queue(INBOX_LIMIT)
        self._planner_inbox: queue.Queue[Delta | _News | tuple[Callable[[Planning], Any], Future[Any]] | None]
        self._planner_inbox = queue.Queue()
        self._planning = planning or Planning()
        self._plan_in_making = False
        self._next_tick_ms = 0
        self._ahead_ms: int | None = None
        """How far the wall clock was before the steady one at the last tick."""
        self._snapshotting = threading.Lock()
        self._stopping = False
        self._journal_away = False
        self._thread = threading.Thread(target=self._run, name="loop", daemon=True)
        self._planner = threading.Thread(target=self._run_planner, name="planner", daemon=True)

    def start(self, warm: ClusterState | None = None) -> None:
        """Recover, take over, start both threads, and issue again what is owed; ``warm``: see ``Control.open``.

        Raises: what ``Control.open`` raises.
        """
        owed = self._control.open(warm)
        self._thread.start()
        self._planner.start()
        self._do(owed)

    def submit(self, command: Command) -> Future[Reply]:
        """Queue a command; the future answers after the commit, or holds the refusal.

        Raises: Unavailable (``BUSY``) when the inbox is full or the loop is stopping.
        """
        return self._put(command)

    def query(self, read: Callable[[Control], T]) -> Future[T]:
        """Run ``read`` on the loop thread between batches; it must be quick and change nothing."""
        return self._put(read)

    def peek(self, read: Callable[[Control], T]) -> T:
        """Run ``read`` here and now on what the newest commit left; it changes nothing and takes ``state`` once.

        Any thread, without waiting for a commit that is under way: a state that has been committed changes no more,
        the next one takes its place.
        """
        return read(self._control)

    def inquire(self, read: Callable[[Planning], T]) -> Future[T]:
        """Run ``read`` on the planner's thread between plans; it must leave the book as it is.

        The planner is told first what has happened until now. What it has not planned for yet waits without a reason.
        Raises: Unavailable (``BUSY``) when the inbox is full or the loop is stopping.
        """
        future: Future[T] = Future()
        future.set_running_or_notify_cancel()

        def ask(control: Control) -> None:
            news = control.news()
            if news is not None:
                self._planner_inbox.put(_News(news))
            self._planner_inbox.put((read, future))

        self._put(ask)
        return future

    def _put(self, item: Command | Callable[[Control], Any]) -> Future[Any]:
        future: Future[Any] = Future()
        # From here on it cannot be cancelled: a client that leaves must not make settling it fail.
        future.set_running_or_notify_cancel()
        try:
            if self._stopping:
                raise queue.Full
            self._inbox.put_nowait((item, future))
        except queue.Full:
            what = "stopping" if self._stopping else f"busy: {INBOX_LIMIT} requests are waiting"
            raise Unavailable(f"the server is {what}", code="BUSY", retry_after_ms=1000) from None
        return future

    def stop(self) -> None:
        """Finish what is queued, write a snapshot, end both threads and close the journal."""
        self._stopping = True
        self._inbox.put(None)
        self._thread.join()
        self._planner_inbox.put(None)
        self._planner.join()
        with self._snapshotting:
            self._save_snapshot(self._control.take_state_snapshot().parts(), self._control.state.seq)
        self._journal.close()

    def _run(self) -> None:
        while True:
            items, ended = self._gather()
            self._serve(items)
            if ended:
                return

    def _gather(self) -> tuple[list[tuple[Command | Callable[[Control], Any], Future[Any]]], bool]:
        """Wait for the next request, then take what else is there, up to one batch; a tick at least every second."""
        items: list[tuple[Command | Callable[[Control], Any], Future[Any]]] = []
        wait_ms = self._next_tick_ms - self._clock.monotonic_ms()
        try:
            first = (
                self._inbox.get(timeout=max(wait_ms, 0) / 1000) if wait_ms > 0 else self._inbox.get_nowait()
            )
            while True:
                if first is None:
                    return items, True
                items.append(first)
                if len(items) >= BATCH_LIMIT:
                    break
                first = self._inbox.get_nowait()
        except queue.Empty:
            pass
        if self._clock.monotonic_ms() >= self._next_tick_ms:
            self._next_tick_ms = self._clock.monotonic_ms() + TICK_MS
            items.append((Tick(jumped_ms=self._jumped_ms()), Future()))
        return items, False

    def _jumped_ms(self) -> int:
        """Return by how much the clock was set ahead since the last tick; a little is how clocks are kept."""
        ahead_ms = self._clock.now_ms() - self._clock.monotonic_ms()
        before_ms, self._ahead_ms = self._ahead_ms, ahead_ms
        jumped_ms = 0 if before_ms is None else ahead_ms - before_ms
        return jumped_ms if jumped_ms >= JUMP_MS else 0

    def _serve(self, items: Sequence[tuple[Command | Callable[[Control], Any], Future[Any]]]) -> None:
        commands = [(item, future) for item, future in items if not callable(item)]
        if commands:
            batch = self._commit([command for command, _ in commands])
            if any(isinstance(command, CommitPlan) for command, _ in commands):
                self._plan_in_making = False
            if batch is None:
                for _, future in commands:
                    future.set_exception(
                        AiryardError("the control loop met a bug; its log has the traceback")
                    )
            else:
                for (_, future), answer in zip(commands, batch.answers, strict=True):
                    _settle(future, answer)
                self._after(batch)
        for item, future in items:
            if callable(item):
                try:
                    future.set_result(item(self._control))
                except Exception as error:
                    future.set_exception(error)

    def _commit(self, commands: list[Command]) -> Batch | None:
        try:
            batch = self._control.commit(commands)
            self._note_journal()
            for command, answer in zip(commands, batch.answers, strict=True):
                if isinstance(answer, InvariantBroken):
                    _log.error(
                        "command_broke", command=type(command).__name__, error=answer.message, exc_info=answer
                    )
            return batch
        except Exception:
            # A bug must not end the only writer: the batch is refused, the state is as it was.
            _log.exception("batch_failed", commands=[type(command).__name__ for command in commands])
            return None

    def _note_journal(self) -> None:
        """Say once that the journal does not answer, and once that it does again."""
        problem = self._control.journal_problem
        if bool(problem) != self._journal_away:
            self._journal_away = bool(problem)
            if problem:
                _log.warning("journal_away", error=problem)
            else:
                _log.warning("journal_back", seq=self._control.state.seq)

    def _after(self, batch: Batch) -> None:
        # Effects first: they are what somebody waits for.
        if batch.actions:
            self._do(batch.actions)
        if batch.caught_up:
            _log.warning("journal_caught_up", seq=self._control.state.seq)
            self._renew()
        if batch.changed_runs:
            self._changes.publish(batch.changed_runs)
        if not self._plan_in_making and (delta := self._control.delta_to_plan()) is not None:
            self._plan_in_making = True
            self._planner_inbox.put(delta)
        if self._control.events_since_snapshot >= SNAPSHOT_EVENTS and not self._snapshotting.locked():
            state = self._control.take_state_snapshot()
            threading.Thread(
                target=lambda: self._dump(state.parts(), state.seq), name="snapshot", daemon=True
            ).start()

    def _dump(self, snapshot: dict[str, Any], seq: int) -> None:
        with self._snapshotting:
            self._save_snapshot(snapshot, seq)

    def _save_snapshot(self, snapshot: dict[str, Any], seq: int) -> None:
        try:
            self._journal.save_snapshot(seq, snapshot)
        except AiryardError as error:
            _log.warning("snapshot_failed", seq=seq, error=error.message)

    def _run_planner(self) -> None:
        while (item := self._planner_inbox.get()) is not None:
            if isinstance(item, Delta):
                self._make_plan(item)
                continue
            if isinstance(item, _News):
                self._take_in(item.delta)
                continue
            read, future = item
            try:
                future.set_result(read(self._planning))
            except Exception as error:
                future.set_exception(error)

    def _take_in(self, delta: Delta) -> None:
        try:
            self._planning.absorb(delta, self._clock.now_ms())
        except Exception:
            # What the book holds now is not known: the next plan begins with a fresh one.
            _log.exception("news_not_taken_in", seq=delta.seq)
            self._control.plan_again(fresh=True)

    def _make_plan(self, delta: Delta) -> None:
        now_ms = self._clock.now_ms()
        try:
            self._planning.absorb(delta, now_ms)
            made = self._planning.make(now_ms)
        except Exception:
            # What the book holds now is not known: the next plan begins with a fresh one.
            _log.exception("planner_failed", seq=delta.seq)
            self._control.plan_again(fresh=True)
            self._plan_in_making = False
            return
        try:
            self._put(CommitPlan(plan=made))
        except Unavailable:
            self._control.plan_again()
            self._plan_in_making = False
            _log.warning("plan_dropped", seq=delta.seq)


def _settle(future: Future[Any], answer: Reply | AiryardError) -> None:
    if isinstance(answer, AiryardError):
        future.set_exception(answer)
    else:
        future.set_result(answer)
