"""The faults of a fleet: read from a file with every problem named by its line, drawn and done while the fleet runs.

Owns: the file's form, when a fault strikes and whom. Must not know: how a machine suffers it (``machine``).
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from airyard.core.errors import UserError
from airyard.sim.fleet.machine import Machine
from airyard.spec.document import parse_document
from airyard.spec.problems import FieldPath, ProblemCode, Report, in_order, lines_of, near_miss

_SPAN = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)")
_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_BACK_AFTER_S = {"kill-agent": 1.0, "power-off": 30.0, "partition": 30.0, "slow": 30.0}
_LAG_S = 0.5
_LOOK_S = 0.1


class FaultKind(Enum):
    """What can happen to a machine."""

    KILL_RUNNER = "kill-runner"
    KILL_AGENT = "kill-agent"
    POWER_OFF = "power-off"
    PARTITION = "partition"
    SLOW = "slow"
    MEND = "mend"
    """Not a fault: the end of all that a machine suffers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One entry of the file. ``machines``: how many are drawn, or their names."""

    kind: FaultKind
    at_s: float = 0.0
    every_s: float | None = None
    machines: int | tuple[str, ...] = 1
    back_after_s: float = 0.0
    latency_s: float = _LAG_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """A whole file."""

    faults: tuple[Fault, ...] = ()
    seed: int | None = None


def read_faults(path: Path, machines: int) -> Faults:
    """Read a file for a fleet of so many machines. Raises: UserError that lists every problem with its line."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no UTF-8 text"
        raise UserError(
            f"{path} cannot be read: {reason}", code="BAD_FAULTS", fix="name a file with `faults:`"
        ) from error
    document, problems = parse_document(text, file=str(path))
    report = Report(positions=document.positions, file=str(path), problems=list(problems))
    if not problems:
        faults = _faults(document.data, report, machines)
    if report.problems:
        found = in_order(report.problems, str(path))
        count = f"{len(found)} problem{'s' if len(found) != 1 else ''}"
        raise UserError(
            f"{path} has {count}:\n" + "\n".join(lines_of(found)),
            code="BAD_FAULTS",
            fix="docs/operate/dev-fleet.md has the form of the file, with an example",
            details={"file": str(path), "problems": [problem.as_json() for problem in found]},
        )
    return faults


def read_fault(entry: Mapping[str, Any], machines: int) -> Fault:
    """Read one entry that is given alone. Raises: UserError."""
    report = Report(positions={}, file="fault")
    fault = _fault(entry, (), report, machines)
    if fault is None or report.problems:
        raise UserError("\n".join(lines_of(report.problems)), code="BAD_FAULTS")
    return fault


def _faults(data: Mapping[str, Any], report: Report, machines: int) -> Faults:
    _only(data, (), ("faults", "seed"), report)
    seed, entries = data.get("seed"), data.get("faults")
    if seed is not None and not _is_number(seed):
        report.add(ProblemCode.WRONG_TYPE, ("seed",), "must be a whole number")
    if not isinstance(entries, list) or not entries:
        message = "must be a list of faults, such as `- {do: kill-runner, every: 20s}`"
        report.add(
            ProblemCode.WRONG_TYPE if "faults" in data else ProblemCode.MISSING_FIELD, ("faults",), message
        )
        return Faults()
    found = [_fault(entry, ("faults", index), report, machines) for index, entry in enumerate(entries)]
    return Faults(faults=tuple(fault for fault in found if fault is not None), seed=seed)


def _fault(entry: Any, path: FieldPath, report: Report, machines: int) -> Fault | None:
    if not isinstance(entry, Mapping):
        report.add(ProblemCode.WRONG_TYPE, path, "must be a map such as {do: kill-runner, every: 20s}")
        return None
    _only(entry, path, ("do", "at", "every", "machines", "back_after", "latency"), report)
    kinds = [kind.value for kind in FaultKind]
    name = entry.get("do")
    if name not in kinds:
        code = ProblemCode.INVALID_VALUE if "do" in entry else ProblemCode.MISSING_FIELD
        report.add(
            code,
            (*path, "do"),
            f"must be one of {', '.join(kinds)}" + (f", not {name!r}" if name is not None else ""),
            near_miss=near_miss(str(name), kinds) if name is not None else None,
        )
        return None
    for field, only in (("back_after", tuple(_BACK_AFTER_S)), ("latency", ("slow",))):
        if field in entry and name not in only:
            report.add(ProblemCode.CONFLICTING_FIELDS, (*path, field), f"means nothing to {name}")
    every_s = _span(entry, "every", path, report, None)
    return Fault(
        kind=FaultKind(name),
        at_s=_span(entry, "at", path, report, every_s or 0.0) or 0.0,
        every_s=every_s,
        machines=_machines(entry.get("machines", 1), (*path, "machines"), report, machines),
        back_after_s=_span(entry, "back_after", path, report, _BACK_AFTER_S.get(name, 0.0)) or 0.0,
        latency_s=_span(entry, "latency", path, report, _LAG_S) or _LAG_S,
    )


