"""Decides what operators ask of nodes: cordon, uncordon, drain, and the word that a machine is dead.

Owns: which of these may be done, and what each changes. Must not know: the wire; when a drained run has to go
(``draining.py``). What is so already is no error: the reply says so. One unknown name refuses the whole command.
"""

from __future__ import annotations

from collections.abc import Collection

from airyard.core.actions import Action
from airyard.core.cluster import Cordon, Machine
from airyard.core.commands import ConfirmDead, CordonNodes, DrainNodes, UncordonNodes
from airyard.core.decide.decision import Decision, Draft, Leaving, NodeNote, Operated, Scratch
from airyard.core.decide.draining import ask_to_leave, drains_on, leave_ms
from airyard.core.decide.gang import advance
from airyard.core.decide.grace import grace_of
from airyard.core.errors import Conflict, Fix, NotFound, UserError
from airyard.core.events import (
    Event,
    MachineConfirmedDead,
    MemberLost,
    NodeCordoned,
    NodeDrainOrdered,
    NodeUncordoned,
)
from airyard.core.health.states import WORKING, NodeHealth
from airyard.core.health.ways_out import in_words, way_out
from airyard.core.policy import DAY_MS
from airyard.core.policy_rules import listed, near
from airyard.core.run import Cause, Exit, MemberPhase, Run
from airyard.core.state import ClusterState
from airyard.core.wording import moment

HEALTH = "airyard health"
"""By whom a node is closed that its health takes out."""
MAX_DEADLINE_MS = 366 * DAY_MS


def cordon(state: ClusterState, command: CordonNodes, now_ms: int) -> Decision:
    """Close nodes; who is on them stays. One that is closed keeps its first reason. Raises: NotFound, UserError."""
    names = named(state, command.nodes, state.nodes)
    events: list[Event] = []
    notes: list[NodeNote] = []
    for name in names:
        there = state.cordons.get(name)
        # One that the machine closed becomes this person's: it will not be opened behind their back.
        changed = there is None or there.by == HEALTH
        if changed:
            events.append(NodeCordoned(node=name, by=command.by, reason=command.reason))
        text = "is cordoned" if changed or there is None else f"is cordoned already, {told(there)}"
        notes.append(NodeNote(node=name, changed=changed, message=text))
    return Decision(events=tuple(events), reply=Operated(notes=tuple(notes)))


def uncordon(state: ClusterState, command: UncordonNodes, now_ms: int) -> Decision:
    """Open nodes again. Runs that a drain has asked to leave go on leaving. Raises: NotFound, UserError."""
    names = named(state, command.nodes, {**state.nodes, **state.cordons})
    events: list[Event] = []
    notes: list[NodeNote] = []
    for name in names:
        there = state.cordons.get(name)
        if (health := state.health.get(name)) is not None and health.state not in WORKING:
            raise _is_unhealthy(name, health)
        if there is not None:
            events.append(NodeUncordoned(node=name, by=command.by))
        was = f"it was cordoned {told(there)}" if there is not None else ""
        text = f"is open again; {was}" if there is not None else "is not cordoned"
        notes.append(NodeNote(node=name, changed=there is not None, message=text))
    return Decision(events=tuple(events), reply=Operated(notes=tuple(notes)))


def _is_unhealthy(name: str, health: NodeHealth) -> Conflict:
    rule = f" ({health.rule})" if health.rule else ""
    return Conflict(
        f"node {name} is {in_words(health.state)}{rule}, so it cannot be opened",
        code="NODE_UNHEALTHY",
        details={"node": name, "health": health.state.value},
        fix=way_out(name, health.state),
    )


