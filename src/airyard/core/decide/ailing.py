"""Decides what becomes of nodes by their health: what is reported, remedies and tests done, what persons say of it.

Owns: cordons, drains, stops and effects that follow from a node's health; what budgets see of the yard.
Must not know: how evidence weighs (``core/health/blame``), which state follows which (``core/health/machine``).
An operator's cordon is never lifted here.
"""

from __future__ import annotations

from dataclasses import replace

from airyard.core.actions import Action, RunRemedy, RunRetest
from airyard.core.commands import HealthReported, RemedyDone, RetestDone
from airyard.core.decide import supplying
from airyard.core.decide.decision import Decision, Draft, Scratch
from airyard.core.decide.draining import ask_to_leave
from airyard.core.decide.gang import advance
from airyard.core.decide.operating import HEALTH
from airyard.core.events import (
    BreakerOpened,
    NodeCordoned,
    NodeDrainOrdered,
    NodeHealthChanged,
    NodeUncordoned,
    StopOrdered,
)
from airyard.core.health import budget, facility, ladder, machine
from airyard.core.health.blame import gravest, hit_of
from airyard.core.health.facts import HealthEvent
from airyard.core.health.states import TAKEN_OUT, WORKING, HealthState, Hit, NodeHealth
from airyard.core.health.waiting import before_remedy
from airyard.core.plain import plain, plain_name
from airyard.core.run import StopReason, StopRequest
from airyard.core.state import ClusterState

CRITICAL_MS = 60_000
SOFT_MS = 600_000
FAULT_GRACE_S = 10
TICK = "airyard"
_REASON = 300


def report(state: ClusterState, command: HealthReported, now_ms: int) -> Decision:
    """Take in what monitors saw. The same events in any order, again or not, lead to the same verdict."""
    scratch = _scratch(state, now_ms)
    hits: dict[str, list[Hit]] = {}
    # A clock that is ahead must not keep evidence from being forgotten.
    events = [replace(event, at_ms=min(event.at_ms, now_ms)) for event in command.events]
    for event in events:
        for name in sorted(supplying.seen(scratch, event, _concerned(state, event))):
            _excuse(scratch, name)
    for event in events:
        for name in _concerned(state, event):
            if not facility.excuses(scratch.state.facility, name, event.rule, event.at_ms):
                hits.setdefault(name, []).append(hit_of(event))
    for name in sorted(hits):
        _judge(scratch, name, hits[name], command.by)
    return _close(scratch)


def _concerned(state: ClusterState, event: HealthEvent) -> list[str]:
    """Return the nodes that an event is about: the one it names, those with the device, else all of the machine."""
    if event.node:
        return [event.node] if event.node in state.nodes else []
    there = [node for node in state.nodes.values() if node.machine == event.machine]
    uuid = event.device_uuid
    owners = [node.name for node in there if uuid and any(device.uuid == uuid for device in node.devices)]
    return owners or [node.name for node in there]


def _excuse(scratch: Scratch, name: str) -> None:
    """Take back what spoke against a node that works and was the facility's. One that is out is tested as ever."""
    health = scratch.state.health.get(name)
    if health is None or health.state not in WORKING:
        return
    found = facility.excused(scratch.state.facility, name, health.hits)
    if found:
        after = machine.excused(health, found, scratch.now_ms)
        _note(
            scratch,
            name,
            after,
            "an incident of the facility, or of a server that it shares: that does not speak against it",
            TICK,
        )


def _judge(scratch: Scratch, name: str, hits: list[Hit], by: str) -> None:
    now_ms, before = scratch.now_ms, scratch.state.health.get(name, NodeHealth())
    health = machine.reported(before, hits, now_ms)
    if health is before:
        return
    came = [hit for hit in health.hits if hit not in before.hits]
    new = gravest(came)
    why = (new.message if new is not None else "") + (f" (and {len(came) - 1} more)" if len(came) > 1 else "")
    asked = machine.verdict(health)
    # What a job could have printed is noted, and no more: of what was known before, budgets have kept the node in.
    if asked is HealthState.CORDONED and any(hit.confirmed for hit in came):
        _take_out(scratch, name, health, why, by, new)
    elif asked is HealthState.SUSPECT:
        _note(scratch, name, machine.suspected(health, now_ms), why, by, new=new)
    else:
        _note(scratch, name, health, why, by, new=new)
    after = scratch.state.health[name]
    if after.state in TAKEN_OUT and machine.is_critical(after):
        _stop_runs(scratch, name, after)