def _only(data: Mapping[str, Any], path: FieldPath, known: Sequence[str], report: Report) -> None:
    for name in data:
        if name not in known:
            near = near_miss(str(name), known)
            report.add(ProblemCode.UNKNOWN_FIELD, (*path, name), "unknown", near_miss=near, valid_keys=known)


def _span(
    entry: Mapping[str, Any], name: str, path: FieldPath, report: Report, default: float | None
) -> float | None:
    value = entry.get(name)
    if name not in entry:
        return default
    found = _SPAN.fullmatch(value) if isinstance(value, str) else None
    if found is None or float(found.group(1)) <= 0:
        message = f"{value!r} is not a time such as 500ms, 30s, 2m or 1h"
        report.add(ProblemCode.INVALID_VALUE, (*path, name), message)
        return default
    return float(found.group(1)) * _UNITS_S[found.group(2)]


def _machines(value: Any, path: FieldPath, report: Report, machines: int) -> int | tuple[str, ...]:
    if _is_number(value) and 1 <= value <= machines:
        return int(value)
    if isinstance(value, list) and value and all(isinstance(name, str) for name in value):
        known = {machine_name(index) for index in range(machines)}
        for index, name in enumerate(value):
            if name not in known:
                there = f"{machine_name(0)} to {machine_name(machines - 1)}"
                report.add(
                    ProblemCode.INVALID_VALUE, (*path, index), f"no machine {name!r}; there are {there}"
                )
        return tuple(value)
    message = f"must be a number from 1 to {machines}, or a list of names such as [{machine_name(0)}]"
    report.add(ProblemCode.INVALID_VALUE, path, message)
    return 1


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def machine_name(index: int) -> str:
    """Return the name of a machine of the fleet, counted from 0."""
    return f"dev-{index + 1:04d}"


class Injector:
    """Does faults to machines."""

    def __init__(self, machines: Sequence[Machine], seed: int | None) -> None:
        self._machines = {machine.name: machine for machine in machines}
        self._random = random.Random(seed)

    async def follow(self, fault: Fault) -> None:
        """Do an entry at its times, which count from now."""
        await asyncio.sleep(fault.at_s)
        while True:
            while not self.strike(fault):
                await asyncio.sleep(_LOOK_S)  # a runner cannot be killed before there is one
            if fault.every_s is None:
                return
            await asyncio.sleep(fault.every_s)

    def strike(self, fault: Fault) -> bool:
        """Do it now, to machines that are named, or drawn of those that are well; False when there is none."""
        drawn = self._drawn(fault)
        for machine in drawn:
            self._do(fault, machine)
        return bool(drawn)

    def _drawn(self, fault: Fault) -> list[Machine]:
        if isinstance(fault.machines, tuple):
            named = [self._machines[name] for name in fault.machines]
            if fault.kind is FaultKind.MEND:
                return named
            named = [each for each in named if not each.off]
            return [each for each in named if each.members or fault.kind is not FaultKind.KILL_RUNNER]
        well = [machine for machine in self._machines.values() if machine.well and machine.joined]
        busy = [machine for machine in well if machine.members]
        # A fault that strikes nobody shows nothing: machines with members first.
        if fault.kind is FaultKind.KILL_RUNNER or len(busy) >= fault.machines:
            return self._random.sample(busy, min(fault.machines, len(busy)))
        idle = [machine for machine in well if not machine.members]
        return busy + self._random.sample(idle, min(fault.machines - len(busy), len(idle)))

    def _do(self, fault: Fault, machine: Machine) -> None:
        later = asyncio.get_running_loop().call_later
        match fault.kind:
            case FaultKind.KILL_RUNNER:
                if machine.members:
                    machine.kill_runner(self._random.choice(machine.members))
            case FaultKind.KILL_AGENT:
                machine.stop_agent()
                later(fault.back_after_s, machine.start_agent)
            case FaultKind.POWER_OFF:
                machine.power_off()
                later(fault.back_after_s, machine.power_on)
            case FaultKind.PARTITION:
                machine.cut_off()
                later(fault.back_after_s, machine.mend)
            case FaultKind.SLOW:
                machine.slow_down(fault.latency_s)
                later(fault.back_after_s, machine.slow_down, 0.0)
            case FaultKind.MEND:
                machine.recover()
