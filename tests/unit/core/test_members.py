"""What runners and agents say: reports once, GO for all or none, deaths, machines that come back."""

from __future__ import annotations

import pytest

from airyard.core import commands as c
from airyard.core.actions import StartMember
from airyard.core.decide import Acknowledged, outstanding
from airyard.core.ids import MemberKey
from airyard.core.run import Cause, MemberPhase, Outcome, RunState, StopReason, Tracking, TrackingState
from core_yard import Yard, acts, ended, kinds, node, workload


def gang(nodes: int = 2, **fields: object) -> Yard:
    """A yard with run 1 placed on nodes a, b, ..."""
    yard = Yard(*(node(name) for name in "abcd"[:nodes]))
    yard.submit(workload(nodes=nodes, **fields))  # type: ignore[arg-type]  # keywords of workload()
    yard.place()
    return yard


def seen(key: str, state: str, **fields: object) -> c.SeenMember:
    return c.SeenMember(key=MemberKey.parse(key), state=c.SeenState(state), **fields)  # type: ignore[arg-type]  # of SeenMember


def test_go_comes_when_all_are_ready_and_carries_member_zeros_address() -> None:
    yard = gang()
    yard.ready("1.0.1")
    assert yard.attempt(1).orders == ()
    yard.ready("1.0.0")
    (go,) = yard.attempt(1).orders
    assert (go.kind, dict(go.data)["master_addr"]) == ("GO", "1.0.0.test")
    assert dict(go.data)["master_port"] == yard.attempt(1).port


def test_repeated_reports_change_nothing_and_are_acknowledged() -> None:
    yard = gang()
    yard.ready("1.0.0")
    again = yard.report("1.0.0", "READY", number=1, address="elsewhere")
    assert again.events == ()
    assert again.reply == Acknowledged(number=1)
    assert yard.attempt(1).members[0].address == "1.0.0.test"


def test_a_stranger_is_told_that_it_is_over() -> None:
    yard = gang()
    assert yard.poll("9.0.0").over
    wrong = c.MemberReports(key=MemberKey(1, 0, 0), epoch=77, reports=())
    assert yard.do(wrong).reply == Acknowledged(number=0, over=True)
    assert yard.do(c.MemberReports(key=MemberKey(1, 3, 0), epoch=1, reports=())).reply == Acknowledged(
        number=0, over=True
    )


def test_one_failure_stops_the_others_and_is_the_cause() -> None:
    yard = gang()
    yard.start("1.0.0", "1.0.1")
    assert kinds(yard.exit("1.0.1", Cause.USER_CODE, code=7)) == ["MemberExited", "StopOrdered"]
    stop = yard.attempt(1).stop
    assert stop is not None
    assert (stop.reason, stop.grace_s) == (StopReason.MEMBER_FAILED, 10)
    events = kinds(yard.exit("1.0.0", Cause.CANCELLED, stop_reason="MEMBER_FAILED"))
    assert events == ["MemberExited", "AttemptEnded", "RunQueuedAgain"]
    failure = yard.attempt(1).failure
    assert failure is not None
    assert (failure.member, failure.exit_code) == (1, 7)


def test_success_needs_everybody() -> None:
    yard = gang()
    yard.start("1.0.0", "1.0.1")
    assert kinds(yard.exit("1.0.0")) == ["MemberExited"]
    assert kinds(yard.exit("1.0.1")) == ["MemberExited", "AttemptEnded", "RunEnded"]
    assert yard.run(1).outcome is Outcome.SUCCEEDED
    yard.close("1.0.0")
    decision = yard.report("1.0.1", "LOGS_CLOSED", logs=c.LogClose(last_seq=-1, sha256=""))
    assert kinds(decision) == ["MemberLogsClosed", "RunArchived"]
    assert acts(decision) == ["ForgetMember", "ForgetMember"]


def test_devices_are_free_when_the_tree_is_gone_not_when_the_log_is_closed() -> None:
    yard = gang(1)
    yard.start("1.0.0")
    assert yard.state.bookings() == {"a": dict.fromkeys(range(8), 1)}
    yard.exit("1.0.0")
    assert yard.state.bookings() == {}


def test_a_taken_port_is_replaced_once() -> None:
    yard = gang()
    first = yard.attempt(1).port
    yard.poll("1.0.0")
    yard.report("1.0.0", "PORT_TAKEN", port=first)
    second = yard.attempt(1).port
    assert second != first
    assert [order.kind for order in yard.attempt(1).orders] == ["PORT"]
    assert kinds(yard.report("1.0.0", "PORT_TAKEN", port=first)) == []
    assert kinds(yard.report("1.0.1", "PORT_TAKEN", port=second)) == []


