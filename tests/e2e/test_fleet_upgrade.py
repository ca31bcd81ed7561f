"""A fleet over Ray is upgraded under a live run: the server first, then the machine, each state starting new runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import airyard
from e2e.fleet import Fleet, fleet_on_hosts
from e2e.hosts import Hosts
from e2e.yard import Yard, wait_for
from older_release import make_release, other_version

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]


@pytest.fixture
def fleet(
    tmp_path_factory: pytest.TempPathFactory, make_yard: Callable[..., Yard], environment_cache: Path
) -> Iterator[Fleet]:
    """A fleet of one machine, of the release before."""
    folder, older = tmp_path_factory.mktemp("upgraded-fleet"), tmp_path_factory.mktemp("older")

    def make(hosts: Hosts) -> Fleet:
        made = Fleet(hosts, folder, environment_cache)
        made.set(PYTHONPATH=str(make_release(older, -1)))
        return made

    with fleet_on_hosts(2, make, make_yard) as made:
        made.join(made.hosts[1])
        yield made


def agent_version(fleet: Fleet) -> str:
    path = fleet.home_of(fleet.hosts[1]) / "node" / "agent.json"
    return str(json.loads(path.read_text())["version"])


def short_run(fleet: Fleet) -> None:
    """Have a new run start and end where the long one does not."""
    run = fleet.ended(fleet.submit("echo short"))
    assert (run["outcome"], run["attempt"]) == ("SUCCEEDED", 0), run


def test_server_then_machine(fleet: Fleet) -> None:
    old, h1 = other_version(-1), fleet.hosts[1]
    go = fleet.folder / "go"
    run_id = fleet.submit(
        f"i=0; while [ ! -e {go} ]; do i=$((i+1)); echo line $i; sleep 0.1; done; echo all $i",
        accelerator="GPU_8xH100",
    )
    fleet.until(run_id, lambda run: run["status"] == "RUNNING")
    runner = fleet.runner_pid(h1, f"{run_id}.0.0")

    fleet.ok("down", "--keep-runs")
    fleet.set(PYTHONPATH="")
    fleet.up()
    assert fleet.data("status")["version"] == airyard.__version__
    wait_for(lambda: "h1-cpu-0" in fleet.alive(), timeout=60, what="h1 at the new server")
    (behind,) = fleet.data("status")["versions"]["machines"]
    assert (behind["name"], behind["version"], agent_version(fleet)) == ("h1", old, old)
    assert f"to upgrade h1 ({old})" in " ".join(fleet.ok("status").split()).replace(":", "")
    assert "TO UPGRADE" in fleet.ok("nodes")
    short_run(fleet)

    done = fleet.on(h1, "node", "leave", "--force")
    assert done.returncode == 0, done.stderr
    fleet.join(h1)
    wait_for(lambda: agent_version(fleet) == airyard.__version__, what="the new agent")
    assert fleet.runner_pid(h1, f"{run_id}.0.0") == runner
    assert fleet.get(run_id)["status"] == "RUNNING"
    short_run(fleet)

    go.touch()
    run = fleet.ended(run_id)
    assert (run["outcome"], len(run["attempts"])) == ("SUCCEEDED", 1), run
    said = fleet.ok("logs", str(run_id)).splitlines()
    count = int(said[-1].rpartition(" ")[2])
    assert [line.rpartition("line ")[2] for line in said[:-1]] == [str(number + 1) for number in range(count)]
    assert fleet.data("status")["versions"] == {"server": airyard.__version__, "machines": [], "runners": []}
    assert fleet.data("admin", "verify")["ok"] is True