def _take_out(
    scratch: Scratch, name: str, health: NodeHealth, why: str, by: str, new: Hit | None = None
) -> None:
    """Cordon and drain a node, as far as the budgets go; else it is a suspect, and what kept it is said.

    ``why`` and ``new`` are what came just now; closed it is for what weighs most.
    """
    pool = scratch.state.policy.pool_of(scratch.state.nodes[name])
    fleet = _fleet(scratch.state, name, health, scratch.now_ms)
    if trip := budget.trips(fleet):
        scratch.take(Decision(events=(BreakerOpened(pool=pool, why=trip),)))
        fleet = _fleet(scratch.state, name, health, scratch.now_ms)
    kept = budget.refusal(fleet, hard=machine.is_hard(health))
    if kept:
        suspect = machine.suspected(health, scratch.now_ms) if health.state is HealthState.HEALTHY else health
        _note(scratch, name, suspect, why, by, kept, new=new)
        return
    said = f"{fleet.taken_out + 1} of {fleet.nodes} nodes of {pool} are out with it"
    out = machine.cordoned(health, scratch.now_ms)
    _note(scratch, name, out, why, by, said, new=new)
    best = gravest(health.hits)
    reason = plain(f"{health.rule}: {best.message if best is not None else why}", _REASON)
    if name not in scratch.state.cordons:
        scratch.take(Decision(events=(NodeCordoned(node=name, by=HEALTH, reason=reason),)))
    _note(scratch, name, machine.drained(out, scratch.now_ms), "it is being emptied", TICK)
    span_ms = CRITICAL_MS if machine.is_critical(health) else SOFT_MS
    drain = NodeDrainOrdered(node=name, by=HEALTH, reason=reason, deadline_ms=scratch.now_ms + span_ms)
    scratch.take(Decision(events=(drain,)))


def _take_out_late(scratch: Scratch, name: str, health: NodeHealth) -> None:
    """Take a node out that the budgets had kept, once they allow it."""
    fleet = _fleet(scratch.state, name, health, scratch.now_ms)
    if not budget.refusal(fleet, hard=machine.is_hard(health)):
        _take_out(scratch, name, health, "there is room for it in the budgets now", TICK)


def _stop_runs(scratch: Scratch, name: str, health: NodeHealth) -> None:
    """Stop what a critical fault has broken at once: it goes on elsewhere, at no cost to its owner."""
    grave = [hit for hit in health.hits if hit.confirmed and machine.is_critical(_only(health, hit))]
    devices = {hit.device for hit in grave}
    for run, attempt in list(scratch.state.live_attempts()):
        mine = [m for m in attempt.members if m.node == name and not m.released]
        touched = None in devices or any(devices.intersection(m.devices) for m in mine)
        if not mine or not touched or attempt.stop is not None:
            continue
        best = gravest(grave)
        assert best is not None
        reason = StopReason.NODE_FAULT if best.device is None else StopReason.DEVICE_FAULT
        what = f"device {best.device} of node {name}" if best.device is not None else f"node {name}"
        stop = StopRequest(
            reason=reason,
            by=HEALTH,
            at_ms=scratch.now_ms,
            grace_s=FAULT_GRACE_S,
            message=f"{what} has a fault: {best.message} ({best.rule}, event {best.event_id})",
            rule=best.rule,
            node=name,
        )
        draft = Draft(state=scratch.state, now_ms=scratch.now_ms, run=run)
        draft.emit(StopOrdered(run_id=run.run_id, attempt=attempt.number, stop=stop))
        advance(draft)
        scratch.take(draft.decision())


def _only(health: NodeHealth, hit: Hit) -> NodeHealth:
    return NodeHealth(state=health.state, hits=(hit,))


