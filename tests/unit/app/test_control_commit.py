"""Group commit: each command of a batch stands for itself, and nothing that failed leaves a trace."""

from __future__ import annotations

from typing import Any

import pytest

from airyard.adapters.memory import MemoryDisk, MemoryJournal
from airyard.app import control as control_module
from airyard.app.control import Control
from airyard.app.planning import Planning
from airyard.core import commands as c
from airyard.core.actions import StartMember
from airyard.core.cluster import Machine
from airyard.core.decide import Decision, Submitted, decide
from airyard.core.errors import Conflict, InvariantBroken, NotFound, Unavailable
from airyard.core.events import MemberPreparing, MemberStarted
from airyard.core.policy import Policy, PoolPolicy
from airyard.core.run import RunState
from core_yard import node, workload


class StillClock:
    """Time stands."""

    def now_ms(self) -> int:
        return 5_000

    def monotonic_ms(self) -> int:
        return 5_000


def opened(disk: MemoryDisk | None = None) -> Control:
    control = Control(MemoryJournal(disk or MemoryDisk()), StillClock())
    control.open()
    machine = Machine(name="a", boot_id="b", address="a")
    control.commit([c.MachineSeen(machine=machine, nodes=(node("a"),), members=())])
    return control


def submit(key: str) -> c.SubmitRun:
    return c.SubmitRun(owner="ada", workload=workload(), idempotency_key=key)


def test_a_refused_command_leaves_the_others_alone() -> None:
    control = opened()
    batch = control.commit([submit("1"), c.CancelRun(run_id=99, by="ada"), submit("2")])
    assert [type(answer) for answer in batch.answers] == [Submitted, NotFound, Submitted]
    assert batch.changed_runs == {1, 2}
    assert sorted(control.state.runs) == [1, 2]


def test_later_commands_of_a_batch_see_the_earlier_ones() -> None:
    control = opened()
    batch = control.commit([submit("same"), submit("same")])
    assert batch.answers == (Submitted(run_id=1, existing=False), Submitted(run_id=1, existing=True))
    assert batch.events == 1