def drain(state: ClusterState, command: DrainNodes, now_ms: int) -> Decision:
    """Close nodes and ask who is on them to leave. A drain with another deadline replaces the one before.

    Raises: NotFound for unknown nodes; UserError for a deadline that cannot be.
    """
    names = named(state, command.nodes, state.nodes)
    _check_deadline(command.deadline_ms, now_ms)
    events: list[Event] = []
    actions: list[Action] = []
    scratch = Scratch(state=state.copy(), now_ms=now_ms, events=events, actions=actions)
    notes: list[NodeNote] = []
    for name in names:
        notes.append(_begin(scratch, name, command))
    leaving: list[Leaving] = []
    for run, attempt in list(scratch.state.live_attempts()):
        on = [member.node for member in attempt.members if not member.released and member.node in names]
        if not on:
            continue
        draft = Draft(state=scratch.state, now_ms=now_ms, run=run)
        ask_to_leave(draft, attempt)
        scratch.take(draft.decision())
        leaving.append(_leaving(scratch.state, scratch.state.runs[run.run_id], attempt.number, on))
    return Decision(
        events=tuple(events),
        actions=tuple(actions),
        reply=Operated(notes=tuple(notes), leaving=tuple(leaving)),
    )


def _begin(scratch: Scratch, name: str, command: DrainNodes) -> NodeNote:
    there = scratch.state.cordons.get(name)
    before = there.drain if there is not None else None
    if before is not None and before.deadline_ms == command.deadline_ms:
        return NodeNote(node=name, changed=False, message=f"is drained already, by {before.by}")
    events: list[Event] = []
    if there is None:
        events.append(NodeCordoned(node=name, by=command.by, reason=command.reason))
    events.append(
        NodeDrainOrdered(node=name, by=command.by, reason=command.reason, deadline_ms=command.deadline_ms)
    )
    scratch.take(Decision(events=tuple(events)))
    until = f", to be empty by {moment(command.deadline_ms)}" if command.deadline_ms is not None else ""
    instead = " instead of the drain before" if before is not None else ""
    return NodeNote(node=name, changed=True, message=f"is drained{until}{instead}")


def _leaving(state: ClusterState, run: Run, number: int, nodes: list[str]) -> Leaving:
    """Say when a run on drained nodes is asked to leave, or was, and when it is gone at the latest."""
    attempt = run.attempts[number]
    stop = attempt.stop
    if stop is not None:
        asked_ms, gone_ms = stop.at_ms, stop.at_ms + stop.grace_s * 1000
    else:
        drains = [drain for _, drain in drains_on(state, attempt)]
        asked_ms = min((leave_ms(each, run) for each in drains), default=0)
        gone_ms = asked_ms + grace_of(run) * 1000
    return Leaving(run_id=run.run_id, owner=run.owner, nodes=tuple(nodes), asked_ms=asked_ms, gone_ms=gone_ms)


def confirm_dead(state: ClusterState, command: ConfirmDead, now_ms: int) -> Decision:
    """Take an operator's word that nothing runs on a machine that is away: its members are lost, by NODE.

    Raises: NotFound; Conflict while the machine is connected, or when it has been back since it was looked at.
    """
    machine = _machine(state, command.name)
    _check_away(machine, command)
    held = [
        (run, attempt.number, member.index)
        for run, attempt in state.live_attempts()
        for member in attempt.members
        if member.machine == machine.name and not member.released
    ]
    if not held:
        text = "is away, and holds no device of a run"
        return Decision(reply=Operated(notes=(NodeNote(node=machine.name, changed=False, message=text),)))
    events: list[Event] = []
    actions: list[Action] = []
    scratch = Scratch(state=state.copy(), now_ms=now_ms, events=events, actions=actions)
    word = MachineConfirmedDead(machine=machine.name, by=command.by, reason=command.reason)
    scratch.take(Decision(events=(word,)))
    for run, number, index in held:
        scratch.take(_lost(scratch.state, run.run_id, number, index, command, now_ms))
    runs = {run.run_id for run, _, _ in held}
    text = f"is taken for dead; run{'s' if len(runs) > 1 else ''} {listed(map(str, runs))} left its devices"
    note = NodeNote(node=machine.name, changed=True, message=text)
    return Decision(events=tuple(events), actions=tuple(actions), reply=Operated(notes=(note,)))


