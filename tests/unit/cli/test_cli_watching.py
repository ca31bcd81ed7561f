"""Following a run: text for people, JSON lines for machines, Ctrl-C."""

from __future__ import annotations

import json
from typing import Any

from client_fakes import failed_document, run_document

STREAM = "GET /runs/12/stream"


def events(*, nodes: int = 2, last: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    queued = run_document(
        state="QUEUED",
        status="QUEUED",
        outcome=None,
        nodes=nodes,
        pending={"reason": "NO_DEVICES", "message": "8 GPUs are busy", "not_before": None},
    )
    placed = [{"attempt": 0, "members": [{"member": 0, "node": "host-a"}, {"member": 1, "node": "host-b"}]}]
    preparing = {**queued, "status": "PREPARING", "state": "ACTIVE", "attempts": placed, "phases": []}
    running = {**preparing, "status": "RUNNING", "phases": run_document()["phases"]}
    common = {"attempt": 0, "stream": "stdout", "time_ns": 1}
    return [
        {"type": "STATUS", "cursor": "1", "run": queued},
        {"type": "STATUS", "cursor": "1", "run": queued},
        {"type": "STATUS", "cursor": "2", "run": preparing},
        {"type": "STATUS", "cursor": "3", "run": running},
        {"type": "LOG", "cursor": "4", "node": 0, "line": "hello", **common},
        {"type": "LOG", "cursor": "5", "node": 1, "line": "10%\r100%", **common},
        {"type": "LOG", "cursor": "6", "node": 0, "line": "lo", "partial": True, **common},
        {"type": "LOG", "cursor": "7", "node": 0, "line": "ng", **common},
        {"type": "GAP", "cursor": "8", "attempt": 0, "node": 1, "first_seq": 3, "last_seq": 9, "bytes": 2048,
         "reason": "spool full"},
        {"type": "FUTURE", "cursor": "9"},
        {"type": "TERMINAL", "cursor": "10", "run": last or run_document(nodes=nodes), "exit_code": 0},
    ]  # fmt: skip


def test_text(airyard: Any) -> None:
    answers = {"GET /runs/12": [{"run": run_document()}], STREAM: [events()]}
    code, out, err = airyard("watch", "12", answers=answers)
    assert code == 0
    assert out.splitlines() == ["[n0] hello", "[n1] 100%", "[n0] long"]
    assert err.splitlines() == [
        "run 12: queued: 8 GPUs are busy",
        "run 12: preparing on host-a, host-b",
        "run 12: queued 0.1 s · environment 2.3 s · code 0.1 s · started",
        "[n1] -- gap: records 3 to 9, 2.0 KiB are missing (spool full) --",
        "run 12 SUCCEEDED · 1 min",
    ]


def test_a_wait_until_a_fixed_time_is_told_once(airyard: Any) -> None:
    def waiting(left_s: int) -> dict[str, Any]:
        message = f"the next attempt waits {left_s} s after the last one failed"
        pending = {"reason": "BACKOFF", "message": message, "not_before": "2026-12-02T08:00:30.000Z"}
        run = run_document(state="QUEUED", status="QUEUED", outcome=None, pending=pending)
        return {"type": "STATUS", "cursor": str(30 - left_s), "run": run}

    found = [waiting(29), waiting(28), waiting(27), events()[-1]]
    _, _, err = airyard("watch", "12", answers={"GET /runs/12": [{"run": run_document()}], STREAM: [found]})
    told = [line for line in err.splitlines() if "next attempt" in line]
    assert len(told) == 1
    assert "waits 29 s" in told[0]


def test_a_hole_without_an_end(airyard: Any) -> None:
    hole = {"cursor": "1", "attempt": 0, "node": 1, "first_seq": 3, "last_seq": None, "bytes": None}
    found = [{"type": "GAP", **hole, "reason": "machine h2 was lost"}, events()[-1]]
    _, _, err = airyard("watch", "12", answers={"GET /runs/12": [{"run": run_document()}], STREAM: [found]})
    assert err.splitlines()[0] == "[n1] -- gap: the end of the log is missing (machine h2 was lost) --"


def test_the_nodes_are_named_once_and_then_what_goes_on(airyard: Any) -> None:
    placed = [{"attempt": 0, "members": [{"member": 0, "node": "host-a"}]}]
    common = {"state": "ACTIVE", "outcome": None, "status": "PREPARING", "attempts": placed}
    queued, environment = run_document()["phases"][:2]
    phases = [[queued], [queued], [queued, {**environment, "duration_ms": None}], [queued, environment]]
    found = [
        {"type": "STATUS", "cursor": "1", "run": run_document(nodes=1, phases=each, **common)}
        for each in phases
    ]
    answers = {"GET /runs/12": [{"run": run_document()}], STREAM: [[*found, events(nodes=1)[-1]]]}
    _, _, err = airyard("watch", "12", answers=answers)
    assert err.splitlines() == [
        "run 12: preparing on host-a",
        "run 12: queued 0.1 s · environment …",
        "run 12 SUCCEEDED · 1 min",
    ]


def test_what_the_log_has_shown_of_an_installer_is_not_said_again(airyard: Any) -> None:
    message = "The environment cannot be built from its dependencies:\n  No solution: psutil==999"
    failure = {
        "cause": "ENVIRONMENT",
        "member": 0,
        "node": "host-a",
        "message": message,
        "next_step": "mend it",
    }
    run = run_document(nodes=1, status="FAILED", outcome="FAILED", failure=failure)
    retry = {"type": "RETRY", "cursor": "0", "attempt": 0, "cause": "ENVIRONMENT", "message": message}
    end = {"type": "TERMINAL", "cursor": "1", "run": run, "exit_code": 9}
    answers = {"GET /runs/12": [{"run": run}], STREAM: [[retry, end]]}
    _, _, err = airyard("watch", "12", answers=answers)
    short = "The environment cannot be built from its dependencies"
    assert err.splitlines() == [
        f"retry: attempt 0 ended (ENVIRONMENT): {short}",
        f"run 12 FAILED · 1 min: ENVIRONMENT on node 0 (host-a): {short}",
        "next: mend it",
    ]
    _, _, err = airyard("watch", "12", "--no-logs", answers=answers)
    assert "psutil==999" in err.splitlines()[-2]


def test_one_node_needs_no_prefix(airyard: Any) -> None:
    run = run_document(nodes=1, simulated=True)
    answers = {"GET /runs/12": [{"run": run}], STREAM: [events(nodes=1, last=run)]}
    _, out, err = airyard("watch", "12", answers=answers)
    assert out.splitlines()[0] == "hello"
    assert "run 12 SUCCEEDED (simulated) · 1 min" in err


def test_a_failure_names_node_cause_and_next_step(airyard: Any) -> None:
    retry = {"type": "RETRY", "cursor": "0", "attempt": 0, "cause": "NODE", "message": "the node went away.",
             "next_attempt_at": None}  # fmt: skip
    answers = {
        "GET /runs/12": [{"run": failed_document()}],
        STREAM: [[retry, *events(last=failed_document())]],
    }
    code, _, err = airyard("watch", "12", answers=answers)
    assert code == 1
    assert err.splitlines()[0] == "retry: attempt 0 ended (NODE): the node went away"
    assert err.splitlines()[-2:] == [
        "run 12 FAILED · 1 min: USER_CODE on node 1 (host-b): the command ended with exit code 7",
        "next: airyard logs 12 --node 1 --tail 50",
    ]
    assert airyard("watch", "12", "--propagate", answers=answers)[0] == 7


def test_json_lines(airyard: Any) -> None:
    answers = {
        "GET /runs/12": [{"run": run_document()}],
        "GET /runs/12/metrics": [{"metrics": {"loss": {"value": 0.5, "step": 3, "time_ms": 1}}}],
        STREAM: [events()],
    }
    code, out, err = airyard("watch", "12", "-o", "json", answers=answers)
    lines = [json.loads(line) for line in out.splitlines()]
    assert (code, err) == (0, "")
    assert {line["v"] for line in lines} == {1}
    assert [line["type"] for line in lines][-2:] == ["METRIC", "TERMINAL"]
    statuses = [line["data"]["status"] for line in lines if line["type"] == "STATUS"]
    assert statuses == ["QUEUED", "QUEUED", "PREPARING", "RUNNING"]
    log = next(line for line in lines if line["type"] == "LOG")
    assert (log["data"]["line"], log["data"]["node"], log["data"]["cursor"]) == ("hello", 0, "4")
    assert lines[-2]["data"] == {"key": "loss", "value": 0.5, "step": 3, "time_ms": 1}


def test_ctrl_c_leaves_the_run_alive_and_says_how_to_come_back(airyard: Any) -> None:
    answers = {"GET /runs/12": [{"run": run_document()}], STREAM: [[*events()[:5], KeyboardInterrupt()]]}
    code, out, err = airyard("watch", "12", answers=answers)
    assert (code, out) == (130, "[n0] hello\n")
    assert "`airyard watch 12`" in err.splitlines()[-1]
