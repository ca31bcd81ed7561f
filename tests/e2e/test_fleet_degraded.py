"""Hosts of a fleet that work badly: a full disk, processes that stop and go, a slow network, a clock that is set."""

from __future__ import annotations

import contextlib
import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.stories import ACCELERATOR, StormyFleet, Story, stormy_fleet
from e2e.yard import Yard, wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

STEPPED, SMALL = 2, 3
HOUR_S = 3600
FILL = """
import sys, time
with open(sys.argv[1], "wb", buffering=0) as sink:
    while True:
        for size in (65536, 1):
            try:
                while True:
                    sink.write(bytes(size))
            except OSError:
                time.sleep(0.002)
"""
"""Takes every byte, also those that become free later, until it is killed."""


@pytest.fixture(scope="module")
def whole(
    tmp_path_factory: pytest.TempPathFactory,
    make_yard: Callable[..., Yard],
    environment_cache: Path,
    stepped: tuple[Path, Path],
) -> Iterator[StormyFleet]:
    library, offset = stepped

    def prepare(fleet: StormyFleet) -> None:
        fleet.vary(fleet.hosts[STEPPED], LD_PRELOAD=str(library), STEPPED_CLOCK=str(offset))
        attempts = attempts_of(fleet)
        attempts.mkdir(parents=True)
        mount = ("mount", "-t", "tmpfs", "-o", "size=32m", "airyard-test", str(attempts))
        done = fleet.hosts[SMALL].run(*mount)
        if done.returncode != 0:
            pytest.skip(f"a small disk cannot be mounted here: {done.stderr.strip()}")

    folder = tmp_path_factory.mktemp("degraded")
    with stormy_fleet(3, folder, environment_cache, make_yard, before=prepare) as fleet:
        yield fleet


def attempts_of(fleet: StormyFleet) -> Path:
    """Return where the host with the small disk keeps its attempts."""
    return fleet.home_of(fleet.hosts[SMALL]) / "node" / "attempts"


@pytest.fixture
def fleet(whole: StormyFleet) -> Iterator[StormyFleet]:
    """The fleet, with all machines there; afterwards its journal must be right."""
    whole.await_all()
    yield whole
    assert whole.verified()


@contextlib.contextmanager
def filled(fleet: StormyFleet) -> Iterator[None]:
    """Keep the small disk full for a while."""
    host, filler = fleet.hosts[SMALL], attempts_of(fleet) / ".filler"
    process = subprocess.Popen([*host.prefix(), "python3", "-c", FILL, str(filler)], stdin=subprocess.DEVNULL)
    try:
        attempts = str(attempts_of(fleet))
        free = ("df", "--output=avail", attempts)
        wait_for(lambda: host.run(*free).stdout.split()[-1] == "0", what="a full disk")
        yield
    finally:
        host.kill(re.escape(str(filler)))
        process.wait(20)
        host.run("rm", str(filler))


def test_a_full_disk_on_one_host(fleet: StormyFleet) -> None:
    """What starts there goes elsewhere, with the cause told; what runs there goes on, and its log says what it lost."""
    name = fleet.hosts[SMALL].name
    with fleet.only_on(SMALL):
        story = Story(fleet=fleet)
        story.await_steps(2)
        with filled(fleet):
            late = fleet.submit("echo started elsewhere", accelerator="CPU")
            fleet.until(late, lambda run: len(run["attempts"]) > 0 and run["attempts"][0]["outcome"])
            story.await_steps(story.steps() + 3)
    run = fleet.ended(late)
    first, last = run["attempts"][0], run["attempts"][-1]
    assert (first["cause"], first["members"][0]["machine"]) == ("STORAGE", name), first
    assert "No space left on device" in first["failure"]["message"]
    assert (run["outcome"], run["retries_spent"]) == ("SUCCEEDED", 0)
    assert last["members"][0]["machine"] != name
    story.finish(1)
    assert fleet.said(story.run_id)[-1]["complete"]


@contextlib.contextmanager
def pulses(fleet: StormyFleet, number: int, stop_s: float, go_s: float) -> Iterator[None]:
    """Stop all of a host's processes over and over."""
    ended = threading.Event()
    host = fleet.hosts[number]

    def pulse() -> None:
        while not ended.is_set():
            host.stop_all()
            time.sleep(stop_s)
            host.go_on()
            ended.wait(go_s)

    thread = threading.Thread(target=pulse)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        host.go_on()


def test_a_host_whose_processes_stop_and_go(fleet: StormyFleet) -> None:
    """It is slow, not dead: a run starts and ends there, once."""
    with fleet.only_on(1), pulses(fleet, 1, stop_s=1.5, go_s=0.7):
        story = Story(fleet=fleet)
        story.await_steps(10)
        assert story.machines() == ["h1"]
        story.finish(1)


def test_a_host_behind_a_slow_line(fleet: StormyFleet) -> None:
    """A gang with one member there prints more than the line carries; nobody dies of it, and nothing is lost."""
    lines = 4000
    fleet.hosts.throttle(1, "400kbit")
    try:
        with fleet.only_on(1, STEPPED):
            text = "." * 100
            run_id = fleet.submit(
                f"for i in $(seq {lines}); do echo $i {text}; done; sleep 8", accelerator=ACCELERATOR, nodes=2
            )
            fleet.until(run_id, lambda run: run["status"] == "RUNNING")
            run = fleet.ended(run_id, timeout=90)
    finally:
        fleet.hosts.throttle(1, None)
    assert (run["outcome"], len(run["attempts"])) == ("SUCCEEDED", 1), run
    said = fleet.said(run_id)
    for member in (0, 1):
        numbers = [
            int(each["line"].split()[0])
            for each in said
            if each["type"] == "LOG" and each["node"] == member and each["stream"] == "stdout"
        ]
        assert numbers == list(range(1, lines + 1))


def test_a_clock_that_is_set_while_its_run_lives(fleet: StormyFleet, stepped: tuple[Path, Path]) -> None:
    """An hour ahead, then an hour behind: no lease and no limit ends early, and all times are told as they were."""
    _, offset = stepped
    began_s = time.time()
    others = []
    try:
        with fleet.only_on(1, STEPPED):
            story = Story(fleet=fleet, nodes=2, fields={"timeout_minutes": 5})
            for step in (HOUR_S, -HOUR_S):
                offset.write_text(str(step))
                # A gang that begins now, beside it, on a machine whose clock is right and one whose clock is not.
                command = "for i in $(seq 20); do echo line $i; sleep 0.1; done"
                run = fleet.ended(fleet.submit(command, accelerator="CPU", nodes=2, timeout_minutes=1))
                assert (run["outcome"], len(run["attempts"])) == ("SUCCEEDED", 1), run
                others.append(run)
                story.await_steps(story.steps() + 3)
    finally:
        offset.write_text("0")
    others.append(story.finish(1))
    for run in others:
        assert run["logs_complete"] is True
        assert 0 < run["duration_ms"] < (time.time() - began_s) * 1000
        assert_in_order(fleet.said(run["run_id"]), began_s)


def assert_in_order(said: list[dict[str, Any]], began_s: float) -> None:
    """The lines of all members come by the true time, and none from another hour."""
    times_s = [each["time_ns"] / 1e9 for each in said if each["type"] == "LOG"]
    assert times_s == sorted(times_s)
    assert began_s - 2 < times_s[0] <= times_s[-1] < time.time() + 2, (began_s, times_s)
