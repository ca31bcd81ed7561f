"""Takes a bundle of what the machine says of itself when a grave fault is seen, before a remedy takes it away.

Owns: for which events, how often, the folders and how many are kept. Must not know: what is in a bundle
(``checks/evidence.py``), what follows from an event.

The work is a child's, in a session of its own with a deadline: a driver that hangs holds up nothing here. Of several
faults within ten minutes the first takes a bundle: the others are most often its effects.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from airyard.core.health.facts import HealthEvent, Remedy, Severity
from airyard.core.plain import LINES
from airyard.node.launch import of_checks

FOLDER = "evidence"
DEADLINE_S = 90.0
APART_S = 600.0
MOST_KEPT = 10
_KILL_S = 2.0
_MODULE = "airyard.checks.evidence"
_UNSAFE = re.compile(r"[^A-Za-z0-9.]+")


def is_grave(event: HealthEvent) -> bool:
    """True for what may cost a node a reset; a simulated node's faults are nothing of this machine."""
    if event.node:
        return False
    return event.severity is Severity.CRITICAL or (
        event.severity is Severity.HIGH and event.remedy is not Remedy.NONE
    )


class EvidenceKeeper:
    """Bundles of one machine, below ``evidence`` of the watch's folder."""

    def __init__(self, folder: Path, *, deadline_s: float = DEADLINE_S, root: Path = Path("/")) -> None:
        self._folder = folder / FOLDER
        self._deadline_s = deadline_s
        self._root = root
        self._due_s = float("-inf")
        self._child: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def note(self, events: Iterable[HealthEvent]) -> list[HealthEvent]:
        """Begin a bundle for the first grave one and return all events, that one with the bundle's name as evidence.

        Never raises, and does not wait for the bundle: a disk that is full costs the bundle and no event.
        """
        found = list(events)
        first = next((place for place, event in enumerate(found) if is_grave(event)), None)
        if first is None:
            return found
        with self._lock:
            now_s = time.monotonic()
            if now_s < self._due_s:
                return found
            name = self._begin(found[first])
            if name is None:
                return found
            self._due_s = now_s + APART_S
        said = f"kept on the machine: node/health/{FOLDER}/{name}"
        found[first] = replace(found[first], evidence=(*found[first].evidence[: LINES - 1], said))
        return found

    def _begin(self, event: HealthEvent) -> str | None:
        taken_at = time.strftime("%Y-%m-%dT%H-%M-%SZ", time.gmtime(event.at_ms / 1000))
        name = f"{taken_at}-{_UNSAFE.sub('-', event.rule)}"
        bundle = self._folder / name
        try:
            bundle.mkdir(parents=True, mode=0o700)
            (bundle / "event.json").write_text(json.dumps(event.as_json(), indent=1) + "\n")
            child = subprocess.Popen(
                [sys.executable, "-m", _MODULE, str(bundle), str(self._root)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=of_checks(os.environ),
                cwd="/",
                start_new_session=True,
            )
        except OSError:
            return None
        self._child = child
        threading.Thread(target=self._watch, args=(child, bundle), name="evidence", daemon=True).start()
        return name

    def _watch(self, child: subprocess.Popen[bytes], bundle: Path) -> None:
        """Wait for the child, end it at its deadline, remove the oldest bundles.

        The thread lives as long as the child: the kernel ends a child with the thread that started it, and that is the
        watch's own, which lives as long as the agent.
        """
        try:
            child.wait(self._deadline_s)
        except subprocess.TimeoutExpired:
            _kill(child)
            with suppress(OSError), open(bundle / "missing.txt", "a") as file:
                file.write(f"what is not here was not written within {self._deadline_s:g} s\n")
        for old in sorted(self._folder.iterdir())[:-MOST_KEPT]:
            shutil.rmtree(old, ignore_errors=True)

    def close(self) -> None:
        """End a bundle under way: nobody waits for it."""
        child = self._child
        if child is not None and child.poll() is None:
            _kill(child)


def _kill(child: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):  # it waits in the kernel: nobody waits for it
        child.wait(_KILL_S)
