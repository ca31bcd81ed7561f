"""The head of a fleet is killed and comes back, with what it knew in a real Redis, and with nothing."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from e2e.fleet import Fleet
from e2e.hosts import Host, Hosts, why_not
from e2e.yard import Yard, wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

HEAD = r"/gcs_server |/raylet/raylet |ray\.scripts\.scripts|^ray::|/ray/dashboard/|/ray/_private/"
GCS = r"/gcs_server "
AGENT = r"airyard\.node\.agent"
PORT = 6379
PASSWORD = "of-redis-alone"


@contextlib.contextmanager
def redis_on(host: Host, folder: Path) -> Iterator[str]:
    """Run a Redis on a host; yield HOST:PORT."""
    line = ["redis-server", "--bind", host.address, "--port", str(PORT), "--requirepass", PASSWORD]
    with (folder / "redis.log").open("wb") as log:
        server = subprocess.Popen(
            [*host.prefix(), *line, "--save", "", "--appendonly", "no", "--dir", str(folder)],
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
        )
    ask = ["redis-cli", "-h", host.address, "-p", str(PORT), "-a", PASSWORD, "--no-auth-warning", "ping"]
    try:
        wait_for(lambda: host.run(*ask).stdout.strip() == "PONG", what="Redis")
        yield f"{host.address}:{PORT}"
    finally:
        server.kill()
        server.wait()


@pytest.fixture(params=["redis", "nothing"])
def kept(request: pytest.FixtureRequest) -> str:
    """Where the head keeps its state."""
    if (reason := why_not()) is not None:
        pytest.skip(f"no hosts made of namespaces here: {reason}")
    if request.param == "redis" and shutil.which("redis-server") is None:
        pytest.skip("no Redis here: `make packages` installs it (Debian's redis-server)")
    return str(request.param)


@pytest.fixture
def fleet(
    kept: str, tmp_path: Path, make_yard: Callable[..., Yard], environment_cache: Path
) -> Iterator[Fleet]:
    """A server with its head on h0, which runs nothing, and h1."""
    alone = make_yard()
    alone.ended(alone.submit("true"))
    alone.close()
    with contextlib.ExitStack() as parts:
        hosts = Hosts(2)
        parts.callback(hosts.close)
        lines = ""
        if kept == "redis":
            place = parts.enter_context(redis_on(hosts[0], tmp_path))
            lines = f'redis = "{place}"\nredis_password_file = "redis.password"\n'
        made = Fleet(hosts, tmp_path / "fleet", environment_cache, ray=lines)
        parts.callback(made.remove_temporary)
        password = made.home / "redis.password"
        password.touch(mode=0o600)
        password.write_text(PASSWORD)
        made.up()
        parts.callback(made.close)
        made.join(hosts[1])
        yield made


def logged(fleet: Fleet, event: str) -> int:
    """Return how often the server has logged an event."""
    return (fleet.home / "server" / "server.log").read_text().count(f'"event": "{event}"')


def test_a_killed_head_costs_no_run(fleet: Fleet, kept: str, capfd: pytest.CaptureFixture[str]) -> None:
    go = fleet.folder / "go"
    run_id = fleet.submit(f"while [ ! -e {go} ]; do sleep 0.1; done; echo done", accelerator="GPU_8xH100")
    fleet.until(run_id, lambda run: run["status"] == "RUNNING")
    h0, h1 = fleet.hosts[0], fleet.hosts[1]
    before, agents = h0.pids(GCS), h1.pids(AGENT)
    connected, arrived = logged(fleet, "ray_connected"), logged(fleet, "machine_up")
    killed_s = time.monotonic()
    h0.kill(HEAD)
    wait_for(lambda: [pid for pid in h0.pids(GCS) if pid not in before], what="another head")
    # What the server had open to h1 may serve a moment longer: only over the new head is all well again.
    wait_for(lambda: logged(fleet, "ray_connected") > connected, timeout=90, what="the new head")
    wait_for(lambda: logged(fleet, "machine_up") > arrived, timeout=90, what="h1 to be found by it")
    later = fleet.submit("echo later")
    assert fleet.ended(later)["outcome"] == "SUCCEEDED"
    took_s = time.monotonic() - killed_s
    assert "h1-cpu-0" in fleet.alive()
    assert h1.pids(AGENT) == agents
    go.touch()
    run = fleet.ended(run_id)
    assert (run["outcome"], len(run["attempts"])) == ("SUCCEEDED", 1), run
    assert fleet.data("admin", "verify")["ok"] is True
    with capfd.disabled():
        print(f"\nmeasured: head_killed_{kept} {took_s:.1f} s")
