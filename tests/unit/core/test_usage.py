"""The ledger of device time: calendar months in UTC, decay by half-lives, the same by replay and by snapshot."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from airyard.core import commands as c
from airyard.core import events as e
from airyard.core.ids import MemberKey
from airyard.core.policy import Policy, PoolPolicy
from airyard.core.state import ClusterState
from airyard.core.usage import Usage, month_begin_ms, month_of, next_month, rehomed
from core_yard import START_MS, Yard, node, workload

HOUR_MS = 3_600_000
WEEK_MS = 7 * 24 * HOUR_MS


def at_ms(*date: int) -> int:
    return int(datetime(*date, tzinfo=UTC).timestamp() * 1000)  # type: ignore[misc,arg-type]  # year, month, day, ...


def test_every_day_of_four_centuries_has_its_month() -> None:
    day = datetime(1970, 1, 1, tzinfo=UTC)
    while day.year < 2401:
        midnight_ms = int(day.timestamp()) * 1000
        month = day.year * 100 + day.month
        assert month_of(midnight_ms) == month_of(midnight_ms + 86_399_999) == month
        if day.day == 1:
            assert month_begin_ms(month) == midnight_ms
            assert month_of(midnight_ms - 1) == (month - 1 if day.month > 1 else month - 89)
        day += timedelta(days=1 if day.day > 26 or day.day == 1 else 5)


def test_months_follow_each_other_over_the_year() -> None:
    assert [next_month(month) for month in (202601, 202611, 202612)] == [202602, 202612, 202701]


def test_a_month_counts_only_what_falls_into_it() -> None:
    used = Usage(at_ms=0).changed(at_ms(2026, 1, 31, 22), WEEK_MS, 8)
    assert used.settled(at_ms(2026, 2, 1) - 1, WEEK_MS).month_used == 8 * (2 * HOUR_MS - 1)
    february = used.settled(at_ms(2026, 2, 1, 3), WEEK_MS)
    assert (february.month, february.month_used) == (202602, 8 * 3 * HOUR_MS)
    # A month nobody looked at in between leaves nothing behind.
    april = used.settled(at_ms(2026, 4, 1, 1), WEEK_MS)
    assert (april.month, april.month_used) == (202604, 8 * HOUR_MS)


def test_the_boundary_itself_belongs_to_the_new_month() -> None:
    used = Usage(at_ms=0).changed(at_ms(2026, 2, 28, 23), WEEK_MS, 1)
    begun = used.settled(at_ms(2026, 3, 1), WEEK_MS)
    assert (begun.month, begun.month_used) == (202603, 0)


def test_past_usage_halves_once_a_half_life() -> None:
    used = Usage(at_ms=0, decayed=1000.0)
    assert used.decayed_at(WEEK_MS, WEEK_MS) == pytest.approx(500)
    assert used.decayed_at(3 * WEEK_MS, WEEK_MS) == pytest.approx(125)
    assert used.decayed_at(-5, WEEK_MS) == 1000


def test_held_devices_grow_towards_what_is_forgotten_as_fast() -> None:
    used = Usage(at_ms=0, devices=4)
    assert used.decayed_at(1000, WEEK_MS) == pytest.approx(4000, rel=1e-5)
    limit = 4 * WEEK_MS / math.log(2)
    assert used.decayed_at(WEEK_MS, WEEK_MS) == pytest.approx(limit / 2)
    assert used.decayed_at(60 * WEEK_MS, WEEK_MS) == pytest.approx(limit)


def test_settling_on_the_way_changes_nothing() -> None:
    used = Usage(at_ms=at_ms(2026, 1, 30), devices=3, decayed=5e9, month=202601, month_used=7)
    end_ms = at_ms(2026, 2, 9, 13)
    stepped = used
    for hours in range(0, 10 * 24, 7):
        stepped = stepped.settled(used.at_ms + hours * HOUR_MS, WEEK_MS)
    stepped, direct = stepped.settled(end_ms, WEEK_MS), used.settled(end_ms, WEEK_MS)
    assert (stepped.month, stepped.month_used) == (direct.month, direct.month_used)
    assert stepped.decayed == pytest.approx(direct.decayed)


def test_a_clock_that_steps_back_takes_nothing_away() -> None:
    used = Usage(at_ms=5000).changed(10_000, WEEK_MS, 2)
    assert used.settled(9000, WEEK_MS) is used
    again = used.changed(9000, WEEK_MS, -2)
    assert (again.at_ms, again.devices, again.month_used) == (10_000, 0, 0)


def test_ledgers_of_two_pools_are_joined_as_of_one_time() -> None:
    month_ms = at_ms(2026, 2, 1)
    old = Usage(at_ms=month_ms - HOUR_MS, devices=1, decayed=10.0, month=202601, month_used=99)
    new = Usage(at_ms=month_ms + HOUR_MS, devices=2, decayed=4.0, month=202602, month_used=6)
    ledger = {("nlp", "fast"): old, ("nlp", "GPU_8xH100"): new, ("x", "fast"): old}
    moved = rehomed(ledger, {"fast": "GPU_8xH100"}, WEEK_MS)
    assert set(moved) == {("nlp", "GPU_8xH100"), ("x", "GPU_8xH100")}
    both = moved["nlp", "GPU_8xH100"]
    assert (both.at_ms, both.devices, both.month, both.month_used) == (new.at_ms, 3, 202602, HOUR_MS + 6)
    assert both.decayed == pytest.approx(4.0 + old.decayed_at(new.at_ms, WEEK_MS))


def replayed(yard: Yard) -> ClusterState:
    state = ClusterState()
    for recorded in yard.journal:
        state.apply(recorded)
    return state


def test_replay_and_snapshot_give_the_same_ledger() -> None:
    yard = Yard(node("a"), node("b"))
    pools = (PoolPolicy(name="fast", accelerator="GPU_8xH100", nodes=("a",)),)
    first, second = yard.submit(workload(nodes=2)), yard.submit(workload())
    yard.place()
    yard.start(f"{first}.0.0", f"{first}.0.1")
    yard.later(3600).do(c.DeclarePolicy(policy=Policy(pools=pools, half_life_ms=HOUR_MS), by="ada"))
    yard.later(1800)
    yard.exit(f"{first}.0.0")
    yard.later(600)
    yard.exit(f"{first}.0.1")
    yard.place()
    yard.later(900)
    used = yard.state.usage
    assert {pool for _, pool in used} >= {"fast"}
    assert sum(entry.devices for entry in used.values()) == 8
    total = sum(entry.settled(yard.now_ms, HOUR_MS).month_used for entry in used.values())
    assert total == 8 * 1000 * (3600 + 1800) + 8 * 1000 * (3600 + 1800 + 600) + 8 * 1000 * 900
    assert replayed(yard).usage == used
    assert ClusterState.from_json(yard.state.to_json()).usage == used
    assert yard.attempt(second).pool


def test_usage_before_the_first_declaration_decays_by_the_half_life_of_then() -> None:
    yard = Yard(node("a"))
    run_id = yard.submit(workload())
    yard.place()
    yard.start(f"{run_id}.0.0")
    yard.later(600)
    yard.exit(f"{run_id}.0.0")
    before = yard.state.usage["default", "GPU_8xH100"]
    yard.later(WEEK_MS / 1000).do(c.DeclarePolicy(policy=Policy(half_life_ms=HOUR_MS), by="ada"))
    after = yard.state.usage["default", "GPU_8xH100"]
    assert after.decayed == pytest.approx(before.decayed / 2)
    assert after.decayed_at(yard.now_ms + HOUR_MS, HOUR_MS) == pytest.approx(after.decayed / 2)


def test_attempts_count_where_their_node_is_now() -> None:
    yard = Yard(node("a"))
    run_id = yard.submit(workload())
    yard.place()
    yard.start(f"{run_id}.0.0")
    assert {key: used.devices for key, used in yard.state.usage.items()} == {("default", "GPU_8xH100"): 8}
    pool = PoolPolicy(name="fast", accelerator="GPU_8xH100", labels=(("zone", "x"),))
    yard.do(c.DeclarePolicy(policy=Policy(pools=(pool,)), by="ada"))
    assert yard.attempt(run_id).pool == "GPU_8xH100"
    labelled = replace(node("a"), labels={"zone": "x"})
    yard.hello("a", [labelled], c.SeenMember(key=MemberKey(run_id, 0, 0), state=c.SeenState.ALIVE))
    assert yard.attempt(run_id).pool == "fast"
    assert yard.run(run_id).version == yard.state.seq
    held = {key: used.devices for key, used in yard.state.usage.items()}
    assert held == {("default", "GPU_8xH100"): 0, ("default", "fast"): 8}
    yard.exit(f"{run_id}.0.0")
    assert sum(used.devices for used in yard.state.usage.values()) == 0
    assert replayed(yard).to_json() == yard.state.to_json()


def test_a_run_that_changes_its_project_takes_its_devices_along() -> None:
    yard = Yard(node("a"))
    run_id = yard.submit(workload())
    yard.place()
    yard.start(f"{run_id}.0.0")
    # No command does this to a run with devices; the ledger does not rely on it.
    moved = e.RunUpdated(run_id=run_id, by="ada", project="nlp")
    yard.later(10).state.apply(e.Recorded(seq=yard.state.seq + 1, at_ms=yard.now_ms, epoch=1, event=moved))
    held = {key[0]: used.devices for key, used in yard.state.usage.items()}
    assert held == {"default": 0, "nlp": 8}
    yard.later(10)
    yard.exit(f"{run_id}.0.0")
    spent_ms = {key[0]: used.month_used for key, used in yard.state.usage.items()}
    assert spent_ms == {"default": 80_000, "nlp": 80_000}
    assert all(used.devices == 0 for used in yard.state.usage.values())


def test_the_first_month_of_a_ledger_is_that_of_its_first_use() -> None:
    assert Usage(at_ms=START_MS).changed(START_MS, WEEK_MS, 1).month == 197001
