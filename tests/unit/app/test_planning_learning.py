"""What the planning side expects of runs once it has learnt a whole history."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airyard.app.forecasting import LOOKED_AT
from airyard.app.planning import TOLD_AT_ONCE, Planning
from airyard.core.run import Attempt, AttemptState, Outcome, Run, RunState, Tracking, TrackingState
from airyard.core.scheduling.snapshot import Delta
from core_yard import Yard, node, workload


def _ran(lasted_ms: int, like: Run, **changes: Any) -> Run:
    """Return an ended run of so long a service."""
    attempt = Attempt(
        run_id=9999,
        number=0,
        epoch=1,
        cookie="",
        state=AttemptState.ENDED,
        members=(),
        port=0,
        orders=(),
        tracking=Tracking(state=TrackingState.OFF),
        placed_ms=0,
        running_ms=0,
        ended_ms=lasted_ms,
    )
    return replace(
        like,
        run_id=9999,
        state=RunState.ENDED,
        outcome=Outcome.SUCCEEDED,
        attempts=(attempt,),
        **changes,
    )


def test_runs_that_waited_or_ran_before_the_history_was_learnt_are_expected_by_it_too() -> None:
    yard = Yard(node("a"))
    active, waiting = (yard.submit(workload()) for _ in range(2))
    yard.place()
    yard.start(f"{active}.0.0")
    runs = yard.run(active), yard.run(waiting)
    planning = Planning()
    planning.absorb(Delta(seq=yard.state.seq, fresh=True, runs=runs), yard.now_ms)
    unknown_ms = planning.book.queue.runs[waiting].expected_ms

    ran = replace(yard.attempt(active), running_ms=0, ended_ms=300_000)
    other = replace(runs[0].workload, experiment="other")
    ended = replace(
        runs[0], run_id=99, state=RunState.ENDED, outcome=Outcome.SUCCEEDED, workload=other, attempts=(ran,)
    )
    planning.learn([ended] * 20, yard.now_ms)
    planning.expect_anew(yard.now_ms)

    began_ms = yard.attempt(active).running_ms
    assert began_ms is not None
    assert unknown_ms > 300_000
    assert planning.book.queue.runs[waiting].expected_ms == 300_000
    assert planning.book.running[active].end_ms == began_ms + 300_000


def test_a_run_that_outlived_what_the_history_says_is_expected_to_end_later_not_in_the_past() -> None:
    yard = Yard(node("a"))
    active = yard.submit(workload())
    yard.place()
    yard.start(f"{active}.0.0")
    run = yard.run(active)
    planning = Planning()
    planning.absorb(Delta(seq=yard.state.seq, fresh=True, runs=(run,)), yard.now_ms)
    ran = replace(yard.attempt(active), running_ms=0, ended_ms=5_000)
    ended = replace(run, run_id=99, state=RunState.ENDED, outcome=Outcome.SUCCEEDED, attempts=(ran,))
    planning.learn([ended] * 20, yard.now_ms)
    later_ms = yard.now_ms + 60_000
    planning.expect_anew(later_ms)
    assert planning.book.running[active].end_ms > later_ms


def test_a_waiting_run_is_told_what_runs_that_are_less_like_it_say() -> None:
    """Nothing of its own user and experiment has ended: its prediction comes from all runs of its shape."""
    yard = Yard(node("a"))
    waiting = yard.submit(workload())
    run = yard.run(waiting)
    planning = Planning()
    planning.absorb(Delta(seq=yard.state.seq, fresh=True, runs=(run,)), yard.now_ms)
    told_ms = planning.book.queue.runs[waiting].expected_ms
    ran = _ran(300_000, run, owner="somebody else", project="another")
    planning.learn([ran] * 20, yard.now_ms)
    assert told_ms > 300_000
    assert planning.book.queue.runs[waiting].expected_ms == 300_000


def test_of_many_likenesses_that_wait_all_are_told_after_some_plans() -> None:
    yard = Yard(node("a"))
    run = yard.run(yard.submit(workload()))
    others = [
        replace(run, run_id=number, workload=replace(run.workload, experiment=f"x{number}"))
        for number in range(100, 100 + 3 * LOOKED_AT)
    ]
    planning = Planning()
    planning.absorb(Delta(seq=yard.state.seq, fresh=True, runs=tuple(others)), yard.now_ms)
    unknown_ms = planning.book.queue.runs[100].expected_ms
    planning.learn([_ran(300_000, run)], yard.now_ms)

    def left() -> int:
        return sum(want.expected_ms == unknown_ms for want in planning.book.queue.runs.values())

    assert left() == 2 * LOOKED_AT
    for _ in range(2):
        planning.make(yard.now_ms)
    assert left() == 0


def test_of_very_many_runs_some_are_told_at_a_time_the_first_ones_first() -> None:
    yard = Yard(node("a"))
    run = yard.run(yard.submit(workload()))
    alike = tuple(replace(run, run_id=number) for number in range(100, 101 + TOLD_AT_ONCE))
    planning = Planning()
    planning.absorb(Delta(seq=yard.state.seq, fresh=True, runs=alike), yard.now_ms)
    unknown_ms = planning.book.queue.runs[100].expected_ms
    planning.learn([_ran(300_000, run)], yard.now_ms)
    last = alike[-1].run_id
    untold = [one.run_id for one in planning.book.queue.runs.values() if one.expected_ms == unknown_ms]
    assert untold == [last]
    planning.make(yard.now_ms)
    assert planning.book.queue.runs[last].expected_ms == planning.book.queue.runs[100].expected_ms


def test_a_run_that_has_left_the_queue_is_told_nothing() -> None:
    yard = Yard(node("a"))
    run = yard.run(yard.submit(workload()))
    alike = tuple(replace(run, run_id=number) for number in range(100, 101 + TOLD_AT_ONCE))
    planning = Planning()
    planning.absorb(Delta(seq=yard.state.seq, fresh=True, runs=alike), yard.now_ms)
    planning.learn([_ran(300_000, run)], yard.now_ms)
    planning.absorb(Delta(seq=yard.state.seq, gone=(alike[-1].run_id,)), yard.now_ms)
    planning.make(yard.now_ms)
    assert alike[-1].run_id not in planning.book.queue.runs


def test_another_shape_is_predicted_by_runs_of_that_shape() -> None:
    yard = Yard(node("a"), node("b"))
    run = yard.run(yard.submit(workload(nodes=2)))
    planning = Planning()
    planning.absorb(Delta(seq=yard.state.seq, fresh=True, runs=(run,)), yard.now_ms)
    planning.learn([_ran(60_000, run)] * 20 + [_ran(600_000, yard.run(yard.submit(workload())))] * 20, 0)
    want = planning.book.queue.runs[run.run_id]
    lasting = planning.forecast.lasting(run)
    assert lasting(want) == (want.expected_ms, want.likely_ms)
    assert want.expected_ms == pytest.approx(60_000, rel=0.01)
    assert lasting(replace(want, nodes=1))[0] > 500_000
