"""Hosts brought into a fleet over a real sshd, each of its own namespace: added, added again, refused, taken out."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from airyard.core.errors import UserError
from airyard.node.remote import payload
from airyard.node.remote.adding import Host as Adding
from airyard.node.remote.adding import Wanted
from airyard.node.remote.ssh import Access, Ssh
from airyard.node.remote.target import parse_target
from e2e.fleet import Fleet
from e2e.hosts import Host, Hosts, why_not
from e2e.ssh_site import Here, SshSite, why_no_ssh
from e2e.yard import Yard, wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]
PARTIAL = 10
AIRYARD = Path(sys.executable).with_name("airyard")


class Site:
    """A fleet whose server is on h0, and sshd on h1 to h3; nobody has joined. h3's key is not known."""

    def __init__(self, fleet: Fleet, ssh: SshSite) -> None:
        self.fleet = fleet
        self.ssh = ssh

    def home_of(self, host: Host) -> Path:
        """Return the data folder there, whose environments are the session's."""
        home = self.fleet.folder / f"ssh-{host.name}"
        node = home / "node"
        if not node.exists():
            node.mkdir(parents=True, mode=0o700)
            for name in ("envs", "uv-cache"):
                (node / name).symlink_to(self.fleet.home / "node" / name)
        return home

    def fleet_verb(
        self, verb: str, *arguments: str, key: str = "user", there: bool = True
    ) -> tuple[int, Any]:
        """Run ``airyard fleet`` on h0; return its exit code, and its data or error."""
        own = ["--use-airyard", str(AIRYARD)] if there else []
        if verb == "add" and not there:
            own = ["--python", sys.executable]
        access = ["--ssh-config", str(self.ssh.config), "--identity", str(self.ssh.folder / key)]
        done = self.fleet.call("-o", "json", "fleet", verb, *arguments, *own, *access, timeout=200)
        answer = json.loads(done.stdout.splitlines()[-1])
        return done.returncode, answer.get("data", answer.get("error"))

    def add(self, host: Host, *arguments: str, **more: Any) -> dict[str, Any]:
        """Add one host with its own folder; return what came of it."""
        home = ("--node-home", str(self.home_of(host)))
        _, data = self.fleet_verb("add", f"ssh://root@{host.address}", *home, *SMALL, *arguments, **more)
        (one,) = data["hosts"]
        return dict(one)

    def refused(self, host: Host, *arguments: str, **more: Any) -> tuple[str, str]:
        """Return code and message of a host that could not be added."""
        one = self.add(host, *arguments, **more)
        assert one["state"] == "failed", one
        return str(one["error"]["code"]), str(one["error"]["message"])


SMALL = ("--simulated", "GPU_8xH100=1", "--cpu-slots", "1")


@pytest.fixture(scope="module")
def site(
    tmp_path_factory: pytest.TempPathFactory, make_yard: Callable[..., Yard], environment_cache: Path
) -> Iterator[Site]:
    if (reason := why_not() or why_no_ssh()) is not None:
        pytest.skip(f"no hosts with SSH here: {reason}")
    alone = make_yard()
    alone.ended(alone.submit("true"))
    alone.close()
    with contextlib.ExitStack() as parts:
        hosts = Hosts(4)
        fleet = Fleet(hosts, tmp_path_factory.mktemp("fleet"), environment_cache)
        parts.callback(fleet.remove_temporary)
        parts.callback(hosts.close)
        # Who logs in has what the session's environments were built with, or they would be built anew.
        settings = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "UV_"))}
        ssh = SshSite(tmp_path_factory.mktemp("ssh") / "site", PATH=os.environ["PATH"], **settings)
        parts.callback(ssh.close)
        for number in (1, 2, 3):
            ssh.serve(hosts[number], known=number != 3)
        fleet.up()
        parts.callback(fleet.close)
        yield Site(fleet, ssh)


def test_hosts_are_added_side_by_side_and_one_that_fails_stops_no_other(site: Site) -> None:
    fleet = site.fleet
    h1, h2 = fleet.hosts[1], fleet.hosts[2]
    # Both have the same folder's name on their own disks; here they share one disk.
    code, data = site.fleet_verb(
        "add",
        f"ssh://root@{h1.address}",
        "ssh://root@10.77.0.99",
        "--node-home",
        str(site.home_of(h1)),
        *SMALL,
    )
    assert code == PARTIAL, data
    good, bad = data["hosts"]
    assert (good["state"], good["machine"], good["address"]) == ("joined", "h1", h1.address), good
    assert good["nodes"] == ["h1-cpu-0", "h1-sim-8xh100-0"]
    assert (bad["state"], bad["error"]["code"]) == ("failed", "HOST_UNREACHABLE"), bad
    assert "ssh" in bad["error"]["fix"]["command"]
    assert site.add(h2, "--pool", "p2")["state"] == "joined"
    labels = {node["name"]: node["labels"] for node in fleet.data("nodes")["nodes"]}
    assert (labels["h1-cpu-0"], labels["h2-cpu-0"]) == ({}, {"pool": "p2"})
    hello = fleet.ended(fleet.submit("echo hello $NODE_RANK", accelerator="GPU_8xH100", nodes=2))
    assert hello["outcome"] == "SUCCEEDED", hello


