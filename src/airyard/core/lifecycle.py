"""The states of runs, attempts, members and nodes, and their legal moves, as data.

Owns: the tables; diagrams, documentation and tests derive from them. Must not know: why a move is made.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TypeVar

from airyard.core.errors import InvariantBroken
from airyard.core.health.states import HEALTH_MOVES
from airyard.core.run import AttemptState, MemberPhase, RunState

S = TypeVar("S", bound=Enum)

RUN_MOVES: Mapping[RunState, frozenset[RunState]] = {
    RunState.QUEUED: frozenset({RunState.ACTIVE, RunState.ENDED}),
    RunState.ACTIVE: frozenset({RunState.QUEUED, RunState.ENDED}),
    # An ended run comes back only when somebody resumes it.
    RunState.ENDED: frozenset({RunState.QUEUED}),
}

ATTEMPT_MOVES: Mapping[AttemptState, frozenset[AttemptState]] = {
    AttemptState.PLACED: frozenset({AttemptState.PREPARING, AttemptState.STOPPING, AttemptState.ENDED}),
    AttemptState.PREPARING: frozenset({AttemptState.RUNNING, AttemptState.STOPPING, AttemptState.ENDED}),
    # Members may all end by themselves, with no stop between.
    AttemptState.RUNNING: frozenset({AttemptState.STOPPING, AttemptState.ENDED}),
    AttemptState.STOPPING: frozenset({AttemptState.ENDED}),
    AttemptState.ENDED: frozenset(),
}

MEMBER_MOVES: Mapping[MemberPhase, frozenset[MemberPhase]] = {
    MemberPhase.STARTING: frozenset(
        {MemberPhase.PREPARING, MemberPhase.READY, MemberPhase.EXITED, MemberPhase.LOST}
    ),
    MemberPhase.PREPARING: frozenset({MemberPhase.READY, MemberPhase.EXITED, MemberPhase.LOST}),
    MemberPhase.READY: frozenset({MemberPhase.RUNNING, MemberPhase.EXITED, MemberPhase.LOST}),
    MemberPhase.RUNNING: frozenset({MemberPhase.EXITED, MemberPhase.LOST}),
    MemberPhase.EXITED: frozenset(),
    MemberPhase.LOST: frozenset(),
}

TABLES: Mapping[str, Mapping[Enum, frozenset[Enum]]] = {
    "Run": RUN_MOVES,  # type: ignore[dict-item]  # a mapping's key type is invariant
    "Attempt": ATTEMPT_MOVES,  # type: ignore[dict-item]  # as above
    "Member": MEMBER_MOVES,  # type: ignore[dict-item]  # as above
    "Node": HEALTH_MOVES,  # type: ignore[dict-item]  # as above
}


class IllegalTransition(InvariantBroken):
    """A fact contradicts what is known of a run, attempt, member or node; the state is left as it was."""

    default_code = "ILLEGAL_TRANSITION"
    http_status = 409


def check_move(table: Mapping[S, frozenset[S]], before: S, after: S, what: str) -> S:
    """Return ``after`` if the table allows it. Raises: IllegalTransition naming ``what`` and both states."""
    if after not in table[before]:
        raise IllegalTransition(
            f"{what} cannot go from {before.value} to {after.value}",
            details={"object": what, "from": before.value, "to": after.value},
        )
    return after
