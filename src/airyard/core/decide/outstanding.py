"""What the journal has promised and nobody has confirmed: issued again after a crash.

Owns: the derivation of effects from state alone. Must not know: which of them were carried out before.
"""

from __future__ import annotations

from airyard.core.actions import Action, CloseTracking, OpenTracking
from airyard.core.decide import verdicts
from airyard.core.decide.ailing import owed
from airyard.core.decide.gang import owes_tracking
from airyard.core.state import ClusterState


def outstanding(state: ClusterState) -> list[Action]:
    """Return every effect that may still be owed. Starts and kills are settled when the machine says hello."""
    actions: list[Action] = []
    for run in state.runs.values():
        for attempt in run.attempts:
            if attempt.live and owes_tracking(attempt):
                # An open one too: opening is idempotent, and a new server's tracker has to learn its id.
                actions.append(OpenTracking(run_id=run.run_id, attempt=attempt.number))
            elif not attempt.live and attempt.logs_closed and owes_tracking(attempt):
                actions.append(CloseTracking(run_id=run.run_id, attempt=attempt.number))
            if (until_ms := attempt.verdict_until_ms) is not None and verdicts.owed(attempt):
                # One whose logs are not there yet is asked for when they are, or by the tick.
                actions += [verdicts.asked(attempt, until_ms)] if attempt.logs_closed else []
    for name in sorted(state.health):
        actions.extend(owed(state, name, again=True))
    return actions
