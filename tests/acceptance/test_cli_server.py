"""The local server by the command line: started by the first command, raced for, killed, stopped."""

from __future__ import annotations

import json
import os
import signal
import socket
import time

import pytest

from acceptance_yard import Yard

pytestmark = pytest.mark.e2e


def server_pid(yard: Yard) -> int:
    """Return the process number of the running server."""
    return int(json.loads((yard.home / "server" / "endpoint.json").read_text())["pid"])


def test_the_first_command_starts_one_server_and_says_so_in_one_line(own_yard: Yard) -> None:
    down = own_yard.run("status")
    assert (down.returncode, "No local server runs" in down.stderr) == (5, True)
    racing = [own_yard.spawn("list", "-o", "json") for _ in range(4)]
    outputs = [process.communicate(timeout=90) for process in racing]
    assert [process.returncode for process in racing] == [0, 0, 0, 0], outputs
    lines = [err for _, err in outputs if err]
    assert len(lines) == 1
    assert lines[0].startswith("airyard: started a local server at http://127.0.0.1:")
    assert lines[0].count("\n") == 1
    assert own_yard.run("list").stderr == "No runs.\n"
    other = own_yard.run("up", "--simulate", "GPU_1xA10=1")
    assert (other.returncode, "runs already" in other.stderr) == (2, True)
    assert own_yard.run("up").stdout.startswith("runs already at http://127.0.0.1:")
    assert own_yard.run("down").returncode == 0
    assert not (own_yard.home / "server" / "endpoint.json").exists()
    assert own_yard.run("down").stderr.startswith("No local server runs")


def test_a_watch_outlives_a_killed_server_without_losing_or_doubling_a_line(own_yard: Yard) -> None:
    file = own_yard.write("count", "for i in $(seq 120); do echo line $i; sleep 0.05; done")
    watch = own_yard.spawn("run", file, "--watch")
    assert watch.stdout is not None
    head = [watch.stdout.readline() for _ in range(20)]
    os.kill(server_pid(own_yard), signal.SIGKILL)
    out, err = watch.communicate(timeout=90)
    assert watch.returncode == 0, err
    assert "".join(head) + out == "".join(f"line {number}\n" for number in range(1, 121))


def test_a_stale_endpoint_is_no_obstacle_and_a_failed_start_is_told(own_yard: Yard) -> None:
    own_yard.run("up")
    pid = server_pid(own_yard)
    os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + 10
    while os.path.exists(f"/proc/{pid}") and time.monotonic() < deadline:
        time.sleep(0.02)
    again = own_yard.run("list")
    assert (again.returncode, "started a local server" in again.stderr) == (0, True)
    own_yard.run("down")
    (own_yard.home / "config.toml").write_text("[server]\nporrt = 1\n")
    failed = own_yard.run("list")
    assert failed.returncode == 2
    assert "config.toml is not a valid configuration" in failed.stderr


def test_a_watch_outlives_a_clean_restart_of_the_server(own_yard: Yard) -> None:
    file = own_yard.write("kept", "for i in $(seq 120); do echo line $i; sleep 0.05; done")
    watch = own_yard.spawn("run", file, "--watch")
    assert watch.stdout is not None
    head = [watch.stdout.readline() for _ in range(20)]
    kept = own_yard.run("down", "--keep-runs")
    assert (kept.returncode, "its runs go on" in kept.stdout) == (0, True), kept.stderr
    assert own_yard.run("up").returncode == 0
    out, err = watch.communicate(timeout=90)
    assert watch.returncode == 0, err
    assert "retry" not in err
    assert "".join(head) + out == "".join(f"line {number}\n" for number in range(1, 121))


def test_a_server_that_keeps_runs_keeps_the_nodes_they_need_and_ends_quietly(own_yard: Yard) -> None:
    assert own_yard.run("up", "--simulate", "GPU_1xA10=2").returncode == 0
    file = own_yard.write("kept", "sleep 300", accelerator="GPU_1xA10")
    own_yard.run("run", file)
    watch = own_yard.spawn("watch", "@last")
    while json.loads(own_yard.run("get", "@last", "-o", "json").stdout)["data"]["status"] != "RUNNING":
        time.sleep(0.1)
    watch.send_signal(signal.SIGINT)  # else it would start the server again
    watch.communicate(timeout=30)
    assert own_yard.run("down", "--keep-runs").returncode == 0
    again = own_yard.run("up", "--port", str(free_port()))
    assert "as before with --simulate GPU_1xA10=2" in again.stdout
    pools = json.loads(own_yard.run("pools", "-o", "json").stdout)["data"]["pools"]
    assert "GPU_1xA10" in {pool["name"] for pool in pools}
    assert own_yard.run("down", "--cancel-runs").returncode == 0
    assert "as before" not in own_yard.run("up").stdout
    log = (own_yard.home / "server" / "server.log").read_text()
    assert "Traceback" not in log
    assert "timeout graceful shutdown exceeded" not in log


def free_port() -> int:
    """Return a port that nobody listens at."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])
