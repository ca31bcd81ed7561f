"""The simulated tracker and the server's worker for it: opens late, defers, is away for a while.

Owns: answers to OpenTracking and CloseTracking. Must not know: MLflow.
"""

from __future__ import annotations

from collections.abc import Callable

from airyard.core.actions import CloseTracking, OpenTracking
from airyard.core.commands import TrackingAnswered
from airyard.core.run import Tracking, TrackingState
from airyard.sim.chance import Fault
from airyard.sim.setting import Setting

RETRY_MS = 2_000


class TrackerSwitch:
    """Whether the tracking server is there; outlives servers."""

    def __init__(self) -> None:
        self.away = False


class SimTracking:
    """One server's worker: one job at a time per action, repeated while the tracker is away."""

    def __init__(
        self, setting: Setting, switch: TrackerSwitch, answer: Callable[[TrackingAnswered], None]
    ) -> None:
        self._setting = setting
        self._switch = switch
        self._answer = answer
        self._under_way: set[OpenTracking | CloseTracking] = set()
        self.closed = False

    def do(self, action: OpenTracking | CloseTracking) -> None:
        """Begin, unless the same is under way."""
        if action not in self._under_way:
            self._under_way.add(action)
            chance = self._setting.chance
            slow = not chance.healed and chance.roll(0.15)
            self._setting.later(
                chance.between(3_000, 9_000) if slow else chance.between(5, 300), lambda: self._try(action)
            )

    def _try(self, action: OpenTracking | CloseTracking) -> None:
        if self.closed:
            return
        if self._switch.away:
            self._setting.chance.note(Fault.TRACKER_AWAY)
            self._setting.later(RETRY_MS, lambda: self._try(action))
            return
        self._under_way.discard(action)
        state = TrackingState.OPEN if isinstance(action, OpenTracking) else TrackingState.CLOSED
        tracking = Tracking(state=state, experiment_id="1", run_id=f"{action.run_id}-{action.attempt}")
        self._answer(TrackingAnswered(run_id=action.run_id, attempt=action.attempt, tracking=tracking))
