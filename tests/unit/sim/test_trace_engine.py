"""Replays that can be worked out by hand, one for each policy; evictions, failures, and what they cost."""

from __future__ import annotations

import random

import pytest

from airyard.core.policy import Policy, ProjectPolicy, Share
from airyard.core.scheduling.book import Book
from airyard.core.scheduling.invariants import violations
from airyard.core.scheduling.plan import Plan, Reason
from airyard.core.workload import Priority
from airyard.sim.trace.engine import Rules
from airyard.sim.trace.outages import Outage
from airyard.sim.trace.policies import Contender, Tuning
from trace_yards import HOUR_MS, MINUTE_MS, critical, demand, ends_h, replay, run, starts_h

ROWS = (
    (0.0, 10.0, 4),  # 1 holds half of the node for long
    (1.0, 2.0, 8),  # 2 needs all of it
    (2.0, 3.0, 4),  # 3 fits beside 1
    (3.0, 1.0, 4),  # 4 and 5 come while 3 runs; 5 is the shorter
    (3.0, 0.5, 4),
    (6.0, 8.0, 4),  # 6 would run past the end of 1
)


def test_strict_fifo_starts_nothing_before_an_earlier_run() -> None:
    found = replay(demand(*ROWS), Contender.FIFO)
    assert starts_h(found) == {1: 0, 2: 10, 3: 12, 4: 12, 5: 13, 6: 13.5}
    assert ends_h(found)[6] == 21.5


def test_fifo_with_fill_passes_over_what_does_not_fit() -> None:
    found = replay(demand(*ROWS), Contender.FILL)
    assert starts_h(found) == {1: 0, 2: 14.5, 3: 2, 4: 5, 5: 6, 6: 6.5}


def test_the_oracle_starts_the_shortest_that_fits() -> None:
    found = replay(demand(*ROWS), Contender.ORACLE)
    assert starts_h(found) == {1: 0, 2: 14.5, 3: 2, 4: 5.5, 5: 5, 6: 6.5}


def test_airyard_keeps_its_promise_to_the_blocked_run() -> None:
    found = replay(demand(*ROWS))
    assert starts_h(found) == {1: 0, 2: 10, 3: 2, 4: 5.5, 5: 5, 6: 12}


def test_the_oracle_counts_no_time_in_the_queue() -> None:
    found = starts_h(replay(demand((0, 1, 8), (0, 200, 8), (0.5, 199, 8)), Contender.ORACLE))
    assert found == {1: 0, 2: 200, 3: 1}


def test_idle_devices_count_while_somebody_who_fits_there_waits() -> None:
    assert replay(demand(*ROWS), Contender.FIFO).idle_placeable == 4 * 8 * HOUR_MS  # 2 h to 10 h, 4 GPUs
    assert replay(demand(*ROWS), Contender.FILL).idle_placeable == 0
    assert replay(demand(*ROWS)).idle_placeable == 4 * 3.5 * HOUR_MS  # 6.5 h to 10 h: 6 waits for the promise


def test_a_gang_holds_several_nodes() -> None:
    found = replay(demand((0, 2, 8), (0.5, 1, 16), (1, 1, 8), gpus=16), Contender.FILL)
    assert starts_h(found) == {1: 0, 2: 2, 3: 1}


def test_a_slice_that_is_over_makes_room_and_loses_only_the_time_to_leave() -> None:
    found = replay(
        demand((0, 10, 8), (3, 1, 8)), tuning=Tuning(slicing=True, known_durations=True), rules=Rules()
    )
    first, second = found.lives
    assert (first.evictions, first.lost, first.paid) == (1, 0, 8 * MINUTE_MS)
    assert starts_h(found)[2] == 3 + 1 / 60
    assert ends_h(found)[2] == pytest.approx(4 + 1 / 60)
    assert ends_h(found)[1] == pytest.approx(11 + 1 / 60)
    assert first.waited_ms == HOUR_MS
    assert first.served_ms == 10 * HOUR_MS + MINUTE_MS
    assert second.waited_ms == MINUTE_MS


def test_within_the_first_slice_nobody_yields_and_then_at_once() -> None:
    found = replay(demand((0, 10, 8), (0.5, 1, 8)), tuning=Tuning(slicing=True, known_durations=True))
    assert starts_h(found)[2] == pytest.approx(2 + 1 / 60)


def test_without_a_last_checkpoint_the_work_since_the_newest_is_lost() -> None:
    found = replay(
        demand((0, 10, 8), (3, 1, 8)),
        tuning=Tuning(slicing=True, known_durations=True),
        rules=Rules(last_checkpoint=False, checkpoint_ms=2 * HOUR_MS),
    )
    assert found.lives[0].lost == 8 * HOUR_MS
    assert ends_h(found)[1] == pytest.approx(12 + 1 / 60)


def test_runs_without_checkpoints_are_not_sliced() -> None:
    found = replay(
        demand((0, 10, 8), (3, 1, 8)),
        tuning=Tuning(slicing=True, known_durations=True),
        rules=Rules(checkpoint_ms=None),
    )
    assert starts_h(found)[2] == 10
    assert found.lives[0].evictions == 0


def test_a_critical_run_evicts_and_without_checkpoints_all_work_is_done_again() -> None:
    asked = demand(run(1, 0, 10, 8), critical(2, 0.5, 1, 8))
    found = replay(asked, rules=Rules(checkpoint_ms=None))
    assert found.lives[0].lost == 8 * HOUR_MS // 2
    assert ends_h(found)[1] == pytest.approx(0.5 + 1 / 60 + 1 + 10)
    plain = replay(asked, Contender.FILL)
    assert starts_h(plain) == {1: 0, 2: 10}, "the plain policies know no classes"


