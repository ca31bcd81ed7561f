"""Adds to a decision what a failed preflight says of its nodes: evidence for their state machine, no bare cordon.

Owns: which ends of members are such refusals, on which device; which are failed sums over a gang; that who passes
elsewhere speaks, too (``elsewhere.py``).
Must not know: how evidence weighs, what was checked.
"""

from __future__ import annotations

from airyard.core.commands import HealthReported
from airyard.core.decide import ailing, elsewhere
from airyard.core.decide.decision import Decision, Scratch
from airyard.core.decide.members import PREFLIGHT
from airyard.core.events import MemberExited, MemberReady, MemberStarted
from airyard.core.health import gang_sums
from airyard.core.health.check_events import refused_start
from airyard.core.health.facts import HealthEvent
from airyard.core.ids import MemberKey
from airyard.core.run import Cause, MemberPhase
from airyard.core.state import ClusterState


def with_refusals(state: ClusterState, decision: Decision, now_ms: int) -> Decision:
    """Return the decision with the nodes judged that refused members; ``state`` is from before it.

    Judged after the members' ends: the attempt has its cause by then, and no drain takes its place.
    """
    ends = _before_commands(state, decision)
    found = [one for one in ends if one.exit.fault == PREFLIGHT]
    reports = [event for exited in found if (event := _event(state, exited, now_ms)) is not None]
    reports += [event for one in ends for event in _of_gang(state, one, now_ms)]
    ready = [one for one in decision.events if isinstance(one, MemberReady)]
    reports += [event for one in ready for event in elsewhere.events_of(state, one, now_ms)]
    if not reports:
        return decision
    scratch = Scratch(state=state.copy(), now_ms=now_ms, events=[], actions=[])
    scratch.take(decision)
    scratch.take(ailing.report(scratch.state, HealthReported(events=tuple(reports), by=PREFLIGHT), now_ms))
    return Decision(events=tuple(scratch.events), actions=tuple(scratch.actions), reply=decision.reply)


def _before_commands(state: ClusterState, decision: Decision) -> list[MemberExited]:
    """Return the ends of members whose commands had not begun: one that runs may speak in its runner's name."""
    began = {
        (one.run_id, one.attempt, one.member) for one in decision.events if isinstance(one, MemberStarted)
    }
    ends = []
    for one in decision.events:
        if not isinstance(one, MemberExited) or one.exit.started:
            continue
        known = state.member(MemberKey(one.run_id, one.attempt, one.member))
        is_running = known is not None and known[2].phase is MemberPhase.RUNNING
        if not is_running and (one.run_id, one.attempt, one.member) not in began:
            ends.append(one)
    return ends


def _event(state: ClusterState, exited: MemberExited, now_ms: int) -> HealthEvent | None:
    key = MemberKey(exited.run_id, exited.attempt, exited.member)
    known = state.member(key)
    if known is None or known[2].node not in state.nodes:
        return None
    member = known[2]
    on_device = exited.exit.cause is Cause.DEVICE
    # A report names no device; of several it could be any, and the node has them all.
    only = member.devices[0] if on_device and len(member.devices) == 1 else None
    return refused_start(
        exited.exit.fault_message,
        round_name=str(key),
        node=member.node,
        machine=member.machine,
        at_ms=now_ms,
        device=only,
        on_device=on_device,
    )


def _of_gang(state: ClusterState, exited: MemberExited, now_ms: int) -> tuple[HealthEvent, ...]:
    """Return what a sum over the member's gang that did not end says of the gang's nodes."""
    exit_ = exited.exit
    if exit_.fault or exit_.cause is not Cause.NETWORK or not gang_sums.is_about(exit_.message):
        return ()
    known = state.member(MemberKey(exited.run_id, exited.attempt, exited.member))
    if known is None:
        return ()
    attempt = known[1]
    nodes = {member.node: member.machine for member in attempt.members if member.node in state.nodes}

    def owner_of(run_id: int) -> str:
        run = state.runs.get(run_id)
        return run.owner if run is not None else ""

    earlier = gang_sums.Earlier({name: health.hits for name, health in state.health.items()}, owner_of)
    return gang_sums.events_of(
        exit_.message, attempt=str(attempt.key), nodes=nodes, at_ms=now_ms, earlier=earlier
    )
