"""Bugs are planted in the production code, one at a time: the simulator must find each within a few seeds.

A simulator that finds nothing may be blind; this shows what it sees.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest

from airyard.app import leases, planning
from airyard.app.control import Control
from airyard.core import evolve
from airyard.core.commands import ReportKind
from airyard.core.decide import gang, judge, members, operating, placing, timers, verdicts
from airyard.core.run import MemberPhase
from airyard.core.scheduling import nodes, planner
from airyard.core.state import ClusterState
from airyard.node import lease, machine
from airyard.sim.chance import Fault
from airyard.sim.world import simulate

SEEDS = range(240)
pytestmark = pytest.mark.timeout(300)
Plant = Callable[[], Any]


def go_when_one_is_ready() -> Any:
    def early(draft: Any, attempt: Any) -> None:
        ready = [m for m in attempt.members if m.phase is MemberPhase.READY]
        if attempt.state.value == "PREPARING" and ready:
            draft.emit(
                gang.AttemptReleased(
                    run_id=attempt.run_id, attempt=attempt.number, address="x", port=attempt.port
                )
            )

    return patch.object(gang, "_release_when_ready", early)


def exit_0_at_a_stop_is_success() -> Any:
    return patch.object(judge, "_succeeded", lambda exit_: exit_ is not None and exit_.cause is None)


def stopping_frees_the_devices() -> Any:
    """Devices are given away when the stop is ordered, not when the processes are gone."""

    def bookings(self: ClusterState) -> dict[str, dict[int, int]]:
        out: dict[str, dict[int, int]] = {}
        for run, attempt in self.live_attempts():
            for member in attempt.members:
                if not member.released and attempt.stop is None:
                    out.setdefault(member.node, {}).update(dict.fromkeys(member.devices, run.run_id))
        return out

    def running_of(run: Any, attempt: Any, forecast: Any) -> Any:
        running = known(run, attempt, forecast)
        return replace(running, seats=()) if running.stopping else running

    known = planning.running_of
    return both(
        patch.object(ClusterState, "bookings", bookings), patch.object(planning, "running_of", running_of)
    )


def lost_starts_stay_lost() -> Any:
    return patch.object(members, "start_member", lambda attempt, member: members.ForgetMember(
        key=attempt.member_key(member.index), machine=member.machine
    ))  # fmt: skip


def texts_excuse_for_ever() -> Any:
    return patch.object(verdicts, "TEXT_EXCUSES", 99)


def a_second_verdict_counts_too() -> Any:
    return patch.object(verdicts, "owed", lambda attempt: attempt.verdict_until_ms is not None)


def exits_are_acknowledged_and_dropped() -> Any:
    handlers = {**members._HANDLERS, ReportKind.EXITED: lambda *_: None}
    return patch.object(members, "_HANDLERS", handlers)


def nothing_kills_the_deaf() -> Any:
    return patch.object(timers, "_kill_the_deaf", lambda draft, attempt: None)


def the_commit_checks_nothing() -> Any:
    return patch.object(placing, "_still_holds", lambda *_: True)


def a_plan_is_made_once() -> Any:
    original = Control._note_plans

    def note(self: Control, commands: Any) -> None:
        original(self, commands)
        if self._plan is not None:
            self._plan = replace(self._plan, wake_ms=None)

    return patch.object(Control, "_note_plans", note)


def the_tree_outlives_its_report() -> Any:
    """EXITED is said when the main process ends, not when nothing is left."""

    def on_exited(state: Any, event: Any, now_ms: int) -> Any:
        if state.phase not in (machine.Phase.LAUNCHING, machine.Phase.RUNNING):
            return state, []
        state = replace(state, phase=machine.Phase.REAPING, exit=event, exited_ms=now_ms, started=True)
        return machine._on_tree_gone(state, machine.TreeGone(), now_ms)

    return patch.dict(machine._HANDLERS, {machine.ProcessExited: on_exited})


def reservations_ask_nobody_to_leave() -> Any:
    return patch.object(timers, "leaving", lambda *_: None)


def drains_ask_nobody_to_leave() -> Any:
    nobody = [patch.object(module, "ask_to_leave", lambda *_: None) for module in (operating, timers)]
    return both(*nobody)


def a_word_of_death_is_taken_of_the_living() -> Any:
    """The machine may have been back since, with new processes on it."""
    return patch.object(operating, "_check_away", lambda *_: None)


def reserved_nodes_are_given_away() -> Any:
    """Neither the planner nor the commit sees that a node is reserved."""
    return both(
        patch.object(placing, "barring", lambda *_: None),
        patch.object(planner._Cycle, "_may_stand", lambda *_: True),
    )


def runners_are_not_told_of_a_new_limit() -> Any:
    return patch.object(evolve, "_limited", lambda attempt, _: attempt)


def a_held_run_may_start() -> Any:
    """Neither the planner nor the commit looks at holds and begins."""

    def let_go(act: Callable[..., Any], place: int) -> Callable[..., Any]:
        def without(*given: Any) -> Any:
            free = replace(given[place], held=False, begin_ms=0)
            return act(*given[:place], free, *given[place + 1 :])

        return without

    return both(
        patch.object(planning, "waiting_of", let_go(planning.waiting_of, 0)),
        patch.object(placing, "_still_holds", let_go(placing._still_holds, 1)),
    )


def a_plan_gives_devices_twice() -> Any:
    """The commit would refuse the second start; nothing but the check of the plan sees it."""
    return patch.object(nodes.NodeIndex, "take", lambda self, slot, count, until_ms: slot.free[:count])


def who_leaves_keeps_its_seats_in_the_book() -> Any:
    return patch.object(nodes.NodeIndex, "unseat", lambda self, running: None)


def a_new_leader_does_not_wait() -> Any:
    """It takes whom it has not heard for gone, though the leader of before may just have answered them."""
    original = leases.Leases.__init__

    def begin(self: Any, **given: Any) -> None:
        original(self, **{**given, "begun_ms": 0})

    return patch.object(leases.Leases, "__init__", begin)


def nobody_ends_what_a_hanging_runner_should() -> Any:
    return patch.object(lease, "is_overdue", lambda until_ms, now_ms: False)


def nobody_keeps_a_lease() -> Any:
    """Neither the runner nor, for it, the agent."""
    timers = {**machine._TIMERS, machine.Timer.LEASE: lambda state, now_ms: (state, [])}
    return both(
        patch.object(machine, "_TIMERS", timers),
        patch.object(machine, "_lease_is_over", lambda *_: False),
        patch.object(lease, "is_overdue", lambda until_ms, now_ms: False),
    )


@contextmanager
def both(*patches: Any) -> Iterator[None]:
    with ExitStack() as stack:
        for one in patches:
            stack.enter_context(one)
        yield


PLANTS = [
    go_when_one_is_ready,
    exit_0_at_a_stop_is_success,
    stopping_frees_the_devices,
    lost_starts_stay_lost,
    texts_excuse_for_ever,
    a_second_verdict_counts_too,
    exits_are_acknowledged_and_dropped,
    nothing_kills_the_deaf,
    the_commit_checks_nothing,
    a_plan_is_made_once,
    the_tree_outlives_its_report,
    reservations_ask_nobody_to_leave,
    drains_ask_nobody_to_leave,
    a_word_of_death_is_taken_of_the_living,
    reserved_nodes_are_given_away,
    runners_are_not_told_of_a_new_limit,
    a_held_run_may_start,
    a_plan_gives_devices_twice,
    who_leaves_keeps_its_seats_in_the_book,
    a_new_leader_does_not_wait,
    nobody_ends_what_a_hanging_runner_should,
    nobody_keeps_a_lease,
]


@contextmanager
def planted(plant: Plant) -> Iterator[None]:
    with plant():
        yield


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_a_planted_bug_is_found(plant: Plant) -> None:
    with planted(plant):
        for seed in SEEDS:
            outcome = simulate(seed, step_limit=60_000)
            if outcome.problem:
                assert outcome.tail
                return
    pytest.fail(f"{len(SEEDS)} seeds did not notice: {plant.__name__}")


def test_every_fault_has_a_name_of_its_own() -> None:
    assert len({fault.value for fault in Fault}) == len(Fault)
