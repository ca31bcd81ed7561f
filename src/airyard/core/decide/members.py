"""Decides what runners and agents say: reports, machines seen and gone, runners found dead.

Owns: acceptance and de-duplication of members' facts. Must not know: sockets, tokens, engines.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from airyard.core.actions import Action, ForgetMember, KillMember, ShipLogs
from airyard.core.commands import (
    MachineAway,
    MachineSeen,
    MemberGone,
    MemberReports,
    Report,
    ReportKind,
    SeenMember,
    SeenState,
)
from airyard.core.decide.decision import Acknowledged, Decision, Draft, Scratch
from airyard.core.decide.gang import advance
from airyard.core.decide.placing import pick_port, ports_in_use, start_member
from airyard.core.events import (
    CheckpointAcknowledged,
    Event,
    MachineJoined,
    MachineLeft,
    MemberExited,
    MemberLogsClosed,
    MemberLost,
    MemberPreparing,
    MemberReady,
    MemberStarted,
    NodeCordoned,
    PortReassigned,
)
from airyard.core.ids import MemberKey
from airyard.core.run import Attempt, Cause, Exit, Member, MemberPhase
from airyard.core.state import ClusterState

CHECKPOINT_PERIOD_MS = 60_000
PREFLIGHT = "preflight"
"""The fault that a runner names whose node failed a check (``refusing.py``)."""


def reports(state: ClusterState, command: MemberReports, now_ms: int) -> Decision:
    """Take a runner's reports in order; those at or below the last taken number are repeats.

    Replies ``over`` when the attempt is not known or of another epoch: the runner is a stranger and must stop.
    """
    found = state.member(command.key)
    # The end of a log may come from the agent, in place of a runner that died: it knows no epoch.
    closing = bool(command.reports) and all(r.kind is ReportKind.LOGS_CLOSED for r in command.reports)
    if found is None or (found[1].epoch != command.epoch and not closing):
        return Decision(reply=Acknowledged(number=0, over=True))
    run, attempt, member = found
    if member.phase is MemberPhase.LOST and not closing:
        # Declared dead and its devices given away: it may finish its log, but nothing it does counts any more.
        return Decision(reply=Acknowledged(number=0, over=True))
    draft = Draft(state=state, now_ms=now_ms, run=run)
    if member.phase is MemberPhase.STARTING and not command.reports:
        draft.emit(MemberPreparing(run_id=run.run_id, attempt=attempt.number, member=member.index))
    for report in command.reports:
        present = draft.run.attempts[attempt.number]
        if report.number > present.members[member.index].last_report:
            _HANDLERS[report.kind](draft, present, present.members[member.index], report)
            advance(draft)
    last = max((report.number for report in command.reports), default=0)
    return draft.decision(Acknowledged(number=last))


def _on_ready(draft: Draft, attempt: Attempt, member: Member, report: Report) -> None:
    if member.released:
        return  # overtaken by the agent's word of its end
    draft.emit(
        MemberReady(
            run_id=attempt.run_id,
            attempt=attempt.number,
            member=member.index,
            report=report.number,
            address=report.address,
            prepared=tuple(sorted(report.prepared.items())),
            meeting=report.meeting,
        )
    )


def _on_port_taken(draft: Draft, attempt: Attempt, member: Member, report: Report) -> None:
    if member.index != 0 or member.released or report.port != attempt.port:
        return
    salt = attempt.port + attempt.run_id
    port = pick_port(ports_in_use(draft.state), member.machine, salt, after=attempt.port)
    draft.emit(PortReassigned(run_id=attempt.run_id, attempt=attempt.number, report=report.number, port=port))


def _on_started(draft: Draft, attempt: Attempt, member: Member, report: Report) -> None:
    if member.released:
        return  # overtaken by the agent's word of its end
    draft.emit(
        MemberStarted(
            run_id=attempt.run_id, attempt=attempt.number, member=member.index, report=report.number
        )
    )


def _on_checkpoint(draft: Draft, attempt: Attempt, member: Member, report: Report) -> None:
    if report.checkpoint is None or member.index != 0:
        return
    if report.last and attempt.checkpoint is not None and attempt.checkpoint.step == report.checkpoint.step:
        return
    before_ms = attempt.checkpoint_journalled_ms
    recent = before_ms is not None and draft.now_ms - before_ms < CHECKPOINT_PERIOD_MS
    if recent and not report.last and attempt.stop is None:
        return
    draft.emit(
        CheckpointAcknowledged(
            run_id=attempt.run_id,
            attempt=attempt.number,
            report=report.number,
            checkpoint=report.checkpoint,
        )
    )


def _on_exited(draft: Draft, attempt: Attempt, member: Member, report: Report) -> None:
    assert report.exit is not None
    if member.released:
        return
    draft.emit(
        MemberExited(
            run_id=attempt.run_id,
            attempt=attempt.number,
            member=member.index,
            report=report.number,
            exit=report.exit,
        )
    )
    _note_fault(draft, attempt, member, report.exit)


def _note_fault(draft: Draft, attempt: Attempt, member: Member, exit_: Exit) -> None:
    """Cordon a node that a command of its pool found unfit; of a failed preflight the node's health takes care.

    Only of a command that the pool has, and of a prolog only before the member's own began: whatever that one has come
    by, the words of its runner close no node without these facts.
    """
    state = draft.state
    if member.node not in state.nodes or member.node in state.cordons:
        return
    pool = state.policy.pool(attempt.pool)
    began = exit_.started or member.phase is MemberPhase.RUNNING
    found = {"prolog": pool.prolog if not began else None, "epilog": pool.epilog}.get(exit_.fault)
    if found is not None:
        draft.events.append(NodeCordoned(node=member.node, by=exit_.fault, reason=exit_.fault_message))


def _on_logs_closed(draft: Draft, attempt: Attempt, member: Member, report: Report) -> None:
    assert report.logs is not None
    if member.logs is not None:
        return
    draft.emit(
        MemberLogsClosed(
            run_id=attempt.run_id,
            attempt=attempt.number,
            member=member.index,
            report=report.number,
            logs=report.logs,
        )
    )


_HANDLERS: dict[ReportKind, Callable[[Draft, Attempt, Member, Report], None]] = {
    ReportKind.READY: _on_ready,
    ReportKind.PORT_TAKEN: _on_port_taken,
    ReportKind.STARTED: _on_started,
    ReportKind.CHECKPOINT: _on_checkpoint,
    ReportKind.EXITED: _on_exited,
    ReportKind.LOGS_CLOSED: _on_logs_closed,
}


def machine_seen(state: ClusterState, command: MachineSeen, now_ms: int) -> Decision:
    """Compare what an agent holds with what the journal promised, and mend each difference."""
    machine = replace(command.machine, alive=True)
    events: list[Event] = []
    actions: list[Action] = []
    known = tuple(
        replace(node, cordoned=False) for node in state.nodes.values() if node.machine == machine.name
    )
    if state.machines.get(machine.name) != machine or set(map(repr, known)) != set(map(repr, command.nodes)):
        events.append(MachineJoined(machine=machine, nodes=command.nodes))
    # Several members of one run may be settled here: each must see what the earlier ones led to.
    scratch = Scratch(state=state.copy(), now_ms=now_ms, events=events, actions=actions)
    held = {seen.key for seen in command.members}
    for seen in command.members:
        scratch.take(_settle_seen(scratch.state, seen, machine.name, now_ms))
    for key in [
        attempt.member_key(member.index)
        for _, attempt in state.live_attempts()
        for member in attempt.members
        if member.machine == machine.name and not member.released
    ]:
        if key not in held:
            scratch.take(_settle_unseen(scratch.state, key, now_ms))
    return Decision(events=tuple(events), actions=tuple(actions))


def _settle_seen(state: ClusterState, seen: SeenMember, machine: str, now_ms: int) -> Decision:
    found = state.member(seen.key)
    if found is None:
        # Its run left memory, or a lost start of an old server: nothing is owed to it.
        kill = KillMember(key=seen.key, machine=machine, reason="the run is over")
        forget = ForgetMember(key=seen.key, machine=machine)
        return Decision(actions=(kill, forget) if seen.state is SeenState.ALIVE else (forget,))
    if seen.state is SeenState.ALIVE:
        _, attempt, member = found
        if member.phase is MemberPhase.LOST or (not attempt.live and member.logs is not None):
            return Decision(
                actions=(KillMember(key=seen.key, machine=machine, reason="the attempt is over"),)
            )
        return Decision()
    return member_gone(state, MemberGone(seen=seen), now_ms)


def _settle_unseen(state: ClusterState, key: MemberKey, now_ms: int) -> Decision:
    """A member that the agent did not list was never started, or is gone without a trace.

    The list may be older than the member: what is said to be gone is killed, so that its agent proves the end.
    """
    found = state.member(key)
    if found is None or found[2].released:
        return Decision()
    _, attempt, member = found
    if member.phase is MemberPhase.STARTING and attempt.stop is None:
        return Decision(actions=(start_member(attempt, member),))
    gone = KillMember(
        key=key, machine=member.machine, reason=f"the agent of {member.machine} did not list it"
    )
    return Decision(actions=(gone,))


def member_gone(state: ClusterState, command: MemberGone, now_ms: int) -> Decision:
    """Take in that a runner has ended: by its exit record, or as lost. Repeats are harmless."""
    seen = command.seen
    found = state.member(seen.key)
    if found is None:
        return Decision()
    run, attempt, member = found
    draft = Draft(state=state, now_ms=now_ms, run=run)
    if not member.released:
        draft.emit(_gone_event(seen, member, now_ms))
        if seen.exit is not None:
            _note_fault(draft, attempt, member, seen.exit)
    present = draft.run.attempts[attempt.number].members[member.index]
    if present.logs is None and not present.logs_given_up:
        draft.act(ShipLogs(key=seen.key, machine=member.machine))
    advance(draft)
    return draft.decision()


def _gone_event(seen: SeenMember, member: Member, now_ms: int) -> MemberExited | MemberLost:
    key = seen.key
    if seen.state is SeenState.EXITED and seen.exit is not None:
        return MemberExited(
            run_id=key.run_id,
            attempt=key.attempt,
            member=key.member,
            report=member.last_report,
            exit=replace(seen.exit, at_ms=min(seen.exit.at_ms, now_ms)),
        )
    lost = seen.exit or Exit(
        code=None,
        signal=None,
        started=member.phase is MemberPhase.RUNNING,
        cause=Cause.PLATFORM,
        message="its runner died without an exit record",
        at_ms=now_ms,
    )
    return MemberLost(run_id=key.run_id, attempt=key.attempt, member=key.member, exit=lost)


def machine_away(state: ClusterState, command: MachineAway, now_ms: int) -> Decision:
    """Note that an agent cannot be reached; its members keep their devices until death is proved."""
    machine = state.machines.get(command.machine)
    if machine is None or not machine.alive:
        return Decision()
    return Decision(events=(MachineLeft(machine=machine.name),))
