"""Every decision of the control plane: ``decide(state, command, now_ms) -> Decision``. Pure.

Owns: the dispatch over commands. Must not know: I/O, clocks, who calls.
"""

from __future__ import annotations

from airyard.core import commands
from airyard.core.decide import (
    ailing,
    asks,
    changing,
    declaring,
    hanging,
    idling,
    leasing,
    members,
    nursing,
    operating,
    placing,
    refusing,
    reserving,
    timers,
    tokening,
    tracking,
    triaging,
)
from airyard.core.decide.decision import (
    Acknowledged,
    Cancelled,
    Decision,
    Declared,
    Done,
    Leaving,
    NodeNote,
    Operated,
    Reply,
    Reserved,
    Submitted,
    Updated,
)
from airyard.core.decide.outstanding import outstanding
from airyard.core.state import ClusterState

__all__ = [
    "Acknowledged",
    "Cancelled",
    "Decision",
    "Declared",
    "Done",
    "Leaving",
    "NodeNote",
    "Operated",
    "Reply",
    "Reserved",
    "Submitted",
    "Updated",
    "decide",
    "outstanding",
]


def decide(state: ClusterState, command: commands.Command, now_ms: int) -> Decision:
    """Return what follows from a command. The state is only read.

    Raises: AiryardError subclasses when the command is refused; then nothing has happened.
    """
    match command:
        case commands.SubmitRun():
            return asks.submit(state, command, now_ms)
        case commands.CancelRun():
            return asks.cancel(state, command, now_ms)
        case commands.ResumeRun():
            return asks.resume(state, command, now_ms)
        case commands.RemoveRun():
            return asks.remove(state, command, now_ms)
        case commands.CordonNodes():
            return operating.cordon(state, command, now_ms)
        case commands.UncordonNodes():
            return operating.uncordon(state, command, now_ms)
        case commands.DrainNodes():
            return operating.drain(state, command, now_ms)
        case commands.ConfirmDead():
            return operating.confirm_dead(state, command, now_ms)
        case commands.DeclarePolicy():
            return declaring.declare(state, command, now_ms)
        case commands.UpdateRun():
            return changing.update(state, command, now_ms)
        case commands.MakeReservation():
            return reserving.reserve(state, command, now_ms)
        case commands.EndReservation():
            return reserving.end(state, command, now_ms)
        case commands.CreateToken():
            return tokening.create(state, command, now_ms)
        case commands.RevokeToken():
            return tokening.revoke(state, command, now_ms)
        case commands.CommitPlan():
            return placing.commit_plan(state, command, now_ms)
        case commands.MemberReports():
            return refusing.with_refusals(state, members.reports(state, command, now_ms), now_ms)
        case commands.MachineSeen():
            return refusing.with_refusals(state, members.machine_seen(state, command, now_ms), now_ms)
        case commands.MachineAway():
            return members.machine_away(state, command, now_ms)
        case commands.MemberGone():
            return refusing.with_refusals(state, members.member_gone(state, command, now_ms), now_ms)
        case commands.TrackingAnswered():
            return tracking.answered(state, command, now_ms)
        case commands.GangJudged():
            return hanging.judged(state, command, now_ms)
        case commands.DeclareLease():
            return leasing.declare(state, command)
        case commands.DeclareJudging():
            return triaging.declare(state, command)
        case commands.VerdictReached():
            return triaging.reached(state, command, now_ms)
        case commands.Tick():
            return timers.tick(state, command, now_ms)
        case commands.BeginToLead():
            return leasing.lead(state)
        case commands.BeginEpoch():
            return triaging.begin(state, command, now_ms)
        case _:
            return _of_health(state, command, now_ms)


def _of_health(state: ClusterState, command: commands.HealthCommand, now_ms: int) -> Decision:
    match command:
        case commands.HealthReported():
            return ailing.report(state, command, now_ms)
        case commands.RemedyDone():
            return ailing.remedy_done(state, command, now_ms)
        case commands.RetestDone():
            return ailing.retest_done(state, command, now_ms)
        case commands.IdleTestDone():
            return idling.tested(state, command, now_ms)
        case commands.SweepDone():
            return idling.swept(state, command, now_ms)
        case commands.SetMaintenance():
            return nursing.maintain(state, command, now_ms)
        case commands.AcquitNodes():
            return nursing.acquit(state, command, now_ms)
        case commands.ResetBreaker():
            return nursing.reset_breaker(state, command, now_ms)
