"""kill -9 of server and agent while work goes on: nothing is lost, nothing runs twice."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from e2e.yard import Yard, wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

LINES = "for i in $(seq 1 400); do echo line $i; sleep 0.01; done"


@pytest.fixture
def own_yard(make_yard: Callable[..., Yard]) -> Yard:
    """A yard whose server may be killed without others minding."""
    return make_yard(simulate="GPU_1xA10=2")


def expected_log() -> bytes:
    return "".join(f"line {i}\n" for i in range(1, 401)).encode()


def test_a_run_outlives_its_server(own_yard: Yard, tmp_path: Path) -> None:
    run_id = own_yard.submit(LINES)
    own_yard.until(run_id, lambda run: run["status"] == "RUNNING")
    os.kill(own_yard.server_pid(), signal.SIGKILL)
    run = own_yard.ended(run_id)
    assert run["outcome"] == "SUCCEEDED"
    assert len(run["attempts"]) == 1
    assert run["logs_complete"] is True
    own_yard.ok("logs", str(run_id), "--download-to", str(tmp_path))
    (log,) = tmp_path.rglob("node_0.log")
    assert hashlib.sha256(log.read_bytes()).digest() == hashlib.sha256(expected_log()).digest()


def test_a_run_outlives_its_agent(own_yard: Yard) -> None:
    run_id = own_yard.submit(LINES)
    own_yard.until(run_id, lambda run: run["status"] == "RUNNING")
    pid = int(json.loads((own_yard.home / "node" / "agent.json").read_text())["pid"])
    os.kill(pid, signal.SIGKILL)
    run = own_yard.ended(run_id)
    assert run["outcome"] == "SUCCEEDED"
    assert len(run["attempts"]) == 1
    second = own_yard.ended(own_yard.submit("echo again"))
    assert second["outcome"] == "SUCCEEDED"


def test_everything_killed_at_once(own_yard: Yard) -> None:
    run_id = own_yard.submit(
        "echo attempt $AIRYARD_ATTEMPT; [ $AIRYARD_ATTEMPT = 0 ] || exit 0; sleep 300", max_retries=1
    )
    own_yard.until(run_id, lambda run: run["status"] == "RUNNING")
    for pid in own_yard.processes():
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    run = own_yard.ended(run_id, timeout=90)
    assert run["outcome"] == "SUCCEEDED", run
    assert run["attempts"][0]["outcome"] == "LOST"
    assert own_yard.call("admin", "verify").returncode == 0


def test_two_first_commands_start_one_server(make_yard: Callable[..., Yard]) -> None:
    yard = make_yard()
    yard.ok("down")
    results: list[int] = []
    threads = [
        threading.Thread(target=lambda: results.append(yard.call("list").returncode)) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [0, 0, 0, 0]
    servers = [line for line in yard.processes().values() if "airyard.server" in line]
    assert len(servers) == 1, servers


def test_a_second_server_on_the_folder_refuses_and_names_the_first(own_yard: Yard) -> None:
    done = own_yard.call("server")
    assert done.returncode != 0
    assert str(own_yard.server_pid()) in done.stderr + done.stdout


def test_a_watch_goes_on_over_a_server_restart(own_yard: Yard) -> None:
    path = own_yard.home / "long.yaml"
    path.write_text(
        f"experiment_name: long\ncompute: {{accelerator_type: CPU}}\ncommand: '{LINES}'\nmax_retries: 0\n"
    )
    watching = own_yard.start("run", str(path), "--watch")
    wait_for(lambda: own_yard.data("list")["runs"], what="the run")
    run_id = own_yard.data("list")["runs"][0]["run_id"]
    own_yard.until(run_id, lambda run: run["status"] == "RUNNING")
    os.kill(own_yard.server_pid(), signal.SIGKILL)
    own_yard.ok("list")
    out, err = watching.communicate(timeout=90)
    assert watching.returncode == 0, err
    assert out == expected_log().decode()


def test_nothing_outlives_a_home_that_was_removed(make_yard: Callable[..., Yard]) -> None:
    yard = make_yard()
    shutil.rmtree(yard.home / "server")
    wait_for(lambda: not [line for line in yard.processes().values() if "airyard.server" in line], timeout=15)
