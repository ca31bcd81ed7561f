"""Looks at real processes with a real py-spy: who is which rank, where it stands, what could not be seen."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from airyard.node.looking import gpus, looked, ranks_of
from airyard.node.member_look import lines, masked, situation, taken
from airyard.node.stacks import find_py_spy, look, state_of
from fake_nvml import FakeGpus, compiled

PROGRAM = """
import ctypes, sys, threading, time
def stuck_in_a_lock():
    lock = threading.Lock(); lock.acquire(); lock.acquire()
def stuck_in_sleep(): time.sleep(600)
def stuck_in_c(): ctypes.CDLL(None).sleep(600)
threading.Thread(target=stuck_in_sleep, daemon=True, name="loader").start()
print("there", flush=True)
globals()[sys.argv[1]]()
"""
Begin = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def begin() -> Iterator[Begin]:
    running: list[subprocess.Popen[bytes]] = []

    def start(*command: str, **variables: str) -> subprocess.Popen[bytes]:
        environ = {**os.environ, **variables}
        running.append(subprocess.Popen(command, stdout=subprocess.PIPE, env=environ, start_new_session=True))
        return running[-1]

    yield start
    for each in running:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(each.pid, signal.SIGKILL)
        each.wait()
        if each.stdout is not None:
            each.stdout.close()


@pytest.fixture
def python(begin: Begin) -> Begin:
    def start(place: str, **variables: str) -> subprocess.Popen[bytes]:
        process = begin(sys.executable, "-c", PROGRAM, place, **variables)
        assert process.stdout is not None
        assert process.stdout.readline() == b"there\n"
        time.sleep(0.2)
        return process

    return start


def soon(seconds: float = 10) -> float:
    return time.monotonic() + seconds


@pytest.mark.parametrize("place", ["stuck_in_a_lock", "stuck_in_sleep", "stuck_in_c"])
def test_a_python_process_is_seen_where_it_stands_and_goes_on(python: Begin, place: str) -> None:
    process = python(place)
    seen = look(process.pid, soon(), find_py_spy())
    if "not allowed" in seen.why:
        pytest.skip(seen.why)
    assert place in seen.main
    assert "loader" in seen.text
    assert "stuck_in_sleep" in seen.text
    assert seen.text.index(place) < seen.text.index("loader"), "the main thread comes first"
    assert (state_of(process.pid), process.poll()) == ("S", None)


def test_native_frames_are_there_where_the_process_may_be_stopped(python: Begin) -> None:
    seen = look(python("stuck_in_c").pid, soon(), find_py_spy())
    if seen.why:
        pytest.skip(seen.why)
    assert "libc.so" in seen.main


def test_a_stopped_process_is_seen_and_stays_stopped(python: Begin) -> None:
    process = python("stuck_in_sleep")
    process.send_signal(signal.SIGSTOP)
    time.sleep(0.1)
    seen = look(process.pid, soon(), find_py_spy())
    assert (seen.state, state_of(process.pid)) == ("T", "T")
    assert "stuck_in_sleep" in seen.main or seen.why


def test_what_is_no_python_is_seen_in_the_kernel_and_the_reason_said(begin: Begin) -> None:
    process = begin("sleep", "600")
    time.sleep(0.2)
    seen = look(process.pid, soon(), find_py_spy())
    assert seen.state == "S"
    assert "python" in seen.why.lower()
    assert "backtrace" not in seen.why.lower()


def test_without_py_spy_there_is_what_the_kernel_says(python: Begin) -> None:
    seen = look(python("stuck_in_sleep").pid, soon(), None)
    assert (seen.state, seen.why) == ("S", "py-spy is not installed")


def test_a_py_spy_that_hangs_is_given_up(python: Begin, tmp_path: Path) -> None:
    fake = tmp_path / "py-spy"
    fake.write_text("#!/bin/sh\nexec sleep 60\n")
    fake.chmod(0o755)
    began = time.monotonic()
    seen = look(python("stuck_in_sleep").pid, soon(1.0), str(fake))
    assert time.monotonic() - began < 4
    assert "did not end" in seen.why


def test_a_process_that_ended_is_no_error(begin: Begin) -> None:
    process = begin("true")
    process.wait()
    assert look(process.pid, soon(), find_py_spy()).why == "it has ended"


def test_ranks_are_found_by_what_launchers_set_and_their_children_left_out(begin: Begin) -> None:
    with_child = [
        begin("sh", "-c", "sleep 600 & wait", RANK=str(rank), AIRYARD_COOKIE="x") for rank in (4, 5)
    ]
    time.sleep(0.3)
    children = [
        int(pid)
        for each in with_child
        for pid in Path(f"/proc/{each.pid}/task/{each.pid}/children").read_text().split()
    ]
    pids = [*children, *(each.pid for each in with_child)]
    assert ranks_of(pids, {}, 0, 2) == {4: with_child[0].pid, 5: with_child[1].pid}
    assert ranks_of(pids, {5: children[1]}, 0, 2)[5] == children[1], "what the rank said goes first"


def test_without_a_word_of_ranks_the_process_below_the_shell_is_taken(begin: Begin) -> None:
    shell = begin("sh", "-c", "sleep 600; true")
    time.sleep(0.3)
    (child,) = (int(one) for one in Path(f"/proc/{shell.pid}/task/{shell.pid}/children").read_text().split())
    assert ranks_of([shell.pid, child], {}, 3, 1) == {3: child}
    assert ranks_of([], {}, 3, 1) == {}


def test_a_look_goes_into_the_log_without_secrets(python: Begin) -> None:
    process = python("stuck_in_sleep", RANK="7")
    asked = {"member": 0, "local_world_size": 1, "visible_devices": ""}
    found = masked(taken(situation(asked, [process.pid], {})), [b"stuck_in"])
    (text,) = lines(found)
    assert text.startswith(f"look at the stall: rank 7, process {process.pid}, state S")
    assert "stuck_in" not in text
    assert "***_sleep" in text or found["ranks"][0]["why"]


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeGpus:
    library = compiled()
    if library is None:
        pytest.skip("there is no C compiler")
    found = FakeGpus(library=library, file=tmp_path / "gpus")
    for name, value in found.environ.items():
        monkeypatch.setenv(name, value)
    return found


def rows(fake: FakeGpus, **readings: int | str) -> list[dict[str, Any]]:
    fake.set(count=3, **readings)
    found, problem = gpus(["GPU-fake-0", "GPU-fake-2"])
    assert not problem
    return found


def test_the_state_of_a_members_gpus_is_told(fake: FakeGpus) -> None:
    first, second = rows(fake, gpu0__utilization=100, gpu2__process=os.getpid(), power_mw=150_000)
    assert (first["index"], first["least"], first["most"], first["power_w"]) == (0, 100, 100, 150)
    assert (second["index"], second["most"], second["pids"]) == (2, 0, [os.getpid()])


def test_a_gpu_that_is_lost_is_said_to_be_and_the_other_read(fake: FakeGpus) -> None:
    first, second = rows(fake, gpu0__error=15)
    assert first["lost"] is True
    assert "index" in second
    asked = {"member": 0, "local_world_size": 2, "visible_devices": "GPU-fake-0,GPU-fake-2"}
    pids = [os.getpid(), os.getppid()]
    row = looked({**situation(asked, pids, dict(enumerate(pids)))})["ranks"][0]
    assert row["gpu_lost"] is True


def test_an_nvml_that_hangs_takes_its_time_limit(fake: FakeGpus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airyard.node.looking._GPU_S", 0.5)
    fake.set(hang="nvmlDeviceGetUtilizationRates")
    found, problem = gpus(["GPU-fake-0"])
    assert found == []
    assert "no answer" in problem
