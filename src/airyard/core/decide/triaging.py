"""Decides what follows when triage has judged an attempt, and that attempts are judged at all.

Owns: which verdicts are news, and what of them speaks against a node. Must not know: logs, how a verdict is found.
"""

from __future__ import annotations

from airyard.core.commands import BeginEpoch, DeclareJudging, HealthReported, VerdictReached
from airyard.core.decide import ailing, verdicts
from airyard.core.decide.decision import Decision, Draft, Scratch
from airyard.core.decide.gang import advance
from airyard.core.events import AttemptJudged, EpochBegan, JudgingDeclared
from airyard.core.health.facts import Component, HealthEvent, Severity, Source
from airyard.core.run import Attempt, Cause, Run
from airyard.core.state import ClusterState
from airyard.core.triage.causes import FailureCause

TRIAGE = "triage"


def begin(state: ClusterState, command: BeginEpoch, now_ms: int) -> Decision:
    """Let a server take over; the verdicts that are due get their time again."""
    began = EpochBegan(epoch=state.epoch + 1, version=command.version)
    return Decision(events=(began, *verdicts.awaited_afresh(state, now_ms)))


def declare(state: ClusterState, command: DeclareJudging) -> Decision:
    """Note that attempts are judged from now on, and how long their ends wait for it."""
    if state.verdict_wait_ms == command.wait_ms:
        return Decision()
    return Decision(events=(JudgingDeclared(wait_ms=command.wait_ms),))


def reached(state: ClusterState, command: VerdictReached, now_ms: int) -> Decision:
    """Take a verdict in: an end that waited for it comes now; after it, it is only kept. The first one counts."""
    run = state.runs.get(command.run_id)
    if run is None or not 0 <= command.attempt < len(run.attempts):
        return Decision()
    attempt = run.attempts[command.attempt]
    if not verdicts.owed(attempt):
        return Decision()
    draft = Draft(state=state, now_ms=now_ms, run=run)
    judgement = command.judgement
    draft.emit(AttemptJudged(run_id=run.run_id, attempt=attempt.number, judgement=judgement))
    advance(draft)
    suspicion = _suspicion(state, run, attempt, judgement.verdict, now_ms) if judgement.verdict else None
    if suspicion is None:
        return draft.decision()
    scratch = Scratch(state=state.copy(), now_ms=now_ms, events=[], actions=[])
    scratch.take(draft.decision())
    scratch.take(ailing.report(scratch.state, HealthReported(events=(suspicion,), by=TRIAGE), now_ms))
    return Decision(events=tuple(scratch.events), actions=tuple(scratch.actions))


def _suspicion(
    state: ClusterState, run: Run, attempt: Attempt, found: FailureCause, now_ms: int
) -> HealthEvent | None:
    """Return what a job's output says against a node: unconfirmed, and light.

    What is confirmed the monitors have reported themselves. The lines stay with the run: other people see the node. The
    rule's name is none of theirs: what jobs print must not count among the nodes that show a fault, or it opens the
    breaker.
    """
    name = verdicts.blamed(attempt, found)
    node = state.nodes.get(name) if name is not None else None
    if node is None or found.confirmed or found.failure_class not in verdicts.SUSPECTED:
        return None
    if verdicts.beyond_its_sight(run, found):
        return None
    return HealthEvent(
        event_id=f"{TRIAGE}.{attempt.key}",
        rule=f"job.{found.rule}",
        machine=node.machine,
        node=node.name,
        at_ms=now_ms,
        component=Component.GPU if found.cause is Cause.DEVICE else Component.DRIVER,
        severity=Severity.WARNING,
        source=Source.JOB_LOG,
        message=f"run {attempt.run_id} printed: {found.message}",
        confirmed=False,
    )
