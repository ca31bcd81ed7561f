"""How the ends of members add up to the end of a gang, row by row."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airyard.core.decide.judge import NEXT_STEP, STALLED_STEP, first_failure, judge, next_step
from airyard.core.run import (
    Attempt,
    AttemptState,
    Cause,
    Exit,
    Member,
    MemberPhase,
    Outcome,
    StopReason,
    StopRequest,
    Tracking,
    TrackingState,
)
from core_yard import ended

WELL = ended()
CRASH = ended(Cause.USER_CODE, at_ms=50, code=7, fingerprint="f7")
LATER_CRASH = ended(Cause.USER_CODE, at_ms=90, code=9)
STOPPED = ended(Cause.CANCELLED, stop_reason="CANCELLED", code=None, signal=15)
SIBLING = ended(Cause.CANCELLED, stop_reason="MEMBER_FAILED", at_ms=10)
PREEMPTED = ended(Cause.PREEMPTED, stop_reason="PREEMPTED")
CLEAN_PREEMPTED = ended(None, stop_reason="PREEMPTED")
TIMED = ended(Cause.USER_LIMIT, stop_reason="TIME_LIMIT", at_ms=60)
LOST = ended(Cause.NODE, code=None, at_ms=70)


def gang(*exits: Exit, stop: StopReason | None = None, lost: tuple[int, ...] = ()) -> Attempt:
    members = tuple(
        Member(
            index=index,
            node=f"n{index}",
            machine=f"n{index}",
            devices=(0,),
            phase=MemberPhase.LOST if index in lost else MemberPhase.EXITED,
            exit=one,
        )
        for index, one in enumerate(exits)
    )
    return Attempt(
        run_id=1,
        number=0,
        epoch=1,
        cookie="c",
        state=AttemptState.STOPPING if stop else AttemptState.RUNNING,
        members=members,
        port=20_000,
        orders=(),
        tracking=Tracking(state=TrackingState.OFF),
        placed_ms=0,
        stop=StopRequest(reason=stop, by="ada", at_ms=40, grace_s=1) if stop else None,
    )


STALLED = ended(Cause.PLATFORM, stop_reason="STALLED")
ROWS: list[tuple[str, Attempt, Outcome, Cause | None, int | None]] = [
    ("all well", gang(WELL, WELL), Outcome.SUCCEEDED, None, None),
    ("all well before a cancel", gang(WELL, WELL, stop=StopReason.CANCELLED), Outcome.SUCCEEDED, None, None),
    ("one crashed", gang(WELL, CRASH), Outcome.FAILED, Cause.USER_CODE, 1),
    ("the first crash counts", gang(LATER_CRASH, CRASH), Outcome.FAILED, Cause.USER_CODE, 1),
    ("siblings told to stop", gang(SIBLING, CRASH, stop=StopReason.MEMBER_FAILED), Outcome.FAILED, Cause.USER_CODE, 1),
    ("cancelled", gang(STOPPED, STOPPED, stop=StopReason.CANCELLED), Outcome.CANCELLED, Cause.CANCELLED, None),
    ("cancelled, one well", gang(WELL, STOPPED, stop=StopReason.CANCELLED), Outcome.CANCELLED, Cause.CANCELLED, None),
    ("cancel beats a crash", gang(CRASH, STOPPED, stop=StopReason.CANCELLED), Outcome.CANCELLED, Cause.CANCELLED, None),
    ("preempted", gang(PREEMPTED, PREEMPTED, stop=StopReason.PREEMPTED), Outcome.PREEMPTED, Cause.PREEMPTED, None),
    ("exit 0 at the stop is no success", gang(CLEAN_PREEMPTED, stop=StopReason.PREEMPTED), Outcome.PREEMPTED,
     Cause.PREEMPTED, None),
    ("a crash before the stop reached it", gang(CRASH, PREEMPTED, stop=StopReason.PREEMPTED), Outcome.FAILED,
     Cause.USER_CODE, 0),
    ("killed because deaf", gang(LOST, PREEMPTED, stop=StopReason.PREEMPTED, lost=(0,)), Outcome.PREEMPTED,
     Cause.PREEMPTED, None),
    ("drained", gang(ended(Cause.OPERATOR, stop_reason="DRAIN"), stop=StopReason.DRAIN), Outcome.PREEMPTED,
     Cause.OPERATOR, None),
    ("attempt time limit", gang(TIMED, SIBLING, stop=StopReason.MEMBER_FAILED), Outcome.TIMED_OUT,
     Cause.USER_LIMIT, 0),
    ("total time limit", gang(TIMED, TIMED, stop=StopReason.TIME_LIMIT), Outcome.TIMED_OUT, Cause.USER_LIMIT, 0),
    ("never ready", gang(ended(Cause.PLATFORM, stop_reason="NOT_READY"), stop=StopReason.NOT_READY), Outcome.FAILED,
     Cause.PLATFORM, None),
    ("hanging", gang(STALLED, STALLED, stop=StopReason.STALLED), Outcome.FAILED, Cause.USER_CODE, None),
    ("a crash while it hung", gang(CRASH, STALLED, stop=StopReason.STALLED), Outcome.FAILED, Cause.USER_CODE, 0),
    ("lost with its node", gang(WELL, LOST, lost=(1,)), Outcome.LOST, Cause.NODE, 1),
    ("lost first, sibling stopped", gang(SIBLING, LOST, stop=StopReason.MEMBER_FAILED, lost=(1,)), Outcome.LOST,
     Cause.NODE, 1),
]  # fmt: skip


@pytest.mark.parametrize(
    ("attempt", "outcome", "cause", "member"), [row[1:] for row in ROWS], ids=[r[0] for r in ROWS]
)
def test_verdict(attempt: Attempt, outcome: Outcome, cause: Cause | None, member: int | None) -> None:
    found = judge(attempt)
    assert found[:2] == (outcome, cause)
    failure = found[2]
    if outcome is Outcome.SUCCEEDED:
        assert failure is None
    else:
        assert failure is not None
        assert failure.member == member
        assert failure.cause is cause
        assert failure.message
        hung = attempt.stop is not None and attempt.stop.reason is StopReason.STALLED and member is None
        assert failure.next_step == (STALLED_STEP if hung else NEXT_STEP[failure.cause])


def test_the_failure_names_node_code_and_fingerprint() -> None:
    failure = judge(gang(WELL, CRASH))[2]
    assert failure is not None
    assert (failure.node, failure.exit_code, failure.fingerprint) == ("n1", 7, "f7")


def test_nobody_failed_among_members_that_were_told_to_stop() -> None:
    assert first_failure(gang(STOPPED, PREEMPTED, stop=StopReason.CANCELLED)) is None


def test_every_cause_has_a_next_step() -> None:
    assert set(NEXT_STEP) == set(Cause)


def test_ties_go_to_the_lower_member() -> None:
    same: dict[str, Any] = {"at_ms": 5}
    failed = first_failure(gang(ended(Cause.DATA, **same), ended(Cause.USER_CODE, **same)))
    assert failed is not None
    assert failed.index == 0


def test_a_known_message_has_a_next_step_of_its_own() -> None:
    said = (
        "the command exited with 1: mlflow.exceptions.MlflowException: Cannot start run with ID 0a1b because active "
        "experiment ID does not match environment run ID. Make sure --experiment-name"
    )
    assert next_step(Cause.USER_CODE, said).startswith("drop `mlflow.set_experiment`")
    assert next_step(Cause.USER_CODE, "the command exited with 1") == NEXT_STEP[Cause.USER_CODE]
    _, _, failure = judge(gang(replace(CRASH, message=said)))
    assert failure is not None
    assert "MLFLOW_RUN_ID" in failure.next_step
