"""Decides what a start says of the node that refused it before: others pass what that node fails.

Owns: which refusals a start's pass speaks of, which checks it has to pass afresh for that.
Must not know: how that weighs (``core/health``), how a check is run.
"""

from __future__ import annotations

from collections.abc import Iterator

from airyard.core.decide.members import PREFLIGHT
from airyard.core.events import MemberReady
from airyard.core.health.facts import HealthEvent
from airyard.core.health.shared import PASSED, WITHIN_MS, alone, refused_by
from airyard.core.health.states import NodeHealth
from airyard.core.run import Attempt, Member, Run
from airyard.core.state import ClusterState


def to_pass_afresh(run: Run, number: int) -> tuple[str, ...]:
    """Return the checks of shared things that refused the run right before attempt ``number``."""
    return tuple(sorted({check for _, _, check in _refusals(run, number)}))


def events_of(state: ClusterState, ready: MemberReady, now_ms: int) -> Iterator[HealthEvent]:
    """Return what a member that is ready says of nodes of other machines that refused its run a moment ago."""
    passed = {name.removeprefix(PASSED) for name, _ in ready.prepared if name.startswith(PASSED)}
    run = state.runs.get(ready.run_id)
    if not passed or run is None or ready.attempt >= len(run.attempts):
        return
    here = run.attempts[ready.attempt].members[ready.member]
    for attempt, member, check in _refusals(run, ready.attempt):
        refused_ms = attempt.ended_ms or 0
        if check not in passed or member.machine == here.machine or now_ms - refused_ms > WITHIN_MS:
            continue
        if member.node in state.nodes:
            yield alone(
                check,
                node=member.node,
                machine=member.machine,
                refused_ms=refused_ms,
                start=str(attempt.key),
                passed_on=here.node,
                now_ms=now_ms,
                hits=state.health.get(member.node, NodeHealth()).hits,
            )


def _refusals(run: Run, number: int) -> Iterator[tuple[Attempt, Member, str]]:
    """Yield who refused the run's attempts in a row before ``number``, and by which shared check."""
    for attempt in reversed(run.attempts[:number]):
        found = [
            (attempt, member, check)
            for member in attempt.members
            if member.exit is not None
            and member.exit.fault == PREFLIGHT
            and (check := refused_by(member.exit.fault_message))
        ]
        yield from found
        if not found:
            return
