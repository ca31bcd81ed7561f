"""What a run's own record adds to a verdict on logs that say nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airyard.core.run import Attempt, Cause, StallNote, StopReason
from airyard.core.triage.beyond_logs import with_run
from airyard.core.triage.causes import Action, FailureCause, FailureClass
from airyard.core.triage.judging import judge
from airyard.core.triage.reading import Findings, Reader
from core_samples import ATTEMPT, EXIT, MEMBER, STALL, STOP

GOES_ON = replace(STALL, over_ms=0, evidence=("rank 3 on n1: step 90\ntrain (a.py:3)", "rank 4 on n2"))
NOTHING = judge(Findings())


def attempt(
    stall: StallNote | None = None, reason: StopReason | None = None, cause: Cause | None = Cause.USER_CODE
) -> Attempt:
    exit_ = replace(EXIT, cause=cause, stop_reason="", message="no space left on /data: 0 B free\nmore")
    return replace(
        ATTEMPT,
        members=(replace(MEMBER, exit=exit_),),
        stall=stall,
        stop=replace(STOP, reason=reason) if reason is not None else None,
    )


def of_logs(text: str) -> FailureCause:
    reader = Reader("train.log")
    reader.feed(text.encode())
    return judge(reader.findings())


def test_an_attempt_that_was_ended_for_its_hang_failed_by_it() -> None:
    found = with_run(NOTHING, attempt(GOES_ON, StopReason.STALLED))
    assert (found.failure_class, found.cause, found.rule) == (
        FailureClass.USER,
        Cause.USER_CODE,
        "hang.behind",
    )
    assert (found.first_rank, found.confidence, found.blamed_node) == (3, 0.8, "")
    assert found.message == GOES_ON.message
    assert "stall.evidence" in found.next_step
    assert [(line.rank, line.file) for line in found.evidence] == [(3, "stall"), (None, "stall")]
    assert found.cascade == ()


def test_a_lost_gpu_is_hardware_and_a_suspect_at_most() -> None:
    found = with_run(NOTHING, attempt(replace(GOES_ON, case="GPU_LOST"), StopReason.STALLED))
    assert (found.failure_class, found.cause, found.action) == (
        FailureClass.HARDWARE,
        Cause.DEVICE,
        Action.RETRY_ELSEWHERE,
    )
    assert (found.blamed_node, found.confirmed) == ("n1", False)


def test_a_collective_that_timed_out_while_it_stood_still_has_a_first_rank_and_blames_nobody() -> None:
    timed_out = of_logs(
        "[rank0]: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5, OpType=ALLREDUCE)\n"
    )
    assert timed_out.rule == "collective.timeout"
    found = with_run(timed_out, attempt(GOES_ON))
    assert (found.failure_class, found.cause, found.rule) == (
        FailureClass.UNKNOWN,
        Cause.PLATFORM,
        "collective.timeout",
    )
    assert (found.first_rank, found.blamed_node) == (3, "")


@pytest.mark.parametrize(
    ("cause", "failure_class", "action"),
    [
        (Cause.STORAGE, FailureClass.CONFIG, Action.FIX_CONFIG),
        (Cause.ENVIRONMENT, FailureClass.CONFIG, Action.FIX_CONFIG),
        (Cause.USER_LIMIT, FailureClass.USER, Action.FIX_CODE),
        (Cause.DATA, FailureClass.USER, Action.FIX_CODE),
    ],
)
def test_what_a_runner_found_out_is_the_verdict_where_logs_say_nothing(
    cause: Cause, failure_class: FailureClass, action: Action
) -> None:
    found = with_run(NOTHING, attempt(cause=cause))
    assert (found.failure_class, found.cause, found.action) == (failure_class, cause, action)
    assert (found.message, found.rule) == ("no space left on /data: 0 B free", f"run.{cause.value.lower()}")
    assert found.next_step not in ("", "nothing")
    assert found.evidence[0].text.startswith("no space left")


@pytest.mark.parametrize("cause", [Cause.USER_CODE, Cause.NODE, Cause.DEVICE, Cause.PLATFORM, None])
def test_an_exit_status_alone_says_nothing_more(cause: Cause | None) -> None:
    assert with_run(NOTHING, attempt(cause=cause)) == NOTHING


def test_what_the_logs_say_goes_first() -> None:
    said = of_logs("KeyError: 'labels'\n")
    assert with_run(said, attempt(GOES_ON, StopReason.STALLED)) == said


def test_a_stall_that_is_over_is_no_failure() -> None:
    assert with_run(NOTHING, attempt(STALL)) == NOTHING


ROOT_CAUSE = """\
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
Root Cause (first observed failure):
[0]:
  time      : 2026-12-01_10:00:00
  host      : n3
  rank      : 10 (local_rank: 2)
  exitcode  : {code} (pid: 456)
"""


@pytest.mark.parametrize(
    ("code", "rule"), [("1", "effects.only"), ("-11", "process.crashed"), ("-9", "process.killed")]
)
def test_the_launcher_says_who_failed_first(code: str, rule: str) -> None:
    found = of_logs(ROOT_CAUSE.format(code=code))
    assert (found.first_rank, found.rule, found.blamed_node) == (10, rule, "")


def test_of_several_launchers_the_earliest_says_who_failed_first() -> None:
    def of_node(rank: int, second: int) -> str:
        said = ROOT_CAUSE.format(code="1").replace("rank      : 10", f"rank      : {rank}")
        return said.replace("10:00:00", f"10:00:{second:02}")

    findings = Findings()
    for text in (of_node(2, 31), of_node(10, 0), of_node(18, 31)):
        reader = Reader("train.log")
        reader.feed(text.encode())
        findings.merge(reader.findings())
    assert judge(findings).first_rank == 10
    assert of_logs(of_node(2, 31) + of_node(18, 31)).first_rank is None, "the same second says nothing"


def test_a_rank_of_another_failure_is_not_the_first() -> None:
    others = "Failures:\n[1]:\n  host      : n1\n  rank      : 4 (local_rank: 0)\n  exitcode  : 1\n"
    assert of_logs(others + ROOT_CAUSE.format(code="1")).first_rank == 10
    assert of_logs(others).first_rank is None
    assert of_logs("Root Cause (first observed failure):\n" + "line\n" * 9 + others).first_rank is None


def test_its_own_line_says_of_which_rank_an_error_is() -> None:
    assert of_logs("[rank2]: KeyError: 'x'\n" + ROOT_CAUSE.format(code="1")).first_rank == 2
