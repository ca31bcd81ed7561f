"""The figures of small replays, worked out by hand; forecasts and outages."""

from __future__ import annotations

import pytest

from airyard.sim.trace.durations import Judge, LearntDurations, TrueDurations
from airyard.sim.trace.engine import Rules
from airyard.sim.trace.metrics import at_rank, figures_of, load, recorded_figures
from airyard.sim.trace.outages import DAY_MS, Outage, draw_outages
from airyard.sim.trace.policies import Contender, Tuning
from airyard.sim.trace.records import TraceOutcome
from trace_yards import HOUR_MS, demand, replay, run


def test_completion_waiting_and_shares_by_hand() -> None:
    asked = demand(run(1, 0, 4, 8, "nlp"), run(2, 1, 2, 4, "vision"), run(3, 2, 1, 4, "vision"))
    found = figures_of(replay(asked, Contender.FILL), asked)
    # 1 runs 0 h to 4 h, 2 from 4 h to 6 h, 3 from 4 h to 5 h.
    assert (found.runs, found.unended) == (3, 0)
    assert found.completion.mean == pytest.approx((4 + 5 + 3) / 3)
    assert (found.completion.median, found.completion.p95, found.completion.p99) == (4, 5, 5)
    assert found.waiting.mean == pytest.approx((0 + 3 + 2) / 3)
    assert found.longest_wait_days == 3 / 24
    assert found.utilisation == 1.0, "between the first arrival at 0 h and the last at 2 h"
    assert found.share == {"nlp": 1.0}, "in that time nobody else ran"
    # Slowdowns 1; 2.5 and 3: the mean of all is 6.5 / 3, that of vision 2.75.
    assert (found.worst_project, found.worst_slowdown) == ("vision", pytest.approx(2.75 / (6.5 / 3)))
    assert (found.preemptions, found.lost, found.most_waiting) == (0, 0, 2)
    assert load(asked) == pytest.approx((32 + 8 + 4) / (2 * 8))


def test_a_run_of_seconds_counts_as_ten_minutes_in_its_slowdown() -> None:
    asked = demand(run(1, 0, 1, 8, "nlp"), run(2, 0, 1 / 3600, 8, "vision"))
    found = figures_of(replay(asked, Contender.FIFO), asked)
    assert found.worst_slowdown == pytest.approx(7 / 4), (
        "an hour of waiting over 10 minutes, not over a second"
    )


def test_what_preemption_costs_in_gpu_hours() -> None:
    asked = demand((0, 10, 8), (3.5, 1, 8))
    tuning = Tuning(slicing=True, known_durations=True)
    found = figures_of(replay(asked, tuning=tuning), asked)
    assert (found.preemptions, found.lost, found.leaving) == (1, 0, pytest.approx(8 / 60))
    lossy = figures_of(replay(asked, tuning=tuning, rules=Rules(last_checkpoint=False)), asked)
    assert lossy.lost == 4, "half an hour of 8 GPUs"


def test_devices_that_are_down_are_not_counted_as_idle() -> None:
    asked = demand((0, 4, 8), (8, 1, 8), gpus=16)
    outage = Outage(node="n2", from_ms=0, to_ms=8 * HOUR_MS)
    found = figures_of(replay(asked, outages=[outage]), asked)
    assert found.utilisation == 0.5


def test_what_really_happened_beside_it() -> None:
    rows = [
        run(1, 0, 2, 8, "nlp", really_started_ms=0, really_ended_ms=2 * HOUR_MS, really_waited_ms=0),
        run(
            2, 1, 1, 8, "nlp", really_started_ms=3 * HOUR_MS, really_ended_ms=4 * HOUR_MS, really_waited_ms=2
        ),
        run(
            3, 4, 1, 4, "nlp", really_started_ms=4 * HOUR_MS, really_ended_ms=5 * HOUR_MS, really_waited_ms=0
        ),
    ]
    found = recorded_figures(demand(*rows))
    assert found is not None
    assert found.waiting.mean == pytest.approx(2 / 3)
    assert found.completion.mean == pytest.approx((2 + 3 + 1) / 3)
    assert found.utilisation == 3 / 4
    assert found.idle_placeable is None, "nobody recorded what else would have fitted"
    assert recorded_figures(demand((0, 1, 8))) is None


def test_percentiles_are_by_nearest_rank() -> None:
    values = [float(value) for value in range(1, 11)]
    assert [at_rank(values, part) for part in (0.0, 0.5, 0.95, 0.99, 1.0)] == [1, 5, 10, 10, 10]
    assert at_rank([], 0.5) == 0


def test_the_oracle_knows_what_is_left() -> None:
    job = demand((0, 3, 8)).jobs[0]
    assert TrueDurations().remaining(job, 5 * HOUR_MS, HOUR_MS) == (2 * HOUR_MS, 2 * HOUR_MS)


def test_the_learnt_forecast_knows_only_what_has_ended_and_tells_those_that_wait() -> None:
    one, two = demand(run(1, 0, 1, 1, "nlp", limit_ms=5 * HOUR_MS), run(2, 0, 1, 1, "nlp")).jobs
    forecast = LearntDurations()
    assert forecast.remaining(one, 0, 0)[0] == 5 * HOUR_MS, "nothing is known but the limit"
    forecast.wait(two)
    assert forecast.ended(one, 9 * HOUR_MS) == (2,), "another duration is expected of 2 now"
    assert forecast.remaining(two, 0, 0)[0] == pytest.approx(9 * HOUR_MS, abs=1)
    assert forecast.remaining(one, 0, 0)[0] == 5 * HOUR_MS, "no longer than its limit"
    assert forecast.ended(one, 9 * HOUR_MS) == (), "as was expected"
    forecast.leave(two)
    assert forecast.ended(one, 1) == ()
    cancelled = demand(run(3, 0, 1, 8, "nlp", outcome=TraceOutcome.CANCELLED)).jobs[0]
    before = forecast.remaining(cancelled, 0, 0)
    forecast.ended(cancelled, 70 * HOUR_MS)
    assert forecast.remaining(cancelled, 0, 0) == before, "who was cancelled would have gone on"


def test_how_far_off_a_forecast_was() -> None:
    judge = Judge()
    for predicted, came in (((10, 20), 10), ((10, 20), 20), ((10, 20), 5), ((10, 20), 40)):
        judge.note(predicted, came)
    found = judge.accuracy()
    assert (found.runs, found.within_p50, found.within_p90) == (4, 0.5, 0.75)
    assert found.factor_p50 == pytest.approx(2)
    assert Judge().accuracy().runs == 0


def test_outages_come_at_their_rate_are_the_same_for_a_seed_and_never_overlap_on_a_node() -> None:
    nodes = demand((0, 1, 8), gpus=80).nodes
    drawn = draw_outages(
        nodes, per_gpu_day=0.01, repair_ms=4 * HOUR_MS, from_ms=0, to_ms=1000 * DAY_MS, seed=1
    )
    assert 700 < len(drawn) < 900, "0.01 a day of 80 GPUs for 1,000 days"
    again = draw_outages(
        nodes, per_gpu_day=0.01, repair_ms=4 * HOUR_MS, from_ms=0, to_ms=1000 * DAY_MS, seed=1
    )
    assert drawn == again
    back: dict[str, int] = {}
    for outage in drawn:
        assert outage.from_ms >= back.get(outage.node, 0)
        assert outage.to_ms == outage.from_ms + 4 * HOUR_MS
        back[outage.node] = outage.to_ms
    assert draw_outages(nodes, per_gpu_day=0, repair_ms=1, from_ms=0, to_ms=DAY_MS, seed=1) == ()
