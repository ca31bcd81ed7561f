"""What becomes of a node by its health: taken out, mended, tested, trusted again; and what never may happen."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airyard.core import commands as c
from airyard.core.actions import Action, RunRemedy, RunRetest
from airyard.core.decide import Decision, Operated, outstanding
from airyard.core.decide.operating import HEALTH
from airyard.core.errors import Conflict, NotFound
from airyard.core.health import budget, ladder
from airyard.core.health.blame import CORDON_FROM, hit_of, joined, score, weight
from airyard.core.health.facts import CheckStatus, Component, HealthEvent, Remedy, Severity, Source
from airyard.core.health.states import AUTOMATIC_MOVES, TAKEN_OUT, WORKING, HealthState, RemedyOutcome
from airyard.core.run import Cause, Outcome, RunState
from airyard.core.state import ClusterState
from core_yard import START_MS, Yard, acts, node, workload

S = HealthState


def event(on: str = "a", rule: str = "xid.79", number: int = 1, **fields: Any) -> HealthEvent:
    """Something that a monitor saw; a GPU that fell off the bus, if nothing else is said."""
    code = int(rule[4:]) if rule.startswith("xid.") else None
    told = {
        "event_id": f"{on}-{rule}-{number}",
        "rule": rule,
        "machine": on,
        "node": on,
        "at_ms": START_MS + number,
        "component": Component.GPU,
        "severity": Severity.CRITICAL,
        "source": Source.KERNEL,
        "message": "the GPU is off the bus",
        "device": 0,
        "code": code,
        "evidence": ("NVRM: Xid (PCI:0000:1b:00): 79",),
    }
    return HealthEvent(**{**told, **fields})


def see(yard: Yard, *events: HealthEvent) -> Decision:
    """Have the agent report."""
    return yard.do(c.HealthReported(events=events))


def health_of(yard: Yard, name: str = "a") -> HealthState:
    """Where the node is."""
    known = yard.state.health.get(name)
    return known.state if known is not None else S.HEALTHY


def yard_of(count: int) -> Yard:
    """A pool of so many nodes: ``a``, ``b``, ..."""
    return Yard(*(node(chr(ord("a") + index)) for index in range(count)))


def answer(
    yard: Yard,
    remedy: RemedyOutcome = RemedyOutcome.SUCCEEDED,
    test: CheckStatus = CheckStatus.PASS,
    limit: int = 20,
) -> list[Action]:
    """Carry out what the node's cure asks for until nothing more is asked; return it all."""
    done: list[Action] = []
    pending = list(yard.actions)
    while pending and len(done) < limit:
        action = pending.pop(0)
        if isinstance(action, RunRemedy):
            yard.do(c.RemedyDone(node=action.node, name=action.name, outcome=remedy))
        elif isinstance(action, RunRetest):
            yard.do(c.RetestDone(node=action.node, name=action.name, status=test))
        else:
            continue
        done.append(action)
        pending.extend(yard.actions)
    return done


def moves(yard: Yard, name: str = "a") -> list[str]:
    """The states that the node went through, by its story."""
    steps = yard.state.stories.get(name, ())
    return [step.after.value for step in steps if step.after is not step.before]


def test_the_whole_circle_goes_round_without_a_person() -> None:
    yard = yard_of(4)
    run_id = yard.submit(workload("GPU_8xH100"))
    yard.place()
    yard.start(f"{run_id}.0.0")
    where = yard.attempt(run_id).members[0].node
    see(yard, event(where))
    assert yard.state.cordons[where].by == HEALTH
    stop = yard.attempt(run_id).stop
    assert stop is not None
    assert stop.node == where
    yard.exit(f"{run_id}.0.0", Cause.USER_CODE, code=1)
    run = yard.run(run_id)
    assert (run.attempts[0].outcome, run.attempts[0].cause) == (Outcome.LOST, Cause.DEVICE)
    assert (run.state, run.retries_spent, run.avoid_nodes) == (RunState.QUEUED, 0, (where,))
    assert run.attempts[0].failure is not None
    assert f"{where}-xid.79-1" in run.attempts[0].failure.message
    yard.place()
    assert yard.attempt(run_id).members[0].node != where
    yard.tick(1)
    assert health_of(yard, where) is S.QUARANTINED
    assert acts(yard.tick(1)) == ["RunRemedy"]
    assert [type(action).__name__ for action in answer(yard)] == ["RunRemedy", "RunRetest", "RunRetest"]
    assert health_of(yard, where) is S.PROBATION
    assert where not in yard.state.cordons
    for _ in range(ladder.CLEAN_RUNS):
        yard.do(c.CordonNodes(nodes=tuple(n for n in yard.state.nodes if n != where), by="op"))
        short = yard.submit(workload("GPU_8xH100"))
        yard.place()
        assert yard.attempt(short).members[0].node == where
        yard.start(f"{short}.0.0")
        yard.exit(f"{short}.0.0")
    assert moves(yard, where) == [
        "CORDONED", "DRAINING", "QUARANTINED", "RESETTING", "RETESTING", "PROBATION", "HEALTHY",
    ]  # fmt: skip
    assert ClusterState.from_json(yard.state.to_json()).stories == yard.state.stories


