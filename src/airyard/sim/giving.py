"""Gives a simulated node a fault by name: lines for its agent or for a dev fleet, or signals to what runs on it.

Owns: what is written where, which processes are a member's. Must not know: the command line, rules, the server.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from airyard.core.errors import UserError
from airyard.node.fault_kinds import KINDS, FaultKind, clearing_of, lines_of
from airyard.node.health_simulated import FAULT_FILE
from airyard.node.health_watch import FOLDER as HEALTH
from airyard.node.inventory import host_name
from airyard.sim.fleet import FOLDER as FLEET
from airyard.sim.fleet.asked import ASKED
from airyard.sim.fleet.faults import FaultKind as FleetFault
from airyard.spec.problems import near_miss

EVER = "10000h"
"""A machine stays as it is until it is mended."""
TURN_S = 0.05
"""What a straggler is kept from working, and then lets work, in turn."""


def kinds() -> Sequence[FaultKind]:
    """Return all there are."""
    return tuple(KINDS.values())


def kind_of(name: str) -> FaultKind:
    """Return the kind of this name. Raises: UserError that lists all."""
    kind = KINDS.get(name)
    if kind is None:
        near = near_miss(name, KINDS)
        raise UserError(
            f"there is no fault {name!r}{f'; did you mean {near}?' if near else ''}",
            code="UNKNOWN_FAULT",
            fix=f"one of {', '.join(KINDS)}; `airyard dev fault` says what each is",
        )
    return kind


class Giver:
    """Gives faults to one simulated node of this machine. ``node``: its NodeDoc, ``others``: all that there are."""

    def __init__(self, home: Path, node: Mapping[str, Any], others: Iterable[Mapping[str, Any]] = ()) -> None:
        """Raises: UserError for a node that is not simulated, or not of this machine."""
        self._home = home
        self._name, self._machine = str(node["name"]), str(node["machine"])
        self._devices = [int(device["index"]) for device in node["devices"]]
        self._fleet = (home / FLEET).exists()
        if not node["simulated"]:
            there = ", ".join(sorted(str(one["name"]) for one in others if one["simulated"])[:5])
            raise UserError(
                f"{self._name} is not simulated: faults are made up for simulated nodes only",
                code="NOT_SIMULATED",
                fix=f"one of {there}"
                if there
                else "`airyard up --simulate GPU_8xH100=2`, or `airyard dev fleet`",
            )
        if not self._fleet and self._machine != (here := _machine_of(home)):
            raise UserError(
                f"{self._name} is of machine {self._machine}; this data folder is of {here}",
                code="OTHER_MACHINE",
                fix=f"call it on {self._machine}, with the --home that its agent has",
            )

    def give(self, kind: FaultKind, device: int | None) -> None:
        """Give the fault. Raises: UserError."""
        if device is not None and kind.of != "device":
            raise UserError(f"{kind.name} is of no GPU: it takes no --device", code="BAD_DEVICE")
        if device is not None and device not in self._devices:
            last = len(self._devices) - 1
            raise UserError(
                f"{self._name} has no GPU {device}: it has 0 to {last}",
                code="BAD_DEVICE",
                fix=f"`airyard nodes {self._name}` shows it",
            )
        if kind.of == "machine":
            self._ask(do=kind.name, back_after=EVER)
        else:
            self._write(lines_of(kind, self._name, device or 0))

    def clear(self) -> None:
        """Have the node read as a good one, its machine be there, and what runs on it go on."""
        self._write(clearing_of(self._name, self._devices))
        if self._fleet:
            self._ask(do=FleetFault.MEND.value)

    def go_on(self, keys: Sequence[str]) -> None:
        """Let the commands of members go on."""
        for pid in self._processes(keys):
            _send(pid, signal.SIGCONT)

    def hold_back(self, keys: Sequence[str], goes_on: Callable[[], bool]) -> None:
        """Let the commands of members work half of the time, while ``goes_on``. Raises: UserError."""
        try:
            self.halt(keys)
            while goes_on() and (pids := self._processes(keys)):
                for number in (signal.SIGSTOP, signal.SIGCONT):
                    for pid in pids:
                        _send(pid, number)
                    time.sleep(TURN_S)
        finally:
            self.go_on(keys)

    def halt(self, keys: Sequence[str]) -> list[int]:
        """Stop the commands of members; return their processes. Raises: UserError where nothing runs."""
        if self._fleet:
            raise UserError(
                "the machines of `airyard dev fleet` run no commands: there is nothing that could hang",
                code="NOTHING_RUNS",
                fix="a node of `airyard up --simulate` does",
            )
        pids = self._processes(keys)
        if not pids:
            raise UserError(
                f"no command runs on {self._name}", code="NOTHING_RUNS", fix="start a run there first"
            )
        for pid in pids:
            _send(pid, signal.SIGSTOP)
        return pids

    def _processes(self, keys: Sequence[str]) -> list[int]:
        """Return the processes of members' commands: those with the folder of their attempt in their environment."""
        attempts = self._home / "node" / "attempts"
        marks = [f"AIRYARD_PROGRESS_DIR={attempts / key}/".encode() for key in keys]
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and marks:
                try:
                    environment = (entry / "environ").read_bytes()
                except OSError:
                    continue
                if any(mark in environment for mark in marks):
                    found.append(int(entry.name))
        return found

    def _write(self, lines: Sequence[Mapping[str, Any]]) -> None:
        _append(self._home / "node" / HEALTH / FAULT_FILE, lines)

    def _ask(self, **entry: Any) -> None:
        if not self._fleet:
            raise UserError(
                f"{self._name} is of this machine's own agent: machines are switched off in `airyard dev fleet` only",
                code="NO_DEV_FLEET",
                fix="`airyard dev fleet --nodes 20`, and its AIRYARD_HOME",
            )
        _append(self._home / FLEET / ASKED, [{**entry, "machines": [self._machine]}])


def _append(path: Path, lines: Sequence[Mapping[str, Any]]) -> None:
    """Write lines behind those that are there, at once: who reads meanwhile sees whole ones."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    data = "".join(f"{json.dumps(line)}\n" for line in lines).encode()
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, data)
    finally:
        os.close(fd)


def _machine_of(home: Path) -> str:
    """Return what the machine of a data folder is called in its yard."""
    try:
        offer = json.loads((home / "node" / "ray" / "offer.json").read_text())
        return str(offer["machine"]) or host_name()
    except (OSError, ValueError, KeyError, TypeError):
        return host_name()


def _send(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass  # it has ended
