"""Pair tests over loopback: real processes, real sockets, and workers that are late, lossy, lying or dead."""

from __future__ import annotations

import socket
import subprocess
import sys
import time

import pytest

from airyard.checks.fabric_probe import CHILD, Size, command, measure, parse, sweep_here
from airyard.core.health.fabric import Outcome, judged
from airyard.core.health.tournament import Pair

SMALL = Size(octets=1 << 18, pings=20, seconds=0.0)
PAIR = Pair(a="n1", b="n2")


def test_a_pair_is_measured() -> None:
    read = measure(PAIR, size=SMALL)
    assert (read.correct, read.hung, read.stopped, read.problem) == (True, False, False, "")
    assert read.busbw_gb_s > 0
    assert read.latency_p95_us > 0
    assert judged([read])[0].outcome is Outcome.PASS


@pytest.mark.parametrize("node", ["n1", "n2"])
def test_a_late_side_shows_in_the_latency(node: str) -> None:
    read = measure(PAIR, size=SMALL, faults={node: ("--delay-ms", "15")})
    assert read.latency_p95_us >= 15_000
    assert read.correct


def test_lost_packets_show_in_the_latency() -> None:
    assert measure(PAIR, size=SMALL, faults={"n2": ("--loss", "0.5")}).latency_p95_us >= 200_000


@pytest.mark.parametrize("node", ["n1", "n2"])
def test_one_flipped_bit_in_either_direction_is_seen(node: str) -> None:
    read = measure(PAIR, size=SMALL, faults={node: ("--flip",)})
    assert not read.correct
    assert judged([read])[0].why == "a result was wrong"


@pytest.mark.parametrize("node", ["n1", "n2"])
def test_a_side_that_hangs_is_killed_at_the_deadline(node: str) -> None:
    began = time.monotonic()
    read = measure(PAIR, size=SMALL, deadline_s=3.0, faults={node: ("--hang",)})
    assert read.hung
    assert time.monotonic() - began < 30
    assert judged([read])[0].outcome is Outcome.FAIL
    running = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert not [line for line in running.splitlines() if str(CHILD) in line and "--hang" in line]


def test_a_child_that_crashes_says_nothing() -> None:
    read = measure(PAIR, size=SMALL, faults={"n2": ("--no-such-word",)})
    assert read.stopped
    assert judged([read])[0].outcome is Outcome.UNKNOWN


def test_a_peer_that_nobody_reaches_fails_the_pair() -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
    done = subprocess.run(
        command("call", SMALL, "--port", str(port), "--connect-s", "0.2"),
        input="token\n",
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "ConnectionRefusedError" in done.stdout


def test_a_stranger_is_not_answered() -> None:
    server = subprocess.Popen(
        command("serve", SMALL),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write("right\n")
        server.stdin.flush()
        port = int(server.stdout.readline().split(":")[1].strip(" }\n"))
        wrong = subprocess.run(
            command("call", SMALL, "--port", str(port)),
            input="wrong\n",
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert "problem" in wrong.stdout
        right = subprocess.run(
            command("call", SMALL, "--port", str(port)),
            input="right\n",
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert "busbw_gb_s" in right.stdout
    finally:
        server.kill()
        server.wait()


def test_the_child_stands_alone() -> None:
    program = (
        "import sys; sys.argv = ['x', '--help']; import runpy; runpy.run_path(sys.stdin.readline().strip())"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program], input=str(CHILD), text=True, timeout=60
    )
    assert done.returncode == 0


def test_two_sides_make_one_result() -> None:
    called = {"busbw_gb_s": 2.5, "latency_p95_us": 9, "correct": True, "errors_grown": 0}
    read = parse(PAIR, {"correct": False, "errors_grown": 4}, called)
    assert (read.busbw_gb_s, read.correct, read.errors_grown) == (2.5, False, 4)


def test_a_sweep_of_real_pairs_finds_the_node_that_corrupts() -> None:
    nodes = [f"n{number}" for number in range(6)]
    verdict = sweep_here(nodes, 0, size=SMALL, at_once=2, faults={"n3": ("--flip",)})
    assert verdict.bad == ("n3",)
    assert verdict.certified == ("n0", "n1", "n2", "n4", "n5")
    assert verdict.why["n3"] == "5 of 5 pair tests failed: a result was wrong"