def test_checkpoints_are_journalled_once_a_minute_and_at_the_stop() -> None:
    yard = gang(1)
    yard.start("1.0.0")
    assert kinds(yard.save("1.0.0", 1)) == ["CheckpointAcknowledged"]
    yard.later(30)
    assert kinds(yard.save("1.0.0", 2)) == []
    yard.later(31)
    assert kinds(yard.save("1.0.0", 3)) == ["CheckpointAcknowledged"]
    yard.do(c.CancelRun(run_id=1, by="ada"))
    assert kinds(yard.save("1.0.0", 4)) == ["CheckpointAcknowledged"]
    checkpoint = yard.run(1).checkpoint
    assert checkpoint is not None
    assert checkpoint.step == 4


def test_a_runner_that_died_is_lost_and_its_log_is_asked_for() -> None:
    yard = gang()
    yard.start("1.0.0", "1.0.1")
    decision = yard.gone("1.0.0", exit_=ended(Cause.NODE, code=None))
    assert kinds(decision) == ["MemberLost", "StopOrdered"]
    assert acts(decision) == ["ShipLogs"]
    assert yard.poll("1.0.0").over
    assert yard.report("1.0.0", "EXITED", exit=ended()).reply == Acknowledged(number=0, over=True)
    # The agent says it in the dead runner's place, and knows no epoch.
    closed = c.Report(
        number=10**9, kind=c.ReportKind.LOGS_CLOSED, at_ms=0, logs=c.LogClose(last_seq=1, sha256="")
    )
    by_agent = c.MemberReports(key=MemberKey(1, 0, 0), epoch=0, reports=(closed,))
    assert kinds(yard.do(by_agent)) == ["MemberLogsClosed"]
    assert kinds(yard.gone("1.0.0")) == []
    yard.exit("1.0.1", Cause.CANCELLED, stop_reason="MEMBER_FAILED")
    assert (yard.attempt(1).outcome, yard.attempt(1).cause) == (Outcome.LOST, Cause.NODE)


def test_an_exit_record_counts_like_the_report() -> None:
    yard = gang(1)
    yard.start("1.0.0")
    assert kinds(yard.gone("1.0.0", "exited", ended())) == ["MemberExited", "AttemptEnded", "RunEnded"]
    assert yard.report("1.0.0", "EXITED", exit=ended(Cause.USER_CODE)).events == ()


def test_reports_overtaken_by_the_agents_word_change_nothing() -> None:
    yard = gang(1)
    yard.poll("1.0.0")
    yard.gone("1.0.0", "exited", ended(Cause.ENVIRONMENT, started=False, permanent=True))
    for kind, fields in (
        ("READY", {"address": "x"}),
        ("STARTED", {}),
        ("PORT_TAKEN", {"port": yard.attempt(1).port}),
    ):
        decision = yard.report("1.0.0", kind, **fields)
        assert decision.events == ()
        assert isinstance(decision.reply, Acknowledged)
        assert not decision.reply.over


def test_a_late_exit_record_is_not_of_the_future() -> None:
    yard = gang(1)
    yard.gone("1.0.0", "exited", ended(at_ms=yard.now_ms + 99_999))
    exit_ = yard.attempt(1).members[0].exit
    assert exit_ is not None
    assert exit_.at_ms == yard.now_ms


# --- machines


def test_a_hello_with_nothing_new_is_no_event() -> None:
    yard = gang(1)
    yard.poll("1.0.0")
    assert kinds(yard.hello("a", None, seen("1.0.0", "alive"))) == []


def test_hello_starts_again_what_was_lost_on_the_way() -> None:
    yard = gang()
    decision = yard.hello("b")
    assert [a.key for a in decision.actions if isinstance(a, StartMember)] == [MemberKey(1, 0, 1)]
    assert kinds(decision) == []


def test_hello_does_not_start_what_was_told_to_stop() -> None:
    yard = gang(1)
    yard.do(c.CancelRun(run_id=1, by="ada"))
    assert acts(yard.hello("a")) == ["KillMember"]
    assert kinds(yard.gone("1.0.0")) == ["MemberLost", "AttemptEnded", "RunEnded"]
    assert yard.run(1).outcome is Outcome.CANCELLED


def test_a_member_that_ran_and_is_not_listed_is_killed_to_prove_its_end() -> None:
    """The list may be older than the member: only the agent's answer to the kill frees its devices."""
    yard = gang()
    yard.start("1.0.0", "1.0.1")
    decision = yard.hello("b")
    assert (kinds(decision), acts(decision)) == ([], ["KillMember"])
    assert kinds(yard.gone("1.0.1")) == ["MemberLost", "StopOrdered"]


