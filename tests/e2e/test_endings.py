"""Every way a run can end, through the real command line: the cause, the exit code, the complete log."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from airyard.sdk import submission
from airyard.sdk.client import Client
from e2e.yard import Yard, wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]


def member_log(yard: Yard, run_id: int, folder: Path, node: int = 0) -> bytes:
    """Download a run's log and return one node's."""
    yard.ok("logs", str(run_id), "--download-to", str(folder))
    found = sorted(folder.rglob(f"node_{node}.log"))
    assert found, list(folder.rglob("*"))
    return found[-1].read_bytes()


def test_hello_is_watched_to_its_end(yard: Yard) -> None:
    path = yard.home / "hello.yaml"
    path.write_text(
        "experiment_name: hello\ncompute: {accelerator_type: CPU}\n"
        "command: 'echo hello from $NODE_RANK; echo err >&2'\n"
    )
    done = yard.call("run", str(path), "--watch")
    assert done.returncode == 0, done.stderr
    assert "hello from 0" in done.stdout
    assert "err" in done.stdout
    assert "SUCCEEDED" in done.stderr


def test_exit_code_of_user_code_is_one_and_is_passed_on_when_asked(yard: Yard) -> None:
    path = yard.home / "seven.yaml"
    path.write_text(
        "experiment_name: seven\ncompute: {accelerator_type: CPU}\ncommand: 'echo last words; exit 7'\nmax_retries: 0\n"
    )
    done = yard.call("run", str(path), "--watch")
    assert done.returncode == 1
    assert "last words" in done.stdout
    assert "exited with 7" in done.stderr
    done = yard.call("run", str(path), "--watch", "--propagate")
    assert done.returncode == 7


def test_a_crash_by_signal_is_named(yard: Yard) -> None:
    run = yard.ended(yard.submit("kill -SEGV $$"))
    assert run["outcome"] == "FAILED"
    assert run["cause"] == "USER_CODE"
    assert "SIGSEGV" in run["failure"]["message"]


def test_a_command_that_is_not_there_is_not_tried_again(yard: Yard) -> None:
    run = yard.ended(yard.submit("no-such-program --flag", max_retries=3))
    assert run["outcome"] == "FAILED"
    assert len(run["attempts"]) == 1
    assert "no-such-program" in run["failure"]["message"]


def test_a_crash_loop_stops(yard: Yard) -> None:
    run = yard.ended(yard.submit("echo boom >&2; exit 3", max_retries=3), timeout=90)
    assert len(run["attempts"]) == 2
    assert "crash loop" in run["failure"]["message"]


def test_one_of_four_members_failing_ends_all_and_is_named(yard: Yard, tmp_path: Path) -> None:
    command = "echo node $NODE_RANK; if [ $NODE_RANK = 2 ]; then sleep 0.5; exit 5; fi; sleep 300"
    run = yard.ended(yard.submit(command, accelerator="GPU_1xA10", nodes=4))
    assert run["outcome"] == "FAILED"
    assert run["failure"]["member"] == 2
    assert run["failure"]["exit_code"] == 5
    for node in range(4):
        assert f"node {node}".encode() in member_log(yard, run["run_id"], tmp_path / str(node), node)


def test_cancel_ends_the_run_and_keeps_its_log(yard: Yard, tmp_path: Path) -> None:
    run_id = yard.submit("trap 'echo caught; exit 3' TERM; echo started; while :; do sleep 0.1; done")
    yard.until(run_id, lambda run: run["status"] == "RUNNING")
    wait_for(lambda: "started" in yard.ok("logs", str(run_id), "--no-follow"), what="the first line")
    yard.ok("cancel", str(run_id))
    run = yard.ended(run_id)
    assert (run["outcome"], run["cause"], run["exit_code"]) == ("CANCELLED", "CANCELLED", 6)
    assert run["logs_complete"] is True
    assert b"caught" in member_log(yard, run_id, tmp_path)
    assert yard.data("cancel", str(run_id)) is not None


def test_a_run_past_its_time_limit_is_timed_out(yard: Yard) -> None:
    # Whole minutes in a file; the API counts in seconds.
    loaded = submission.prepare(yard.file("echo begun; sleep 300", preemption={"grace_seconds": 1}))
    with Client(home=yard.home) as client:
        run_id = client.submit({**loaded.workload, "attempt_timeout_s": 1})["run"]["run_id"]
    done = yard.call("watch", str(run_id))
    assert done.returncode == 124, (done.stdout, done.stderr)
    assert "begun" in done.stdout
    assert "time limit" in done.stderr


def test_a_run_past_its_total_time_ends_at_its_deadline(yard: Yard) -> None:
    limits = {"timeouts": {"total": "1s"}, "preemption": {"grace_seconds": 1}}
    done = yard.call("run", yard.file("echo begun; sleep 300", **limits), "--watch")
    assert done.returncode == 8, (done.stdout, done.stderr)
    assert "begun" in done.stdout
    assert "timeouts" in done.stderr


def test_nothing_survives_a_run(yard: Yard) -> None:
    mark = f"survivor-{time.monotonic_ns()}"
    run = yard.ended(
        yard.submit(
            f"(setsid bash -c 'exec -a {mark} sleep 600' &) ; (env -i setsid sleep 601 &) ; sleep 0.5; echo done"
        )
    )
    assert run["outcome"] == "SUCCEEDED"
    listing = [
        Path(f"/proc/{pid}/cmdline").read_bytes()
        for pid in os.listdir("/proc")
        if pid.isdigit() and Path(f"/proc/{pid}/cmdline").exists()
    ]
    assert not [line for line in listing if mark.encode() in line]


def test_a_killed_runner_is_a_platform_fault_and_is_tried_again(yard: Yard) -> None:
    run_id = yard.submit("echo attempt $AIRYARD_ATTEMPT; [ $AIRYARD_ATTEMPT = 0 ] || exit 0; sleep 300")
    yard.until(run_id, lambda run: run["status"] == "RUNNING")
    folder = yard.home / "node" / "attempts" / f"{run_id}.0.0"
    pid = int(json.loads((folder / "runner.json").read_text())["pid"])
    os.kill(pid, signal.SIGKILL)
    run = yard.ended(run_id, timeout=90)
    assert run["outcome"] == "SUCCEEDED"
    assert run["attempts"][0]["cause"] == "PLATFORM"
