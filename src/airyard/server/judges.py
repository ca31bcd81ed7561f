"""Judges attempts that have failed, on a thread of its own, and tells the loop.

Owns: when an attempt is read, how long more evidence is waited for, that whatever is asked for is answered.
Must not know: what a verdict changes. Nobody waits for this thread but the attempts' ends, and these for seconds only.
"""

from __future__ import annotations

import queue
import threading
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import structlog

from airyard.app import triaging
from airyard.app.control import Control
from airyard.app.loop import ControlLoop
from airyard.core.actions import JudgeAttempt
from airyard.core.commands import DeclareJudging, VerdictReached
from airyard.core.errors import AiryardError, Unavailable
from airyard.core.health.facts import HealthEvent
from airyard.core.ids import AttemptKey
from airyard.core.run import Attempt
from airyard.core.triage.causes import Judgement
from airyard.ports.clock import Clock
from airyard.ports.log_store import LogStore

VERDICT_WAIT_MS = 5_000
"""So long the end of an attempt, and with it the retry, waits for its verdict."""
LOOK_S = 0.25
"""How often it is looked whether monitors have seen something."""
_log = structlog.get_logger("airyard.judges")


@dataclass(slots=True, kw_only=True)
class _Case:
    """An attempt that was read and may yet be confirmed to have failed by its machine."""

    action: JudgeAttempt
    attempt: Attempt
    evidence: triaging.Evidence
    on_gpus: bool
    events: tuple[HealthEvent, ...] | None = field(default=None)
    judgement: Judgement | None = None


class Judges:
    """Works off what is asked, one attempt after the other; those that wait for evidence keep nobody."""

    def __init__(self, logs: LogStore, clock: Clock) -> None:
        self._logs = logs
        self._clock = clock
        self._loop: ControlLoop | None = None
        self._inbox: queue.Queue[JudgeAttempt | None] = queue.Queue()
        self._begun: set[AttemptKey] = set()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="judges", daemon=True)

    def start(self, loop: ControlLoop) -> None:
        """Begin, and have it known; what was asked before is worked off now."""
        self._loop = loop
        self._thread.start()
        loop.submit(DeclareJudging(wait_ms=VERDICT_WAIT_MS))

    def stop(self) -> None:
        """Take nothing more; what is under way is asked for again by the next server."""
        self._inbox.put(None)
        if self._thread.is_alive():
            self._thread.join(timeout=5)

    def do(self, action: JudgeAttempt) -> None:
        """Queue an attempt, unless it is being judged."""
        key = AttemptKey(action.run_id, action.attempt)
        with self._lock:
            if key in self._begun:
                return
            self._begun.add(key)
        self._inbox.put(action)

    def _run(self) -> None:
        waiting: list[_Case] = []
        while True:
            try:
                action = self._inbox.get(timeout=LOOK_S if waiting else None)
                if action is None:
                    return
                if (case := self._opened(action)) is not None:
                    waiting.append(case)
            except queue.Empty:
                pass
            waiting = [case for case in waiting if not self._settled(case)]

    def _opened(self, action: JudgeAttempt) -> _Case | None:
        """Read an attempt's logs; None where there is nothing to judge, or it could not be read."""
        assert self._loop is not None
        run = self._loop.peek(lambda control: control.state.runs.get(action.run_id))
        if run is None or action.attempt >= len(run.attempts):
            self._forget(action)
            return None
        attempt = run.attempts[action.attempt]
        try:
            evidence = triaging.read(self._logs, attempt, triaging.share_of(attempt))
        except Exception as error:
            self._broke(action, attempt, error)
            return None
        on_gpus = not run.workload.compute.is_cpu
        return _Case(action=action, attempt=attempt, evidence=evidence, on_gpus=on_gpus)

    def _settled(self, case: _Case) -> bool:
        """Judge with what is known now; False when it is worth while to look again."""
        try:
            judgement = self._judged(case)
        except Exception as error:
            self._broke(case.action, case.attempt, error)
            return True
        over = self._clock.now_ms() >= case.action.until_ms
        if case.on_gpus and triaging.may_be_confirmed(judgement.verdict) and not over:
            return False
        self._answer(case.action, judgement)
        return True

    def _judged(self, case: _Case) -> Judgement:
        """Return the judgement, made anew only when monitors have said something since."""
        assert self._loop is not None

        def look(control: Control) -> tuple[HealthEvent, ...]:
            return triaging.health_events(control.state, case.attempt)

        events = self._loop.peek(look)
        if case.judgement is None or events != case.events:
            case.events = events
            case.judgement = triaging.judgement_of(case.evidence, case.attempt, events)
        return case.judgement

    def _broke(self, action: JudgeAttempt, attempt: Attempt, error: Exception) -> None:
        if isinstance(error, AiryardError):
            _log.warning("attempt_not_judged", attempt=str(attempt.key), error=error.message)
        else:
            _log.exception("judging_broke", attempt=str(attempt.key))
        said = f"all of it: {type(error).__name__}: {error}"[:300]
        self._answer(action, Judgement(verdict=None, members=len(attempt.members), missing=said))

    def _answer(self, action: JudgeAttempt, judgement: Judgement) -> None:
        """Tell the loop; an answer that is lost is asked for again."""
        assert self._loop is not None

        def done(future: Future[Any]) -> None:
            self._forget(action)

        command = VerdictReached(run_id=action.run_id, attempt=action.attempt, judgement=judgement)
        try:
            self._loop.submit(command).add_done_callback(done)
        except Unavailable as error:
            _log.warning("verdict_dropped", run=action.run_id, error=error.message)
            self._forget(action)

    def _forget(self, action: JudgeAttempt) -> None:
        with self._lock:
            self._begun.discard(AttemptKey(action.run_id, action.attempt))
