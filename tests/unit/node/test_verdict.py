"""What the runner concludes from how a member ended."""

from __future__ import annotations

from typing import Any

import pytest

from airyard.node.verdict import RUNNER, Ending, Evidence, StopRequest, fingerprint, judge

TRACEBACK = """Traceback (most recent call last):
  File "train.py", line {line}, in <module>
    main()
ValueError: loss is nan at step {step}
"""


def ended(code: int | None = None, **more: Any) -> Ending:
    return Ending(code=code, started=True, **more)


def stop(reason: str, *, killed: bool = False, by: str = "ann") -> StopRequest:
    return StopRequest(reason=reason, by=by, signal="SIGTERM", grace_s=5, deadline_ms=0, killed=killed)


def test_success_has_no_cause() -> None:
    verdict = judge(ended(0), Evidence(stderr_tail="a warning"))
    assert verdict.cause is None
    assert verdict.message == ""


@pytest.mark.parametrize(
    ("code", "tail", "cause", "words", "permanent"),
    [
        (1, TRACEBACK.format(line=3, step=10), "USER_CODE", "ValueError: loss is nan", False),
        (127, "/x/command.sh: line 1: pyhton: command not found\n", "USER_CODE", "pyhton", True),
        (126, "/x/command.sh: line 1: ./run: Permission denied\n", "USER_CODE", "Permission denied", True),
        (2, "/x/command.sh: line 2: syntax error near unexpected token `)'\n", "USER_CODE", "syntax", True),
        (2, "usage: train.py [-h]\ntrain.py: error: no such option\n", "USER_CODE", "no such option", False),
        (1, "OSError: [Errno 28] No space left on device\n", "USER_LIMIT", "disk", False),
        (137, "", "USER_CODE", "SIGKILL", False),
        (7, "", "USER_CODE", "exited with 7", False),
    ],
)
def test_failures_by_evidence(code: int, tail: str, cause: str, words: str, permanent: bool) -> None:
    verdict = judge(ended(code), Evidence(stderr_tail=tail))
    assert verdict.cause == cause
    assert words in verdict.message
    assert verdict.permanent is permanent
    assert "command.sh" not in verdict.message


def test_a_host_memory_kill_is_named() -> None:
    verdict = judge(ended(137), Evidence(oom_kills=2, memory_limit_bytes=2 << 30))
    assert (verdict.cause, verdict.out_of_memory) == ("USER_LIMIT", True)
    assert verdict.message.startswith("host memory: the kernel killed a process of this member at its limit")
    assert "2.0 GiB" in verdict.message


def test_a_machine_out_of_memory_counts_for_who_was_killed() -> None:
    starved = Evidence(machine_oom_kills=1)
    assert judge(ended(137), starved).out_of_memory
    assert judge(ended(None, signal=9), starved).message.startswith("host memory: the machine ran out")
    assert judge(ended(1), starved).cause == "USER_CODE"


def test_an_address_conflict_counts_only_on_our_port_and_soon() -> None:
    tail = "OSError: [Errno 98] Address already in use"
    ours = Evidence(stderr_tail=tail, port_taken=True)
    assert judge(ended(1, rendezvous_port=20001, duration_ms=900), ours).cause == "NETWORK"
    assert judge(ended(1, rendezvous_port=20001, duration_ms=60_001), ours).cause == "USER_CODE"
    theirs = Evidence(stderr_tail=tail)
    assert judge(ended(1, rendezvous_port=20001, duration_ms=900), theirs).cause == "USER_CODE"
    named = Evidence(stderr_tail="EADDRINUSE, port: 20001, address already in use")
    assert judge(ended(1, rendezvous_port=20001, duration_ms=900), named).cause == "NETWORK"


@pytest.mark.parametrize(
    ("reason", "cause"),
    [
        ("CANCELLED", "CANCELLED"),
        ("TIME_LIMIT", "USER_LIMIT"),
        ("PREEMPTED", "PREEMPTED"),
        ("DRAIN", "OPERATOR"),
        ("NOT_READY", "PLATFORM"),
        ("MEMBER_FAILED", "CANCELLED"),
        ("SOMETHING_NEW", "CANCELLED"),
    ],
)
def test_a_stop_gives_the_cause(reason: str, cause: str) -> None:
    assert judge(ended(None, signal=15, stop=stop(reason)), Evidence()).cause == cause
    assert judge(Ending(stop=stop(reason)), Evidence()).cause == cause


def test_a_clean_exit_after_a_stop_is_clean_but_not_after_the_time_limit() -> None:
    assert judge(ended(0, stop=stop("PREEMPTED")), Evidence()).cause is None
    late = judge(ended(0, stop=stop("TIME_LIMIT", by=RUNNER), attempt_timeout_s=60.0), Evidence())
    assert (late.cause, "60 s were allowed" in late.message) == ("USER_LIMIT", True)
    total = judge(ended(0, stop=stop("TIME_LIMIT", by="airyard"), attempt_timeout_s=60.0), Evidence())
    assert (total.cause, "60 s" in total.message) == ("USER_LIMIT", False)


def test_an_attempt_that_is_over_counts_before_all_but_a_command_that_ended_well() -> None:
    for how in ({"signal": 9}, {"code": 1}, {"signal": 9, "stop": stop("TIME_LIMIT", by=RUNNER)}):
        verdict = judge(ended(**how, attempt_over="the server forgot it"), Evidence())
        assert (verdict.cause, verdict.message) == ("PLATFORM", "the server forgot it")
    assert judge(ended(0, attempt_over="the server forgot it"), Evidence()).cause is None


def test_equal_crashes_have_equal_fingerprints() -> None:
    first = fingerprint(1, None, TRACEBACK.format(line=3, step=10))
    assert first == fingerprint(1, None, "noise\n" + TRACEBACK.format(line=99, step=7))
    assert first == fingerprint(1, None, "[rank0]: " + TRACEBACK.format(line=3, step=7).splitlines()[-1])
    assert first != fingerprint(2, None, TRACEBACK.format(line=3, step=10))
    assert first != fingerprint(1, None, "KeyError: 'loss'\n")
    assert len(first) == 16