def remedy_done(state: ClusterState, command: RemedyDone, now_ms: int) -> Decision:
    """Take in what became of a remedy; the answer to one that is over changes nothing."""
    health = state.health.get(command.node)
    if health is None or health.state is not HealthState.RESETTING:
        return Decision()
    if command.name != machine.attempt_name(command.node, health):
        return Decision()
    scratch = _scratch(state, now_ms)
    after = machine.remedied(health, command.outcome, command.message, now_ms)
    why = f"{health.remedy.value}: {command.outcome.value.lower()}"
    _note(scratch, command.node, after, f"{why}: {command.message}" if command.message else why, TICK)
    _ask(scratch, command.node)
    return _close(scratch)


def retest_done(state: ClusterState, command: RetestDone, now_ms: int) -> Decision:
    """Take in what a test came to; a test of a cure that is over changes nothing."""
    health = state.health.get(command.node)
    if health is None or health.state not in (HealthState.RETESTING, HealthState.ENROLLING):
        return Decision()
    if command.name != machine.test_name(command.node, health):
        return Decision()
    scratch = _scratch(state, now_ms)
    gpus = _has_gpus(state, command.node)
    after = machine.retested(health, command.status, command.message, now_ms, gpus=gpus)
    why = f"test {health.retest.value}: {command.status.value.lower()}"
    _note(scratch, command.node, after, f"{why}: {command.message}" if command.message else why, TICK)
    _ask(scratch, command.node)
    return _close(scratch)


def tick(state: ClusterState, now_ms: int, jumped_ms: int = 0) -> Decision:
    """Let time work on nodes that are not well: empty ones are quarantined, remedies begun, late ones given up.

    ``jumped_ms``: the clock was set ahead by so much, and a remedy or test under way is not late by that.
    """
    if not state.health:
        return Decision()
    scratch = _scratch(state, now_ms)
    held = {m.node for _, attempt in state.live_attempts() for m in attempt.members if not m.released}
    for name in sorted(state.health):
        health = state.health[name]
        if name not in state.nodes:
            continue
        if jumped_ms and (later := machine.jumped(health, jumped_ms)) is not health:
            said = f"the server's clock was set ahead by {jumped_ms // 1000} s: it has all of its time still"
            _note(scratch, name, later, said, TICK)
            health = later
        if health.state is HealthState.DRAINING and name not in held:
            _note(scratch, name, machine.drained(health, now_ms), "no run holds a device of it", TICK)
        elif health.state is HealthState.QUARANTINED:
            _mend(scratch, name, health)
        elif health.state in WORKING and machine.verdict(health) is HealthState.CORDONED:
            _take_out_late(scratch, name, health)
        elif (after := machine.aged(health, now_ms)) is not health:
            _note(scratch, name, after, after.waits_for or "its time is over", TICK)
    # Who has to leave is asked by ``timers``, which is looking at the runs anyway.
    return Decision(events=tuple(scratch.events), actions=tuple(scratch.actions))


def _mend(scratch: Scratch, name: str, health: NodeHealth) -> None:
    now_ms = scratch.now_ms
    if before_remedy(name, health, now_ms, lambda: _fleet(scratch.state, name, health, now_ms)) is not None:
        return
    if end := machine.beyond_cure(health, now_ms):
        retired = machine.retired(health, end, now_ms)
        _note(scratch, name, retired, retired.waits_for, TICK)
        return
    after = machine.reserved(health, now_ms, gpus=_has_gpus(scratch.state, name))
    why = after.waits_for or f"remedy {after.remedies} of {ladder.ATTEMPTS}: {after.remedy.value}"
    _note(scratch, name, after, why, TICK)
    _ask(scratch, name)


def _has_gpus(state: ClusterState, name: str) -> bool:
    node = state.nodes.get(name)
    return node is not None and node.model is not None


def _ask(scratch: Scratch, name: str) -> None:
    scratch.actions.extend(owed(scratch.state, name))


