"""A run in words."""

from __future__ import annotations

from datetime import UTC

from airyard.cli import run_text
from client_fakes import run_document


def test_the_page_of_a_run() -> None:
    git = {"base_commit": "f" * 40, "dirty": True}
    run = run_document(
        tags={"team": "vision"},
        simulated=True,
        code={"tree_hash": "0123456789abcdef", "directory_name": "app", "git": git},
        tracking={"state": "READY", "url": "http://127.0.0.1:1/mlflow/#/experiments/1/runs/2"},
        attempts=[],
    )
    assert run_text.page(run, colour=False, zone=UTC).splitlines() == [
        "Run 12  digits  SUCCEEDED (simulated)",
        "",
        "experiment  digits",
        "owner       ada",
        "compute     2 × GPU_1xA10, NORMAL",
        "tags        team=vision",
        "submitted   2026-01-31 12:00:00 +00:00",
        "started     2026-01-31 12:00:03 +00:00",
        "ended       2026-01-31 12:01:03 +00:00",
        "duration    1 min",
        "phases      queued 12:00:00 (0.1 s) · environment 12:00:00 (2.3 s) · code 12:00:02 (0.1 s) · "
        "running 12:00:03 (1 min)",
        "retries     0 of 3",
        "code        0123456789ab · app · ffffffffffff (dirty)",
        "tracking    http://127.0.0.1:1/mlflow/#/experiments/1/runs/2",
        "logs        complete",
    ]


def test_a_waiting_run_says_why_and_since_when_it_may_start() -> None:
    pending = {"reason": "BACKOFF", "message": "waits after a failure", "not_before": "2026-01-31T12:05:00Z"}
    run = run_document(state="QUEUED", status="QUEUED", outcome=None, pending=pending)
    assert run_text.status_line(run, zone=UTC) == "queued: waits after a failure (not before 12:05:00)"


def test_a_stop_names_reason_and_who_asked() -> None:
    attempts = [
        {"attempt": 0, "stop": {"reason": "TIME_LIMIT", "by": "airyard", "at": "2026-01-31T12:00:00Z"}}
    ]
    run = run_document(state="ACTIVE", status="STOPPING", outcome=None, attempts=attempts)
    assert run_text.status_line(run) == "stopping: time limit by airyard"


def test_a_victim_names_the_run_for_which_it_leaves_or_left() -> None:
    stop = {
        "reason": "PREEMPTED",
        "by": "scheduler",
        "at": "2026-01-31T12:00:00Z",
        "message": "preempted for run 9 (CRITICAL)",
        "for_run": 9,
    }
    attempts = [{"attempt": 0, "stop": stop}]
    run = run_document(state="ACTIVE", status="STOPPING", outcome=None, attempts=attempts)
    assert run_text.status_line(run) == "stopping: preempted for run 9 (CRITICAL)"
    waits = {**run, "attempts": [*attempts, {"attempt": 1}]}
    lines = run_text.page(waits, colour=False, zone=UTC).splitlines()
    assert "evicted     attempt 0 at 12:00:00: preempted for run 9 (CRITICAL)" in lines


def test_a_signal_is_named_where_there_is_no_message() -> None:
    failure = {"cause": "USER_CODE", "member": 0, "node": None, "signal": 11, "message": ""}
    assert run_text.failure_text(failure) == "USER_CODE on node 0: ended by signal 11"
