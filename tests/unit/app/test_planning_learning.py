"""What the planning side expects of runs once it has learnt a whole history."""

from __future__ import annotations

from dataclasses import replace

from airyard.app.planning import Planning
from airyard.core.run import Outcome, RunState
from airyard.core.scheduling.snapshot import Delta
from core_yard import Yard, node, workload


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
