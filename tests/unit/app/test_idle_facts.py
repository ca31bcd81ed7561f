"""What tests of idle nodes see of a yard: idle since when, wanted by whom, what speaks against a node."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from airyard.app.idling import SOON_MS, edges_in_doubt, idle_nodes, in_the_way, leaves, promised
from airyard.core import commands as c
from airyard.core.health.facts import CheckStatus, Component, HealthEvent, Severity, Source
from airyard.core.health.gang_sums import events_of
from airyard.core.health.idle import IdleNode, IdleRules, IdleTest, Ongoing, due, plan
from airyard.core.health.idle_records import SweepNote, TestNote
from airyard.core.policy import Reservation
from airyard.core.scheduling.plan import Hold, Plan
from core_yard import START_MS, Yard, node, workload

MINUTE_MS = 60_000


def look(made: Yard, name: str, **more: object) -> IdleNode:
    found = idle_nodes(made.state, made.now_ms, since_ms=START_MS, **more)  # type: ignore[arg-type]  # some of them
    return next(one for one in found if one.name == name)


def test_a_node_is_idle_since_its_last_run_left_and_wanted_while_one_is_there() -> None:
    made = Yard(node("a"), node("b"))
    assert look(made, "a").idle_since_ms == START_MS
    made.submit(workload())
    made.later(60).place()
    (run,) = made.state.runs.values()
    taken = run.attempts[0].members[0].node
    busy = look(made, taken)
    assert (busy.idle_since_ms, busy.wanted) == (None, True)
    assert in_the_way(made.state, [taken], made.now_ms)
    made.later(60).gone("1.0.0")
    assert (look(made, taken).idle_since_ms, look(made, taken).wanted) == (made.now_ms, False)
    # Whoever measured meanwhile measured beside a run, also when it is gone by now.
    assert in_the_way(made.state, [taken], made.now_ms - 30_000)
    assert not in_the_way(made.state, [taken], made.now_ms + 1)


def test_a_stranger_on_a_device_keeps_tests_away() -> None:
    held = node("a")
    made = Yard(replace(held, devices=(replace(held.devices[0], owner="pid 7"), *held.devices[1:])))
    assert (look(made, "a").idle_since_ms, look(made, "a").wanted) == (None, True)
    assert in_the_way(made.state, ["a"], made.now_ms + 1)
    made.later(60).hello("a", [held])
    assert look(made, "a").idle_since_ms == made.now_ms


def test_reservations_and_promises_that_are_near_count() -> None:
    made = Yard(node("a"), node("b"))
    from_ms = made.now_ms + 20 * MINUTE_MS
    wish = Reservation(reservation_id=0, nodes=("a",), from_ms=from_ms, to_ms=from_ms + MINUTE_MS, by="op")
    made.do(c.MakeReservation(reservation=replace(wish, maintenance=True)))
    assert not look(made, "a").wanted
    made.later(15 * 60)
    assert look(made, "a").wanted
    assert not look(made, "b").wanted
    near = Hold(run_id=1, nodes=("b",), devices_per_node=8, from_ms=made.now_ms + SOON_MS)
    far = replace(near, nodes=("a",), from_ms=made.now_ms + SOON_MS + 1)
    assert promised(Plan(seq=1, holds=(near, far)), made.now_ms) == {"b"}
    assert promised(Plan(seq=1, kept=(replace(far, from_ms=0),)), made.now_ms) == {"a"}
    assert promised(None, made.now_ms) == frozenset()
    assert look(made, "b", wanted={"b"}).wanted


def test_closed_away_and_ailing_nodes_are_not_open() -> None:
    made = Yard(node("a"), node("b"), node("c"))
    made.do(c.CordonNodes(nodes=("a",), by="op"))
    made.do(c.MachineAway(machine="b"))
    assert [look(made, name).open for name in "abc"] == [False, False, True]
    assert in_the_way(made.state, ["b"], made.now_ms + 1)


def test_signals_and_starts_since_the_last_test_and_a_suspicion_make_tests_due() -> None:
    made = Yard(node("a"), node("b"))
    for kind in (IdleTest.LIGHT, IdleTest.DEEP):
        note = TestNote(kind=kind, at_ms=made.now_ms, status=CheckStatus.PASS, version="b1")
        made.do(c.IdleTestDone(node="a", test=note))
    made.later(60)
    rested = look(made, "a")
    assert (rested.signals, rested.changed, due(rested, made.now_ms)) == (0, False, None)
    assert due(look(made, "b"), made.now_ms) is IdleTest.LIGHT
    event = HealthEvent(
        event_id="e1", rule="gpu.slowing", machine="a", node="a", at_ms=made.now_ms, component=Component.GPU,
        severity=Severity.HIGH, source=Source.NVML, message="slow",
    )  # fmt: skip
    made.do(c.HealthReported(events=(event,)))
    assert (look(made, "a").signals, due(look(made, "a"), made.now_ms)) == (1, IdleTest.LIGHT)
    made.later(60)
    note = TestNote(kind=IdleTest.LIGHT, at_ms=made.now_ms, status=CheckStatus.PASS, version="b1")
    made.do(c.IdleTestDone(node="a", test=note))
    # A light pass is no answer to the suspicion: a deep test is due at once, once.
    assert due(look(made, "a"), made.now_ms) is IdleTest.DEEP
    note = TestNote(kind=IdleTest.DEEP, at_ms=made.now_ms, status=CheckStatus.UNKNOWN)
    made.do(c.IdleTestDone(node="a", test=note))
    assert due(look(made, "a"), made.now_ms) is None
    made.hello("a", boot="b2")
    assert look(made, "a").changed


def test_a_gang_that_failed_puts_its_nodes_and_edges_in_doubt_until_they_are_tested_in_pairs() -> None:
    made = Yard(*(node(name) for name in "abcd"))
    said = "preflight: net.all_reduce: the sum over the run's nodes did not end"
    events = events_of(said, attempt="1.0", nodes={"a": "a", "b": "b"}, at_ms=made.now_ms)
    made.do(c.HealthReported(events=events))
    assert [look(made, name).doubted for name in "abc"] == [True, True, False]
    assert edges_in_doubt(made.state, "abcd") == (("a", "b"),)
    assert edges_in_doubt(made.state, "acd") == ()
    made.later(60)
    early = SweepNote(number=0, at_ms=made.now_ms, tests=9, took_ms=90_000, certified=("a", "b", "c", "d"))
    made.do(c.SweepDone(pool="GPU_8xH100", sweep=early))
    assert look(made, "a").doubted, "that sweep had begun before"
    assert len(made.state.health["a"].hits) == 1
    note = replace(early, number=1, took_ms=1000, certified=("a", "c", "d"), unknown=("b",))
    made.do(c.SweepDone(pool="GPU_8xH100", sweep=note))
    assert made.state.health["a"].hits == ()
    assert [len(made.state.health["b"].hits), look(made, "b").doubted] == [1, False]
    # Said again it is settled; another gang's failure is not.
    made.do(c.HealthReported(events=events))
    assert not look(made, "a").doubted
    made.later(60)
    again = events_of(said, attempt="2.0", nodes={"a": "a", "c": "c"}, at_ms=made.now_ms)
    made.do(c.HealthReported(events=again))
    assert edges_in_doubt(made.state, "abcd") == (("a", "c"),)


def test_slots_of_cpus_are_left_alone_unless_asked_for() -> None:
    made = Yard(node("a"), node("slot", None))
    assert [one.name for one in idle_nodes(made.state, made.now_ms, since_ms=START_MS)] == ["a"]
    assert look(made, "slot", cpu_slots=True).open


def test_leaf_switches_are_what_the_planner_knows_as_fabric_and_rack() -> None:
    labels = [
        {"fabric": "f", "rack": "r1"},
        {"fabric": "f", "rack": "r2"},
        {"rack": "r1"},
        {"fabric": "g"},
        {},
    ]
    made = Yard(*(replace(node(f"n{place}"), labels=each) for place, each in enumerate(labels)))
    assert leaves(made.state, "GPU_8xH100") == {"n0": "f/r1", "n1": "f/r2", "n2": "r1", "n3": "g"}


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32))
def test_whatever_happens_no_more_than_the_share_and_nobodys_node_is_under_test(seed: int) -> None:
    """A yard in which runs come and go while a tester begins and ends what the plan says."""
    chance = Random(seed)
    made = Yard(*(node(f"n{place:02}") for place in range(12)))
    rules = IdleRules(after_ms=5 * MINUTE_MS, share=chance.choice([0.1, 0.2, 0.5]))
    ongoing: dict[str, Ongoing] = {}
    for _ in range(60):
        made.later(chance.choice([10, 60, 300]))
        if chance.random() < 0.3:
            made.submit(workload(nodes=chance.randrange(1, 4)))
            made.place()
        live = [(attempt, member) for _, attempt in made.state.live_attempts() for member in attempt.members]
        for attempt, member in live:
            if not member.released and chance.random() < 0.3:
                made.gone(str(attempt.member_key(member.index)))
        facts = idle_nodes(made.state, made.now_ms, since_ms=START_MS)
        known = {one.name: one for one in facts}
        booked = made.state.bookings()
        done = plan(facts, list(ongoing.values()), made.now_ms, rules)
        assert {name for name in ongoing if name in booked} <= {*done.ask, *done.kill}
        for name in (*done.ask, *done.kill):
            del ongoing[name]  # it makes room, and has said nothing
            assert name not in booked or not known[name].idle_since_ms
        for name, kind in done.begin:
            assert name not in booked
            assert made.now_ms - (known[name].idle_since_ms or made.now_ms) >= rules.after_ms
            ongoing[name] = Ongoing(node=name, kind=kind, began_ms=made.now_ms)
        idle = [one for one in facts if one.idle_since_ms is not None and not one.wanted]
        begun = len(done.begin) > 0
        assert not begun or len(ongoing) <= max(1, int(len(idle) * rules.share))
        for name in [name for name in ongoing if chance.random() < 0.3]:
            test = ongoing.pop(name)
            note = TestNote(kind=test.kind, at_ms=made.now_ms, status=CheckStatus.PASS, version="b1")
            made.do(c.IdleTestDone(node=name, test=note))
