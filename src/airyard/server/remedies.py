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
import time
from collections.abc import Callable, Mapping
from typing import Any

import structlog

from airyard.core.actions import RunRemedy, RunRetest
from airyard.core.commands import Command, RemedyDone, RetestDone
from airyard.core.health.facts import CheckStatus, Remedy, Retest
from airyard.core.health.ladder import DEADLINE_MS, RETEST_MS, retest_ms
from airyard.core.health.states import RemedyOutcome

SIDE_BY_SIDE = 4
"""So many nodes are mended or tested at a time."""
SAID_CHARACTERS = 300
AGAIN_S = 2.0
"""A test that could not be carried out is asked for again after this."""
LOOK_S = 1.0
LEFT_S = 15.0
"""A machine that does not come back is told of so long before the remedy's deadline, which knows less of it."""
Test = Callable[[RunRetest, Callable[[], bool]], RetestDone | None]
Boot = Callable[[str], str]
"""The boot id of a machine, as its agent told it last; empty where none is known."""
_RESTARTS = frozenset({Remedy.REBOOT, Remedy.POWER_CYCLE})
_KEYS = {
    Remedy.GPU_RESET: "gpu_reset_command",
    Remedy.REBOOT: "reboot_command",
    Remedy.POWER_CYCLE: "power_cycle_command",
}
SIMULATED_REMEDY, SIMULATED_RETEST = "simulated_remedy_command", "simulated_retest_command"
"""Commands that simulated nodes have of their own: none of a real machine's is ever run for them."""
_log = structlog.get_logger("airyard.remedies")


class Remedies:
    """Works off what is asked, on threads of its own."""

    def __init__(self, commands: Mapping[str, Any]) -> None:
        """``commands`` is the section ``[health]`` of the configuration."""
        self._commands = commands
        self._looks_at_boots = bool(commands.get("reboot_changes_boot", True))
        self._on_node: Test | None = None
        self._boot: Boot = lambda machine: ""
        self._stopped = threading.Event()
        self._inbox: queue.Queue[RunRemedy | None] = queue.Queue()
        self._tests: queue.Queue[RunRetest | None] = queue.Queue()
        """They may wait for a machine for long, and must not keep remedies waiting."""
        self._since_s: dict[str, float] = {}
        self._begun: set[str] = set()
        self._lock = threading.Lock()
        self._answer: Callable[[Command], None] = lambda command: None

    def start(
        self, answer: Callable[[Command], None], test: Test | None = None, boot: Boot | None = None
    ) -> None:
        """Begin; what was asked before is worked off now.

        ``test`` tests a node on the node itself, where no command does it; None from it: not now, ask again.
        ``boot`` tells whether a machine was started again.
        """
        self._answer, self._on_node = answer, test
        self._boot = boot or self._boot
        for number in range(SIDE_BY_SIDE):
            threading.Thread(target=self._run, name=f"remedy-{number}", daemon=True).start()
            threading.Thread(target=self._run_tests, name=f"retest-{number}", daemon=True).start()

    def stop(self) -> None:
        """Take nothing more; a command that runs goes on, and its answer is lost: a person is asked then."""
        self._stopped.set()
        for _ in range(SIDE_BY_SIDE):
            self._inbox.put(None)
            self._tests.put(None)

    def do(self, action: RunRemedy | RunRetest) -> None:
        """Queue a remedy or test, once by its name."""
        key = _key(action)
        with self._lock:
            if key in self._begun:
                return
            self._begun.add(key)
        if isinstance(action, RunRetest):
            self._tests.put(action)
        else:
            self._inbox.put(action)

    def _run_tests(self) -> None:
        while (action := self._tests.get()) is not None:
            key = _key(action)
            until_s = self._since_s.setdefault(key, time.monotonic())
            until_s += retest_ms(action.level) / 1000
            try:
                done = self._test_there(action, until_s)
            except Exception as error:
                _log.exception("retest_broke", action=str(action))
                done = _tested(action, CheckStatus.UNKNOWN, f"{type(error).__name__}: {error}")
            if done is None and self._stopped.is_set():
                return  # the next server asks again
            if done is None:
                self._stopped.wait(AGAIN_S)
                self._tests.put(action)
                continue
            self._since_s.pop(key, None)
            self._answer(done)
            with self._lock:
                self._begun.discard(key)

    def _test_there(self, action: RunRetest, until_s: float) -> RetestDone | None:
        # Between simulated nodes there is something to test: what a file of made-up faults says.
        alone = action.simulated and action.level is not Retest.T4
        command = self._commands.get("retest_command") and not action.simulated
        if self._on_node is None or alone or command:
            return self._test(action)
        if time.monotonic() >= until_s:
            return _tested(action, CheckStatus.UNKNOWN, "its machine could not be asked for the test in time")
        return self._on_node(action, lambda: self._stopped.is_set() or time.monotonic() >= until_s)

    def _run(self) -> None:
        while (action := self._inbox.get()) is not None:
            try:
                done = self._mend(action)
            except Exception as error:
                _log.exception("remedy_broke", action=str(action))
                done = _mended(action, RemedyOutcome.PERMANENT, f"{type(error).__name__}: {error}")
            self._answer(done)
            with self._lock:
                self._begun.discard(_key(action))

    def _mend(self, action: RunRemedy) -> RemedyDone:
        key = SIMULATED_REMEDY if action.simulated else _KEYS.get(action.remedy, "")
        command = self._commands.get(key)
        if not command and action.simulated:
            return _mended(action, RemedyOutcome.SUCCEEDED, "simulated")
        if not command:
            said = f"mend it by hand: [health] {key} is not configured; then `airyard health acquit {action.node}`"
            return _mended(action, RemedyOutcome.CANCELLED, said)
        if action.again:
            said = f"see what became of the {action.remedy.value}: the server was started again meanwhile"
            return _mended(action, RemedyOutcome.PERMANENT, said)
        until_s = time.monotonic() + DEADLINE_MS[action.remedy] / 1000 - LEFT_S
        before = self._boot(action.machine)
        code, said = _call(
            command, action, {"AIRYARD_REMEDY": action.remedy.value}, DEADLINE_MS[action.remedy]
        )
        if code == 0 and not self._is_back(action, before, until_s):
            why = (
                f"the command says that it is done, but machine {action.machine} was not started again since"
            )
            return _mended(action, RemedyOutcome.PERMANENT, f"{why}: its boot id is {before} as before")
        if code == 0:
            return _mended(action, RemedyOutcome.SUCCEEDED, said)
        if code is None:
            return _mended(action, RemedyOutcome.PERMANENT, f"it was not done in time: {said}")
        # EX_TEMPFAIL is the command's own word that it did nothing, and may be called again.
        outcome = RemedyOutcome.TRANSIENT if code == os.EX_TEMPFAIL else RemedyOutcome.PERMANENT
        return _mended(action, outcome, f"it exited with {code}: {said}")

    def _is_back(self, action: RunRemedy, before: str, until_s: float) -> bool:
        """Wait until the machine has another boot id; False when it has the same until the end."""
        if action.simulated or not before or not self._looks_at_boots or action.remedy not in _RESTARTS:
            return True
        while self._boot(action.machine) in ("", before):
            if time.monotonic() >= until_s or self._stopped.wait(LOOK_S):
                return False
        return True

    def _test(self, action: RunRetest) -> RetestDone:
        command = self._commands.get(SIMULATED_RETEST if action.simulated else "retest_command")
        if not command and action.simulated:
            return _tested(action, CheckStatus.PASS, "simulated")
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
