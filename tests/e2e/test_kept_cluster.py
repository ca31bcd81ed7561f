"""A Ray cluster that others keep, as in deploy/kubernetes: its nodes never joined, and the server goes by a name."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.fleet import Fleet, await_hosts
from e2e.hosts import Host, Hosts
from e2e.yard import Yard, wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]
MANIFEST = Path(__file__).resolve().parents[2] / "deploy" / "kubernetes" / "airyard.yaml"
SERVICE = "10.77.0.200"
"""What the name of the server stands for: no address that anybody could have guessed."""
TOKEN = "0123456789abcdef" * 4


def kind(name: str) -> dict[str, Any]:
    """Return the first object of a kind in the manifest."""
    found = (one for one in yaml.safe_load_all(MANIFEST.read_text()) if one["kind"] == name)
    return dict(next(found))


@pytest.fixture(scope="module")
def fleet(
    tmp_path_factory: pytest.TempPathFactory, make_yard: Callable[..., Yard], environment_cache: Path
) -> Iterator[Fleet]:
    await_hosts(make_yard)
    with contextlib.ExitStack() as parts:
        hosts = Hosts(2)
        made = Fleet(hosts, tmp_path_factory.mktemp("kept"), environment_cache)
        parts.callback(made.remove_temporary)
        rays: list[subprocess.Popen[bytes]] = []
        parts.callback(lambda: [ray.wait(30) for ray in rays])
        parts.callback(hosts.close)
        names = made.folder / "hosts"
        assert hosts[0].run("ip", "addr", "add", f"{SERVICE}/24", "dev", "eth0").returncode == 0
        own = [f"{host.address} {host.name}" for host in hosts.hosts]
        names.write_text("\n".join(["127.0.0.1 localhost", f"{SERVICE} airyard", *own, ""]))
        for host in hosts.hosts:
            for command in (("mount", "--bind", str(names), "/etc/hosts"), ("mkdir", "-p", "/tmp/ray")):
                assert host.run(*command).returncode == 0
            # Each pod has a folder of its own for Ray.
            assert host.run("mount", "-t", "tmpfs", "tmpfs", "/tmp/ray").returncode == 0
        token = made.folder / "auth_token"
        token.write_text(TOKEN)
        config = kind("ConfigMap")["data"]["config.toml"]
        (made.home / "config.toml").write_text(config.replace("/etc/airyard/fleet/auth_token", str(token)))
        made.set(TMPDIR="/tmp")
        group = kind("RayCluster")["spec"]["headGroupSpec"]["rayStartParams"]
        rays.append(start_ray(made, hosts[0], "--head", "--port=6379", params=group))
        wait_for(lambda: "6379" in hosts[0].run("ss", "-ltn").stdout, timeout=90)
        group = kind("RayCluster")["spec"]["workerGroupSpecs"][0]["rayStartParams"]
        rays.append(start_ray(made, hosts[1], f"--address={hosts[0].address}:6379", params=group))
        made.up()
        parts.callback(made.close)
        wait_for(lambda: made.alive(), timeout=90)
        yield made


def start_ray(fleet: Fleet, host: Host, *more: str, params: dict[str, str]) -> subprocess.Popen[bytes]:
    """Start Ray on a host as KubeRay does in a pod, by what the manifest says."""
    home = fleet.home_of(host) / "home"
    node = home / ".airyard" / "node"
    node.mkdir(parents=True, mode=0o700)
    for name in ("envs", "uv-cache"):
        (node / name).symlink_to(fleet._cache / name)
    given = [f"--{name}={value}" for name, value in params.items()]
    return subprocess.Popen(
        [
            *(*host.prefix(), sys.executable, "-m", "ray.scripts.scripts", "start", "--block"),
            *(*more, *given, f"--node-ip-address={host.address}", "--object-store-memory=100000000"),
        ],
        stdout=(fleet.folder / f"ray-{host.name}.log").open("wb"),
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        env={
            **{name: value for name, value in os.environ.items() if not name.startswith("AIRYARD_")},
            "HOME": str(home),
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": TOKEN,
            "RAY_USAGE_STATS_ENABLED": "0",
        },
    )


def test_a_run_on_a_node_that_never_joined_reaches_the_server_by_its_name(fleet: Fleet) -> None:
    assert {name.split("-")[0] for name in fleet.alive()} == {"h1"}
    run_id = fleet.submit("sleep 3")
    wait_for(lambda: f"{SERVICE}:8290" in fleet.hosts[1].run("ss", "-tn").stdout, timeout=60)
    run = fleet.ended(run_id)
    assert run["outcome"] == "SUCCEEDED", run
    assert [member["machine"] for member in run["attempts"][0]["members"]] == ["h1"]


def test_the_server_of_the_manifest_is_started_as_its_command_line_says(fleet: Fleet) -> None:
    containers = kind("RayCluster")["spec"]["headGroupSpec"]["template"]["spec"]["containers"]
    command = next(one["command"] for one in containers if one["name"] == "airyard-server")
    assert command[0] == "airyard"
    assert "server" in command
    done = fleet.call(*command[1:], "--help")
    assert done.returncode == 0, done.stderr
