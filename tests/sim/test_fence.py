"""Scenes of the fence, one fault after the other at the worst moment, and the bugs that each must show.

What a hundred seeds meet now and then is met here every time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest

from airyard.app import leases
from airyard.core.commands import SubmitRun
from airyard.core.workload import Compute, Workload
from airyard.node import machine
from airyard.sim.chance import Fault
from airyard.sim.faults import Injector
from airyard.sim.machine import SimMachine
from airyard.sim.setting import Broken
from airyard.sim.world import World

Scene = Callable[[World, Injector, SimMachine], None]
LIMIT_MS = 200_000


def play(scene: Scene) -> str:
    """Let a run begin in a quiet world with a lease of 24 s, then the scene; return the broken promise, if any."""
    world = World(seed=3)
    world.setting.chance.rates = dict.fromkeys(Fault, 0.0) | {Fault.LOSS: 1e-9}
    world.lease_s, world.fencing = 24.0, True
    for each in world.machines:
        each.look_at_leases()
    world.start_server()
    world._watch_server()
    workload = Workload(experiment="fence", command="for=ever term=ignore", compute=Compute.of("GPU_8xH100"))
    command = SubmitRun(owner="ada", workload=workload, idempotency_key="one")
    world.setting.later(1_000, lambda: world.people.ask(command))
    begun = False
    try:
        while world.setting.time.elapsed_ms < LIMIT_MS:
            world.setting.time.step()
            world.truth.look()
            if not begun and world.setting.time.elapsed_ms > 30_000 and world.truth.live_trees:
                begun = True
                (busy,) = [each for each in world.machines if each.live_folders()]
                scene(world, Injector(world), busy)
    except Broken as broken:
        return str(broken)
    assert begun
    return ""


def cut_off(world: World, where: SimMachine, lasts_ms: int) -> None:
    cuts = world.network.cuts
    for names in (cuts.requests, cuts.answers, cuts.link):
        names.add(where.name)
    where.on_agent()
    world.setting.later(lasts_ms, cuts.clear)


def answers_lag_and_then_a_machine_is_cut_off(world: World, _: Injector, busy: SimMachine) -> None:
    world.network.lag_ms[busy.name] = 3_800
    world.setting.later(20_000, lambda: cut_off(world, busy, 60_000))


def a_planned_stop_and_a_machine_that_the_next_leader_never_sees(
    world: World, _: Injector, busy: SimMachine
) -> None:
    assert world.server is not None
    world.down_until_ms = world.setting.time.now_ms() + 30_000
    world.server.stop_as_planned()
    world.setting.later(15_000, lambda: cut_off(world, busy, 90_000))


def a_long_planned_stop(world: World, _: Injector, busy: SimMachine) -> None:
    assert world.server is not None
    world.down_until_ms = world.setting.time.now_ms() + 90_000
    world.server.stop_as_planned()


def a_rift_between_two_leaders(world: World, injector: Injector, busy: SimMachine) -> None:
    """The run's machine stays on the old leader's side, which the next leader does not reach."""
    network, old = world.network, world.server
    assert old is not None
    injector._take_over()
    network.sides.clear()
    network.cuts.link.clear()
    network.sides[busy.name] = old
    network.cuts.link.add(busy.name)


def the_last_answer_arrives_and_the_next_request_does_not(
    world: World, _: Injector, busy: SimMachine
) -> None:
    world.network.cuts.requests.add(busy.name)
    world.network.cuts.link.add(busy.name)
    busy.on_agent()
    world.setting.later(60_000, world.network.cuts.clear)


def the_server_waits_a_second_less_than_a_lease() -> Any:
    return patch.object(leases, "surely_over_ms", lambda at_ms, lease_ms: at_ms + lease_ms - 1_000)


def runners_count_their_lease_from_the_answer() -> Any:
    original = machine._on_answered

    def late(state: Any, event: Any, now_ms: int) -> Any:
        return original(state, replace(event, sent_ms=now_ms), now_ms)

    return patch.dict(machine._HANDLERS, {machine.ServerAnswered: late})


def a_new_leader_forgets_the_hold() -> Any:
    original = leases.Leases.__init__

    def begin(self: Any, **given: Any) -> None:
        original(self, **{**given, "longest_ms": 0})

    return patch.object(leases.Leases, "__init__", begin)


def an_old_leader_answers_on() -> Any:
    return patch.object(leases.Reign, "holds", lambda self, now_ms: True)


def a_planned_stop_grants_no_hold() -> Any:
    return patch.object(leases.Leases, "hold", lambda self, lease_ms: setattr(self, "_holding", True))


PLANTED = [
    (
        the_last_answer_arrives_and_the_next_request_does_not,
        the_server_waits_a_second_less_than_a_lease,
    ),
    (answers_lag_and_then_a_machine_is_cut_off, runners_count_their_lease_from_the_answer),
    (a_planned_stop_and_a_machine_that_the_next_leader_never_sees, a_new_leader_forgets_the_hold),
    (a_long_planned_stop, a_planned_stop_grants_no_hold),
    (a_rift_between_two_leaders, an_old_leader_answers_on),
]


@pytest.mark.parametrize(("scene", "plant"), PLANTED, ids=lambda each: each.__name__)
def test_a_scene_ends_well_and_shows_its_bug(scene: Scene, plant: Callable[[], Any]) -> None:
    assert play(scene) == ""
    with plant():
        assert play(scene) != ""
