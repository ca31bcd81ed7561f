"""Turns a plan into facts, checked again against the present state.

Owns: the re-check, the booking of ports, the first record of an attempt. Must not know: how the plan was found.
"""

from __future__ import annotations

from airyard.core.actions import Action, OpenTracking, StartMember
from airyard.core.commands import CommitPlan
from airyard.core.decide.clearing import barring
from airyard.core.decide.decision import Decision, Draft
from airyard.core.decide.gang import advance
from airyard.core.decide.grace import grace_of
from airyard.core.events import AttemptPlaced, Event, StopOrdered
from airyard.core.run import (
    Attempt,
    AttemptState,
    Member,
    Run,
    RunState,
    StopReason,
    StopRequest,
    Tracking,
    TrackingState,
)
from airyard.core.scheduling.plan import Eviction, Start
from airyard.core.state import ClusterState

FIRST_PORT = 20_000
PORTS = 10_000
_BY_RIGHT = {
    "priority": "{run.workload.compute.priority.value}",
    "reclaim": "project {run.project} takes its guarantee back",
    "slice": "a younger run gets its first slice",
}


def commit_plan(state: ClusterState, command: CommitPlan, now_ms: int) -> Decision:
    """Carry out what of the plan still holds; the rest is planned again. Cost: runs that have begun."""
    if not command.plan.starts and not command.plan.evictions:
        return Decision()
    taken, ports = _in_use(state, {seat.node for start in command.plan.starts for seat in start.seats})
    events: list[Event] = []
    actions: list[Action] = []
    for start in command.plan.starts:
        run = state.runs.get(start.run_id)
        if run is None or not _still_holds(state, run, start, taken, now_ms):
            continue
        placed, more = _place(state, run, start, ports, now_ms)
        events.append(placed)
        actions.extend(more)
        taken.update((seat.node, device) for seat in start.seats for device in seat.devices)
    for eviction in command.plan.evictions:
        decision = _evict(state, eviction, now_ms)
        events.extend(decision.events)
        actions.extend(decision.actions)
    return Decision(events=tuple(events), actions=tuple(actions))


def _in_use(state: ClusterState, nodes: set[str]) -> tuple[set[tuple[str, int]], set[tuple[str, int]]]:
    """Return the (node, device) that are held on these nodes, and what ``ports_in_use`` returns. Cost: active runs."""
    taken: set[tuple[str, int]] = set()
    ports: set[tuple[str, int]] = set()
    for _, attempt in state.live_attempts():
        ports.add((attempt.members[0].machine, attempt.port))
        for member in attempt.members:
            if member.node in nodes and not member.released:
                taken.update((member.node, device) for device in member.devices)
    return taken, ports


def _still_holds(
    state: ClusterState, run: Run, start: Start, taken: set[tuple[str, int]], now_ms: int
) -> bool:
    waits = run.held or max(run.not_before_ms, run.begin_ms) > now_ms
    if run.state is not RunState.QUEUED or waits:
        return False
    for seat in start.seats:
        node = state.nodes.get(seat.node)
        machine = state.machines.get(seat.machine)
        if node is None or node.cordoned or machine is None or not machine.alive:
            return False
        if barring(state, run, node.name, now_ms) is not None:
            return False
        free = {d.index for d in node.devices if d.owner is None and (node.name, d.index) not in taken}
        if not set(seat.devices) <= free:
            return False
    return True


def _place(
    state: ClusterState, run: Run, start: Start, ports: set[tuple[str, int]], now_ms: int
) -> tuple[AttemptPlaced, list[Action]]:
    number = len(run.attempts)
    cookie = f"{run.run_id}.{number}.{now_ms:x}.{state.epoch}"
    port = pick_port(ports, start.seats[0].machine, run.run_id + number)
    tracked = run.workload.tracking.enabled and not run.tracking_off
    attempt = Attempt(
        run_id=run.run_id,
        number=number,
        epoch=state.epoch,
        cookie=cookie,
        state=AttemptState.PLACED,
        members=tuple(
            Member(index=index, node=seat.node, machine=seat.machine, devices=seat.devices)
            for index, seat in enumerate(start.seats)
        ),
        port=port,
        orders=(),
        tracking=Tracking(state=TrackingState.PENDING if tracked else TrackingState.OFF),
        placed_ms=now_ms,
        pool=state.policy.pool_of(state.nodes[start.seats[0].node]),
    )
    simulated = any(state.nodes[seat.node].simulated for seat in start.seats)
    actions: list[Action] = [start_member(attempt, member) for member in attempt.members]
    if tracked:
        actions.insert(0, OpenTracking(run_id=run.run_id, attempt=number))
    return AttemptPlaced(run_id=run.run_id, attempt=attempt, simulated=simulated), actions


def start_member(attempt: Attempt, member: Member) -> StartMember:
    """Return the effect that starts one member's runner."""
    return StartMember(
        key=attempt.member_key(member.index),
        machine=member.machine,
        node=member.node,
        devices=member.devices,
        epoch=attempt.epoch,
        # One a member: by its cookie the rest of a member is found and killed, never a sibling on the machine.
        cookie=f"{member.index}.{attempt.cookie}",
    )


def ports_in_use(state: ClusterState) -> set[tuple[str, int]]:
    """Return (machine, port) of every live attempt's rendezvous."""
    return {(attempt.members[0].machine, attempt.port) for _, attempt in state.live_attempts()}


def pick_port(in_use: set[tuple[str, int]], machine: str, salt: int, *, after: int = 0) -> int:
    """Lease a rendezvous port of a machine: no live attempt has it, and it is not ``after``."""
    for step in range(PORTS):
        port = FIRST_PORT + (salt * 7 + step) % PORTS
        if (machine, port) not in in_use and port != after:
            in_use.add((machine, port))
            return port
    # A machine holds far fewer attempts than ports; sharing one is then tried and found out by its bind.
    return FIRST_PORT + salt % PORTS


def _evict(state: ClusterState, eviction: Eviction, now_ms: int) -> Decision:
    run = state.runs.get(eviction.run_id)
    waiting = state.runs.get(eviction.for_run)
    if run is None or waiting is None or waiting.state is not RunState.QUEUED:
        return Decision()
    attempt = run.attempt
    if run.state is not RunState.ACTIVE or attempt is None or attempt.number != eviction.attempt:
        return Decision()
    if not attempt.live or attempt.gone or attempt.stop is not None:
        return Decision()
    draft = Draft(state=state, now_ms=now_ms, run=run)
    stop = StopRequest(
        reason=StopReason.PREEMPTED,
        by="scheduler",
        at_ms=now_ms,
        grace_s=grace_of(run),
        message=f"preempted for run {waiting.run_id} ({_BY_RIGHT[eviction.rule].format(run=waiting)})",
        for_run=waiting.run_id,
        rule=eviction.rule,
    )
    draft.emit(StopOrdered(run_id=run.run_id, attempt=attempt.number, stop=stop))
    advance(draft)
    return draft.decision()