@pytest.mark.parametrize("moment", ["deciding", "applying", "half applied"])
def test_a_bug_met_by_one_command_is_its_own(moment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def buggy(state: Any, command: c.Command, now_ms: int) -> Decision:
        if not isinstance(command, c.Tick):
            return decide(state, command, now_ms)
        if moment == "deciding":
            raise ZeroDivisionError
        unknown = MemberPreparing(run_id=77, attempt=0, member=0)
        illegal = MemberStarted(run_id=1, attempt=0, member=0, report=1)
        good = decide(state, submit("half"), now_ms).events
        return Decision(events=(unknown,) if moment == "applying" else (*good, illegal))

    control = opened()
    monkeypatch.setattr(control_module, "decide", buggy)
    batch = control.commit([submit("1"), c.Tick(), submit("2")])
    assert [type(answer) for answer in batch.answers][::2] == [Submitted, Submitted]
    assert isinstance(batch.answers[1], InvariantBroken)
    assert sorted(control.state.runs) == [1, 2]
    assert batch.events == 2


def test_a_full_disk_refuses_everything_and_changes_nothing() -> None:
    disk = MemoryDisk()
    control = opened(disk)
    before = control.state.to_json()
    disk.refusals.append(Unavailable("the disk is full", code="JOURNAL_FULL"))
    batch = control.commit([submit("1"), c.CancelRun(run_id=99, by="ada")])
    assert [type(answer) for answer in batch.answers] == [Unavailable, NotFound]
    assert batch.actions == ()
    assert control.state.to_json() == before
    assert control.commit([submit("1")]).answers == (Submitted(run_id=1, existing=False),)


class UnansweringJournal(MemoryJournal):
    """Writes, and while ``deaf`` says that it cannot tell; while ``away`` it is not to be read either."""

    deaf = False
    away = False

    def append(self, expected_seq: int, epoch: int, events: Any, changes: Any) -> None:
        super().append(expected_seq, epoch, events, changes)
        if self.deaf:
            raise Unavailable("the connection broke", code="JOURNAL_BROKEN")

    def events_after(self, seq: int) -> Any:
        if self.away:
            raise Unavailable("nobody answers", code="JOURNAL_BROKEN")
        return super().events_after(seq)


def test_what_was_written_although_nobody_said_so_is_taken_in_before_the_next_command() -> None:
    disk = MemoryDisk()
    opened(disk)
    journal = UnansweringJournal(disk)
    control = Control(journal, StillClock())
    control.open()
    control.commit([submit("1"), submit("2")])
    journal.deaf = True
    assert isinstance(control.commit([c.CancelRun(run_id=1, by="ada")]).answers[0], Unavailable)
    assert control.state.runs[1].state is RunState.QUEUED
    journal.away = True
    (refused,) = control.commit([submit("3")]).answers
    assert isinstance(refused, Unavailable)
    journal.deaf = journal.away = False
    batch = control.commit([submit("3"), submit("3")])
    assert batch.answers == (Submitted(run_id=3, existing=False), Submitted(run_id=3, existing=True))
    assert batch.changed_runs == {1, 3}, "who waits for the cancelled run is told"
    assert 1 not in control.state.runs or control.state.runs[1].state is RunState.ENDED
    delta = control.delta_to_plan()
    assert delta is not None
    assert 1 not in {run.run_id for run in delta.runs}
    again = Control(MemoryJournal(disk), StillClock())
    again.open()
    assert again.state.runs == control.state.runs


def test_a_start_that_was_never_issued_calls_for_the_machines() -> None:
    disk = MemoryDisk()
    opened(disk)
    journal = UnansweringJournal(disk)
    control = Control(journal, StillClock())
    control.open()
    control.commit([submit("1")])
    planning = Planning()
    delta = control.delta_to_plan()
    assert delta is not None
    planning.absorb(delta, 0)
    journal.deaf = True
    plan = c.CommitPlan(plan=planning.make(0))
    assert control.commit([plan]).actions == ()
    journal.deaf = False
    batch = control.commit([plan])
    assert batch.caught_up
    assert batch.events == 0, "the same plan again places nothing twice"
    assert not control.commit([c.Tick()]).caught_up
    machine = Machine(name="a", boot_id="b", address="a")
    hello = control.commit([c.MachineSeen(machine=machine, nodes=(node("a"),), members=())])
    assert [type(action) for action in hello.actions] == [StartMember]


def test_what_another_server_wrote_is_left_alone() -> None:
    disk = MemoryDisk()
    old = opened(disk)
    old.commit([submit("1")])
    new = Control(MemoryJournal(disk), StillClock())
    new.open()
    new.commit([submit("2")])
    for _ in range(2):
        assert isinstance(old.commit([submit("3")]).answers[0], Conflict)
    assert sorted(old.state.runs) == [1]


def test_a_plan_that_could_not_be_journalled_is_made_again() -> None:
    disk = MemoryDisk()
    control = opened(disk)
    control.commit([submit("1")])
    planning = Planning()
    delta = control.delta_to_plan()
    assert delta is not None
    assert control.delta_to_plan() is None
    disk.refusals.append(Unavailable("the disk is full", code="JOURNAL_FULL"))
    planning.absorb(delta, 0)
    control.commit([c.CommitPlan(plan=planning.make(0))])
    again = control.delta_to_plan()
    assert again is not None
    planning.absorb(again, 0)
    control.commit([c.CommitPlan(plan=planning.make(0))])
    assert control.state.runs[1].state is RunState.ACTIVE


def test_a_plan_that_came_to_nothing_is_due_again() -> None:
    control = opened()
    control.commit([submit("1")])
    assert control.delta_to_plan() is not None
    control.plan_again()
    assert control.delta_to_plan() is not None


def test_a_stale_server_is_refused_and_the_state_is_recovered() -> None:
    disk = MemoryDisk()
    old = opened(disk)
    old.commit([submit("1")])
    new = Control(MemoryJournal(disk), StillClock())
    new.open()
    assert new.state.epoch == old.state.epoch + 1
    assert isinstance(old.commit([submit("2")]).answers[0], Conflict)
    assert sorted(new.state.runs) == [1]


def test_a_copy_of_a_state_keeps_its_keys_while_either_goes_on() -> None:
    control = opened()
    control.commit([submit("1")])
    kept = control.take_state_snapshot()
    before = kept.to_json()
    control.commit([submit("2")])
    control.commit([submit("3")])
    assert kept.to_json() == before
    assert sorted(key for _, key in control.state.keys) == ["1", "2", "3"]


def test_what_nothing_follows_from_leaves_the_state_itself() -> None:
    control = opened()
    before = control.state
    control.commit([c.Tick(), c.CancelRun(run_id=99, by="ada")])
    assert control.state is before


def test_a_policy_that_moves_runs_to_another_pool_is_written_for_each_of_them() -> None:
    disk = MemoryDisk()
    control = opened(disk)
    planning = Planning()
    control.commit([submit("1")])
    delta = control.delta_to_plan()
    assert delta is not None
    planning.absorb(delta, 5_000)
    control.commit([c.CommitPlan(plan=planning.make(5_000))])
    policy = Policy(pools=(PoolPolicy(name="big", accelerator="GPU_8xH100"),))
    control.commit([c.DeclarePolicy(policy=policy, by="ada", source="api")])
    attempt = control.state.runs[1].attempt
    assert attempt is not None
    assert attempt.pool == "big"
    assert disk.runs[1].record["attempts"][0]["pool"] == "big"