def test_the_token_is_in_one_file_and_on_no_command_line(site: Site) -> None:
    h1 = site.fleet.hosts[1]
    token = site.fleet.token_file.read_text().strip()
    path = site.home_of(h1) / "node" / "ray" / "token"
    assert (path.read_text().strip(), stat.S_IMODE(path.stat().st_mode)) == (token, 0o600)
    assert token not in h1.run("ps", "-ewwo", "args=").stdout
    assert token not in site.ssh.log(h1)


def test_adding_again_changes_what_differs_and_nothing_else(site: Site) -> None:
    fleet, h2 = site.fleet, site.fleet.hosts[2]
    (agent,) = h2.pids(r"airyard\.node\.agent")
    assert site.add(h2, "--pool", "p2")["state"] == "unchanged"
    assert h2.pids(r"airyard\.node\.agent") == [agent]
    go = fleet.folder / "go"
    run_id = fleet.submit(f"while [ ! -e {go} ]; do sleep 0.1; done", accelerator="GPU_8xH100", nodes=2)
    fleet.until(run_id, lambda run: run["status"] == "RUNNING")
    assert site.add(h2, "--label", "rack=r2")["state"] == "rejoined"
    labels = {node["name"]: node["labels"] for node in fleet.data("nodes")["nodes"]}
    assert labels["h2-cpu-0"] == {"rack": "r2"}
    go.touch()
    run = fleet.ended(run_id)
    assert (run["outcome"], run["attempt"]) == ("SUCCEEDED", 0), run
    hosts = {each["host"]: each for each in fleet.data("fleet", "list")["hosts"]}
    assert hosts[f"ssh://root@{h2.address}"]["alive"] is True
    assert hosts[f"ssh://root@{h2.address}"]["service"].startswith("no systemd")


def test_the_line_of_the_service_stays_with_what_has_joined(site: Site) -> None:
    """What systemd would start right after the join, and what ends it."""
    fleet, h2 = site.fleet, site.fleet.hosts[2]
    home = site.home_of(h2)
    (agent,) = h2.pids(r"airyard\.node\.agent")
    token = ("--token-file", str(home / "node" / "ray" / "token"))
    line = [
        "--home",
        str(home),
        "node",
        "join",
        fleet.address(),
        *token,
        *SMALL,
        "--label",
        "rack=r2",
        "--block",
    ]
    service = subprocess.Popen([*h2.prefix(), str(AIRYARD), *line], stdout=subprocess.PIPE, text=True)
    assert service.stdout is not None
    assert service.stdout.readline().startswith("h2 (")
    assert h2.pids(r"airyard\.node\.agent") == [agent]
    h2.run("kill", "-TERM", str(h2.pids("node join .*--block")[-1]))
    assert service.wait(60) == 0
    assert "h2-cpu-0" not in fleet.alive()
    assert site.add(h2)["state"] == "joined"


def test_what_ssh_refuses_is_explained(site: Site) -> None:
    h1, h3 = site.fleet.hosts[1], site.fleet.hosts[3]
    assert site.refused(h1, key="stranger")[0] == "SSH_DENIED"
    code, message = site.refused(h3)
    assert (code, h3.address in message) == ("HOST_KEY_UNKNOWN", True), message
    site.ssh.know(h3, as_of="h1")
    assert site.refused(h3, "--accept-new-host-keys")[0] == "HOST_KEY_CHANGED"
    kept = [line for line in site.ssh.known_hosts.read_text().splitlines() if not line.startswith(h3.address)]
    site.ssh.known_hosts.write_text("\n".join(kept) + "\n")
    # Now it is taken, and the next question is another one.
    assert site.refused(h3, "--accept-new-host-keys", "--address", "10.77.0.99")[0] == "BAD_ADDRESS"
    assert h3.address in site.ssh.known_hosts.read_text()
    code, data = site.fleet_verb("add", "https://h3", "--node-home", "x")
    assert (code, data["code"]) == (2, "USAGE")


