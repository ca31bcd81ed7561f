"""Promises about what was changed after submit: holds, begins, time limits, reservations, cordons and drains.

Owns: what is checked of them in the journal and among the processes. Must not know: how they are kept.
What takes time is checked to the second only in a calm world: elsewhere servers die and machines are cut off.
"""

from __future__ import annotations

from collections.abc import Iterable

from airyard.core import events
from airyard.core.actions import StartMember
from airyard.core.decide.draining import drains_on, leave_ms
from airyard.core.decide.grace import grace_of
from airyard.core.ids import AttemptKey
from airyard.core.policy import Reservation
from airyard.core.run import Attempt, Run, StopReason
from airyard.core.state import ClusterState
from airyard.sim.setting import Broken

ASKED_WITHIN_MS = 60_000
"""So long no server may have lived with a journal to write to, beside the absences that are known."""
GONE_WITHIN_MS = 20_000
"""What a stop takes beside its grace."""
HEARD_WITHIN_MS = 5_000
"""What an order takes to a runner."""


class Promises:
    """The witness of what was changed."""

    def __init__(self, *, calm: bool) -> None:
        self._calm = calm
        self._absences: list[tuple[int, int]] = []
        self._limited_ms: dict[AttemptKey, int] = {}
        """When the time limit of a live attempt was changed last."""

    def server_was_away(self, from_ms: int, to_ms: int) -> None:
        """Between these times no server could do anything."""
        self._absences.append((from_ms, to_ms))

    def _patience_ms(self, due_ms: int) -> int:
        """Return how long after a time what was due then may take."""
        if self._calm:
            return GONE_WITHIN_MS
        away_ms = sum(to_ms - max(from_ms, due_ms) for from_ms, to_ms in self._absences if to_ms > due_ms)
        return ASKED_WITHIN_MS + away_ms

    def placed(self, state: ClusterState, event: events.AttemptPlaced, at_ms: int) -> None:
        """An attempt is about to be placed: nothing may keep its run back, nor be in its way."""
        run = state.runs[event.run_id]
        if run.held or run.begin_ms > at_ms:
            raise Broken(f"run {run.run_id} starts at {at_ms}: held {run.held}, begin {run.begin_ms}")
        closed = [member.node for member in event.attempt.members if member.node in state.cordons]
        if closed:
            raise Broken(f"run {run.run_id} starts on {closed}, which is cordoned")
        for reservation in state.reservations.values():
            for member in event.attempt.members:
                if reservation.bars(member.node, run.project, at_ms, at_ms + 1):
                    raise Broken(
                        f"run {run.run_id} starts on {member.node}, reserved by {reservation.reservation_id}"
                    )

    def after(self, state: ClusterState, event: events.Event, at_ms: int) -> None:
        """A fact was taken in."""
        if isinstance(event, events.RunUpdated) and event.attempt_timeout_s is not None:
            attempt = state.runs[event.run_id].attempt
            if attempt is not None and attempt.live:
                self._limited_ms[attempt.key] = at_ms
        elif isinstance(event, events.MemberExited):
            self._not_too_early(state.runs[event.run_id], event, at_ms)

    def _not_too_early(self, run: Run, event: events.MemberExited, at_ms: int) -> None:
        """No runner stops a member by a limit that had been raised in time."""
        attempt, limit_s = run.attempts[event.attempt], run.workload.attempt_timeout_s
        by_runner = event.exit.stop_reason == StopReason.TIME_LIMIT.value and attempt.stop is None
        changed_ms = self._limited_ms.get(attempt.key, 0)
        begun_ms = event.exit.at_ms - event.exit.duration_ms
        heard = changed_ms + HEARD_WITHIN_MS + grace_of(run) * 1000 < at_ms
        if not by_runner or not self._calm or not heard or not event.exit.started:
            return
        if limit_s is None or event.exit.duration_ms < limit_s * 1000:
            raise Broken(
                f"{attempt.key} was stopped {event.exit.duration_ms} ms after {begun_ms}, its limit is {limit_s} s"
            )

    def held_at(self, state: ClusterState, trees: Iterable[StartMember], at_ms: int) -> None:
        """Look at everything that lives at this moment."""
        for run, attempt in state.live_attempts():
            for reservation in state.reservations.values():
                self._asked_to_leave(reservation, run, attempt, at_ms)
            self._asked_by_a_drain(state, run, attempt, at_ms)
            if self._calm:
                self._within_its_limit(run, attempt, at_ms)
        if not self._calm:
            return
        for tree in trees:
            tree_run = state.runs.get(tree.key.run_id)
            self._gone_by_the_deadline(state, tree, at_ms)
            for reservation in state.reservations.values():
                if tree_run is not None and reservation.maintenance and tree.node in reservation.nodes:
                    gone_ms = reservation.from_ms + grace_of(tree_run) * 1000 + GONE_WITHIN_MS
                    if gone_ms < at_ms < reservation.to_ms:
                        raise Broken(f"processes of {tree.key} live on {tree.node}, which is in maintenance")

    def _asked_by_a_drain(self, state: ClusterState, run: Run, attempt: Attempt, at_ms: int) -> None:
        """Who is on a drained node is asked at once, or a grace before the deadline."""
        for node, drain in drains_on(state, attempt):
            due_ms = leave_ms(drain, run)
            if attempt.stop is None and at_ms >= due_ms + self._patience_ms(due_ms):
                raise Broken(f"{attempt.key} on {node} was never asked to leave for the drain")

    def _gone_by_the_deadline(self, state: ClusterState, tree: StartMember, at_ms: int) -> None:
        """Nothing lives on a drained node once its deadline has passed, or without one the grace of its run."""
        run, cordon = state.runs.get(tree.key.run_id), state.cordons.get(tree.node)
        drain = cordon.drain if cordon is not None else None
        if run is None or drain is None:
            return
        gone_ms = drain.at_ms + grace_of(run) * 1000 if drain.deadline_ms is None else drain.deadline_ms
        if at_ms > gone_ms + GONE_WITHIN_MS:
            raise Broken(f"processes of {tree.key} live on {tree.node}, which is drained")

    def _asked_to_leave(self, reservation: Reservation, run: Run, attempt: Attempt, at_ms: int) -> None:
        due_ms = max(reservation.from_ms, attempt.placed_ms)
        if attempt.stop is not None or at_ms < due_ms + self._patience_ms(due_ms):
            return
        for member in attempt.members:
            if not member.released and reservation.bars(member.node, run.project, at_ms, at_ms + 1):
                raise Broken(
                    f"{attempt.key} on {member.node} was never asked to leave for {reservation.reservation_id}"
                )

    def _within_its_limit(self, run: Run, attempt: Attempt, at_ms: int) -> None:
        limit_s = run.workload.attempt_timeout_s
        if limit_s is None or attempt.running_ms is None or attempt.stop is not None:
            return
        since_ms = max(attempt.running_ms + limit_s * 1000, self._limited_ms.get(attempt.key, 0))
        if at_ms > since_ms + grace_of(run) * 1000 + GONE_WITHIN_MS:
            raise Broken(f"{attempt.key} outlives its limit of {limit_s} s")
