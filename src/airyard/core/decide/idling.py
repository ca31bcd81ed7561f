"""Decides what becomes of nodes by tests while they were idle: what failed speaks against them, a pass clears them.

Owns: which pass clears which suspicion. Must not know: when tests are begun, how evidence weighs.
"""

from __future__ import annotations

from dataclasses import replace

from airyard.core.commands import HealthReported, IdleTestDone, SweepDone
from airyard.core.decide import ailing
from airyard.core.decide.decision import Decision, Scratch
from airyard.core.events import FabricTested, IdleTested
from airyard.core.health import gang_sums, machine
from airyard.core.health.deep_parts import whole
from airyard.core.health.fabric_faults import taken_in
from airyard.core.health.facts import CheckStatus, Retest
from airyard.core.health.idle import IdleTest
from airyard.core.health.idle_records import PoolSweeps, TestNote
from airyard.core.health.states import HealthState
from airyard.core.health.sweep_events import events_of
from airyard.core.plain import plain
from airyard.core.state import ClusterState

BY = "idle test"


def tested(state: ClusterState, command: IdleTestDone, now_ms: int) -> Decision:
    """Take in a test of an idle node; of a node that is gone it says nothing."""
    if command.node not in state.nodes:
        return Decision()
    scratch = Scratch(state=state.copy(), now_ms=now_ms, events=[], actions=[])
    test: TestNote | None = replace(command.test, message=plain(command.test.message))
    assert test is not None
    scratch.take(Decision(events=(IdleTested(node=command.node, test=test),)))
    if test.part:
        done = scratch.state.tests[command.node].parts
        test = whole(done, test, since_ms=suspected_ms(state, command.node))
        if test is not None:
            scratch.take(Decision(events=(IdleTested(node=command.node, test=test),)))
    if command.events:
        reported = HealthReported(events=command.events, by=BY)
        scratch.take(ailing.report(scratch.state, reported, now_ms))
    elif test is not None and test.kind is IdleTest.DEEP and test.status is CheckStatus.PASS:
        began_ms = test.at_ms - test.took_ms
        _clear(scratch, command.node, Retest.T3, began_ms, "it passed its deep test while idle")
    return Decision(events=tuple(scratch.events), actions=tuple(scratch.actions))


def suspected_ms(state: ClusterState, node: str) -> int:
    """Return since when a node is a suspect; 0: it is none. What was tested before says nothing to the suspicion."""
    health = state.health.get(node)
    return health.since_ms if health is not None and health.state is HealthState.SUSPECT else 0


def swept(state: ClusterState, command: SweepDone, now_ms: int) -> Decision:
    """Take in a sweep: bad nodes are taken out within the budgets, edges, leaf switches and rails blame nobody."""
    scratch = Scratch(state=state.copy(), now_ms=now_ms, events=[], actions=[])
    why = {name: plain(said) for name, said in command.sweep.why.items()}
    sweep, standing = replace(command.sweep, why=why), state.sweeps.get(command.pool, PoolSweeps()).standing
    change = taken_in(standing, sweep.faults, sweep.well, sweep.at_ms)
    noted = FabricTested(pool=command.pool, sweep=sweep, begun=change.begun, ended=change.ended)
    scratch.take(Decision(events=(noted,)))
    machines = {name: node.machine for name, node in state.nodes.items()}
    events = events_of(command.pool, sweep, machines)
    if events:
        scratch.take(ailing.report(scratch.state, HealthReported(events=events, by=BY), now_ms))
    began_ms = command.sweep.at_ms - command.sweep.took_ms
    for name in command.sweep.certified:
        # Pair tests are a part of T4; the node's own part must have been passed under the same suspicion.
        health, tests = scratch.state.health.get(name), scratch.state.tests.get(name)
        if health is not None and tests is not None and (tests.deep_ms or 0) >= health.since_ms:
            _clear(scratch, name, Retest.T4, began_ms, "it passed its deep and its pair tests while idle")
        _settle_gangs(scratch, name, began_ms)
    return Decision(events=tuple(scratch.events), actions=tuple(scratch.actions))


def _settle_gangs(scratch: Scratch, name: str, began_ms: int) -> None:
    """Put away what sums over gangs hinted of a node that is no suspect: it passed in pairs since."""
    health = scratch.state.health.get(name)
    if health is None or health.state is not HealthState.HEALTHY:
        return
    after = health
    for rule in sorted(gang_sums.RULES):
        after = machine.without(after, rule, began_ms)
    if after is not health:
        ailing.note(scratch, name, after, "it passed its pair tests while idle", BY)


def _clear(scratch: Scratch, name: str, passed: Retest, began_ms: int, why: str) -> None:
    """End a suspicion that is older than the test, and that such a test clears.

    Not one of a node that only the budgets kept from being taken out: it waits for its remedy, and no test replaces it.
    """
    health = scratch.state.health.get(name)
    if health is None or health.state is not HealthState.SUSPECT:
        return
    if machine.verdict(health) is HealthState.CORDONED or health.since_ms > began_ms:
        return
    if any(hit.at_ms > began_ms or hit.retest.value > passed.value for hit in health.hits):
        return
    ailing.note(scratch, name, machine.healed(health, scratch.now_ms), why, BY)
