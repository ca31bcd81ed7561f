"""Slurm's job states and what each means for a replay.

Owns: the table. Must not know: jobs. Source: sacct(1), JOB STATE CODES; squeue(1), JOB STATE CODES.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

from airyard.sim.trace.records import TraceOutcome
from airyard.sim.trace.refusal import Place, wrong_value


class Stage(Enum):
    """Whether a record is the end of its job."""

    ENDED = "ENDED"
    LIVE = "LIVE"
    CONTINUES = "CONTINUES"
    """This start ended; the job goes on in another record."""
    ELSEWHERE = "ELSEWHERE"
    """The job ran on another cluster of a federation."""


@dataclass(frozen=True, slots=True)
class State:
    """One state: its stage, and the outcome when it is the last one. ``known`` is False for a word not listed here."""

    stage: Stage
    outcome: TraceOutcome = TraceOutcome.UNKNOWN
    known: bool = True


_ENDED = {
    "COMPLETED": TraceOutcome.SUCCEEDED,
    "FAILED": TraceOutcome.FAILED,
    "CANCELLED": TraceOutcome.CANCELLED,
    "TIMEOUT": TraceOutcome.TIMED_OUT,
    "DEADLINE": TraceOutcome.TIMED_OUT,
    "NODE_FAIL": TraceOutcome.NODE_FAILED,
    "BOOT_FAIL": TraceOutcome.NODE_FAILED,
    "LAUNCH_FAILED": TraceOutcome.NODE_FAILED,
    "RECONFIG_FAIL": TraceOutcome.NODE_FAILED,
    "OUT_OF_MEMORY": TraceOutcome.OUT_OF_MEMORY,
    "PREEMPTED": TraceOutcome.PREEMPTED,
}
_LIVE = (
    "PENDING", "RUNNING", "SUSPENDED", "COMPLETING", "CONFIGURING", "STAGE_OUT", "SIGNALING", "STOPPED",
    "RESV_DEL_HOLD", "POWER_UP_NODE", "UPDATE_DB", "EXPEDITING",
)  # fmt: skip
_CONTINUES = ("REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESIZING")

STATES: dict[str, State] = {
    **{word: State(Stage.ENDED, outcome) for word, outcome in _ENDED.items()},
    **{word: State(Stage.LIVE) for word in _LIVE},
    **{word: State(Stage.CONTINUES) for word in _CONTINUES},
    "REVOKED": State(Stage.ELSEWHERE),
}
_NEW = State(Stage.ENDED, known=False)
_WORD = re.compile(r"([A-Z][A-Z_]+)\+?(?: by \S+)?")


def state(place: Place, text: str) -> State:
    """Return the state of ``COMPLETED``, ``CANCELLED by 1000`` and so on.

    A word of that kind that is not known here (a newer Slurm) is taken as an end of unknown outcome.
    Raises: UserError for what is no state at all.
    """
    match = _WORD.fullmatch(text)
    if match is None:
        raise wrong_value(place, text, "a job state like COMPLETED, FAILED or CANCELLED by 1000")
    return STATES.get(match.group(1), _NEW)
