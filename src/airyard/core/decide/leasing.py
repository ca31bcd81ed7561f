"""Decides what a leader makes known of itself: that it leads, and the leases that it grants.

Owns: the longest lease that anybody may count. Must not know: who was heard when (``app.leases``), clocks.
"""

from __future__ import annotations

from airyard.core.commands import DeclareLease
from airyard.core.decide.decision import Decision
from airyard.core.events import Event, LeadBegan, LeaseDeclared, MachineLeft
from airyard.core.state import ClusterState


def declare(state: ClusterState, command: DeclareLease) -> Decision:
    """Journal the lease; at the begin also that no machine has been seen yet.

    A machine that died with the last leader, or while nobody led, would else stay alive in the records for ever, and
    its members with it.
    """
    before_ms = 0 if command.settled else state.lease_longest_ms
    declared = LeaseDeclared(lease_ms=command.lease_ms, longest_ms=max(command.lease_ms, before_ms))
    events: list[Event] = [declared]
    if command.begins:
        events += [MachineLeft(machine=name) for name, machine in state.machines.items() if machine.alive]
    return Decision(events=tuple(events))


def lead(state: ClusterState) -> Decision:
    """Journal that the server of this epoch leads, which people are told of."""
    return Decision(events=(LeadBegan(epoch=state.epoch, version=state.version),))
