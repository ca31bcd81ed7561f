"""A fleet over Ray on three hosts: a gang, killed agents and raylets, joins that must be refused, leaving."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from e2e.fleet import Fleet, fleet_on_hosts
from e2e.test_main_job import RENDEZVOUS
from e2e.yard import Yard, wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]
AGENT, RAYLET = r"airyard\.node\.agent", r"/raylet "


@pytest.fixture(scope="module")
def fleet(
    tmp_path_factory: pytest.TempPathFactory, make_yard: Callable[..., Yard], environment_cache: Path
) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("fleet")
    with fleet_on_hosts(3, lambda hosts: Fleet(hosts, folder, environment_cache), make_yard) as made:
        hosts = made.hosts
        with ThreadPoolExecutor() as pool:
            joins = [pool.submit(made.join, hosts[1], "--label", "rack=r1", "--pool", "p1")]
            joins.append(pool.submit(made.join, hosts[2]))
            for join in joins:
                join.result()
        yield made


def test_hello_from_two_machines_as_one_gang(fleet: Fleet) -> None:
    labels = {node["name"]: node["labels"] for node in fleet.data("nodes")["nodes"]}
    assert labels["h1-sim-8xh100-0"] == {"rack": "r1", "pool": "p1"}
    assert {"h2-sim-8xh100-0", "h1-cpu-0", "h2-cpu-0"} <= labels.keys()
    command = 'echo "hello $NODE_RANK of $NUM_NODES at $LOCAL_ADDR $GLOO_SOCKET_IFNAME, master $MASTER_ADDR"'
    run = fleet.ended(fleet.submit(command, accelerator="GPU_8xH100", nodes=2))
    assert run["outcome"] == "SUCCEEDED", run
    machines = {member["member"]: member["machine"] for member in run["attempts"][0]["members"]}
    assert sorted(machines.values()) == ["h1", "h2"]
    address = {host.name: host.address for host in fleet.hosts.hosts}
    said = fleet.ok("logs", str(run["run_id"]))
    for member, machine in machines.items():
        assert f"hello {member} of 2 at {address[machine]} eth0, master {address[machines[0]]}" in said


def test_members_that_do_not_reach_each_other_are_told_before_their_commands_start(fleet: Fleet) -> None:
    found = fleet.data("nodes", "h1-cpu-0")
    assert found["machine"]["network"].startswith("TCP only: no RDMA adapter (eth0"), found["machine"]
    for number in (1, 2):
        fleet.hosts.part(number, apart=True)
    try:
        run_id = fleet.submit("echo started; sleep 60", accelerator="GPU_8xH100", nodes=2)
        wait_for(lambda: fleet.get(run_id)["attempts"][0]["failure"], what="the first attempt to fail")
        fleet.call("cancel", str(run_id))
        attempt = fleet.get(run_id)["attempts"][0]
    finally:
        for number in (1, 2):
            fleet.hosts.part(number, apart=False)
    assert attempt["cause"] == "NETWORK", attempt
    assert re.search(
        r"member \d on h[12] \(10\.77\.0\.1[12]\) cannot reach member \d on h[12] \(10",
        str(attempt["failure"]),
    ), attempt["failure"]
    assert [member["exit_code"] for member in attempt["members"]] == [None, None]
    assert attempt["members"][0]["network"].startswith("TCP only"), attempt["members"]


def test_code_and_a_rendezvous_go_over_the_network(fleet: Fleet) -> None:
    folder = fleet.home / "meeting"
    folder.mkdir()
    (folder / "meet.py").write_text(RENDEZVOUS)
    source = {"type": "snapshot", "snapshot": {"root_path": str(folder)}}
    path = fleet.file("python meet.py", accelerator="GPU_8xH100", nodes=2, code_source=source)
    done = fleet.call("run", path, "--watch")
    assert done.returncode == 0, done.stderr
    said = sorted(done.stdout.splitlines())
    assert said == ["[n0] rank 0 has the sum 41", "[n1] rank 1 has the sum 41"]


def waiting_run(fleet: Fleet) -> tuple[int, str]:
    """Start a run on both machines that goes on until its file appears; return it and what ends it."""
    go = fleet.folder / f"go-{time.monotonic_ns()}"
    run_id = fleet.submit(
        f"while [ ! -e {go} ]; do sleep 0.1; done; echo done $NODE_RANK", accelerator="GPU_8xH100", nodes=2
    )
    fleet.until(run_id, lambda run: run["status"] == "RUNNING")
    return run_id, str(go)


def test_a_killed_agent_comes_back_and_adopts(fleet: Fleet) -> None:
    run_id, go = waiting_run(fleet)
    h1 = fleet.hosts[1]
    member = next(m["member"] for m in fleet.get(run_id)["attempts"][0]["members"] if m["machine"] == "h1")
    runner = fleet.runner_pid(h1, f"{run_id}.0.{member}")
    (agent,) = h1.kill(AGENT)
    wait_for(lambda: [pid for pid in h1.pids(AGENT) if pid != agent], what="another agent")
    wait_for(lambda: "h1-cpu-0" in fleet.alive(), what="h1")
    assert runner in h1.pids("airyard")
    Path(go).touch()
    run = fleet.ended(run_id)
    assert (run["outcome"], run["attempt"]) == ("SUCCEEDED", 0), run
    assert "done 0" in fleet.ok("logs", str(run_id))


def test_a_killed_raylet_costs_no_run(fleet: Fleet) -> None:
    run_id, go = waiting_run(fleet)
    h2 = fleet.hosts[2]
    (agent,) = h2.pids(AGENT)
    before = h2.kill(RAYLET)
    wait_for(lambda: "h2-cpu-0" not in fleet.alive(), what="h2 to be away")
    wait_for(lambda: [pid for pid in h2.pids(RAYLET) if pid not in before], what="another raylet")
    wait_for(lambda: "h2-cpu-0" in fleet.alive(), timeout=60, what="h2")
    assert h2.pids(AGENT) == [agent]
    assert fleet.get(run_id)["status"] == "RUNNING"
    Path(go).touch()
    run = fleet.ended(run_id)
    assert (run["outcome"], run["attempt"]) == ("SUCCEEDED", 0), run


def test_a_killed_server_finds_the_fleet_again(fleet: Fleet) -> None:
    run_id, go = waiting_run(fleet)
    h0 = fleet.hosts[0]
    head = h0.pids(r"/gcs_server ")
    h0.kill(r"airyard\.server ")
    assert fleet.get(run_id)["status"] == "RUNNING"  # this starts a server again
    wait_for(lambda: {"h1-cpu-0", "h2-cpu-0"} <= fleet.alive(), what="both")
    assert h0.pids(r"/gcs_server ") == head
    Path(go).touch()
    run = fleet.ended(run_id)
    assert (run["outcome"], run["attempt"]) == ("SUCCEEDED", 0), run


def refused(fleet: Fleet, number: int, *arguments: str, **environment: str) -> tuple[str, str]:
    """Have a host's join refused; return the error's code and message."""
    done = fleet.on(fleet.hosts[number], "-o", "json", *arguments, **environment)
    assert done.returncode != 0, done.stdout
    error = json.loads(done.stdout or done.stderr)["error"]
    return str(error["code"]), str(error["message"])


def test_a_machine_that_joins_twice(fleet: Fleet) -> None:
    assert refused(fleet, 1, *fleet.join_arguments())[0] == "ALREADY_JOINED"
    assert f"the fleet's token: join machine h1 from {fleet.hosts[1].address}" in fleet.ok("admin", "audit")


def test_joins_that_are_refused(fleet: Fleet, stepped: tuple[Path, Path], tmp_path: Path) -> None:
    home = ("--home", str(tmp_path / "other"))
    join = [*fleet.join_arguments(), *home]
    wrong = tmp_path / "wrong"
    wrong.write_text("0" * 64)
    library, offset = stepped
    offset.write_text("60")
    shifted = {"LD_PRELOAD": str(library), "STEPPED_CLOCK": str(offset)}
    assert refused(fleet, 0, *join, "--name", "h1")[0] == "NAME_TAKEN"
    assert refused(fleet, 0, *fleet.join_arguments())[0] == "ALREADY_SERVED"
    assert refused(fleet, 1, *join, "--token-file", str(wrong))[0] == "WRONG_FLEET_TOKEN"
    assert refused(fleet, 1, "node", "join", "10.77.0.10:1", *join[3:])[0] == "SERVER_UNREACHABLE"
    assert refused(fleet, 1, *join, "--name", "h9", "--address", "10.77.0.99")[0] == "BAD_ADDRESS"
    # On loopback h1 reaches itself, and the server something else.
    assert refused(fleet, 1, *join, "--name", "h9", "--address", "127.0.0.1")[0] == "NODE_UNREACHABLE"
    code, message = refused(fleet, 1, *join, **shifted)
    # Half a round trip is not known, and is long on a busy machine.
    assert (code, bool(re.search(r"(59|60)\.\d s ahead", message))) == ("CLOCK_OFFSET", True), message
    assert not (tmp_path / "other" / "node" / "ray" / "keeper.lock").exists()


def test_a_machine_leaves_when_nobody_is_on_it(fleet: Fleet) -> None:
    run_id, go = waiting_run(fleet)
    h2 = fleet.hosts[2]
    code, message = refused(fleet, 2, "node", "leave")
    assert (code, f"{run_id}.0." in message) == ("NODE_BUSY", True), message
    Path(go).touch()
    fleet.ended(run_id)
    done = fleet.on(h2, "node", "leave")
    assert done.returncode == 0, done.stderr
    assert "h2-cpu-0" not in fleet.alive()
    wait_for(lambda: not h2.pids(r"ray::|raylet|airyard"), what="nothing to be left on h2")
    assert refused(fleet, 2, "node", "leave")[0] == "NOT_JOINED"
    fleet.join(h2, "--until", "+1h")
    assert "h2-cpu-0" in fleet.alive()
    (held,) = fleet.data("reservations")["reservations"]
    assert (sorted(held["nodes"]), held["maintenance"]) == (["h2-cpu-0", "h2-sim-8xh100-0"], True)
