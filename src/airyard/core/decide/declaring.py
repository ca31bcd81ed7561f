"""Decides what operators declare: pools, projects, users.

Owns: which policies fit the yard as it is. Must not know: YAML, the wire.
"""

from __future__ import annotations

from airyard.core.commands import DeclarePolicy
from airyard.core.decide.decision import Decision
from airyard.core.events import PolicyDeclared
from airyard.core.state import ClusterState


def declare(state: ClusterState, command: DeclarePolicy, now_ms: int) -> Decision:
    """Replace what is declared. A policy equal to the present one is no news."""
    if command.dry_run or (command.policy == state.policy and command.digest == state.policy_digest):
        return Decision()
    declared = PolicyDeclared(
        policy=command.policy, by=command.by, source=command.source, digest=command.digest
    )
    return Decision(events=(declared,))
