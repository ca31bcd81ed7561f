"""Whatever is said to the control plane, in whatever order, the state stays sound and replays to itself.

Reports that repeat, come late or come from the dead, agents that contradict each other, cancels at any moment: each is
either taken in, ignored or refused with an error of the caller; never with a broken invariant.
"""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from airyard.core import commands as c
from airyard.core.errors import AiryardError, InvariantBroken
from airyard.core.ids import MemberKey
from airyard.core.policy import Reservation
from airyard.core.run import Cause, Checkpoint, LogClose, Run, Tracking, TrackingState
from airyard.core.state import ClusterState
from airyard.core.workload import Priority
from core_yard import Yard, ended, node, workload

STEPS = 60
MACHINES = ("a", "b", "m")


def any_command(draw: random.Random, yard: Yard, stored: dict[int, Run]) -> c.Command:
    """Make any command at all about what there is, was, or never was."""
    run_id = draw.randint(1, max(yard.state.next_run_id, 2))
    key = MemberKey(run_id, draw.randint(0, 2), draw.randint(0, 1))
    makers = [
        lambda: c.SubmitRun(
            owner="ada",
            workload=workload(
                draw.choice(("GPU_8xH100", "GPU_2xH100", "GPU_1xA10", "CPU")),
                draw.randint(1, 2),
                priority=draw.choice(tuple(Priority)),
                tracked=draw.random() < 0.5,
            ),
            idempotency_key=f"k{draw.randint(0, 30)}",
        ),
        lambda: c.CancelRun(run_id=run_id, by="ada"),
        lambda: c.ResumeRun(run=draw.choice(list(stored.values())), by="ada"),
        lambda: c.CordonNodes(nodes=(draw.choice(("a", "b")),), by="op"),
        lambda: c.UncordonNodes(nodes=("a", "b"), by="op"),
        lambda: c.DrainNodes(
            nodes=(draw.choice(("a", "b")),),
            by="op",
            deadline_ms=draw.choice((None, yard.now_ms, yard.now_ms + 30_000)),
        ),
        lambda: c.ConfirmDead(name=draw.choice(MACHINES), by="op"),
        lambda: c.CommitPlan(plan=yard.plan()),
        lambda: c.CommitPlan(plan=yard.plan()),
        lambda: c.MachineAway(machine=draw.choice(MACHINES)),
        lambda: _seen(draw, yard),
        lambda: c.MemberGone(seen=_member(draw, key)),
        lambda: c.MemberReports(key=key, epoch=draw.choice((1, 1, 1, 2)), reports=_reports(draw, yard)),
        lambda: c.MemberReports(key=key, epoch=1, reports=_reports(draw, yard)),
        lambda: c.TrackingAnswered(
            run_id=run_id,
            attempt=draw.randint(0, 1),
            tracking=Tracking(state=draw.choice(tuple(TrackingState)[2:])),
        ),
        lambda: _update(draw, yard, run_id),
        lambda: _reserve(draw, yard),
        lambda: c.EndReservation(reservation_id=draw.randint(1, 4), by="op"),
        lambda: c.Tick(),
        lambda: c.BeginEpoch(version="next") if draw.random() < 0.1 else c.Tick(),
    ]
    if not stored:
        del makers[2]
    return draw.choice(makers)()


def _update(draw: random.Random, yard: Yard, run_id: int) -> c.UpdateRun:
    return c.UpdateRun(
        run_id=run_id,
        by="ada",
        priority=draw.choice((None, *Priority)),
        project=draw.choice((None, None, "nlp")),
        attempt_timeout_s=draw.choice((None, None, -1, 0, 5, 900)),
        begin_ms=draw.choice((None, None, 0, yard.now_ms + draw.randint(-5_000, 50_000))),
        held=draw.choice((None, None, True, False)),
    )


def _reserve(draw: random.Random, yard: Yard) -> c.MakeReservation:
    from_ms = yard.now_ms + draw.choice((0, 100_000))
    wanted = Reservation(
        reservation_id=draw.randint(0, 9),
        nodes=tuple(draw.sample(("a", "b", "m-0", "gone"), draw.randint(0, 2))),
        from_ms=from_ms,
        to_ms=from_ms + draw.choice((-1, 50_000, 700_000)),
        by="op",
        maintenance=draw.random() < 0.5,
        project=draw.choice((None, "nlp")),
    )
    return c.MakeReservation(reservation=wanted, evict=draw.random() < 0.5)


def _seen(draw: random.Random, yard: Yard) -> c.MachineSeen:
    name = draw.choice(MACHINES)
    machine = yard.state.machines[name]
    nodes = tuple(n for n in yard.state.nodes.values() if n.machine == name)
    keys = [
        run_attempt.member_key(member.index)
        for run in yard.state.runs.values()
        for run_attempt in run.attempts
        for member in run_attempt.members
        if member.machine == name and draw.random() < 0.9
    ]
    return c.MachineSeen(machine=machine, nodes=nodes, members=tuple(_member(draw, key) for key in keys))


def _member(draw: random.Random, key: MemberKey) -> c.SeenMember:
    state = draw.choice((c.SeenState.ALIVE, c.SeenState.ALIVE, c.SeenState.EXITED, c.SeenState.DIED))
    exit_ = None
    if state is not c.SeenState.ALIVE and draw.random() < 0.9:
        causes = (None, Cause.USER_CODE) if state is c.SeenState.EXITED else (Cause.PLATFORM, Cause.NODE)
        exit_ = ended(draw.choice(causes))
    return c.SeenMember(key=key, state=state, exit=exit_)


def _reports(draw: random.Random, yard: Yard) -> tuple[c.Report, ...]:
    """What a runner says from its beginning to some moment: all that it was not told to be known already."""
    now = yard.now_ms
    cause = draw.choice((None, Cause.USER_CODE, Cause.CANCELLED, Cause.ENVIRONMENT))
    stop = "" if cause is not Cause.CANCELLED else "CANCELLED"
    life = (
        c.Report(number=1, kind=c.ReportKind.PORT_TAKEN, at_ms=now, port=draw.randint(20_000, 20_040)),
        c.Report(number=2, kind=c.ReportKind.READY, at_ms=now, address="x"),
        c.Report(number=3, kind=c.ReportKind.STARTED, at_ms=now),
        c.Report(
            number=4,
            kind=c.ReportKind.CHECKPOINT,
            at_ms=now,
            checkpoint=Checkpoint(step=1, path="p", at_ms=now),
        ),
        c.Report(number=5, kind=c.ReportKind.EXITED, at_ms=now, exit=ended(cause, stop_reason=stop)),
        c.Report(number=6, kind=c.ReportKind.LOGS_CLOSED, at_ms=now, logs=LogClose(last_seq=1, sha256="")),
    )
    return life[: draw.randint(0, len(life))]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**48))
def test_no_order_of_words_breaks_the_state(seed: int) -> None:
    draw = random.Random(seed)
    yard = Yard(node("a"), node("b"), node("m-0", "A10", 1, machine="m"), node("m-cpu-0", None, machine="m"))
    stored: dict[int, Run] = {}
    for _ in range(STEPS):
        yard.later(draw.choice((0, 0, 1, 10, 700)))
        try:
            yard.do(any_command(draw, yard, stored))
        except InvariantBroken as broken:
            raise AssertionError(f"seed {seed}: {broken}") from broken
        except AiryardError:
            pass
        stored.update(yard.state.runs)
    again = ClusterState()
    for recorded in yard.journal:
        again.apply(recorded)
    assert again == yard.state
    assert ClusterState.from_json(yard.state.to_json()) == yard.state
