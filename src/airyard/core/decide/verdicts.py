"""What waits for the verdict of triage, and what a verdict changes.

Owns: which attempts are judged, which ends wait and how long, when a failure costs its owner nothing.
Must not know: commands, logs, who judges.

A verdict only ever excuses. What a job printed is not known to be true: on its word alone a run is excused
``TEXT_EXCUSES`` times, and no node is taken out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from airyard.core.actions import JudgeAttempt
from airyard.core.decide.decision import Draft
from airyard.core.decide.judge import NEXT_STEP, Verdict, judge
from airyard.core.events import VerdictAwaited
from airyard.core.run import Attempt, Cause, Failure, Outcome, Run
from airyard.core.state import ClusterState
from airyard.core.triage.causes import FailureCause, FailureClass

TEXT_EXCUSES = 2
"""Retries a run gets for nothing because its own output says so."""
SURE_FROM = 0.6
"""From this confidence on a verdict of a machine's or the network's fault counts."""
LATE_MS = 35_000
"""So long the verdict on an attempt that has ended may wait for logs and for what monitors see."""
ANSWER_MS = 3_000
"""So long before a verdict is due it is asked for though not all logs are there."""
MARGIN_MS = 1_000
"""So long before it is due the verdict should be there."""
GIVEN_UP_MS = 600_000
"""So long after it was due nobody waits for a verdict any more."""
AFRESH_MS = 15_000
"""So long a server that begins waits for the verdicts it owes: first runners and agents have to find it."""

JUDGED = frozenset({Outcome.FAILED, Outcome.LOST, Outcome.TIMED_OUT})
CHARGED = frozenset({Cause.USER_CODE, Cause.DATA})
"""What a verdict may excuse: an end that a program's exit status alone made its owner's matter."""
SUSPECTED = frozenset({FailureClass.HARDWARE, FailureClass.DRIVER})
_OF_THE_YARD = SUSPECTED | {FailureClass.NETWORK}
EFFECTS = frozenset({"collective.timeout", "effects.only", "process.stopped"})
"""Something else failed first, and nobody knows what: nobody's fault."""


def holds(draft: Draft, attempt: Attempt, verdict: Verdict) -> bool:
    """Return whether the end of an attempt waits for the verdict; at first that it is waited for is noted."""
    if attempt.judgement is not None or not _may_be_excused(attempt, verdict):
        return False
    if attempt.verdict_until_ms is not None:
        return draft.now_ms < attempt.verdict_until_ms
    if not draft.state.verdict_wait_ms:
        return False
    _await(draft, attempt, draft.now_ms + draft.state.verdict_wait_ms)
    return True


def await_late(draft: Draft, attempt: Attempt) -> None:
    """Note that the verdict on an attempt that has ended badly is due, unless it is there or due already."""
    judging = draft.state.verdict_wait_ms is not None
    if judging and attempt.outcome in JUDGED and attempt.verdict_until_ms is None:
        _await(draft, attempt, draft.now_ms + LATE_MS)


def _await(draft: Draft, attempt: Attempt, until_ms: int) -> None:
    draft.emit(VerdictAwaited(run_id=attempt.run_id, attempt=attempt.number, until_ms=until_ms))


def awaited_afresh(state: ClusterState, now_ms: int) -> Iterator[VerdictAwaited]:
    """Yield what a new server grants the verdicts that are still due: that their judge died is not the owners' matter.

    Of attempts whose command is gone for ten minutes it grants nothing: a judge may die of what it reads.
    """
    for run_id in sorted(state.begun):
        for attempt in state.runs[run_id].attempts:
            until_ms, again_ms = attempt.verdict_until_ms, now_ms + AFRESH_MS
            if until_ms is None or not owed(attempt) or until_ms >= again_ms:
                continue
            gone_ms = max((member.exit.at_ms for member in attempt.members if member.exit), default=0)
            if now_ms < gone_ms + GIVEN_UP_MS:
                yield VerdictAwaited(run_id=run_id, attempt=attempt.number, until_ms=again_ms)


