"""Prolog and epilog: the pool's own commands on the node, before a member is prepared and once it is gone.

Owns: what they see, their time limit, where their output goes, how a failure reads. Must not know: the machine's
phases, what follows from a failure. Standard library only.

They run as the runner does, beside the member and not in its cage: what they leave running stays.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from typing import IO, Any

from airyard.node.launch import inherited

PROLOG, EPILOG = "prolog", "epilog"
_LOOK_S = 0.05
_OUTPUT_S = 1.0
"""How long the output of a command that has ended is still read: a daemon it left may hold the pipe."""
_MAX_LINE = 2000


class PoolCommandFailed(Exception):
    """The node is not fit; ``message`` says which command says so, and how."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class PoolCommandInterrupted(Exception):
    """It was given up because the member is to end."""


def variables(name: str, order: Mapping[str, Any]) -> dict[str, str]:
    """Return what the command is told of the member; the rest of its environment is the machine's."""
    around = order.get("around") or {}
    return {
        "AIRYARD_COMMAND": name,
        "AIRYARD_RUN_ID": str(order["run_id"]),
        "AIRYARD_ATTEMPT": str(order["attempt"]),
        "AIRYARD_NODE_NAME": str(around.get("node") or ""),
        "AIRYARD_POOL": str(around.get("pool") or ""),
        "AIRYARD_OWNER": str(around.get("owner") or ""),
        "AIRYARD_PROJECT": str(around.get("project") or ""),
        "AIRYARD_UNIX_USER": str((order.get("run_as") or {}).get("user") or ""),
        "AIRYARD_DEVICES": ",".join(str(index) for index in order.get("devices") or ()),
        "CUDA_VISIBLE_DEVICES": str(order.get("visible_devices") or ""),
        "NODE_RANK": str(order["member"]),
        "NUM_NODES": str(order["members"]),
    }


def run(
    name: str,
    order: Mapping[str, Any],
    *,
    note: Callable[[str], None],
    should_stop: Callable[[], bool] = lambda: False,
) -> None:
    """Run one of the order's two commands, if the pool has it; each line of its output is a note.

    Raises: PoolCommandFailed; PoolCommandInterrupted when ``should_stop`` says so. Both leave nothing of it running.
    """
    asked = order.get(name)
    if not asked:
        return
    last: list[str] = []
    over = threading.Event()

    def line(text: str) -> None:
        if not over.is_set():  # a daemon that it left may speak when the log is closed already
            last[:] = [text]
            note(f"{name}: {text}")

    try:
        process = subprocess.Popen(
            ["/bin/sh", "-c", str(asked["command"])],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**inherited(os.environ), **variables(name, order)},
            cwd="/",
            start_new_session=True,
        )
    except OSError as error:
        raise PoolCommandFailed(f"the {name} could not be started: {error}") from error
    assert process.stdout is not None
    reader = threading.Thread(target=_read, args=(process.stdout, line), name=name, daemon=True)
    reader.start()
    try:
        _wait(process, float(asked["timeout_s"]), name, should_stop)
    finally:
        reader.join(_OUTPUT_S)
        over.set()
    if process.returncode != 0:
        said = f": {last[0]}" if last else ""
        raise PoolCommandFailed(f"the {name} {_how(process.returncode)}{said}")


def _wait(
    process: subprocess.Popen[bytes], timeout_s: float, name: str, should_stop: Callable[[], bool]
) -> None:
    deadline = time.monotonic() + timeout_s
    while process.poll() is None:
        if should_stop():
            _kill(process)
            raise PoolCommandInterrupted
        if time.monotonic() >= deadline:
            _kill(process)
            raise PoolCommandFailed(f"the {name} was not done within {timeout_s:g} s")
        time.sleep(_LOOK_S)


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _read(stream: IO[bytes], line: Callable[[str], None]) -> None:
    with contextlib.suppress(OSError, ValueError), stream:
        while raw := stream.readline(_MAX_LINE):
            if text := raw.decode("utf-8", "replace").rstrip():
                line(text)


def _how(code: int) -> str:
    return f"was killed by signal {-code}" if code < 0 else f"exited with {code}"
