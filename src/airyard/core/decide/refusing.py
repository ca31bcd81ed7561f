"""Adds to a decision what a failed preflight says of its node: evidence for the node's state machine, no bare cordon.

Owns: which ends of members are such refusals, on which device. Must not know: how evidence weighs, what was checked.
"""

from __future__ import annotations

from airyard.core.commands import HealthReported
from airyard.core.decide import ailing
from airyard.core.decide.decision import Decision, Scratch
from airyard.core.decide.members import PREFLIGHT
from airyard.core.events import MemberExited
from airyard.core.health.check_events import refused_start
from airyard.core.health.facts import HealthEvent
from airyard.core.ids import MemberKey
from airyard.core.run import Cause
from airyard.core.state import ClusterState


def with_refusals(state: ClusterState, decision: Decision, now_ms: int) -> Decision:
    """Return the decision with the nodes judged that refused members; ``state`` is from before it.

    Judged after the members' ends: the attempt has its cause by then, and no drain takes its place.
    """
    found = [one for one in decision.events if isinstance(one, MemberExited) and one.exit.fault == PREFLIGHT]
    reports = [event for exited in found if (event := _event(state, exited, now_ms)) is not None]
    if not reports:
        return decision
    scratch = Scratch(state=state.copy(), now_ms=now_ms, events=[], actions=[])
    scratch.take(decision)
    scratch.take(ailing.report(scratch.state, HealthReported(events=tuple(reports), by=PREFLIGHT), now_ms))
    return Decision(events=tuple(scratch.events), actions=tuple(scratch.actions), reply=decision.reply)


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