def owed(attempt: Attempt) -> bool:
    """True while a verdict is due and not there."""
    return attempt.verdict_until_ms is not None and attempt.judgement is None


def given_up(attempt: Attempt, now_ms: int) -> bool:
    """True when nobody waits for the verdict any more: who judges has never answered."""
    return attempt.verdict_until_ms is not None and now_ms >= attempt.verdict_until_ms + GIVEN_UP_MS


def ask(draft: Draft, attempt: Attempt) -> None:
    """Have an attempt judged once its logs are there, or it is time. Asked again it is judged once at a time."""
    until_ms = attempt.verdict_until_ms
    if until_ms is None or not owed(attempt):
        return
    action = asked(attempt, until_ms)
    due = attempt.logs_closed or draft.now_ms >= until_ms - ANSWER_MS
    if due and action not in draft.actions:
        draft.act(action)


def asked(attempt: Attempt, until_ms: int) -> JudgeAttempt:
    """Return the effect that a verdict is asked for with."""
    return JudgeAttempt(run_id=attempt.run_id, attempt=attempt.number, until_ms=until_ms - MARGIN_MS)


def _may_be_excused(attempt: Attempt, verdict: Verdict) -> bool:
    outcome, cause, failure = verdict
    permanent = any(member.exit is not None and member.exit.permanent for member in attempt.members)
    return outcome is Outcome.FAILED and cause in CHARGED and failure is not None and not permanent


def settled_verdict(run: Run, attempt: Attempt) -> Verdict:
    """Return how an attempt whose members are all gone ended, with what triage made of it by now."""
    verdict = judge(attempt)
    found = attempt.judgement.verdict if attempt.judgement is not None else None
    outcome, _, failure = verdict
    if found is None or failure is None or not _may_be_excused(attempt, verdict):
        return verdict
    if not _counts(found) or beyond_its_sight(run, found):
        return verdict
    if not found.confirmed and run.text_excuses >= TEXT_EXCUSES:
        return verdict
    return outcome, found.cause, _excused(attempt, failure, found)


def _counts(found: FailureCause) -> bool:
    """Return whether a verdict says, and surely enough, that the program was not at fault."""
    if found.rule in EFFECTS:
        return True
    node_is_set_up_wrong = found.failure_class is FailureClass.CONFIG and found.cause is Cause.NODE
    return found.confidence >= SURE_FROM and (found.failure_class in _OF_THE_YARD or node_is_set_up_wrong)


def beyond_its_sight(run: Run, found: FailureCause) -> bool:
    """Return whether a run without GPUs speaks of a GPU's fault: all that programs print of machines is of GPUs."""
    return run.workload.compute.is_cpu and not found.confirmed and found.failure_class in SUSPECTED


def _excused(attempt: Attempt, failure: Failure, found: FailureCause) -> Failure:
    # Who is not blamed is not avoided either: of a network both ends are as likely.
    return replace(
        failure,
        cause=found.cause,
        message=f"{failure.message}: {found.message} ({found.rule})",
        next_step=NEXT_STEP[found.cause],
        node=blamed(attempt, found),
    )


def blamed(attempt: Attempt, found: FailureCause) -> str | None:
    """Return the node that a verdict blames, if the attempt was on it: no log speaks of other people's nodes."""
    there = any(member.node == found.blamed_node for member in attempt.members)
    return found.blamed_node if there else None


def excused_by_text(attempt: Attempt) -> bool:
    """Return whether an ended attempt cost its owner nothing on the word of its own output alone."""
    found = attempt.judgement.verdict if attempt.judgement is not None else None
    if found is None or found.confirmed or attempt.cause in CHARGED or attempt.outcome is not Outcome.FAILED:
        return False
    return judge(attempt)[1] in CHARGED
