"""Hosts of a fleet that lose power, with and without their disk or for a moment; killed runners and agents."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from e2e.hosts import Host
from e2e.stories import AGENT, RAYLET, StormyFleet, Story, boot_ns, stormy_fleet, told
from e2e.yard import Yard, wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]
__all__ = ["told"]

Told = Callable[[str, float], None]


@pytest.fixture(scope="module")
def whole(
    tmp_path_factory: pytest.TempPathFactory, make_yard: Callable[..., Yard], environment_cache: Path
) -> Iterator[StormyFleet]:
    with stormy_fleet(3, tmp_path_factory.mktemp("power"), environment_cache, make_yard) as fleet:
        yield fleet


@pytest.fixture
def fleet(whole: StormyFleet) -> Iterator[StormyFleet]:
    """The fleet, with all machines there; afterwards its journal must be right."""
    whole.await_all()
    yield whole
    assert whole.verified()


def test_a_killed_runner_is_placed_again(fleet: StormyFleet, told: Told) -> None:
    story = Story(fleet=fleet)
    story.await_steps(2)
    (machine,) = story.machines()
    host = fleet.hosts[fleet.number(machine)]
    pid = fleet.runner_pid(host, f"{story.run_id}.0.0")
    at_ns = boot_ns()
    host.run("kill", "-9", str(pid))
    story.await_attempt(1)
    told("runner killed → running again", story.seconds_until(1, at_ns))
    run = story.finish(2)
    assert (run["attempts"][0]["outcome"], run["attempts"][0]["cause"]) == ("LOST", "PLATFORM")
    assert run["retries_spent"] == 0


def test_a_killed_raylet_with_its_agent_costs_no_run(fleet: StormyFleet, told: Told) -> None:
    story = Story(fleet=fleet, nodes=2)
    host = fleet.hosts[fleet.number(story.machines()[0])]
    runner = fleet.runner_pid(host, f"{story.run_id}.0.0")
    at_ns = boot_ns()
    before = {*host.kill(f"{AGENT}|{RAYLET}")}
    assert len(before) == 2, before
    wait_for(lambda: len({*host.pids(f"{AGENT}|{RAYLET}")} - before) == 2, 60, what="both again")
    fleet.await_all()
    told("raylet and agent killed → adopted", (boot_ns() - at_ns) / 1e9)
    assert fleet.get(story.run_id)["status"] == "RUNNING"
    assert runner in host.pids("airyard")
    steps = story.steps()
    story.await_steps(steps + 2)
    run = story.finish(1)
    assert run["logs_complete"]


def test_a_power_off_and_one_that_takes_the_disk_along(fleet: StormyFleet, told: Told) -> None:
    """Two hosts at once; both come back, one as itself and one as a new machine of the same name."""
    kept, bare = Story(fleet=fleet), Story(fleet=fleet)
    for story in (kept, bare):
        story.await_steps(3)
    numbers = [fleet.number(story.machines()[0]) for story in (kept, bare)]
    assert len({*numbers}) == 2
    hosts = [fleet.hosts[number] for number in numbers]
    ids = [machine_id(fleet, host) for host in hosts]
    at_ns = boot_ns()
    for number in numbers:
        fleet.hosts.lose_power(number)
    shutil.rmtree(fleet.home_of(hosts[1]))
    # There is room for one of them on the third host; the other waits for a machine that is back.
    wait_for(
        lambda: {len(story.run()["attempts"]) for story in (kept, bare)} == {1, 2}, 60, what="another attempt"
    )
    # A machine without its old disk is let in only once nothing of it may be alive.
    wait_for(
        lambda: all(story.run()["attempts"][0]["outcome"] for story in (kept, bare)), 60, what="both lost"
    )
    for number in numbers:
        fleet.hosts.restore_power(number)
    fleet.join_again(*hosts)
    fleet.await_all()
    for story in (kept, bare):
        story.await_attempt(1)
    told("power-off → running again", min(story.seconds_until(1, at_ns) for story in (kept, bare)))
    assert machine_id(fleet, hosts[0]) == ids[0]
    assert machine_id(fleet, hosts[1]) != ids[1]
    assert len(fleet.data("nodes")["nodes"]) == 6, "nothing is doubled"
    lost = kept.finish(2)["attempts"][0], bare.finish(2, whole=False)["attempts"][0]
    assert {(each["outcome"], each["cause"]) for each in lost} == {("LOST", "NODE")}, lost
    *_, hole, end = fleet.said(bare.run_id)
    assert (hole["type"], end["type"], end["complete"]) == ("GAP", "END", False)
    assert (hole["first_seq"], hole["last_seq"]) == (end["members"][0]["last_seq"] + 1, None)
    assert hole["reason"].startswith(f"machine {hosts[1].name} "), hole


def test_a_power_cut_of_a_moment(fleet: StormyFleet, told: Told) -> None:
    """The host is back before anybody missed it: another boot proves the death, so nobody waits for a lease."""
    story = Story(fleet=fleet)
    story.await_steps(2)
    number = fleet.number(story.machines()[0])
    at_ns = boot_ns()
    fleet.hosts.lose_power(number)
    fleet.hosts.restore_power(number)
    fleet.join_again(fleet.hosts[number])
    story.await_attempt(1)
    told("power cut of a moment → running again", story.seconds_until(1, at_ns))
    fleet.await_all()
    first = story.finish(2)["attempts"][0]
    assert (first["outcome"], first["cause"]) == ("LOST", "NODE"), first


def machine_id(fleet: StormyFleet, host: Host) -> str:
    """Return what a host's data folder is known by."""
    return (fleet.home_of(host) / "node" / "ray" / "id").read_text()
