"""What the documents say of a run that had to leave for another."""

from __future__ import annotations

import pytest

from airyard.app.views import explanation, rfc3339, run_document
from airyard.core.run import Cause, RunState
from airyard.core.workload import Priority
from core_yard import Yard, node, workload


@pytest.fixture
def yard() -> Yard:
    """Run 1, that may be evicted by now, is asked to leave for run 2."""
    one = Yard(node("a"))
    one.submit(workload(priority=Priority.BEST_EFFORT))
    one.place()
    one.start("1.0.0")
    one.now_ms += 120_000
    one.submit(workload(priority=Priority.CRITICAL))
    one.place()
    return one


def test_a_victim_says_for_whom_it_leaves_and_by_what_right(yard: Yard) -> None:
    found = explanation(yard.run(1))
    assert found["message"].endswith("by scheduler: preempted for run 2 (CRITICAL)")
    stop = yard.attempt(1).stop
    assert stop is not None
    assert found["evicted"] == {
        "attempt": 0,
        "at": rfc3339(stop.at_ms),
        "for_run": 2,
        "rule": "priority",
        "text": "preempted for run 2 (CRITICAL)",
    }
    assert run_document(yard.run(1))["attempts"][0]["stop"]["rule"] == "priority"


def test_it_goes_on_saying_so_while_it_waits_and_no_longer_once_it_has_ended(yard: Yard) -> None:
    while_it_leaves = explanation(yard.run(1))["evicted"]
    yard.exit("1.0.0", Cause.PREEMPTED, stop_reason="PREEMPTED")
    assert yard.run(1).state is RunState.QUEUED
    assert explanation(yard.run(1))["evicted"] == while_it_leaves
    assert explanation(yard.run(2))["evicted"] is None