def test_a_restarted_machine_settles_all_its_members_at_once() -> None:
    yard = Yard(node("a0", "A10", 1, machine="m"), node("a1", "A10", 1, machine="m"))
    yard.submit(workload("GPU_1xA10", 2))
    yard.place()
    yard.start("1.0.0", "1.0.1")
    dead = ended(Cause.NODE, code=None)
    members = (seen("1.0.0", "died", exit=dead), seen("1.0.1", "died", exit=dead))
    decision = yard.hello("m", None, *members, boot="b2")
    assert kinds(decision) == [
        "MachineJoined", "MemberLost", "StopOrdered", "MemberLost", "AttemptEnded", "RunQueuedAgain",
    ]  # fmt: skip
    assert yard.attempt(1).outcome is Outcome.LOST
    assert yard.run(1).avoid_nodes == ("a0",)


def test_hello_kills_and_forgets_what_nobody_knows() -> None:
    yard = Yard(node("a"))
    decision = yard.hello("a", None, seen("7.0.0", "alive"), seen("8.0.0", "exited", exit=ended()))
    assert acts(decision) == ["KillMember", "ForgetMember", "ForgetMember"]


def test_a_lost_member_that_lives_is_killed() -> None:
    yard = gang()
    yard.gone("1.0.0")
    assert acts(yard.hello("a", None, seen("1.0.0", "alive"))) == ["KillMember"]


def test_a_machine_that_is_away_keeps_its_bookings_and_gets_nothing_new() -> None:
    yard = gang(1)
    assert kinds(yard.do(c.MachineAway(machine="a"))) == ["MachineLeft"]
    assert kinds(yard.do(c.MachineAway(machine="a"))) == []
    assert kinds(yard.do(c.MachineAway(machine="never seen"))) == []
    assert yard.state.bookings() == {"a": dict.fromkeys(range(8), 1)}
    assert yard.state.machines["a"].away_ms == yard.now_ms
    yard.later(5).do(c.MachineAway(machine="a"))
    assert yard.state.machines["a"].away_ms == yard.now_ms - 5_000, "since when, not when it was last said"
    assert kinds(yard.hello("a", None, seen("1.0.0", "alive"))) == ["MachineJoined"]
    assert yard.state.machines["a"].away_ms == 0


# --- tracking


def test_go_waits_for_tracking_then_goes_without() -> None:
    yard = gang(1, tracked=True)
    yard.ready("1.0.0")
    assert yard.attempt(1).orders == ()
    assert kinds(yard.tick(4)) == []
    assert kinds(yard.tick(1)) == ["TrackingChanged", "AttemptReleased"]
    assert yard.attempt(1).tracking.state is TrackingState.DEFERRED


@pytest.mark.parametrize("state", [TrackingState.OPEN, TrackingState.DEFERRED])
def test_an_answer_releases_the_gang(state: TrackingState) -> None:
    yard = gang(1, tracked=True)
    yard.ready("1.0.0")
    answer = c.TrackingAnswered(run_id=1, attempt=0, tracking=Tracking(state=state, run_id="r"))
    assert kinds(yard.do(answer)) == ["TrackingChanged", "AttemptReleased"]
    assert kinds(yard.do(answer)) == []


def test_what_is_owed_to_the_tracker_is_issued_again() -> None:
    yard = gang(1, tracked=True)
    assert [type(a).__name__ for a in outstanding(yard.state)] == ["OpenTracking"]
    yard.do(c.TrackingAnswered(run_id=1, attempt=0, tracking=Tracking(state=TrackingState.OPEN)))
    yard.start("1.0.0")
    yard.exit("1.0.0")
    assert outstanding(yard.state) == []
    yard.close("1.0.0")
    assert [type(a).__name__ for a in outstanding(yard.state)] == ["CloseTracking"]
    assert acts(yard.tick(1)) == ["CloseTracking"]
    closed = c.TrackingAnswered(run_id=1, attempt=0, tracking=Tracking(state=TrackingState.CLOSED))
    assert kinds(yard.do(closed)) == ["TrackingChanged", "RunArchived"]
    assert kinds(yard.do(closed)) == []


def test_member_phases_follow_reports() -> None:
    yard = gang(1)
    phases = [yard.attempt(1).members[0].phase]
    for act in (lambda: yard.poll("1.0.0"), lambda: yard.report("1.0.0", "READY", address="a"),
                lambda: yard.report("1.0.0", "STARTED"), lambda: yard.exit("1.0.0")):  # fmt: skip
        act()
        phases.append(yard.attempt(1).members[0].phase)
    assert phases == [
        MemberPhase.STARTING, MemberPhase.PREPARING, MemberPhase.READY, MemberPhase.RUNNING, MemberPhase.EXITED,
    ]  # fmt: skip
    assert yard.run(1).state is RunState.ENDED
