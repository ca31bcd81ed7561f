"""What a health check is: a probe that collects once, and rules that judge what it has read.

Owns: the contract that our own checks keep and that a site's own files have to keep. Must not know: any check, how
probes are run (``running.py``).

``collect`` touches the machine and may hang or crash: it runs in a process of its own with a deadline. What it returns
goes to every rule of the probe; a rule is pure, and says what it makes of it for each device or for the machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from airyard.checks.limit import Limit
from airyard.core.health.facts import CheckResult, CheckStatus, Component, Remedy, Retest
from airyard.core.health.fleet_values import Usual


class Profile(Enum):
    """How much is checked."""

    FAST = "fast"
    """Seconds: fit for every start."""
    FULL = "full"
    """Minutes: a new node, a repaired one, an idle one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Where probes look. ``root`` stands before /proc, /sys and /dev; tests give a folder."""

    root: Path = Path("/")
    data_folder: Path = Path("/")
    """Where runs write: its disk is checked."""
    gpus: int | None = None
    """How many there should be; None: nobody said."""
    hosts: tuple[str, ...] = ()
    """Names that have to be resolved."""
    full: bool = False

    def path(self, absolute: str) -> Path:
        """Return a path of the machine below ``root``."""
        return self.root / absolute.lstrip("/")


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """Limits of one GPU generation over those of all. ``source`` says where each is from."""

    values: Mapping[str, float] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)
    generation: str = ""
    fleet: Mapping[str, Usual] = field(default_factory=dict)
    """By check, what is usual among other nodes of the kind; where a limit was declared, that goes before it."""

    def __getitem__(self, name: str) -> float:
        """Return a limit, which knows whose it is. Raises: KeyError for a name that no file has."""
        return Limit(self.values[name], ((name, self.sources.get(name, "")),))

    def get(self, name: str) -> float | None:
        """Return a limit, None where this generation has none."""
        return self[name] if name in self.values else None


Judge = Callable[[Any, Thresholds], Iterable[CheckResult]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One rule: ``judge`` gets what the probe read. ``number`` is its place in the catalogue of preflight checks."""

    name: str
    title: str
    passes: str
    """When it passes, for people."""
    judge: Judge
    number: int | None = None
    component: Component = Component.HOST


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """Something that is read once, and the rules over it."""

    name: str
    collect: Callable[[Site], Any]
    checks: tuple[Check, ...]
    profile: Profile = Profile.FAST
    deadline_s: float = 5.0


def text_of(path: Path) -> str:
    """Return a small file of /proc or /sys without the space around it; empty where it cannot be read."""
    try:
        return path.read_text("utf-8", "replace").strip()
    except OSError:
        return ""


def passed(check: str, message: str, **more: Any) -> CheckResult:
    """A check that came out well."""
    return CheckResult(check=check, status=CheckStatus.PASS, message=message, **more)


def skipped(check: str, why: str, **more: Any) -> CheckResult:
    """A check that does not apply here; it changes nothing."""
    return CheckResult(check=check, status=CheckStatus.SKIP, message=why, **more)


def warned(check: str, message: str, next_step: str, **more: Any) -> CheckResult:
    """Something to look at; it counts against nobody."""
    return CheckResult(check=check, status=CheckStatus.WARN, message=message, next_step=next_step, **more)


def unknown(check: str, message: str, next_step: str, **more: Any) -> CheckResult:
    """What could not be told: neither well nor ill."""
    return CheckResult(check=check, status=CheckStatus.UNKNOWN, message=message, next_step=next_step, **more)


def failed(
    check: str,
    message: str,
    next_step: str,
    component: Component,
    remedy: Remedy = Remedy.NONE,
    retest: Retest = Retest.T1,
    **more: Any,
) -> CheckResult:
    """A check that did not pass."""
    return CheckResult(
        check=check,
        status=CheckStatus.FAIL,
        message=message,
        next_step=next_step,
        component=component,
        remedy=remedy,
        retest=retest,
        **more,
    )
