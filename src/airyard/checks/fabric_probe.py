"""Tests pairs of nodes against each other: one process a side, a hard deadline, what both read put together.

Owns: starting, ending and reading ``pair_child.py``; a sweep over nodes that are all on this machine. Must not know:
what a figure means (``core/health/fabric``), how a process gets onto another machine.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from airyard.core.health.adapters import MOST, LaneRead
from airyard.core.health.fabric import (
    CERTIFY,
    Measured,
    PairResult,
    Verdict,
    Voting,
    concluded,
    first_pass,
    judged,
)
from airyard.core.health.tournament import Pair, disjoint, once_more, second_pass, sweep

CHILD = Path(__file__).with_name("pair_child.py")
DEADLINE_S = 40.0
"""One pair, all of it: what is not done by then is a failure of the pair."""
TCP = "tcp"
_KILL_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How much a pair exchanges: ``octets`` back and forth for ``seconds``, after ``pings`` small messages."""

    octets: int = 32 << 20
    pings: int = 200
    seconds: float = 2.0


def command(side: str, size: Size, *more: str, python: str = sys.executable) -> list[str]:
    """Return the command of one side, ``serve`` or ``call``; its standard input has to bring the token's line."""
    given = ["--octets", str(size.octets), "--pings", str(size.pings), "--seconds", str(size.seconds)]
    return [python, "-I", str(CHILD), side, *given, *more]


class _Side:
    """One child. ``lines``: what it has printed; it is read in a thread, so that a full pipe stops nobody."""

    def __init__(self, arguments: Sequence[str], token: str) -> None:
        self._process = subprocess.Popen(
            arguments,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            text=True,
        )
        self._lines: list[str] = []
        self._said = threading.Condition()
        self._done = False
        threading.Thread(target=self._read, daemon=True).start()
        with suppress(OSError):
            assert self._process.stdin is not None
            self._process.stdin.write(token + "\n")
            self._process.stdin.flush()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._said:
                self._lines.append(line)
                self._said.notify_all()
        with self._said:
            self._done = True
            self._said.notify_all()

    def line(self, number: int, until: float) -> dict[str, Any] | None:
        """Return a line of its output; None when it ended or the time is over before it."""
        with self._said:
            self._said.wait_for(
                lambda: self._done or len(self._lines) > number, max(until - time.monotonic(), 0)
            )
            if len(self._lines) <= number:
                return None
            text = self._lines[number]
        try:
            said = json.loads(text)
        except ValueError:
            return None
        return said if isinstance(said, dict) else None

    @property
    def crashed(self) -> bool:
        """True when it has ended with an error of its own."""
        if self._done:  # its output has ended, so it is about to
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_KILL_S)
        return self._process.poll() not in (None, 0)

    def end(self) -> None:
        """Kill it; what waits in the kernel is left behind."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_KILL_S)


def measure(
    pair: Pair,
    *,
    size: Size = Size(),
    deadline_s: float = DEADLINE_S,
    faults: Mapping[str, Sequence[str]] | None = None,
) -> Measured:
    """Test a pair whose nodes are both on this machine, over loopback. ``faults``: node → more words for its child.

    A side that crashes, which is our own bug or somebody's kill, makes the test unknown. Never raises for a child.
    Cost: two processes; blocks for a second or two, and ``deadline_s`` at most.
    """
    wrong, token, until = faults or {}, secrets.token_hex(16), time.monotonic() + deadline_s
    sides: list[_Side] = []
    try:
        sides.append(_Side(command("serve", size, *wrong.get(pair.a, ())), token))
        opened = sides[0].line(0, until)
        if opened is None or "port" not in opened:
            return _without(pair, sides, opened)
        port = str(opened["port"])
        sides.append(_Side(command("call", size, "--port", port, *wrong.get(pair.b, ())), token))
        called = sides[1].line(0, until)
        served = sides[0].line(1, until) if called is not None and "problem" not in called else None
        if called is None or served is None or "problem" in called or "problem" in served:
            return _without(pair, sides, called)
        return parse(pair, served, called)
    finally:
        for side in sides:
            side.end()


def _without(pair: Pair, sides: Sequence[_Side], said: Mapping[str, Any] | None) -> Measured:
    """Return what a test without figures comes to."""
    if any(side.crashed for side in sides):
        return Measured(pair=pair, stopped=True)
    if said is not None and "problem" in said:
        return Measured(pair=pair, problem=str(said["problem"])[:200])
    return Measured(pair=pair, hung=True)


def parse(pair: Pair, served: Mapping[str, Any], called: Mapping[str, Any]) -> Measured:
    """Put together what the two sides said. Where both ran an all-reduce, the bandwidth is that of it.

    Raises: KeyError, TypeError, ValueError for what they never say.
    """
    read = Measured(
        pair=pair,
        # Simulated nodes each say how they fare; the slower one decides.
        busbw_gb_s=min(float(side["busbw_gb_s"]) for side in (called, served) if "busbw_gb_s" in side),
        latency_p95_us=max(
            float(side["latency_p95_us"]) for side in (called, served) if "latency_p95_us" in side
        ),
        correct=bool(called["correct"]) and bool(served["correct"]),
        errors_grown=max(int(called["errors_grown"]), int(served["errors_grown"])),
        method=str(called.get("method", TCP)),
        due_gb_s=float(called.get("due_gb_s", 0.0)),
        adapters=tuple(
            LaneRead(
                a=str(each["a"])[:32],
                b=str(each["b"])[:32],
                kind=str(each["kind"])[:64],
                gb_s=float(each["gb_s"]),
                problem=str(each["problem"])[:200],
                rail=str(each.get("rail", ""))[:64],
            )
            for each in (called.get("lanes") or ())[:MOST]
        ),
    )
    summed = served.get("group")
    if not summed:
        return read
    gb_s = {int(size): float(speed) for size, speed in summed["gb_s"].items()}
    return replace(
        read,
        busbw_gb_s=gb_s[max(gb_s)],
        correct=read.correct and not summed["wrong"],
        method=str(summed["backend"]),
    )


def sweep_here(
    nodes: Sequence[str],
    number: int,
    *,
    voting: Voting = CERTIFY,
    size: Size = Size(),
    at_once: int = 1,
    faults: Mapping[str, Sequence[str]] | None = None,
) -> Verdict:
    """Play a whole sweep over nodes of this machine and return its verdict: the way that tests try all of it.

    A pair is judged by what it exchanged, not by speed: pairs of one machine share its cores.
    """
    with ThreadPoolExecutor(max_workers=max(at_once, 1)) as pool:

        def tested(pairs: Sequence[Pair]) -> list[PairResult]:
            read = list(pool.map(lambda pair: measure(pair, size=size, faults=faults), pairs))
            return list(judged(read, compare=False))

        rounds = sweep(nodes, number, rounds=voting.rounds)
        tests = [result for waves in rounds for wave in waves for result in tested(wave)]
        first = first_pass(nodes, tests, voting=voting)
        more = [
            *second_pass(first.suspects, first.certified, number, tests=voting.again),
            *once_more(first.edges),
        ]
        again = [result for wave in disjoint(more) for result in tested(wave)]
    return concluded(first, tests, again, voting=voting)