def test_a_failed_node_sends_its_runs_back_to_their_newest_checkpoint() -> None:
    outage = Outage(node="n1", from_ms=round(2.5 * HOUR_MS), to_ms=round(4.5 * HOUR_MS))
    found = replay(demand((0, 5, 8), (9, 1, 8)), outages=[outage])
    first = found.lives[0]
    assert (first.failures, first.evictions, first.lost) == (1, 0, 8 * HOUR_MS // 2)
    assert ends_h(found)[1] == 7.5
    assert first.waited_ms == 2 * HOUR_MS
    assert found.down == 8 * 2 * HOUR_MS


def test_without_checkpoints_a_failure_loses_everything() -> None:
    outage = Outage(node="n1", from_ms=2 * HOUR_MS, to_ms=3 * HOUR_MS)
    found = replay(demand((0, 5, 8)), outages=[outage], rules=Rules(checkpoint_ms=None))
    assert ends_h(found)[1] == 8
    assert found.lives[0].lost == 16 * HOUR_MS


def test_under_strict_fifo_a_run_that_failed_goes_before_those_that_came_later() -> None:
    outage = Outage(node="n1", from_ms=HOUR_MS, to_ms=2 * HOUR_MS)
    found = replay(demand((0, 4, 8), (0.5, 1, 8)), Contender.FIFO, outages=[outage])
    assert ends_h(found) == {1: 5, 2: 6}


def test_what_never_starts_is_told_with_the_planners_reason() -> None:
    asked = demand(run(1, 0, 1, 8, "nlp"), run(2, 0, 1, 4, "nlp"))
    nlp = ProjectPolicy(name="nlp", shares=(Share(pool="gpu", ceiling=4),))
    found = replay(asked, policy=Policy(projects=(nlp,)))
    assert ends_h(found) == {1: None, 2: 1}
    refusal = found.stuck[1]
    assert refusal is not None
    assert refusal.reason is Reason.PROJECT_CEILING


def test_what_would_not_fit_the_empty_yard_is_left_out_with_the_reason() -> None:
    asked = demand((0, 1, 8), (0, 1, 16))
    assert [job.run.run_id for job in asked.jobs] == [1]
    assert "it asks 2 nodes" in asked.too_large[0].why


@pytest.mark.parametrize("slicing", [False, True])
def test_every_job_ends_with_its_work_done_whatever_happens(slicing: bool) -> None:
    """Work done is what was asked; service is that, what was lost, and the time to leave; no device is held twice."""
    chance = random.Random(7)
    rows = [
        (chance.uniform(0, 30), chance.choice([0.1, 0.5, 1.5, 6, 20]), chance.choice([1, 1, 1, 2, 4, 8, 16]))
        for _ in range(80)
    ]
    outages = [
        Outage(node=f"n{1 + number % 4}", from_ms=number * 7 * HOUR_MS, to_ms=(number * 7 + 3) * HOUR_MS)
        for number in range(1, 20)
    ]

    def watch(book: Book, plan: Plan, now_ms: int) -> None:
        for slot in book.nodes.slots.values():
            held = [device for _, devices in slot.residents.values() for device in devices]
            assert len(held) == len(set(held))

    found = replay(demand(*rows, gpus=32), tuning=Tuning(slicing=slicing), outages=outages, watch=watch)
    assert (sum(life.evictions for life in found.lives) > 0) is slicing
    assert sum(life.failures for life in found.lives) > 0
    for life in found.lives:
        assert life.ended_ms is not None
        devices = life.job.run.devices
        left = life.lost + life.paid
        # A node that fails while a run leaves it cuts the time to leave short.
        assert 0 <= life.job.run.duration_ms * devices + left - life.served_ms * devices <= life.paid
        assert life.ended_ms - life.job.arrives_ms == life.served_ms + life.waited_ms


def test_the_same_replay_twice_is_the_same() -> None:
    asked = demand(*ROWS, gpus=16)
    assert starts_h(replay(asked)) == starts_h(replay(asked))


@pytest.mark.parametrize("contender", list(Contender))
def test_every_plan_of_a_replay_keeps_every_promise(contender: Contender) -> None:
    chance = random.Random(11)
    classes = [Priority.CRITICAL, *[Priority.NORMAL] * 8, Priority.BEST_EFFORT, Priority.BEST_EFFORT]
    rows = [
        run(
            number,
            chance.uniform(0, 20),
            chance.choice([0.1, 0.5, 1.5, 6, 20]),
            chance.choice([1, 1, 1, 2, 4, 8, 16]),
            chance.choice(["nlp", "vision", "audio"]),
            priority_class=chance.choice(classes),
        )
        for number in range(1, 61)
    ]
    nlp = ProjectPolicy(name="nlp", shares=(Share(pool="gpu", guarantee=8, ceiling=24),))
    vision = ProjectPolicy(name="vision", shares=(Share(pool="gpu", guarantee=8, weight=2.0),))
    outages = [
        Outage(node="n1", from_ms=number * 9 * HOUR_MS, to_ms=(number * 9 + 2) * HOUR_MS) for number in (1, 3)
    ]

    def watch(book: Book, plan: Plan, now_ms: int) -> None:
        assert violations(book, plan, now_ms) == []

    found = replay(
        demand(*rows, gpus=32),
        contender,
        tuning=Tuning(slicing=True),
        policy=Policy(projects=(nlp, vision)),
        outages=outages,
        watch=watch,
    )
    assert all(life.ended_ms is not None for life in found.lives)
