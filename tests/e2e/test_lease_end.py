"""A yard whose runners have a lease: what becomes of them while the server is away, by the times they leave behind."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.yard import Yard

LEASE_S = 3.0
ENDING_S = 1.5
"""What ending a tree may take on a busy machine; the server waits 4 s beyond the lease."""


@pytest.fixture
def leased(tmp_path_factory: pytest.TempPathFactory, environment_cache: Path) -> Iterator[Yard]:
    home = tmp_path_factory.mktemp("leased")
    (home / "config.toml").write_text(f"[engine]\nlease_seconds = {LEASE_S}\n")
    yard = Yard(home, environment_cache, simulate="GPU_1xA10=2")
    yard.up()
    yield yard
    yard.close()


def beating(home: Path, seconds: float = 60) -> str:
    """A command whose child writes the time into a file of its attempt and member until it is killed."""
    file = f"{home}/beats.$AIRYARD_ATTEMPT.$NODE_RANK"
    beat = f"while true; do date +%s.%N >> {file}; sleep 0.05; done"
    return f"echo begun; ({beat}) & sleep {seconds}; kill %1"


def beats(home: Path, attempt: int) -> dict[int, tuple[float, float]]:
    """Return the first and the last time that each member of an attempt left."""
    found = {}
    for path in home.glob(f"beats.{attempt}.*"):
        times = [float(line) for line in path.read_text().split("\n")[:-1]]
        if times:
            found[int(path.suffix[1:])] = (times[0], times[-1])
    return found


def wait_for_beats(home: Path, attempt: int, members: int) -> None:
    deadline = time.monotonic() + 60
    while len(beats(home, attempt)) < members:
        assert time.monotonic() < deadline, f"attempt {attempt} did not begin"
        time.sleep(0.05)


def assert_apart(home: Path, earlier: int, later: int) -> None:
    """No process of the one attempt was alive together with one of the other."""
    last = max(end for _, end in beats(home, earlier).values())
    first = min(begin for begin, _ in beats(home, later).values())
    assert last < first


def test_a_server_away_for_longer_than_the_lease(leased: Yard) -> None:
    run_id = leased.submit(beating(leased.home), accelerator="GPU_1xA10", nodes=2)
    wait_for_beats(leased.home, 0, 2)
    time.sleep(2 * LEASE_S)  # it is renewed: nobody ends while the server answers
    assert leased.get(run_id)["attempt"] == 0
    pid = leased.server_pid()
    killed = time.time()
    os.kill(pid, signal.SIGKILL)
    time.sleep(LEASE_S + 4)
    for _, last in beats(leased.home, 0).values():
        assert last < killed + LEASE_S + ENDING_S
    assert not [line for line in leased.processes().values() if "beats.0" in line]
    leased.up()
    run = leased.until(run_id, lambda run: run["attempt"] == 1 and run["status"] == "RUNNING")
    wait_for_beats(leased.home, 1, 2)
    assert run["retries_spent"] == 0
    assert run["attempts"][0]["outcome"] == "FAILED"
    assert f"lease of {LEASE_S:g} s" in run["attempts"][0]["failure"]["message"]
    assert_apart(leased.home, 0, 1)
    leased.ok("cancel", str(run_id))
    assert leased.ended(run_id)["logs_complete"], "also what the runners that gave up had not delivered"


def test_a_planned_stop_for_longer_than_the_lease(leased: Yard) -> None:
    run_id = leased.submit(beating(leased.home, seconds=3 * LEASE_S + 3))
    wait_for_beats(leased.home, 0, 1)
    leased.ok("down", "--keep-runs")
    stopped = time.time()
    time.sleep(2 * LEASE_S)
    assert beats(leased.home, 0)[0][1] > stopped + LEASE_S
    leased.up()
    run = leased.ended(run_id)
    assert (run["outcome"], len(run["attempts"])) == ("SUCCEEDED", 1)


def test_a_runner_that_hangs_beyond_its_lease(leased: Yard) -> None:
    """Its agent ends the member in its place, and the run goes on elsewhere."""
    run_id = leased.submit(beating(leased.home))
    wait_for_beats(leased.home, 0, 1)
    runner = json.loads((leased.home / "node" / "attempts" / f"{run_id}.0.0" / "runner.json").read_text())
    os.kill(runner["pid"], signal.SIGSTOP)
    run = leased.until(run_id, lambda run: run["attempt"] == 1 and run["status"] == "RUNNING")
    assert run["attempts"][0]["outcome"] == "LOST"
    assert "lease ran out" in run["attempts"][0]["failure"]["message"]
    wait_for_beats(leased.home, 1, 1)
    assert_apart(leased.home, 0, 1)
    leased.ok("cancel", str(run_id))
    leased.ended(run_id)
