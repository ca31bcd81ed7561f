"""Since when a run waits this time: its place is that of its submit, over all attempts."""

from __future__ import annotations

from airyard.core import commands as c
from airyard.core.run import Cause
from airyard.core.scheduling.snapshot import waiting_of
from airyard.core.workload import Priority
from core_yard import Yard, node, workload


def test_since_it_was_evicted() -> None:
    yard = Yard(node("a"))
    yard.submit(workload(priority=Priority.BEST_EFFORT))
    submitted_ms = yard.now_ms
    yard.place()
    yard.start("1.0.0")
    yard.later(120).submit(workload(priority=Priority.CRITICAL))
    yard.place()
    yard.later(5).exit("1.0.0", Cause.PREEMPTED, stop_reason="PREEMPTED")
    want = waiting_of(yard.run(1))
    assert (want.queued_ms, want.since_ms) == (submitted_ms, submitted_ms + 125_000)
    assert (want.left_for, want.left_by) == (2, "priority")


def test_since_it_may_begin() -> None:
    yard = Yard(node("a"))
    yard.submit(workload())
    begin_ms = yard.now_ms + 3_600_000
    yard.do(c.UpdateRun(run_id=1, by="ada", begin_ms=begin_ms))
    assert waiting_of(yard.run(1)).since_ms == begin_ms


def test_since_it_may_be_tried_again() -> None:
    yard = Yard(node("a"))
    yard.submit(workload())
    for attempt in range(2):
        yard.place()
        yard.start(f"1.{attempt}.0")
        yard.gone(f"1.{attempt}.0")
        yard.now_ms = max(yard.now_ms, yard.run(1).not_before_ms)
    want = waiting_of(yard.run(1))
    assert want.since_ms == want.not_before_ms > want.queued_ms
