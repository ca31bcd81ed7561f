"""Servers and agents that freeze, restart or step aside while work goes on."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from e2e.yard import Yard, wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

FROZEN_S = 20.0


def lines(count: int) -> str:
    return "".join(f"line {i}\n" for i in range(1, count + 1))


def counting(count: int, pause_s: float = 0.02) -> str:
    return f"for i in $(seq 1 {count}); do echo line $i; sleep {pause_s}; done"


def agent_pid(yard: Yard) -> int:
    return int(json.loads((yard.home / "node" / "agent.json").read_text())["pid"])


@pytest.fixture
def frozen() -> Iterator[Callable[[int], None]]:
    """Freeze processes; whatever happens, they are thawed."""
    pids: list[int] = []

    def freeze(pid: int) -> None:
        pids.append(pid)
        os.kill(pid, signal.SIGSTOP)

    yield freeze
    for pid in pids:
        try:
            os.kill(pid, signal.SIGCONT)
        except ProcessLookupError:
            pass


def test_a_server_and_an_agent_frozen_for_20_seconds(
    make_yard: Callable[..., Yard], frozen: Callable[[int], None], tmp_path: Path
) -> None:
    """In two yards at once: work that goes on meanwhile is whole, and nothing is run twice."""
    of_server, of_agent = make_yard(), make_yard()
    count = 300
    long_run = of_server.submit(counting(count))
    short_run = of_agent.submit(counting(count))
    watching = of_server.start("watch", str(long_run))
    for yard, run_id in ((of_server, long_run), (of_agent, short_run)):
        yard.until(run_id, lambda run: run["status"] == "RUNNING")
    server, agent = of_server.server_pid(), agent_pid(of_agent)
    # The watch must have begun: a first call gives up sooner than a stream goes on trying.
    assert watching.stdout is not None
    assert watching.stderr is not None
    first_line = watching.stdout.readline()
    begun = time.monotonic()
    frozen(server)
    frozen(agent)
    # A frozen server is told apart from one that is gone: no second one is started.
    done = of_server.call("list")
    assert done.returncode == 5
    assert str(server) in done.stderr
    # Without the agent nothing new starts, and what runs is not disturbed.
    waiting = of_agent.submit("echo started late")
    assert of_agent.ended(short_run)["outcome"] == "SUCCEEDED"
    assert of_agent.get(waiting)["state"] == "ACTIVE"
    time.sleep(max(0.0, begun + FROZEN_S - time.monotonic()))
    os.kill(server, signal.SIGCONT)
    os.kill(agent, signal.SIGCONT)
    out, err = watching.stdout.read(), watching.stderr.read()
    watching.wait(timeout=60)
    assert (watching.returncode, first_line + out) == (0, lines(count)), err
    run = of_server.ended(long_run)
    assert (run["outcome"], len(run["attempts"])) == ("SUCCEEDED", 1)
    run = of_agent.ended(waiting)
    assert (run["outcome"], len(run["attempts"])) == ("SUCCEEDED", 1)
    assert of_server.server_pid() == server


def test_down_with_live_runs_refuses_or_keeps_them(yard: Yard, tmp_path: Path) -> None:
    run_id = yard.submit(counting(300), accelerator="GPU_1xA10", nodes=2)
    yard.until(run_id, lambda run: run["status"] == "RUNNING")
    done = yard.call("down")
    assert done.returncode == 2
    assert f"run {run_id}" in done.stderr
    assert "--keep-runs" in done.stderr
    pid = yard.server_pid()
    yard.ok("down", "--keep-runs")
    assert pid not in yard.processes()
    yard.up()
    run = yard.ended(run_id)
    assert (run["outcome"], len(run["attempts"])) == ("SUCCEEDED", 1)
    yard.ok("logs", str(run_id), "--download-to", str(tmp_path))
    assert [path.read_text() for path in sorted(tmp_path.rglob("*.log"))] == [lines(300)] * 2


def test_watching_through_two_restarts_loses_and_doubles_nothing(yard: Yard) -> None:
    run_id = yard.submit(counting(400))
    watching = yard.start("watch", str(run_id))
    follower = yard.start("-o", "json", "watch", str(run_id))
    yard.until(run_id, lambda run: run["status"] == "RUNNING")
    for _ in range(2):
        os.kill(yard.server_pid(), signal.SIGKILL)
        yard.up()
    out, err = watching.communicate(timeout=60)
    assert (watching.returncode, out) == (0, lines(400)), err
    events = [json.loads(line) for line in follower.communicate(timeout=60)[0].splitlines()]
    told = [event["data"]["line"] for event in events if event["type"] == "LOG"]
    assert told == lines(400).splitlines()
    assert sum(event["type"] == "TERMINAL" for event in events) == 1


def test_simulated_nodes_outlive_a_killed_server(yard: Yard) -> None:
    """The next command starts a server again; what was simulated still is, and its runs go on."""
    run_id = yard.submit(counting(100), accelerator="GPU_8xH100", nodes=2)
    yard.until(run_id, lambda run: run["status"] == "RUNNING")
    os.kill(yard.server_pid(), signal.SIGKILL)
    assert {pool["accelerator"] for pool in yard.data("pools")["pools"]} >= {"GPU_8xH100", "GPU_1xA10"}
    run = yard.ended(run_id)
    assert (run["outcome"], len(run["attempts"])) == ("SUCCEEDED", 1)


def test_cancel_all_and_down(make_yard: Callable[..., Yard]) -> None:
    yard = make_yard()
    run_ids = [yard.submit("sleep 300") for _ in range(4)]
    yard.until(run_ids[0], lambda run: run["status"] == "RUNNING")
    runners = wait_for(
        lambda: [pid for pid, line in yard.processes().items() if "sleep" in line], what="the commands"
    )
    yard.ok("down", "--cancel-runs")
    wait_for(lambda: not yard.processes(), what="the end of every process")
    assert runners
    yard.ok("up")
    assert {yard.get(run_id)["outcome"] for run_id in run_ids} == {"CANCELLED"}
