"""How a drained node becomes empty: who on it is asked to leave when, with how much grace.

Owns: the moment of asking, the shortening of stops that would outlast a drain's deadline.
Must not know: which nodes may be drained, who may ask for it (``operating.py``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from airyard.core.cluster import Drain
from airyard.core.decide.decision import Draft
from airyard.core.decide.gang import advance
from airyard.core.decide.grace import grace_of
from airyard.core.events import StopOrdered
from airyard.core.run import Attempt, Run, StopReason, StopRequest
from airyard.core.state import ClusterState
from airyard.core.wording import moment


def draining(state: ClusterState) -> bool:
    """True while any node is drained. Cost: cordons."""
    return any(cordon.drain is not None for cordon in state.cordons.values())


def leave_ms(drain: Drain, run: Run) -> int:
    """Return when a run on the node is asked to leave: at once, or a grace before the deadline."""
    if drain.deadline_ms is None:
        return drain.at_ms
    return max(drain.deadline_ms - grace_of(run) * 1000, drain.at_ms)


def grace_left(drain: Drain, run: Run, now_ms: int) -> int:
    """Return the seconds that a run has which is asked now: its grace, at most until the deadline."""
    if drain.deadline_ms is None:
        return grace_of(run)
    return min(grace_of(run), max(drain.deadline_ms - now_ms, 0) // 1000)


def drains_on(state: ClusterState, attempt: Attempt) -> Iterator[tuple[str, Drain]]:
    """Yield the drained nodes that an attempt still holds."""
    for member in attempt.members:
        cordon = state.cordons.get(member.node)
        if not member.released and cordon is not None and cordon.drain is not None:
            yield member.node, cordon.drain


def leaving(state: ClusterState, run: Run, attempt: Attempt, now_ms: int) -> StopRequest | None:
    """Return the request to leave that an attempt gets now because one of its nodes is drained.

    Its cause is OPERATOR: the run keeps its place in the queue and its retries, and goes on elsewhere.
    """
    due = [(node, drain) for node, drain in drains_on(state, attempt) if leave_ms(drain, run) <= now_ms]
    if not due:
        return None
    node, drain = min(due, key=lambda each: (grace_left(each[1], run, now_ms), each[0]))
    until = f", to be empty by {moment(drain.deadline_ms)}" if drain.deadline_ms is not None else ""
    why = f": {drain.reason}" if drain.reason else ""
    return StopRequest(
        reason=StopReason.DRAIN,
        by=drain.by,
        at_ms=now_ms,
        grace_s=grace_left(drain, run, now_ms),
        message=f"node {node} is drained by {drain.by}{until}{why}",
    )


def shortened(state: ClusterState, attempt: Attempt, now_ms: int) -> StopRequest | None:
    """Return an attempt's stop with less grace, where the one it has would outlast a drain's deadline.

    Why it ends stays as it was.
    """
    stop = attempt.stop
    deadlines = [drain.deadline_ms for _, drain in drains_on(state, attempt) if drain.deadline_ms is not None]
    if stop is None or not deadlines:
        return None
    grace_s = max(min(deadlines) - now_ms, 0) // 1000
    if now_ms + grace_s * 1000 >= stop.at_ms + stop.grace_s * 1000:
        return None
    return replace(stop, at_ms=now_ms, grace_s=grace_s)


def ask_to_leave(draft: Draft, attempt: Attempt) -> None:
    """Order the stop that a drain demands of a live attempt at this moment, if it demands one."""
    state, now_ms = draft.state, draft.now_ms
    asked = attempt.stop is not None
    stop = shortened(state, attempt, now_ms) if asked else leaving(state, draft.run, attempt, now_ms)
    if stop is not None:
        draft.emit(StopOrdered(run_id=attempt.run_id, attempt=attempt.number, stop=stop))
        advance(draft)