def owed(state: ClusterState, name: str, *, again: bool = False) -> list[Action]:
    """Return the effect that a node's cure waits for. ``again``: it may have been asked for before."""
    health, node = state.health[name], state.nodes.get(name)
    if node is None:
        return []
    if health.state is HealthState.RESETTING:
        return [
            RunRemedy(
                node=name,
                machine=node.machine,
                name=machine.attempt_name(name, health),
                remedy=health.remedy,
                simulated=node.simulated,
                again=again,
            )
        ]
    if health.state in (HealthState.RETESTING, HealthState.ENROLLING):
        test = machine.test_name(name, health)
        return [
            RunRetest(
                node=name,
                machine=node.machine,
                name=test,
                level=health.retest,
                simulated=node.simulated,
            )
        ]
    return []


def _note(
    scratch: Scratch,
    name: str,
    health: NodeHealth,
    why: str,
    by: str,
    kept: str = "",
    *,
    new: Hit | None = None,
) -> None:
    """Journal a verdict; a node that is to work again is opened, unless the cordon is somebody else's.

    ``new``: what was seen just now, if anything; its lines are the evidence.
    """
    health = replace(health, waits_for=plain(health.waits_for))
    best = new if new is not None else gravest(health.hits)
    changed = NodeHealthChanged(
        node=name,
        health=health,
        why=plain(why),
        by=plain_name(by),
        evidence=best.evidence if best is not None else (),
        budget=kept,
        rule=new.rule if new is not None else "",
    )
    scratch.take(Decision(events=(changed,)))
    cordon = scratch.state.cordons.get(name)
    if health.state in WORKING and cordon is not None and cordon.by == HEALTH:
        scratch.take(Decision(events=(NodeUncordoned(node=name, by=HEALTH),)))


def note(scratch: Scratch, name: str, health: NodeHealth, why: str, by: str) -> None:
    """Journal what a person made of a node, and ask for the test that it needs then."""
    _note(scratch, name, health, why, by)
    _ask(scratch, name)


def _fleet(state: ClusterState, name: str, health: NodeHealth, now_ms: int) -> budget.Fleet:
    """Return the node's pool as the budgets see it. Cost: nodes."""
    pool = state.policy.pool_of(state.nodes[name])
    nodes = [node for node in state.nodes.values() if state.policy.pool_of(node) == pool]
    known = {node.name: state.health.get(node.name, NodeHealth()) for node in nodes}
    alive = {machine_.name for machine_ in state.machines.values() if machine_.alive}
    since_ms = now_ms - budget.WINDOW_MS
    alike = {
        other
        for other, one in known.items()
        if any(hit.rule == health.rule and hit.at_ms >= since_ms for hit in one.hits)
    }
    return budget.Fleet(
        nodes=len(nodes),
        taken_out=sum(one.state in TAKEN_OUT for one in known.values()),
        working=sum(
            known[node.name].state in WORKING and not node.cordoned and node.machine in alive
            for node in nodes
        ),
        soft_recently=sum(one.state in TAKEN_OUT and one.struck_ms >= since_ms for one in known.values()),
        remedies=sum(one.state is HealthState.RESETTING for one in known.values()),
        alike=len(alike | {name}),
        breaker_open=pool in state.breakers,
        places=_places(state, name),
    )


def _places(state: ClusterState, name: str) -> tuple[budget.Place, ...]:
    """Return the rack and the leaf switch of a node, where labels name them, with how many of their nodes are out."""
    mine, found = facility.places_of(state.nodes[name].labels), []
    for place in mine:
        there = [node for node in state.nodes if place in facility.places_of(state.nodes[node].labels)]
        out = sum(
            state.health[node].state in TAKEN_OUT for node in there if node != name and node in state.health
        )
        found.append(budget.Place(name=place, nodes=len(there), taken_out=out))
    return tuple(found)


def _scratch(state: ClusterState, now_ms: int) -> Scratch:
    return Scratch(state=state.copy(), now_ms=now_ms, events=[], actions=[])


def _close(scratch: Scratch) -> Decision:
    for run, attempt in list(scratch.state.live_attempts()):
        draft = Draft(state=scratch.state, now_ms=scratch.now_ms, run=run)
        ask_to_leave(draft, attempt)
        if draft.events:
            scratch.take(draft.decision())
    return Decision(events=tuple(scratch.events), actions=tuple(scratch.actions))
