"""The numbers that a reliability simulation rests on, read from ``assumptions.toml`` beside this file.

Owns: their types and names. Must not know: what is made of them.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import Enum
from pathlib import Path
from typing import Any

from airyard.core.health.facts import Component, Remedy, Retest, Severity

FILE = Path(__file__).with_name("assumptions.toml")


class Effect(Enum):
    """What a fault does to a run that uses the node."""

    KILL = "kill"
    HANG = "hang"
    SLOW = "slow"
    SILENT = "silent"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of failure; see the file for each field. ``lasting``: it stays until it is cured."""

    name: str
    count: float
    effect: Effect
    channel: str
    seen: float
    rule: str
    component: Component
    cured: Mapping[Remedy, float]
    again_h: float
    severity: Severity = Severity.CRITICAL
    remedy: Remedy = Remedy.NONE
    retest: Retest = Retest.T2
    lasting: bool = True
    user: bool = False

    @property
    def hardware(self) -> bool:
        """True when a node is broken."""
        return self.lasting and not self.user


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumptions:
    """All of the file. The sections keep their names and units."""

    rates: Mapping[str, float]
    fleet: Mapping[str, float]
    job: Mapping[str, Any]
    detection: Mapping[str, Any]
    tests: Mapping[str, Any]
    remedies: Mapping[str, Any]
    person: Mapping[str, Any]
    noise: Mapping[str, float]
    kinds: tuple[Kind, ...]


def load(path: Path = FILE) -> Assumptions:
    """Read the file. Raises: OSError; ValueError, which says what is wrong and where."""
    data = tomllib.loads(path.read_text(encoding="utf-8"))
    wanted = {one.name for one in fields(Assumptions)} - {"kinds"} | {"kind"}
    if missing := sorted(wanted - set(data)):
        raise ValueError(f"it has no [{missing[0]}]" if missing[0] != "kind" else "it has no [[kind]]")
    if strange := sorted(set(data) - wanted):
        raise ValueError(f"there is no section {strange[0]}; there are {', '.join(sorted(wanted))}")
    kinds = []
    for number, one in enumerate(data.pop("kind"), 1):
        try:
            kinds.append(_kind(one))
        except KeyError as error:
            raise ValueError(f"[[kind]] number {number} has no {error.args[0]}") from None
        except (ValueError, TypeError, AttributeError) as error:
            raise ValueError(f"[[kind]] number {number}: {error}") from None
    return Assumptions(kinds=tuple(kinds), **data)


def _kind(data: dict[str, Any]) -> Kind:
    known = {
        "effect": Effect(data["effect"]),
        "component": Component(data["component"]),
        "severity": Severity(data.get("severity", "CRITICAL")),
        "remedy": Remedy(data.get("remedy", "NONE")),
        "retest": Retest(data.get("retest", "T2")),
        "cured": {Remedy(name): share for name, share in data["cured"].items()},
    }
    return Kind(**{**data, **known})