def test_what_would_not_do_in_a_fleet_is_found_before_it_joins(site: Site, tmp_path: Path) -> None:
    h3 = site.fleet.hosts[3]
    if h3.address not in site.ssh.known_hosts.read_text():
        site.ssh.know(h3)
    # On loopback h3 reaches itself, and the server something else.
    assert site.refused(h3, "--address", "127.0.0.1")[0] == "NODE_UNREACHABLE"
    assert site.refused(h3, "--name", "h1")[0] == "NAME_TAKEN"
    code, data = site.fleet_verb(
        "add", f"ssh://root@{h3.address}", "--server", "10.77.0.10:1", "--node-home", "x"
    )
    assert (code, data["code"]) == (5, "SERVER_UNREACHABLE")
    small = tmp_path / "small"
    small.mkdir()
    assert h3.run("mount", "-t", "tmpfs", "-o", "size=1m", "none", str(small)).returncode == 0
    code, data = site.fleet_verb(
        "add", f"ssh://root@{h3.address}", "--node-home", f"{small}/home", there=False
    )
    assert data["hosts"][0]["error"]["code"] == "HOST_DISK_FULL", data
    assert h3.run("ls", "-A", str(small)).stdout == ""
    # The check was passed, and the disk became full.
    h3.run("dd", "if=/dev/zero", f"of={small}/fill", "bs=4k")
    code, data = site.fleet_verb("add", f"ssh://root@{h3.address}", "--node-home", f"{small}/home", *SMALL)
    assert data["hosts"][0]["error"]["code"] == "HOST_DISK_FULL", data
    assert not h3.pids(r"raylet|airyard\.")


def test_a_host_of_another_yard_is_left_alone(site: Site) -> None:
    h3 = site.fleet.hosts[3]
    if h3.address not in site.ssh.known_hosts.read_text():
        site.ssh.know(h3)
    ray = site.home_of(h3) / "node" / "ray"
    ray.mkdir(parents=True, exist_ok=True)
    offer, token = ray / "offer.json", ray / "token"
    offer.write_text(json.dumps({"machine": "h3", "server_url": "http://10.9.9.9:8290"}))
    token.write_text("0" * 64)
    code, message = site.refused(h3)
    assert (code, "http://10.9.9.9:8290" in message) == ("HOST_IN_ANOTHER_YARD", True), message
    assert token.read_text() == "0" * 64
    offer.unlink()


def test_what_is_installed_by_hashes_joins(site: Site) -> None:
    """The packages come from an index; the hosts have no network but their own, so they are fetched beside them."""
    h3 = site.fleet.hosts[3]
    home = site.home_of(h3)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    site.ssh.serve(Here(), port=port)
    access = Access(identity=site.ssh.folder / "user", config=site.ssh.config)
    wanted = Wanted(server="", token="", home=str(home), python=sys.executable)
    carried = payload.make(None)
    with Ssh(parse_target(f"ssh://root@127.0.0.1:{port}"), access) as ssh:
        host = Adding(ssh, lambda _: None)
        look = host.first_look(wanted)
        try:
            command, fresh = host.install(look, sys.executable, wanted, carried, there=False)
        except UserError as error:
            if error.code != "INDEX_UNREACHABLE":
                raise
            pytest.skip(f"no package index here: {error.message}")
        assert fresh
        assert host.install(look, sys.executable, wanted, carried, there=True) == (command, False)
    assert not (home / "install" / "incoming").exists()
    if h3.address not in site.ssh.known_hosts.read_text():
        site.ssh.know(h3)
    one = site.add(h3, there=False)
    assert (one["state"], one["machine"]) == ("joined", "h3"), one
    assert h3.pids(f"{home}/install/.*airyard.node.agent")
    code, data = site.fleet_verb("remove", f"ssh://root@{h3.address}", "--node-home", str(home), there=False)
    assert (code, data["hosts"][0]["left"]) == (0, True), data


def test_a_host_that_is_taken_out_lets_its_runs_leave_first(site: Site) -> None:
    fleet, h1 = site.fleet, site.fleet.hosts[1]
    run_id = fleet.submit("sleep 300", accelerator="GPU_8xH100", nodes=2)
    fleet.until(run_id, lambda run: run["status"] == "RUNNING")
    home = ("--node-home", str(site.home_of(h1)))
    code, data = site.fleet_verb("remove", f"ssh://root@{h1.address}", *home, there=False)
    assert data["hosts"][0]["error"]["code"] == "NODE_BUSY", data
    code, data = site.fleet_verb("remove", f"ssh://root@{h1.address}", *home, "--within", "5s", "--purge")
    assert (code, data["hosts"][0]["purged"]) == (0, True), data
    run = fleet.get(run_id)
    assert (run["status"], run["attempts"][0]["cause"]) == ("QUEUED", "OPERATOR"), run
    fleet.call("cancel", str(run_id))
    assert "h1-cpu-0" not in fleet.alive()
    wait_for(lambda: not h1.pids(r"ray::|raylet|airyard"), what="nothing to be left on h1")
    assert not site.home_of(h1).joinpath("install").exists()
    # It left by a drain of its own, which is over when it is back.
    assert site.add(h1)["state"] == "joined"
    nodes = {node["name"]: node for node in fleet.data("nodes")["nodes"]}
    assert nodes["h1-cpu-0"]["cordon"] is None, nodes["h1-cpu-0"]
