"""The runner's machine: whole stories by hand, then every story Hypothesis can think of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from airyard.node.machine import Phase, RunnerState, step
from airyard.node.machine_events import (
    AttemptOver,
    CheckpointSeen,
    CheckPort,
    CloseLogs,
    Event,
    Instruction,
    InterruptPreparation,
    KillTree,
    Launch,
    LaunchFailed,
    Leave,
    LogsShipped,
    OrderReceived,
    OutputClosed,
    PortChecked,
    Prepare,
    Prepared,
    PrepareFailed,
    ProcessExited,
    ProcessStarted,
    ProgressMade,
    ReapTree,
    Report,
    ReportAcknowledged,
    ServerAnswered,
    SetTimer,
    Signal,
    Timer,
    TimerFired,
    TreeGone,
    WriteExitRecord,
    WriteStopFile,
)
from airyard.node.verdict import Evidence

PREPARE: dict[str, Any] = {
    "member": 0,
    "rendezvous_port": 20001,
    "attempt_timeout_s": 100,
    "stop": {"signal": "SIGTERM", "grace_s": 30},
}


def order(number: int, kind: str, **body: Any) -> OrderReceived:
    return OrderReceived(number=number, kind=kind, body=body)


def play(
    *timed: tuple[int, Event], state: RunnerState | None = None
) -> tuple[RunnerState, list[Instruction]]:
    state = state or RunnerState()
    out: list[Instruction] = []
    for now_ms, event in timed:
        state, more = step(state, event, now_ms)
        out.extend(more)
    return state, out


def running(**prepare: Any) -> RunnerState:
    state, _ = play(
        (0, order(1, "PREPARE", **{**PREPARE, **prepare})),
        (5, Prepared(address="10.0.0.1")),
        (6, PortChecked(port=20001, ok=True)),
        (10, order(2, "GO", master_addr="10.0.0.1", master_port=20001)),
        (12, ProcessStarted(pid=7)),
    )
    assert state.phase is Phase.RUNNING
    return state


def exited(out: list[Instruction]) -> Mapping[str, Any]:
    (report,) = [one for one in out if isinstance(one, Report) and one.kind == "EXITED"]
    return report.body


def kinds(out: list[Instruction]) -> list[str]:
    return [one.kind if isinstance(one, Report) else type(one).__name__ for one in out]


def test_a_run_that_succeeds() -> None:
    state, out = play(
        (20, ProcessExited(code=0)),
        (21, TreeGone()),
        (22, OutputClosed(last_seq=3, sha256="ab")),
        (23, LogsShipped()),
        (24, ReportAcknowledged(number=99)),
        state=running(),
    )
    assert kinds(out) == [
        "ReapTree", "WriteExitRecord", "EXITED", "CloseLogs", "WriteExitRecord", "LOGS_CLOSED",
        "WriteExitRecord", "Leave",
    ]  # fmt: skip
    assert exited(out)["cause"] is None
    assert exited(out)["duration_ms"] == 10
    assert state.phase is Phase.LEFT


def test_member_zero_asks_for_another_port() -> None:
    state, out = play(
        (0, order(1, "PREPARE", **PREPARE)),
        (1, Prepared()),
        (2, PortChecked(port=20001, ok=False)),
        (3, order(2, "PORT", port=20002)),
        (4, PortChecked(port=20001, ok=True)),
        (5, PortChecked(port=20002, ok=True)),
    )
    assert kinds(out) == ["Prepare", "CheckPort", "PORT_TAKEN", "CheckPort", "READY"]
    assert state.phase is Phase.READY


def test_orders_seen_before_are_ignored() -> None:
    state, out = play((20, order(2, "GO")), (21, order(1, "PREPARE", **PREPARE)), state=running())
    assert out == []
    assert state.last_order == 2


def test_stop_writes_the_file_then_signals_then_kills_at_the_deadline() -> None:
    state, out = play(
        (1000, order(3, "STOP", reason="PREEMPTED", by="run 9", signal="SIGUSR1", grace_s=5)),
        (6000, TimerFired(timer=Timer.GRACE)),
        (6001, ProcessExited(signal=9)),
        (6002, TreeGone()),
        state=running(),
    )
    assert out[:4] == [
        WriteStopFile(reason="PREEMPTED", deadline_ms=6000, grace_s=5.0),
        Signal(signal="SIGUSR1"),
        SetTimer(timer=Timer.GRACE, at_ms=6000),
        KillTree(),
    ]
    assert exited(out)["cause"] == "PREEMPTED"
    assert "killed after 5 s of grace" in exited(out)["message"]
    assert state.phase is Phase.CLOSING


def test_a_later_stop_shortens_and_never_lengthens() -> None:
    state, _ = play((1000, order(3, "STOP", reason="PREEMPTED", grace_s=60)), state=running())
    state, out = play((2000, order(4, "STOP", reason="CANCELLED", grace_s=1)), state=state)
    assert out == [
        WriteStopFile(reason="PREEMPTED", deadline_ms=3000, grace_s=1.0),
        SetTimer(timer=Timer.GRACE, at_ms=3000),
    ]
    state, out = play((2100, order(5, "STOP", reason="CANCELLED", grace_s=600)), state=state)
    assert out == []
    _, out = play((2999, TimerFired(timer=Timer.GRACE)), state=state)
    assert out == [SetTimer(timer=Timer.GRACE, at_ms=3000)]


def test_the_time_limit_needs_no_server() -> None:
    state = running()
    state, early = play((100_009, TimerFired(timer=Timer.TIME_LIMIT)), state=state)
    assert early == [SetTimer(timer=Timer.TIME_LIMIT, at_ms=100_010)]
    state, out = play(
        (100_010, TimerFired(timer=Timer.TIME_LIMIT)),
        (101_000, ProcessExited(code=0)),
        (101_001, TreeGone()),
        state=state,
    )
    assert kinds(out)[:3] == ["WriteStopFile", "Signal", "SetTimer"]
    body = exited(out)
    assert body["cause"] == "USER_LIMIT"
    assert body["stop_reason"] == "TIME_LIMIT"
    assert "time limit: 100 s" in body["message"]


def test_a_longer_limit_in_mid_run_moves_the_end() -> None:
    state, out = play((90_000, order(3, "LIMIT", attempt_timeout_s=200)), state=running())
    assert out == [SetTimer(timer=Timer.TIME_LIMIT, at_ms=200_010)]
    state, out = play((100_010, TimerFired(timer=Timer.TIME_LIMIT)), state=state)
    assert out == [SetTimer(timer=Timer.TIME_LIMIT, at_ms=200_010)]
    _, out = play(
        (200_010, TimerFired(timer=Timer.TIME_LIMIT)),
        (200_100, ProcessExited(signal=15)),
        (200_101, TreeGone()),
        state=state,
    )
    assert kinds(out)[:2] == ["WriteStopFile", "Signal"]
    assert "time limit: 200 s" in exited(out)["message"]


def test_a_limit_that_has_passed_ends_the_run_now_and_none_never_does() -> None:
    state, out = play((50_000, order(3, "LIMIT", attempt_timeout_s=20)), state=running())
    assert out == [SetTimer(timer=Timer.TIME_LIMIT, at_ms=20_010)]
    _, out = play((50_000, TimerFired(timer=Timer.TIME_LIMIT)), state=state)
    assert kinds(out) == ["WriteStopFile", "Signal", "SetTimer"]
    state, out = play((50_000, order(3, "LIMIT", attempt_timeout_s=None)), state=running())
    assert out == []
    assert play((10**9, TimerFired(timer=Timer.TIME_LIMIT)), state=state)[1] == []
    state, out = play(
        (50_000, order(3, "LIMIT", attempt_timeout_s=60)), state=running(attempt_timeout_s=None)
    )
    assert out == [SetTimer(timer=Timer.TIME_LIMIT, at_ms=60_010)]


def test_a_limit_while_preparing_counts_from_the_launch_and_one_after_the_stop_comes_too_late() -> None:
    _, out = play(
        (0, order(1, "PREPARE", **PREPARE)),
        (1, order(2, "LIMIT", attempt_timeout_s=7)),
        (5, Prepared(address="10.0.0.1")),
        (6, PortChecked(port=20001, ok=True)),
        (1_000, order(3, "GO")),
    )
    assert out[-1] == SetTimer(timer=Timer.TIME_LIMIT, at_ms=8_000)
    state, _ = play((100_010, TimerFired(timer=Timer.TIME_LIMIT)), state=running())
    _, out = play(
        (100_020, order(3, "LIMIT", attempt_timeout_s=900)),
        (100_100, ProcessExited(signal=15)),
        (100_101, TreeGone()),
        state=state,
    )
    assert "time limit: 100 s" in exited(out)["message"]


def test_cancel_while_preparing() -> None:
    _, out = play(
        (0, order(1, "PREPARE", **PREPARE)),
        (1, order(2, "STOP", reason="CANCELLED", by="ann", grace_s=10)),
        (2, PrepareFailed(cause="ENVIRONMENT", message="interrupted")),
        (3, TreeGone()),
    )
    assert kinds(out) == [
        "Prepare", "InterruptPreparation", "ReapTree", "WriteExitRecord", "EXITED", "CloseLogs",
    ]  # fmt: skip
    body = exited(out)
    assert body["started"] is False
    assert body["cause"] == "CANCELLED"
    assert body["message"] == "cancelled by ann, before the command started"


def test_a_prolog_that_fails_says_so_beside_the_cause_and_counts_before_the_epilog() -> None:
    _, out = play(
        (0, order(1, "PREPARE", **PREPARE)),
        (2, PrepareFailed(cause="NODE", message="the prolog exited with 1", fault="prolog")),
        (3, TreeGone(fault="epilog", fault_message="the epilog exited with 2")),
    )
    body = exited(out)
    assert (body["cause"], body["started"]) == ("NODE", False)
    assert (body["fault"], body["fault_message"]) == ("prolog", "the prolog exited with 1")


def test_an_epilog_that_fails_leaves_the_verdict_as_it_is() -> None:
    gone = TreeGone(fault="epilog", fault_message="dirty")
    _, out = play((20, ProcessExited(code=0)), (21, gone), state=running())
    assert (exited(out)["cause"], exited(out)["fault"], exited(out)["fault_message"]) == (
        None,
        "epilog",
        "dirty",
    )
    _, out = play((20, ProcessExited(code=0)), (21, TreeGone()), state=running())
    assert "fault" not in exited(out)


def test_a_stop_before_prepare_forbids_it() -> None:
    _, out = play((0, order(2, "STOP", reason="CANCELLED")), (1, order(3, "PREPARE", **PREPARE)))
    assert kinds(out) == ["ReapTree"]


def test_410_kills_without_grace_and_leaves_a_record() -> None:
    state, out = play(
        (50, AttemptOver()),
        (51, ProcessExited(signal=9)),
        (52, TreeGone()),
        (53, OutputClosed(last_seq=0, sha256="")),
        state=running(),
    )
    assert kinds(out)[0] == "KillTree"
    assert isinstance(out[-2], WriteExitRecord)
    assert out[-2].delivered is False
    assert kinds(out)[-1] == "Leave"
    assert state.phase is Phase.LEFT


def test_the_lease_counts_from_when_the_renewal_was_sent() -> None:
    state, out = play(
        (1000, ServerAnswered(sent_ms=400)), (1000, order(3, "LEASE", seconds=24)), state=running()
    )
    assert out == [SetTimer(timer=Timer.LEASE, at_ms=24_400)]
    state, out = play((5000, ServerAnswered(sent_ms=4000)), state=state)
    assert out == [SetTimer(timer=Timer.LEASE, at_ms=28_000)]
    _, out = play((28_000, TimerFired(timer=Timer.LEASE)), state=state)
    assert out == [KillTree()]


def test_a_lease_comes_with_every_answer_and_is_not_counted() -> None:
    state, out = play(
        (1000, ServerAnswered(sent_ms=900)), (1000, order(0, "LEASE", seconds=24)), state=running()
    )
    assert out == [SetTimer(timer=Timer.LEASE, at_ms=24_900)]
    assert state.last_order == running().last_order
    _, out = play((2000, ServerAnswered(sent_ms=1900)), (2000, order(0, "LEASE", seconds=3600)), state=state)
    assert out[-1] == SetTimer(timer=Timer.LEASE, at_ms=3_601_900)


def test_nothing_begins_once_the_lease_is_over_although_its_timer_comes_late() -> None:
    """As after a sleep of the machine: GO had come, and is read only now."""
    state, _ = play(
        (0, ServerAnswered(sent_ms=0)),
        (0, order(0, "LEASE", seconds=24)),
        (0, order(1, "PREPARE", **PREPARE)),
        (5, Prepared(address="10.0.0.1")),
        (6, PortChecked(port=20001, ok=True)),
    )
    _, out = play((24_000, order(2, "GO", master_addr="10.0.0.1", master_port=20001)), state=state)
    assert kinds(out) == ["ReapTree"]


def test_a_command_that_ended_before_its_lease_did_is_judged_by_its_own_end() -> None:
    state, _ = play((0, ServerAnswered(sent_ms=0)), (0, order(0, "LEASE", seconds=24)), state=running())
    _, out = play((23_000, ProcessExited(code=0)), (25_000, TreeGone()), state=state)
    assert exited(out)["cause"] is None


def test_what_an_older_leader_says_counts_no_more() -> None:
    state, _ = play(
        (0, ServerAnswered(sent_ms=0, epoch=8)), (0, order(0, "LEASE", seconds=24)), state=running()
    )
    _, out = play(
        (9000, ServerAnswered(sent_ms=8000, epoch=7)),
        (9000, OrderReceived(number=3, kind="STOP", body={"reason": "CANCELLED"}, epoch=7)),
        (9000, OrderReceived(number=0, kind="LEASE", body={"seconds": 3600}, epoch=7)),
        state=state,
    )
    assert out == []
    _, out = play((24_000, TimerFired(timer=Timer.LEASE)), state=state)
    assert out == [KillTree()]


def test_only_the_newest_progress_and_checkpoint_wait() -> None:
    state = running()
    state, _ = play(
        (20, CheckpointSeen(step=1, path="a")), (21, CheckpointSeen(step=2, path="b")), state=state
    )
    assert [(one.kind, one.body.get("step")) for one in state.outbox][-1] == ("CHECKPOINT", 2)
    assert sum(one.kind == "CHECKPOINT" for one in state.outbox) == 1
    numbers = [one.number for one in state.outbox]
    assert numbers == sorted(numbers)


def test_out_of_memory_and_address_in_use_come_from_evidence() -> None:
    _, out = play(
        (20, ProcessExited(code=137)),
        (21, TreeGone(evidence=Evidence(oom_kills=1, memory_limit_bytes=2**30))),
        state=running(),
    )
    assert exited(out)["cause"] == "USER_LIMIT"
    assert exited(out)["message"].startswith("host memory: ")
    tail = "RuntimeError: port: 20001, EADDRINUSE, address already in use"
    _, out = play(
        (20, ProcessExited(code=1)), (21, TreeGone(evidence=Evidence(stderr_tail=tail))), state=running()
    )
    assert exited(out)["cause"] == "NETWORK"


# --- every story ------------------------------------------------------------------------------------------

_outside = st.one_of(
    st.builds(
        lambda number, kind, grace: order(
            number,
            kind,
            **(
                PREPARE
                if kind == "PREPARE"
                else {"port": 20002, "grace_s": grace, "seconds": 24, "attempt_timeout_s": grace or None}
            ),
        ),
        st.integers(1, 8),
        st.sampled_from(["PREPARE", "PORT", "GO", "STOP", "LIMIT", "LEASE", "NEW_KIND"]),
        st.sampled_from([0, 5, 50]),
    ),
    st.builds(ReportAcknowledged, number=st.integers(0, 12)),
    st.builds(TimerFired, timer=st.sampled_from(Timer)),
    st.builds(CheckpointSeen, step=st.integers(0, 3), path=st.just("p")),
    st.builds(ProgressMade, phase=st.just("code")),
    st.builds(ServerAnswered, sent_ms=st.integers(0, 10**6)),
    st.just(AttemptOver()),
    st.builds(LaunchFailed, cause=st.just("PLATFORM"), message=st.just("no fork")),
    st.builds(ProcessStarted, pid=st.just(3)),
    st.builds(ProcessExited, code=st.just(0)),
    st.just(TreeGone()),
    st.just(LogsShipped()),
)


class Shell:
    """Answers instructions as a runner may, in an order that ``draw`` picks, and checks what it is told."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.state = RunnerState()
        self.now_ms = 0
        self.owed: list[Event] = []
        self.told: list[Instruction] = []
        self.stopped = False

    def feed(self, event: Event) -> None:
        self.now_ms += self.draw(st.integers(0, 60_000))
        before = self.state
        self.state, out = step(before, event, self.now_ms)
        assert step(before, event, self.now_ms) == (self.state, out), "the step is a function"
        assert self.state.last_order >= before.last_order
        if isinstance(event, OrderReceived) and event.kind == "STOP" and event.number > before.last_order:
            self.stopped = True
        for instruction in out:
            assert not (self.stopped and isinstance(instruction, Launch)), "a launch after a stop"
            self.told.append(instruction)
            self.owe(instruction)

    def owe(self, instruction: Instruction) -> None:
        coin = self.draw(st.booleans())
        match instruction:
            case Prepare():
                self.owed.append(Prepared() if coin else PrepareFailed(cause="ENVIRONMENT", message="no"))
            case CheckPort(port=port):
                self.owed.append(PortChecked(port=port, ok=coin))
            case Launch():
                if coin:
                    self.owed.append(ProcessStarted(pid=5))
                    self.owed.append(ProcessExited(code=self.draw(st.sampled_from([0, 1, 127]))))
                else:
                    self.owed.append(LaunchFailed(cause="PLATFORM", message="no fork"))
            case ReapTree():
                self.owed.append(TreeGone())
            case CloseLogs():
                self.owed.extend([OutputClosed(last_seq=1, sha256="x"), LogsShipped()])
            case _:
                pass

    def finish(self) -> None:
        """Let the world be kind: pay every debt, acknowledge everything, and stop what still waits."""
        for _ in range(60):
            if self.state.phase is Phase.LEFT:
                return
            if self.owed:
                self.feed(self.owed.pop(0))
            elif self.state.outbox:
                self.feed(ReportAcknowledged(number=self.state.outbox[-1].number))
            elif self.state.phase is Phase.REPORTING:
                self.feed(LogsShipped())
            else:
                self.feed(order(self.state.last_order + 1, "STOP", reason="CANCELLED", grace_s=0))
                if self.state.phase in (Phase.RUNNING, Phase.LAUNCHING):
                    self.feed(ProcessExited(signal=15))
        raise AssertionError(f"never left: {self.state}")


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_every_story_ends_once(data: st.DataObject) -> None:
    shell = Shell(data.draw)
    honest = data.draw(st.booleans())
    for _ in range(data.draw(st.integers(0, 25))):
        if shell.owed and data.draw(st.booleans()):
            shell.feed(shell.owed.pop(0))
        else:
            event = data.draw(_outside)
            if honest and not isinstance(
                event, OrderReceived | ReportAcknowledged | TimerFired | ServerAnswered | AttemptOver
            ):
                continue
            shell.feed(event)
    shell.finish()
    told = shell.told
    reports = [one for one in told if isinstance(one, Report)]
    assert sum(isinstance(one, Launch) for one in told) <= 1
    assert sum(isinstance(one, Prepare) for one in told) <= 1
    assert sum(isinstance(one, ReapTree) for one in told) == 1
    assert sum(isinstance(one, Leave) for one in told) == 1
    assert isinstance(told[-1], Leave)
    record = told[-2]
    assert isinstance(record, WriteExitRecord)
    assert record.logs is not None
    assert sum(one.kind == "EXITED" for one in reports) == 1
    assert sum(one.kind == "LOGS_CLOSED" for one in reports) == 1
    numbers = [one.number for one in reports]
    assert numbers == sorted(set(numbers))
    if any(isinstance(one, InterruptPreparation) for one in told):
        assert not any(isinstance(one, Launch) for one in told)
    reap = next(index for index, one in enumerate(told) if isinstance(one, ReapTree))
    assert not any(isinstance(one, Launch | Signal | WriteStopFile) for one in told[reap:])
    if record.delivered:
        assert shell.state.outbox == ()
