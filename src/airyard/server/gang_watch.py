"""Weighs what members tell of their steps, and has a verdict journalled when it is news.

Owns: when the control loop is asked. Must not know: how a verdict is reached, or what follows from it.
"""

from __future__ import annotations

import asyncio

from airyard.app.control import Control
from airyard.core.commands import GangJudged
from airyard.core.decide.hanging import says_same
from airyard.core.health.hangs import Stall
from airyard.core.ids import MemberKey
from airyard.core.run import Attempt, AttemptState, StallNote
from airyard.core.workload import HangAction
from airyard.server.context import ServerContext

_EVIDENCE_CHARACTERS = 1000


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
    known = attempt.stall is not None and not attempt.stall.over_ms
    if (note is None and known) or (note is not None and not says_same(attempt.stall, note)):
        command = GangJudged(run_id=key.run_id, attempt=key.attempt, stall=note)
        await asyncio.wrap_future(context.ask(command))


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


def _note(stall: Stall, now_ms: int) -> StallNote:
    return StallNote(
        case=stall.case.value,
        ranks=stall.ranks,
        nodes=stall.nodes,
        step=stall.step,
        at_ms=now_ms,
        message=stall.message,
        confidence=stall.confidence,
        suspect_node=stall.suspect_node,
        evidence=tuple(text[:_EVIDENCE_CHARACTERS] for text in stall.evidence),
    )