def test_a_cure_that_does_not_help_climbs_the_ladder_and_retires_the_node() -> None:
    yard = yard_of(4)
    see(yard, event(rule="xid.48"))
    yard.tick(1)
    yard.tick(1)
    done = answer(yard, test=CheckStatus.FAIL)
    assert [a.remedy for a in done if isinstance(a, RunRemedy)] == list(ladder.RUNGS)
    assert health_of(yard) is S.RETIRED
    assert "3 remedies did not help" in yard.state.health["a"].waits_for
    assert acts(yard.tick(1000)) == []


@pytest.mark.parametrize("second", ["xid.79", "gpu.off_bus", "gpu.lost", "check.gpu.lost"])
def test_a_gpu_off_the_bus_again_is_a_persons_matter_at_once_whoever_saw_it(second: str) -> None:
    yard = yard_of(4)
    for number, rule in ((1, "xid.79"), (2, second)):
        see(yard, event(rule=rule, number=number, at_ms=yard.now_ms + 1, device=number))
        yard.tick(2)
        yard.tick(1)
        answer(yard)
    assert health_of(yard) is S.RETIRED
    assert f"off the bus for the second time ({second})" in yard.state.health["a"].waits_for
    assert yard.state.health["a"].not_before_ms > yard.now_ms


@pytest.mark.parametrize(
    ("rules", "days", "after"),
    [
        (("xid.119",) * 3, 8, S.RETIRED),  # too far apart for five remedies in a week
        (("xid.119", "xid.62", "xid.119"), 8, S.PROBATION),
        (("xid.119",) * 3, 40, S.PROBATION),  # its strikes are forgotten meanwhile
        (("nic.down",) * 3, 8, S.PROBATION),
    ],
)
def test_an_xid_that_two_cures_did_not_end_is_a_persons_matter(
    rules: tuple[str, ...], days: int, after: HealthState
) -> None:
    yard = yard_of(4)
    for number, rule in enumerate(rules):
        see(yard, event(rule=rule, number=number, at_ms=yard.now_ms + 1))
        yard.tick(2)
        yard.tick(max(ladder.wait_ms(yard.state.health["a"].strikes) // 1000, 1))
        answer(yard)
        if number < len(rules) - 1:
            assert health_of(yard) is S.PROBATION
            yard.tick(days * 86_400)
    assert health_of(yard) is after
    if after is S.RETIRED:
        assert "xid.119 came again after 2 cures" in yard.state.health["a"].waits_for


def test_another_fault_of_a_node_that_came_back_waits_for_its_back_off() -> None:
    yard = yard_of(4)
    for number, rule in ((1, "xid.79"), (2, "xid.48")):
        see(yard, event(rule=rule, number=number, at_ms=yard.now_ms + 1))
        yard.tick(2)
        yard.tick(1)
        answer(yard)
    assert health_of(yard) is S.QUARANTINED
    yard.tick(ladder.BACK_OFF_MS // 1000)
    answer(yard)
    assert health_of(yard) is S.PROBATION


def test_what_nobody_knows_waits_for_a_person_and_their_word_brings_it_back() -> None:
    yard = yard_of(4)
    see(yard, event())
    yard.tick(1)
    yard.tick(1)
    answer(yard, remedy=RemedyOutcome.PERMANENT)
    assert health_of(yard) is S.QUARANTINED
    assert acts(yard.tick(10_000)) == []
    with pytest.raises(Conflict, match="cannot be opened"):
        yard.do(c.UncordonNodes(nodes=("a",), by="op"))
    yard.do(c.AcquitNodes(nodes=("a",), by="op"))
    assert health_of(yard) is S.PROBATION
    assert see(yard, event()).events == ()  # delivered again: settled by that word


def test_a_remedy_that_never_answers_is_given_up_and_a_late_answer_changes_nothing() -> None:
    yard = yard_of(4)
    see(yard, event(rule="xid.48"))
    yard.tick(1)
    yard.tick(1)
    (asked,) = yard.actions
    assert isinstance(asked, RunRemedy)
    yard.tick(301)
    assert health_of(yard) is S.QUARANTINED
    late = yard.do(c.RemedyDone(node="a", name=asked.name, outcome=RemedyOutcome.SUCCEEDED))
    assert (late.events, health_of(yard)) == ((), S.QUARANTINED)


def test_after_a_restart_the_same_remedy_is_asked_for_by_the_same_name() -> None:
    yard = yard_of(4)
    see(yard, event())
    yard.tick(1)
    yard.tick(1)
    (asked,) = yard.actions
    assert isinstance(asked, RunRemedy)
    restored = ClusterState.from_json(yard.state.to_json())
    assert outstanding(restored) == [replace(asked, again=True)]


def test_an_operators_cordon_stays_when_the_node_is_well_again() -> None:
    yard = yard_of(4)
    see(yard, event())
    yard.do(c.CordonNodes(nodes=("a",), by="op", reason="fan"))
    yard.tick(1)
    yard.tick(1)
    answer(yard)
    assert health_of(yard) is S.PROBATION
    assert yard.state.cordons["a"].by == "op"


def test_maintenance_empties_a_node_and_gives_it_back_only_after_its_test() -> None:
    yard = yard_of(2)
    yard.do(c.SetMaintenance(nodes=("a",), by="op", on=True, reason="new fan"))
    assert (health_of(yard), yard.state.cordons["a"].by) == (S.MAINTENANCE, HEALTH)
    see(yard, event())
    assert health_of(yard) is S.MAINTENANCE
    yard.do(c.SetMaintenance(nodes=("a",), by="op", on=False))
    assert health_of(yard) is S.ENROLLING
    answer(yard, test=CheckStatus.UNKNOWN)
    assert health_of(yard) is S.QUARANTINED
    yard.do(c.SetMaintenance(nodes=("a",), by="op", on=True))
    yard.do(c.SetMaintenance(nodes=("a",), by="op", on=False))
    answer(yard)
    assert (health_of(yard), "a" in yard.state.cordons) == (S.HEALTHY, False)


def test_text_of_a_job_makes_a_suspect_at_most() -> None:
    yard = yard_of(4)
    lines = [
        event(number=n, source=Source.JOB_LOG, device=n, rule=f"xid.{x}") for n, x in enumerate((79, 48, 95))
    ]
    see(yard, *lines)
    assert health_of(yard) is S.SUSPECT
    assert score(joined(map(hit_of, lines), START_MS + 10)) < CORDON_FROM
    yard.tick(86_401)
    assert health_of(yard) is S.HEALTHY


def test_evidence_of_a_clock_that_is_ahead_is_forgotten_after_a_day_all_the_same() -> None:
    yard = yard_of(4)
    ahead = event(rule="nic.down", severity=Severity.WARNING, at_ms=START_MS + 10**11)
    see(yard, ahead)
    yard.tick(60)
    see(yard, ahead)  # said again: nothing new
    assert len(yard.state.stories["a"]) == 1
    yard.tick(86_401)
    see(yard, event(rule="disk.slow", severity=Severity.WARNING, at_ms=START_MS + 86_500_000))
    assert (health_of(yard), yard.state.health["a"].score) == (S.HEALTHY, 2.0)


@pytest.mark.parametrize("rule", ["xid.13", "xid.31", "xid.43", "xid.45"])
def test_faults_of_user_code_weigh_nothing(rule: str) -> None:
    if weight(event(rule=rule)) > 2:
        pytest.fail(f"{rule} weighs {weight(event(rule=rule))}")
    yard = yard_of(4)
    see(yard, *(event(rule=rule, number=n) for n in range(20)))
    assert health_of(yard) is S.HEALTHY


def test_the_last_node_of_a_small_pool_is_never_taken_out() -> None:
    yard = yard_of(2)
    see(yard, event("a"))
    see(yard, event("b", rule="xid.48"))
    assert [health_of(yard, name) for name in "ab"] == [S.DRAINING, S.SUSPECT]
    assert "last node of its pool" in yard.state.stories["b"][-1].budget


@pytest.mark.parametrize("label", ["rack", "fabric"])
def test_of_one_rack_or_leaf_switch_half_of_the_nodes_are_taken_out_at_most_whatever_pool_they_are_in(
    label: str,
) -> None:
    there = {"a", "b", "c", "d"}
    nodes = [node(chr(ord("a") + index)) for index in range(26)]
    nodes = [
        replace(
            one,
            labels={label: "r7" if one.name in there else "r8"},
            accelerator="GPU_8xH200" if one.name in "dxyz" else one.accelerator,
        )
        for one in nodes
    ]
    yard = Yard(*nodes)
    for name, rule in (("a", "xid.79"), ("b", "xid.48"), ("c", "xid.62"), ("d", "xid.95"), ("e", "xid.140")):
        see(yard, event(name, rule=rule))
    assert [health_of(yard, name) in TAKEN_OUT for name in "abcde"] == [True, True, False, False, True]
    for name in "cd":
        kept = yard.state.stories[name][-1].budget
        assert kept == f"an incident of {label} r7: 2 of its 4 nodes are out already"


def test_the_same_on_many_nodes_opens_the_breaker_until_a_person_closes_it() -> None:
    yard = yard_of(10)
    soft = {
        "severity": Severity.HIGH,
        "remedy": Remedy.REBOOT,
        "rule": "nic.down",
        "component": Component.NETWORK,
    }
    for name in "abcd":
        see(yard, event(name, **soft))
    assert list(yard.state.breakers) == ["GPU_8xH100"]
    out = [name for name in yard.state.nodes if health_of(yard, name) in TAKEN_OUT]
    assert len(out) <= budget.at_most(10, budget.HARD_SHARE)
    see(yard, event("e"))
    assert "the breaker is open" in yard.state.stories["e"][-1].budget
    yard.do(c.ResetBreaker(by="op"))
    assert yard.state.breakers == {}


def test_whoever_asks_for_the_breaker_of_another_pool_hears_which_one_is_open() -> None:
    yard = Yard(*(node(name) for name in "abcdefghij"), replace(node("z"), accelerator="GPU_1xA10"))
    soft = {"severity": Severity.HIGH, "remedy": Remedy.REBOOT, "component": Component.NETWORK}
    for name in "abcd":
        see(yard, event(name, rule="nic.down", **soft))
    with pytest.raises(NotFound, match=r"no pool 'GPU_8xH10'; did you mean 'GPU_8xH100'") as caught:
        yard.do(c.ResetBreaker(by="op", pool="GPU_8xH10"))
    assert (caught.value.code, caught.value.details["open"]) == ("POOL_NOT_FOUND", ["GPU_8xH100"])
    reply = yard.do(c.ResetBreaker(by="op", pool="GPU_1xA10")).reply
    assert isinstance(reply, Operated)
    (note,) = reply.notes
    assert (note.changed, note.message) == (False, "has no open breaker; open is that of GPU_8xH100")
    assert list(yard.state.breakers) == ["GPU_8xH100"]
    yard.do(c.ResetBreaker(by="op", pool="GPU_8xH100"))
    assert yard.state.breakers == {}


def test_no_automatic_path_leads_from_a_failed_test_to_work_but_through_another_test() -> None:
    reach = {S.RESETTING, S.QUARANTINED, S.RETIRED}
    while more := {after for before in reach for after in AUTOMATIC_MOVES[before]} - reach - {S.RETESTING}:
        reach |= more
    assert not reach & WORKING


def test_a_lighter_word_that_came_first_does_not_hide_a_graver_one() -> None:
    light = event(rule="nic.down", number=1, severity=Severity.WARNING)
    grave = event(rule="nic.down", number=2, severity=Severity.CRITICAL)
    for order in ((light, grave), (grave, light)):
        yard = yard_of(8)
        for one in order:
            see(yard, one)
        assert (health_of(yard), yard.state.health["a"].score) == (S.DRAINING, 8.0)


RULES = ("xid.79", "xid.48", "xid.13", "nic.down", "disk.slow")
EVENTS = st.builds(
    event,
    on=st.sampled_from("abcdefgh"),
    rule=st.sampled_from(RULES),
    number=st.integers(0, 5),
    severity=st.sampled_from((Severity.WARNING, Severity.HIGH, Severity.CRITICAL)),
    source=st.sampled_from((Source.KERNEL, Source.JOB_LOG)),
    device=st.sampled_from((0, 1, None)),
)
SCRIPT = st.lists(
    st.one_of(
        EVENTS,
        st.sampled_from(RemedyOutcome),
        st.sampled_from(CheckStatus),
        st.integers(1, 100_000),
    ),
    max_size=30,
)


@settings(max_examples=60, deadline=None)
@given(SCRIPT)
def test_attempts_and_cordons_keep_within_their_limits_whatever_comes(script: list[Any]) -> None:
    yard = yard_of(8)
    owed: list[Action] = []
    for step in script:
        if isinstance(step, HealthEvent):
            see(yard, step)
        elif isinstance(step, RemedyOutcome | CheckStatus) and owed:
            action = owed.pop(0)
            if isinstance(action, RunRemedy) and isinstance(step, RemedyOutcome):
                yard.do(c.RemedyDone(node=action.node, name=action.name, outcome=step))
            elif isinstance(action, RunRetest) and isinstance(step, CheckStatus):
                yard.do(c.RetestDone(node=action.node, name=action.name, status=step))
        elif isinstance(step, int):
            yard.tick(step)
        owed.extend(action for action in yard.actions if isinstance(action, RunRemedy | RunRetest))
        out = sum(one.state in TAKEN_OUT for one in yard.state.health.values())
        assert out <= budget.at_most(8, budget.STOP_SHARE)
        for name, one in yard.state.health.items():
            assert one.attempt <= ladder.ATTEMPTS
            assert (one.state in TAKEN_OUT) <= (name in yard.state.cordons)
    for name, steps in yard.state.stories.items():
        tested = 0
        for step in steps:
            if step.after is S.RETESTING and step.before is not S.RETESTING:
                tested = 0
            tested += "pass" in step.why or "warn" in step.why
            if step.after is S.PROBATION and step.before is not S.PROBATION:
                assert tested >= ladder.PASSES, (name, steps)


@settings(max_examples=60, deadline=None)
@given(st.lists(EVENTS.map(lambda e: replace(e, node="a", machine="a")), max_size=8), st.randoms())
def test_events_in_any_order_and_twice_lead_to_the_same_verdict(
    events: list[HealthEvent], random: Any
) -> None:
    by_id = {one.event_id: one for one in events}
    first, second = yard_of(8), yard_of(8)
    see(first, *by_id.values())
    shuffled = [*by_id.values(), *by_id.values()]
    random.shuffle(shuffled)
    for one in shuffled:
        see(second, one)
    assert health_of(first) is health_of(second)
    if first.state.health:
        assert first.state.health["a"].hits == second.state.health["a"].hits
        assert first.state.health["a"].score == second.state.health["a"].score


def soft(on: str = "a", number: int = 1, **fields: Any) -> HealthEvent:
    told = {"severity": Severity.HIGH, "code": None, "message": "the link has errors", **fields}
    return event(on, "gpu.nvlink_errors", number, **told)


def test_a_person_takes_suspicion_from_a_node_and_the_story_says_who() -> None:
    yard = yard_of(8)
    see(yard, soft())
    assert health_of(yard) is S.SUSPECT
    done = yard.do(c.AcquitNodes(nodes=("a",), by="ada", reason="the cable was loose"))
    assert (health_of(yard), yard.state.health["a"].hits) == (S.HEALTHY, ())
    assert done.reply.notes[0].changed
    step = yard.state.stories["a"][-1]
    assert (step.before, step.after, step.by, step.why) == (
        S.SUSPECT,
        S.HEALTHY,
        "ada",
        "the cable was loose",
    )
    assert see(yard, soft()).events == (), "the same again is settled by that word"
    again = yard.do(c.AcquitNodes(nodes=("a",), by="ada"))
    assert (again.events, again.reply.notes[0].changed) == ((), False)
    yard.later(60)
    see(yard, soft(number=100_000))
    assert health_of(yard) is S.SUSPECT, "what is new counts"


def test_soft_evidence_of_a_node_that_works_is_put_away_too() -> None:
    yard = yard_of(8)
    see(yard, soft(severity=Severity.WARNING))
    assert (health_of(yard), len(yard.state.health["a"].hits)) == (S.HEALTHY, 1)
    yard.do(c.AcquitNodes(nodes=("a",), by="ada"))
    assert yard.state.health["a"].hits == ()
    yard.later(60)
    see(yard, soft(number=100_000, severity=Severity.WARNING))
    assert health_of(yard) is S.HEALTHY, "two points and not four"


def test_a_suspect_that_only_the_budgets_kept_is_on_probation_after_a_persons_word() -> None:
    yard = yard_of(2)
    see(yard, event("a"), event("b"))
    assert [health_of(yard, name) for name in "ab"] == [S.DRAINING, S.SUSPECT]
    yard.do(c.AcquitNodes(nodes=("b",), by="ada"))
    assert health_of(yard, "b") is S.PROBATION
    yard.tick(3600)
    assert health_of(yard, "b") is S.PROBATION
    with pytest.raises(Conflict, match="only a suspect"):
        yard.do(c.AcquitNodes(nodes=("b",), by="ada"))
