"""Mends and tests nodes: the configured commands of each rung, and what simulated nodes answer.

Owns: that a remedy is carried out once, what an exit status means. Must not know: which remedy a node needs.
A command gets AIRYARD_NODE, AIRYARD_MACHINE, AIRYARD_REMEDY or AIRYARD_RETEST, and AIRYARD_ATTEMPT: a name that is the
same however often the server is started again.
"""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Mapping

import structlog

from airyard.core.actions import RunRemedy, RunRetest
from airyard.core.commands import Command, RemedyDone, RetestDone
from airyard.core.health.facts import CheckStatus, Remedy
from airyard.core.health.ladder import DEADLINE_MS, RETEST_MS
from airyard.core.health.states import RemedyOutcome

SIDE_BY_SIDE = 4
"""So many nodes are mended or tested at a time."""
SAID_CHARACTERS = 300
_KEYS = {
    Remedy.GPU_RESET: "gpu_reset_command",
    Remedy.REBOOT: "reboot_command",
    Remedy.POWER_CYCLE: "power_cycle_command",
}
_log = structlog.get_logger("airyard.remedies")


class Remedies:
    """Works off what is asked, on threads of its own."""

    def __init__(self, commands: Mapping[str, str | None]) -> None:
        """``commands`` is the section ``[health]`` of the configuration."""
        self._commands = commands
        self._inbox: queue.Queue[RunRemedy | RunRetest | None] = queue.Queue()
        self._begun: set[str] = set()
        self._lock = threading.Lock()
        self._answer: Callable[[Command], None] = lambda command: None

    def start(self, answer: Callable[[Command], None]) -> None:
        """Begin; what was asked before is worked off now."""
        self._answer = answer
        for number in range(SIDE_BY_SIDE):
            threading.Thread(target=self._run, name=f"remedy-{number}", daemon=True).start()

    def stop(self) -> None:
        """Take nothing more; a command that runs goes on, and its answer is lost: a person is asked then."""
        for _ in range(SIDE_BY_SIDE):
            self._inbox.put(None)

    def do(self, action: RunRemedy | RunRetest) -> None:
        """Queue a remedy or test, once by its name."""
        key = _key(action)
        with self._lock:
            if key in self._begun:
                return
            self._begun.add(key)
        self._inbox.put(action)

    def _run(self) -> None:
        while (action := self._inbox.get()) is not None:
            try:
                done = self._mend(action) if isinstance(action, RunRemedy) else self._test(action)
            except Exception as error:
                _log.exception("remedy_broke", action=str(action))
                done = _unknown(action, f"{type(error).__name__}: {error}")
            self._answer(done)
            with self._lock:
                self._begun.discard(_key(action))

    def _mend(self, action: RunRemedy) -> RemedyDone:
        if action.simulated:
            return _mended(action, RemedyOutcome.SUCCEEDED, "simulated")
        key = _KEYS.get(action.remedy, "")
        command = self._commands.get(key)
        if not command:
            said = f"mend it by hand: [health] {key} is not configured; then `airyard health acquit {action.node}`"
            return _mended(action, RemedyOutcome.CANCELLED, said)
        if action.again:
            said = f"see what became of the {action.remedy.value}: the server was started again meanwhile"
            return _mended(action, RemedyOutcome.PERMANENT, said)
        code, said = _call(
            command, action, {"AIRYARD_REMEDY": action.remedy.value}, DEADLINE_MS[action.remedy]
        )
        if code == 0:
            return _mended(action, RemedyOutcome.SUCCEEDED, said)
        if code is None:
            return _mended(action, RemedyOutcome.PERMANENT, f"it was not done in time: {said}")
        # EX_TEMPFAIL is the command's own word that it did nothing, and may be called again.
        outcome = RemedyOutcome.TRANSIENT if code == os.EX_TEMPFAIL else RemedyOutcome.PERMANENT
        return _mended(action, outcome, f"it exited with {code}: {said}")

    def _test(self, action: RunRetest) -> RetestDone:
        if action.simulated:
            return _tested(action, CheckStatus.PASS, "simulated")
        command = self._commands.get("retest_command")
        if not command:
            said = f"test it by hand (`airyard health check --full` there), then `airyard health acquit {action.node}`"
            return _tested(action, CheckStatus.UNKNOWN, said)
        code, said = _call(command, action, {"AIRYARD_RETEST": action.level.value}, RETEST_MS)
        status = {0: CheckStatus.PASS, 1: CheckStatus.FAIL}.get(
            -1 if code is None else code, CheckStatus.UNKNOWN
        )
        return _tested(action, status, said if code is not None else f"it was not done in time: {said}")


def _call(
    command: str, action: RunRemedy | RunRetest, more: Mapping[str, str], deadline_ms: int
) -> tuple[int | None, str]:
    """Run a command through the shell; return its exit status (None: killed, it took too long) and its last words."""
    names = {"AIRYARD_NODE": action.node, "AIRYARD_MACHINE": action.machine, "AIRYARD_ATTEMPT": action.name}
    with tempfile.TemporaryFile() as output:
        # To a file: whoever inherits it and lives on keeps nobody waiting for the end of a pipe.
        process = subprocess.Popen(
            ["/bin/sh", "-c", command],
            env={**os.environ, **names, **more},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        code: int | None
        try:
            code = process.wait(deadline_ms / 1000)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            code = None
        output.seek(max(output.seek(0, os.SEEK_END) - SAID_CHARACTERS, 0))
        return code, output.read().decode(errors="replace").strip()


def _key(action: RunRemedy | RunRetest) -> str:
    return f"{type(action).__name__} {action.name}"


def _mended(action: RunRemedy, outcome: RemedyOutcome, said: str) -> RemedyDone:
    return RemedyDone(node=action.node, name=action.name, outcome=outcome, message=said)


def _tested(action: RunRetest, status: CheckStatus, said: str) -> RetestDone:
    return RetestDone(node=action.node, name=action.name, status=status, message=said)


def _unknown(action: RunRemedy | RunRetest, said: str) -> RemedyDone | RetestDone:
    if isinstance(action, RunRemedy):
        return _mended(action, RemedyOutcome.PERMANENT, said)
    return _tested(action, CheckStatus.UNKNOWN, said)
