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
_LOOK_S = 0.05
_LONGEST = 300


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


class Rank:
    """One rank: a child as the member's command would be, with a deadline."""

    def __init__(self, *, part: Part, rank: int, world: int, store: str, backend: str) -> None:
        self._part = part
        self._arguments = [
            "--backend",
            backend,
            "--store",
            store,
            "--rank",
            str(rank),
            "--world",
            str(world),
        ]
        self._arguments += ["--sizes", ",".join(str(size) for size in _SIZES[backend])]
        self._arguments += ["--join-s", f"{max(JOIN_S - _TELLS_S, 0.1):g}"]
        self._arguments += ["--sum-s", f"{max(SUM_S - _TELLS_S, 0.1):g}"]
        self._came = False
        self.why = ""
        """Why nothing is known."""
        self.look: Look | None = None
        """Where the ranks stood when nothing went on in time; None: not known."""

    def run(self, should_stop: Callable[[], bool]) -> dict[str, Any] | None:
        """Return what the sum came to; ``problem`` where it did not end after all had come together; None: unknown.

        ``look`` is where all ranks stood then. Raises: RanksInterrupted.
        """
        joined, told_joined = os.pipe()
        with tempfile.TemporaryFile() as told, open(joined, "rb") as came:
            try:
                child = self._start(told, told_joined)
            except (OSError, subprocess.SubprocessError) as error:
                self.why = f"it could not be started: {error}"
                return None
            finally:
                os.close(told_joined)
            try:
                ended = self._wait(child, came, should_stop)
            finally:
                if child.poll() is None:
                    signal_group(child.pid, "SIGKILL")
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        child.wait(2.0)
            told.seek(0)
            return self._result(told.read(), ended=ended, code=child.returncode)

    def _start(self, told: IO[bytes], joined: int) -> subprocess.Popen[bytes]:
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", DeprecationWarning
            )  # the child only makes system calls before exec
            return subprocess.Popen(
                [str(self._part.python), str(CHILD), "group", *self._arguments, "--joined", str(joined)],
                stdin=subprocess.DEVNULL,
                stdout=told,
                stderr=subprocess.STDOUT,
                env=dict(self._part.environment),
                cwd="/",
                start_new_session=True,
                pass_fds=(joined,),
                preexec_fn=self._part.before_exec,  # noqa: PLW1509  # see above
            )

    def _wait(
        self, child: subprocess.Popen[bytes], joined: IO[bytes], should_stop: Callable[[], bool]
    ) -> bool:
        """Return whether the child ended in time. The pipe has a word once all came together, else its end."""
        until = time.monotonic() + JOIN_S
        while child.poll() is None:
            if should_stop():
                raise RanksInterrupted
            if not self._came and select.select([joined], [], [], 0)[0] and os.read(joined.fileno(), 16):
                self._came, until = True, time.monotonic() + SUM_S
            if time.monotonic() >= until:
                return False
            time.sleep(_LOOK_S)
        self._came = self._came or bool(os.read(joined.fileno(), 16))
        return True

    def _result(self, said: bytes, *, ended: bool, code: int | None) -> dict[str, Any] | None:
        lines = said.decode("utf-8", "replace").strip().splitlines()
        last = lines[-1][:_LONGEST] if lines else f"exit code {code}"
        self.look = next((look for line in reversed(lines) if (look := _look_of(line)) is not None), None)
        if ended and code == 0:
            try:
                found: dict[str, Any] = json.loads(lines[-1])
            except (ValueError, IndexError):
                found = {"skipped": last}
            if "skipped" not in found:
                return found
            self.why = str(found["skipped"])
            return None
        if self._came:
            return {"problem": last if ended else f"it was not done {SUM_S:g} s after all had come together"}
        self.why = last if ended else f"the ranks did not come together within {JOIN_S:g} s"
        return None


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
