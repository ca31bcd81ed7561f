"""The ranks of one member in the sum over its gang: children as the member's command would be, with a deadline.

Owns: starting, waiting, killing, what their words mean. Must not know: how a sum is judged, certificates, the server.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from airyard.checks.contract import Thresholds
from airyard.checks.preflight.compute import CHILD
from airyard.core.health.gang_sums import Look
from airyard.node.launch import signal_group

JOIN_S = 60.0
"""In which all ranks have to come together: they import torch first."""
SUM_S = 30.0
_TELLS_S = 8.0
"""So long before its deadline a child looks itself where the ranks stand: twice, three seconds apart."""
_SIZES = {"gloo": (4096, 16 << 20), "nccl": (4096, 256 << 20)}
_AFTER_S, _YIELDS_S = 2.0, 4.0
_LOOK_S = 0.05
_LONGEST, _MOST_READ = 300, 1 << 16


class RanksInterrupted(Exception):
    """The member is to end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """How this member takes part in the sum."""

    python: Path | None
    """The environment's interpreter; None: it has none."""
    environment: Mapping[str, str]
    before_exec: Callable[[], None]
    """What turns a child into the member's: cage, view, account."""
    limits: Thresholds
    """Of this node's GPUs."""


class _Child:
    """One rank: a child as the member's command would be."""

    def __init__(self, part: Part, number: int, arguments: list[str], room: contextlib.ExitStack) -> None:
        """Start it; ``room`` ends it and takes its files away. Raises: OSError, subprocess.SubprocessError."""
        joined, told_joined = os.pipe()
        self._came = room.enter_context(os.fdopen(joined, "rb"))
        try:
            told = tempfile.TemporaryFile()  # noqa: SIM115  # the room closes it
            self._told: IO[bytes] = room.enter_context(told)
            self._process = self._start(part, number, [*arguments, "--joined", str(told_joined)], told_joined)
        finally:
            os.close(told_joined)
        room.callback(self._end)
        self.has_come = False
        """It has met all others."""

    def _start(self, part: Part, number: int, arguments: list[str], joined: int) -> subprocess.Popen[bytes]:
        variables = {**part.environment, "LOCAL_RANK": str(number)}
        variables.setdefault("OMP_NUM_THREADS", "1")
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", DeprecationWarning
            )  # the child only makes system calls before exec
            return subprocess.Popen(
                [str(part.python), str(CHILD), "group", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=self._told,
                stderr=subprocess.STDOUT,
                env=variables,
                cwd="/",
                start_new_session=True,
                pass_fds=(joined,),
                preexec_fn=part.before_exec,  # noqa: PLW1509  # see above
            )

    def _end(self) -> None:
        if self._process.poll() is None:
            signal_group(self._process.pid, "SIGKILL")
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(2.0)

    def look_at(self) -> int | None:
        """Notice whether it came; return its exit code, None while it runs. The pipe has a word, else its end."""
        code = self._process.poll()
        if not self.has_come and select.select([self._came], [], [], 0)[0]:
            self.has_come = bool(os.read(self._came.fileno(), 16))
        return code

    def lines(self) -> list[str]:
        """Return what it has printed so far."""
        end = os.fstat(self._told.fileno()).st_size
        said = os.pread(self._told.fileno(), _MOST_READ, max(0, end - _MOST_READ))
        return said.decode("utf-8", "replace").strip().splitlines()


class Ranks:
    """The ranks of one member, numbered from ``first``: one for each of its GPUs, with a deadline for all."""

    def __init__(self, *, part: Part, first: int, count: int, world: int, store: str, backend: str) -> None:
        self._part, self._first, self._count = part, first, count
        self._arguments = ["--backend", backend, "--store", store, "--world", str(world)]
        self._arguments += ["--sizes", ",".join(str(size) for size in _SIZES[backend])]
        self._arguments += ["--join-s", f"{max(JOIN_S - _TELLS_S, 0.1):g}"]
        self._arguments += ["--sum-s", f"{max(SUM_S - _TELLS_S, 0.1):g}"]
        self.why = ""
        """Why nothing is known."""
        self.look: Look | None = None
        """Where the ranks stood when nothing went on in time; None: not known."""

    def run(self, should_stop: Callable[[], bool]) -> dict[str, Any] | None:
        """Return what the sum came to; ``problem`` where it did not end after all had come together; None: unknown.

        ``look`` is where all ranks stood then. Raises: RanksInterrupted.
        """
        children: list[_Child] = []
        with contextlib.ExitStack() as room:
            try:
                for number in range(self._count):
                    children.append(_Child(self._part, number, self._of(number), room))
            except (OSError, subprocess.SubprocessError) as error:
                self.why = f"it could not be started: {error}"
                return None
            codes = self._wait(children, should_stop)
            return self._result(children, codes)

    def _of(self, number: int) -> list[str]:
        # One of a member looks: what all ranks tell is the same for whoever asks.
        return [*self._arguments, "--rank", str(self._first + number), *(["--no-look"] if number else [])]

    def _wait(self, children: list[_Child], should_stop: Callable[[], bool]) -> list[int | None]:
        """Return how each ended; None: not in time. Where one failed the others have a moment more."""
        until = time.monotonic() + JOIN_S
        came = failed = waited = False
        while None in (codes := [child.look_at() for child in children]):
            if should_stop():
                raise RanksInterrupted
            now = time.monotonic()
            if not came and any(child.has_come for child in children):
                came, until = True, now + SUM_S
            if not failed and any(codes):
                failed, until = True, min(until, now + _AFTER_S)
            if now >= until:
                if waited or failed or self._looked(children):
                    break
                # Its own rank is silent: one that sees more is to be heard first, for the first end counts.
                waited, until = True, now + _YIELDS_S
            time.sleep(_LOOK_S)
        return codes

    @staticmethod
    def _looked(children: list[_Child]) -> bool:
        return any(_look_of(line) is not None for line in children[0].lines())

    def _result(self, children: list[_Child], codes: list[int | None]) -> dict[str, Any] | None:
        said = [child.lines() for child in children]
        self.look = next((look for line in reversed(said[0]) if (look := _look_of(line)) is not None), None)
        wrong = next((number for number, code in enumerate(codes) if code), None)
        has_come = any(child.has_come for child in children)
        if wrong is not None or None in codes:
            if wrong is not None:
                lines = [line for line in said[wrong] if _look_of(line) is None]
                last = lines[-1][:_LONGEST] if lines else f"exit code {codes[wrong]}"
                why = f"rank {self._first + wrong}: {last}" if self._count > 1 else last
            elif has_come:
                why = f"it was not done {SUM_S:g} s after all had come together"
            else:
                why = f"the ranks did not come together within {JOIN_S:g} s"
            if has_come:
                return {"problem": why}
            self.why = why
            return None
        found = _found(said[0])
        if "skipped" not in found:
            return found
        self.why = str(found["skipped"])
        return None


def _found(lines: list[str]) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(lines[-1])
    except (ValueError, IndexError):
        return {"skipped": lines[-1][:_LONGEST] if lines else "it said nothing"}
    return found


def _look_of(line: str) -> Look | None:
    """Read what a child says of where the ranks stand; None for any other line."""
    if not line.startswith('{"stuck"'):
        return None
    try:
        found: dict[str, Any] = json.loads(line)
        phases = found["stuck"]
        return Look(
            phases=tuple(map(str, phases)) if phases is not None else None,
            quiet=frozenset(map(int, found.get("quiet", ()))),
            moved=bool(found.get("moved")),
        )
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
