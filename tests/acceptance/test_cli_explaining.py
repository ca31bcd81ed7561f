"""Why runs wait, when they start and what would help, by the command line on a real server."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from acceptance_yard import Yard

pytestmark = pytest.mark.e2e
BOTH = "both-nodes"
WAITS = "waits-for-both"


def data(done: subprocess.CompletedProcess[str]) -> Any:
    """Return the data of an envelope."""
    return json.loads(done.stdout)["data"]


@pytest.fixture(scope="module")
def waiting(yard: Yard) -> Iterator[Yard]:
    """One run holds both simulated nodes for up to an hour, another waits for both, a third one for one."""
    limit = "timeout_minutes: 60\n"
    both = yard.write("holds", "sleep 300", accelerator="GPU_1xA10", count=2, more=limit)
    yard.run("run", both, "--name", BOTH)
    yard.run("run", both, "--name", WAITS)
    yard.run("run", yard.write("one", "true", accelerator="GPU_1xA10", more=limit), "--name", "one")
    # An explanation brings the planner up to date; the plan may take a moment more.
    for name in (WAITS, "one"):
        while data(yard.run("explain", name, "-o", "json"))["reason"] == "NOT_YET":
            pass
    yield yard
    yard.run("cancel", "one", WAITS, BOTH)
    yard.run("wait", "one", WAITS, BOTH)


def test_explain_says_when_and_what_would_help(waiting: Yard) -> None:
    found = data(waiting.run("explain", WAITS, "-o", "json"))
    holder = data(waiting.run("get", BOTH, "-o", "json"))["run_id"]
    assert (found["reason"], found["position"], found["waiting"]) == ("NO_FREE_NODES", 1, 2)
    assert found["eta"]["p50"] > holder_placed(waiting)
    assert {"RUNS_END"} <= {one["change"] for one in found["counterfactuals"]}
    lines = waiting.run("explain", WAITS).stdout.splitlines()
    assert lines[0].startswith(
        f"Run {found['run_id']} is waiting (NO_FREE_NODES): it asks 2 nodes of GPU_1xA10; "
    )
    assert any(line.startswith("expected     about ") for line in lines)
    assert any(f"when run {holder} ends, about " in line for line in lines)


def holder_placed(yard: Yard) -> str:
    placed: str = data(yard.run("get", BOTH, "-o", "json"))["attempts"][0]["placed_at"]
    return placed


def test_explain_says_who_may_evict_a_running_one(waiting: Yard) -> None:
    found = data(waiting.run("explain", BOTH, "-o", "json"))
    assert found["preemption"]["classes"] == ["CRITICAL"]
    text = waiting.run("explain", BOTH).stdout
    assert "may evict it  CRITICAL runs, from " in text
    assert "of device time since it started; this attempt has saved no checkpoint" in text


def test_queue_and_list_show_expected_starts(waiting: Yard) -> None:
    head, first, second = waiting.run("queue").stdout.splitlines()
    assert head.split()[-3:] == ["STARTS", "WAITS", "FOR"]
    assert [first.split()[2], second.split()[2]] == [WAITS, "one"]
    assert " about " in first
    found = data(waiting.run("queue", "-o", "json", "-n", "1"))
    assert (len(found["runs"]), found["waiting"], found["next_offset"]) == (1, 2, 1)
    listed = waiting.run("list", "--state", "queued").stdout.splitlines()
    assert listed[0].endswith("WAITS FOR")
    assert all(" NO_FREE_NODES, about " in line for line in listed[1:])


def test_a_watch_says_when_a_queued_run_is_expected_to_start(waiting: Yard) -> None:
    watch = waiting.spawn("watch", WAITS)
    assert watch.stderr is not None
    lines = iter(watch.stderr.readline, "")
    assert any("queued: it asks 2 nodes" in line and "(expected about " in line for line in lines)
    watch.send_signal(signal.SIGINT)
    watch.communicate(timeout=30)
    assert watch.returncode == 130


def test_a_watched_queue_ends_with_ctrl_c(waiting: Yard) -> None:
    watch = waiting.spawn("queue", "--watch", "-o", "json")
    assert watch.stdout is not None
    first = json.loads(watch.stdout.readline())
    assert (first["type"], first["data"]["waiting"]) == ("QUEUE", 2)
    watch.send_signal(signal.SIGINT)
    _, err = watch.communicate(timeout=30)
    assert (watch.returncode, err) == (130, "")


def test_a_dry_run_says_when_it_would_start(waiting: Yard) -> None:
    done = waiting.run("run", "holds.yaml", "--dry-run", "-o", "json")
    found = data(done)["dry_run"]
    assert (found["would_start_now"], found["position"]) == (False, 3)
    assert found["eta"]["p50"] <= found["eta"]["p90"]
    lines = waiting.run("run", "holds.yaml", "--dry-run").stdout.splitlines()
    assert any(line.startswith("expected ") and " about " in line for line in lines)
