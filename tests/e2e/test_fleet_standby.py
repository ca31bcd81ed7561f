"""A fleet whose leader is lost with its machine, or cut off from the database, while the next one stands by."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from e2e.standby_fleet import BACKGROUND, StandbyFleet, standby_fleet
from e2e.stories import Story, boot_ns, told
from e2e.yard import Yard, wait_for
from postgres_server import PostgresServer

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]
__all__ = ["told"]

Told = Callable[[str, float], None]
EXIT_REPLACED = 8


@pytest.fixture(scope="module")
def whole(
    tmp_path_factory: pytest.TempPathFactory,
    make_yard: Callable[..., Yard],
    environment_cache: Path,
    postgres: PostgresServer,
) -> Iterator[StandbyFleet]:
    folder = tmp_path_factory.mktemp("standby")
    with standby_fleet(2, folder, environment_cache, make_yard, postgres) as fleet:
        yield fleet


@pytest.fixture
def fleet(whole: StandbyFleet) -> Iterator[StandbyFleet]:
    """The fleet, with all machines there; afterwards its journal must be right."""
    whole.await_all()
    yield whole
    assert whole.verified()


def test_a_leader_that_is_cut_off_from_its_database(
    fleet: StandbyFleet, told: Told, capfd: pytest.CaptureFixture[str]
) -> None:
    with fleet.only_on(3, 4):
        gang = Story(fleet=fleet, nodes=2)
    with fleet.only_on(0):
        beside = Story(fleet=fleet)  # on the leader's own machine
    at_ns = boot_ns()
    for number in (0, BACKGROUND):
        fleet.hosts.part(number, apart=True)
    try:
        late = fleet.submit("echo late", accelerator="GPU_8xH100")
        taken_s = (boot_ns() - at_ns) / 1e9
        fleet.until_logged(0, "silent")
        assert fleet.ended(late)["outcome"] == "SUCCEEDED"
        for story in (gang, beside):
            story.await_steps(story.steps() + 5)
    finally:
        for number in (0, BACKGROUND):
            fleet.hosts.part(number, apart=False)
    assert fleet.exit_code(0) == EXIT_REPLACED
    assert '"event": "replaced_as_leader"' in fleet.log(0)
    for story in (gang, beside):
        story.finish(1)
    fleet.start_server(0)
    fleet.until_logged(0, "standing_by")
    with capfd.disabled():
        print(f"\nmeasured: cut_off_leader_replaced {taken_s:.1f} s")
    told("leader cut off from the database → first submit", taken_s)


def test_a_leader_that_loses_power_with_a_member_on_it(
    fleet: StandbyFleet, told: Told, capfd: pytest.CaptureFixture[str]
) -> None:
    leads = 1 if '"event": "leading"' in fleet.log(1) else 0
    waits = 1 - leads
    with fleet.only_on(3, 4):
        gang = Story(fleet=fleet, nodes=2)
    with fleet.only_on(leads):
        lost = Story(fleet=fleet)
    lost.await_steps(2)
    count = fleet.log(waits).count('"event": "leading"')
    at_ns = boot_ns()
    fleet.hosts[leads].power_off()
    late = fleet.submit("echo late", accelerator="CPU")
    taken_s = (boot_ns() - at_ns) / 1e9
    fleet.until_logged(waits, "leading", count=count + 1)
    assert fleet.ended(late)["outcome"] == "SUCCEEDED"
    lost.await_attempt(1)
    again_s = lost.seconds_until(1, at_ns)
    gang.await_steps(gang.steps() + 2)
    gang.finish(1)
    # It comes back as the one that waits, and its machine as one of the fleet.
    fleet.hosts[leads].power_on()
    fleet.start_server(leads)
    fleet.until_logged(leads, "standing_by", count=fleet.log(leads).count('"event": "standing_by"') + 1)
    wait_for(lambda: f"h{leads}-cpu-0" in fleet.alive(), timeout=90, what="the machine that was off")
    run = lost.finish(2)  # now its log can be whole, too
    assert (run["attempts"][0]["outcome"], run["attempts"][0]["cause"]) == ("LOST", "NODE")
    with capfd.disabled():
        print(
            f"\nmeasured: take_over_of_a_fleet {taken_s:.1f} s\nmeasured: power_off_with_standby {again_s:.1f} s"
        )
    told("leader's host off → first submit", taken_s)
    told("leader's host off → its member running again", again_s)