def _lost(
    state: ClusterState, run_id: int, number: int, index: int, command: ConfirmDead, now_ms: int
) -> Decision:
    run = state.runs[run_id]
    member = run.attempts[number].members[index]
    why = f": {command.reason}" if command.reason else ""
    exit_ = Exit(
        code=None,
        signal=None,
        started=member.phase is MemberPhase.RUNNING,
        cause=Cause.NODE,
        message=f"machine {member.machine} was away, and {command.by} confirmed that it is dead{why}",
        at_ms=now_ms,
    )
    draft = Draft(state=state, now_ms=now_ms, run=run)
    draft.emit(MemberLost(run_id=run_id, attempt=number, member=index, exit=exit_))
    advance(draft)
    return draft.decision()


def _machine(state: ClusterState, name: str) -> Machine:
    """Return the machine of this name, or that of the node of this name. Raises: NotFound."""
    node = state.nodes.get(name)
    found = state.machines.get(node.machine if node is not None else name)
    if found is None:
        raise unknown_node([name], {**state.nodes, **state.machines}, "node or machine")
    return found


def _check_away(machine: Machine, command: ConfirmDead) -> None:
    if machine.alive:
        raise Conflict(
            f"machine {machine.name} is connected to this server, so it is not dead",
            code="MACHINE_IS_ALIVE",
            details={"machine": machine.name},
            fix=Fix(
                text=f"to empty it, drain its nodes: `airyard drain {command.name}`",
                command=f"airyard drain {command.name}",
            ),
        )
    if command.boot_id not in ("", machine.boot_id):
        raise Conflict(
            f"machine {machine.name} has been back since you looked: it was started again, and left again",
            code="MACHINE_CAME_BACK",
            details={"machine": machine.name, "boot_id": machine.boot_id},
            fix=Fix(text="look at it again", command=f"airyard nodes {command.name}"),
        )


def told(cordon: Cordon) -> str:
    """Say who cordoned a node, when and why."""
    by = f"by {cordon.by} since {moment(cordon.at_ms)}" if cordon.by else "by somebody"
    return f"{by} ({cordon.reason})" if cordon.reason else by


def named(state: ClusterState, names: tuple[str, ...], known: Collection[str]) -> tuple[str, ...]:
    """Return the nodes that are meant: a machine's name stands for all its nodes, unless a node has that name."""
    if not names:
        raise UserError(
            "this names no node",
            code="NO_NODES",
            fix=Fix(text="name at least one; `airyard nodes` lists them", command="airyard nodes"),
        )
    of_machines: dict[str, list[str]] = {}
    for node in sorted(state.nodes.values(), key=lambda node: node.name):
        of_machines.setdefault(node.machine, []).append(node.name)
    unknown = [name for name in names if name not in known and name not in of_machines]
    if unknown:
        raise unknown_node(unknown, known, "node")
    meant = (each for name in names for each in ([name] if name in known else of_machines[name]))
    return tuple(dict.fromkeys(meant))


def unknown_node(names: list[str], known: Collection[str], what: str) -> NotFound:
    """Describe names that are no ``what``, with the nearest of those there are."""
    have = f"this yard has {listed(known)}" if known else "this yard has none yet"
    return NotFound(
        "; ".join(f"there is no {what} {name!r}{near(name, known)}" for name in names[:5]) + f" ({have})",
        code="NODE_NOT_FOUND",
        details={"nodes": names},
        fix=Fix(text="`airyard nodes` lists the nodes", command="airyard nodes"),
    )


def _check_deadline(deadline_ms: int | None, now_ms: int) -> None:
    if deadline_ms is not None and not now_ms <= deadline_ms <= now_ms + MAX_DEADLINE_MS:
        raise UserError(
            f"a node cannot be drained by {moment(deadline_ms)}; it is {moment(now_ms)}",
            code="BAD_DEADLINE",
            fix=f"give a time to come, within {MAX_DEADLINE_MS // DAY_MS} days",
        )
