"""Weighs what members tell of their steps, and other signs of attempts that tell of none; has news journalled.

Owns: when the control loop is asked. Must not know: how a verdict is reached, or what follows from it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import structlog

from airyard.app.control import Control
from airyard.core.commands import GangJudged
from airyard.core.decide.hanging import says_same
from airyard.core.errors import AiryardError
from airyard.core.health.hangs import Stall
from airyard.core.health.signs import Silence, Source, moved_since
from airyard.core.health.silent_looks import with_look
from airyard.core.ids import AttemptKey, MemberKey
from airyard.core.run import Attempt, AttemptState, Run, StallNote
from airyard.core.workload import HangAction
from airyard.server.context import Principal, ServerContext

EVERY_S = 10.0
ANSWER_S = 30.0
_EVIDENCE_CHARACTERS = 1000
_log = structlog.get_logger("airyard.hangs")


async def weigh(context: ServerContext, key: MemberKey) -> None:
    """Judge the gang of a member that just told of its steps. Cost: a pass over its ranks; a command for news."""

    def read(control: Control) -> tuple[HangAction, Attempt] | None:
        found = control.state.member(key)
        return (found[0].workload.hang.action, found[1]) if found is not None else None

    found = context.loop.peek(read)
    if found is None or found[0] is HangAction.OFF or found[1].state is not AttemptState.RUNNING:
        return
    attempt = found[1]
    sure, stall = context.steps.confirmed(attempt.key, attempt, context.clock.monotonic_ms())
    if not sure or not look(context, attempt, stalled=stall is not None):
        return
    note = _note(stall, context.clock.now_ms()) if stall is not None else None
    if _is_news(context, attempt, note):
        command = GangJudged(run_id=key.run_id, attempt=key.attempt, stall=note)
        await asyncio.wrap_future(context.ask(command))


def _is_news(context: ServerContext, attempt: Attempt, note: StallNote | None) -> bool:
    """Whether a verdict is to be noted. A server that was started meanwhile has not heard of all ranks yet."""
    known = attempt.stall if attempt.stall is not None and not attempt.stall.over_ms else None
    if known is None:
        return note is not None
    if note is not None:
        heard = known.source != note.source or context.steps.heard_of(attempt.key, attempt, known.ranks)
        return heard and not says_same(known, note)
    since_ms = context.clock.now_ms() - known.at_ms
    return context.steps.moved_since(attempt.key, attempt, context.clock.monotonic_ms(), since_ms)


def look(context: ServerContext, attempt: Attempt, *, stalled: bool) -> bool:
    """Have all members of a stalled attempt looked at, at once; return whether the verdict need not wait for it."""
    if not stalled:
        context.steps.looks.moves(attempt.key)
        return True
    members = [member.index for member in attempt.members if not member.released]
    begins, ready = context.steps.looks.stalled(attempt.key, members, context.clock.monotonic_ms())
    if begins:
        context.changes.publish([attempt.key.run_id])  # wakes the members' polls
    return ready


def note_measured(context: ServerContext, principal: Principal, step: int | None) -> None:
    """Take in that user code of an attempt wrote a metric."""
    member = principal.member
    if member is not None:
        key = AttemptKey(member.run_id, member.attempt)
        context.signs.measured(key, step, context.clock.monotonic_ms())


class GangWatch:
    """Weighs the signs of attempts that tell of no steps, on a thread of its own."""

    def __init__(self, context: ServerContext, leads: Callable[[], bool]) -> None:
        self._context = context
        self._leads = leads
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hangs", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """Look no more."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(timeout=5)

    def _run(self) -> None:
        while not self._stopping.wait(EVERY_S):
            try:
                if self._leads():
                    self.look()
            except AiryardError as error:
                _log.warning("hang_not_noted", error=error.message)  # it is found again at the next look
            except Exception:
                _log.exception("watch_of_hangs_broke")

    def look(self) -> None:
        """Weigh all running attempts once. Cost: live attempts, their members; a command for each that is news."""
        context = self._context

        def read(control: Control) -> tuple[set[AttemptKey], list[tuple[Run, Attempt]]]:
            live = list(control.state.live_attempts())
            running = [pair for pair in live if pair[1].state is AttemptState.RUNNING]
            return {attempt.key for _, attempt in live}, running

        live, running = context.loop.peek(read)
        context.signs.keep(live)
        for run, attempt in running:
            if (
                run.workload.hang.action is HangAction.OFF
                or context.steps.newest_step(attempt.key) is not None
            ):
                continue
            command = self._weigh(run, attempt)
            if command is not None:
                context.ask(command).result(timeout=ANSWER_S)

    def _weigh(self, run: Run, attempt: Attempt) -> GangJudged | None:
        context, now_ms, wall_ms = (
            self._context,
            self._context.clock.monotonic_ms(),
            self._context.clock.now_ms(),
        )
        known = attempt.stall if attempt.stall is not None and not attempt.stall.over_ms else None
        if known is not None and known.source == Source.STEPS.value:
            return None  # its runners tell of it again and again; this server was started meanwhile
        own_ms = 1000 * (run.workload.hang.timeout_s or 0)
        saved = attempt.checkpoint
        checkpoint_ms = max(0, wall_ms - saved.at_ms) if saved is not None else None
        seen = context.signs.seen(attempt, now_ms, own_ms=own_ms, checkpoint_ms=checkpoint_ms)
        if seen is None:
            return None
        sure, silence = context.signs.confirmed(attempt.key, seen, now_ms)
        if not sure:
            return None
        if silence is not None:
            if not look(context, attempt, stalled=True):
                return None
            note = _note(_looked(context, attempt, silence), wall_ms)
            return None if says_same(known, note) else _judged(attempt, note)
        look(context, attempt, stalled=False)
        # That nothing can be told, as after a start of this server, is no sign that it goes on.
        if known is not None and moved_since(seen, Source(known.source), wall_ms - known.at_ms):
            return _judged(attempt, None)
        return None


def _judged(attempt: Attempt, note: StallNote | None) -> GangJudged:
    return GangJudged(run_id=attempt.run_id, attempt=attempt.number, stall=note)


def _looked(context: ServerContext, attempt: Attempt, silence: Silence) -> Silence:
    seen = context.steps.looks.of(attempt.key)
    whole = all(seen.get(member.index) for member in attempt.members if not member.released)
    return with_look(silence, context.steps.looked(attempt.key, attempt).values(), whole=whole)


def _note(found: Stall | Silence, now_ms: int) -> StallNote:
    return StallNote(
        source=found.source.value if isinstance(found, Silence) else Source.STEPS.value,
        case=found.case.value,
        ranks=found.ranks,
        nodes=found.nodes,
        step=found.step,
        at_ms=now_ms,
        message=found.message,
        confidence=found.confidence,
        suspect_node=found.suspect_node,
        evidence=tuple(text[:_EVIDENCE_CHARACTERS] for text in found.evidence),
    )
