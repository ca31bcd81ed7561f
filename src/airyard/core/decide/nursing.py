"""Decides what persons say of nodes' health: maintenance, a false alarm, the breaker.

Owns: which of these may be said when. Must not know: the wire, evidence.
"""

from __future__ import annotations

from collections.abc import Collection

from airyard.core.actions import Action
from airyard.core.commands import AcquitNodes, ResetBreaker, SetMaintenance
from airyard.core.decide.ailing import note
from airyard.core.decide.decision import Decision, NodeNote, Operated, Scratch
from airyard.core.decide.operating import HEALTH, named
from airyard.core.errors import Conflict, Fix, NotFound
from airyard.core.events import BreakerReset, Event, NodeCordoned, NodeDrainOrdered
from airyard.core.health import machine
from airyard.core.health.states import WORKING, HealthState, NodeHealth
from airyard.core.health.ways_out import in_words, way_out
from airyard.core.policy_rules import listed, near
from airyard.core.state import ClusterState


def maintain(state: ClusterState, command: SetMaintenance, now_ms: int) -> Decision:
    """Put nodes into maintenance, or give them back: they are tested before they work. Raises: NotFound, UserError."""
    scratch = Scratch(state=state.copy(), now_ms=now_ms, events=[], actions=[])
    notes = [_maintain(scratch, name, command) for name in named(state, command.nodes, state.nodes)]
    return _decision(scratch, notes)


def _maintain(scratch: Scratch, name: str, command: SetMaintenance) -> NodeNote:
    state, now_ms = scratch.state, scratch.now_ms
    health = state.health.get(name, NodeHealth())
    if (health.state is HealthState.MAINTENANCE) is command.on:
        step = "" if health.state in WORKING else f"; {way_out(name, health.state).text}"
        there = (
            "in maintenance already" if command.on else f"not in maintenance: {in_words(health.state)}{step}"
        )
        return NodeNote(node=name, changed=False, message=f"is {there}")
    why = command.reason or ("maintenance" if command.on else "maintenance is over")
    if command.on and name not in state.cordons:
        cordon = NodeCordoned(node=name, by=HEALTH, reason=f"maintenance by {command.by}: {why}")
        scratch.take(Decision(events=(cordon,)))
    if command.on:
        drain = NodeDrainOrdered(node=name, by=command.by, reason=why)
        scratch.take(Decision(events=(drain,)))
    note(scratch, name, machine.maintained(health, now_ms, on=command.on), why, command.by)
    text = (
        "is in maintenance; runs on it are asked to leave"
        if command.on
        else "is tested before it works again"
    )
    return NodeNote(node=name, changed=True, message=text)


def acquit(state: ClusterState, command: AcquitNodes, now_ms: int) -> Decision:
    """Take a person's word that nodes are well: those that were taken out work again, on probation.

    Of one that works, what speaks against it is put away; a suspect that only the budgets kept in work is on
    probation then. Raises: Conflict, NotFound, UserError.
    """
    scratch = Scratch(state=state.copy(), now_ms=now_ms, events=[], actions=[])
    notes: list[NodeNote] = []
    for name in named(state, command.nodes, state.nodes):
        health = state.health.get(name, NodeHealth())
        why = command.reason or "a false alarm"
        if health.state is HealthState.HEALTHY and not health.hits:
            notes.append(NodeNote(node=name, changed=False, message="is healthy: nothing speaks against it"))
        elif health.state in (HealthState.QUARANTINED, HealthState.ENROLLING) or _is_kept(health):
            note(scratch, name, machine.acquitted(health, now_ms), why, command.by)
            notes.append(
                NodeNote(node=name, changed=True, message="is on probation: runs may be placed on it")
            )
        elif health.state in (HealthState.SUSPECT, HealthState.HEALTHY):
            note(scratch, name, machine.healed(health, now_ms), why, command.by)
            said = "is healthy: what spoke against it counts no more"
            notes.append(NodeNote(node=name, changed=True, message=said))
        else:
            raise _cannot_acquit(name, health)
    return _decision(scratch, notes)


def _is_kept(health: NodeHealth) -> bool:
    """True for a suspect that would have been taken out, if the budgets had let it."""
    return health.state is HealthState.SUSPECT and machine.verdict(health) is HealthState.CORDONED


def _cannot_acquit(name: str, health: NodeHealth) -> Conflict:
    return Conflict(
        f"node {name} is {in_words(health.state)}; only a suspect, or one that is quarantined or tested before it "
        "works, can be acquitted",
        code="NODE_NOT_QUARANTINED",
        details={"node": name, "health": health.state.value},
        fix=way_out(name, health.state),
    )


def reset_breaker(state: ClusterState, command: ResetBreaker, now_ms: int) -> Decision:
    """Let nodes be taken out again. Raises: NotFound for a pool that is none."""
    if command.pool and command.pool not in state.breakers:
        return Decision(reply=Operated(notes=(_not_open(state, command.pool),)))
    pools = [pool for pool in sorted(state.breakers) if command.pool in ("", pool)]
    events: tuple[Event, ...] = tuple(BreakerReset(pool=pool, by=command.by) for pool in pools)
    notes = [NodeNote(node=pool, changed=True, message="may have nodes taken out again") for pool in pools]
    return Decision(events=events, reply=Operated(notes=tuple(notes)))


def _not_open(state: ClusterState, pool: str) -> NodeNote:
    """Say that a pool's breaker is not open, and whose is: who asks may have meant that one."""
    policy, others = state.policy, sorted(state.breakers)
    known = {one.name for one in policy.pools} | {policy.pool_of(node) for node in state.nodes.values()}
    if pool not in known:
        raise _unknown_pool(pool, known | state.breakers.keys(), others)
    return NodeNote(node=pool, changed=False, message=f"has no open breaker{_open(others)}")


def _unknown_pool(pool: str, known: Collection[str], others: list[str]) -> NotFound:
    have = f"this yard has {listed(known)}" if known else "this yard has none yet"
    return NotFound(
        f"there is no pool {pool!r}{near(pool, known)} ({have}){_open(others)}",
        code="POOL_NOT_FOUND",
        details={"pool": pool, "open": others},
        fix=Fix(text="`airyard pools` lists the pools", command="airyard pools"),
    )


def _open(pools: list[str]) -> str:
    return f"; open is that of {listed(pools)}" if pools else ""


def _decision(scratch: Scratch, notes: list[NodeNote]) -> Decision:
    actions: tuple[Action, ...] = tuple(scratch.actions)
    return Decision(events=tuple(scratch.events), actions=actions, reply=Operated(notes=tuple(notes)))
