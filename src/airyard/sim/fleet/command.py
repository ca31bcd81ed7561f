"""What a member's command does on a simulated machine, which runs nothing: how long it lasts and how it ends.

Owns: the reading of a command's text. Must not know: runners, time.

A shell command is read for its ``sleep N`` and ``exit N``: ``sleep 30; exit 1`` lasts 30 s and fails. Without a
``sleep`` it lasts as long as the fleet was told. A line ``# fleet: WORDS`` says more, in the words of ``sim.behaviour``
(``for`` in ms) and ``log=BYTES`` (``64KiB``, ``10MiB``): so much is printed at full speed before it sleeps.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from airyard.sim.behaviour import Behaviour, behaviour_of

_SLEEP = re.compile(r"\bsleep\s+(\d+(?:\.\d+)?)\b")
_EXIT = re.compile(r"\bexit\s+(\d{1,3})\b")
_WORDS = re.compile(r"^\s*#\s*fleet:\s*(.*)$", re.MULTILINE)
_SIZE = re.compile(r"(\d+)(|KiB|MiB|GiB)")
_UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """One member's command on one attempt. ``problem``: its words could not be read."""

    behaviour: Behaviour
    log_bytes: int = 0
    problem: str = ""


def script_of(command: str, member: int, attempt: int, run_seconds: float) -> Script:
    """Read a command; ``run_seconds`` is what one lasts that does not say."""
    sleeps = [float(found) for found in _SLEEP.findall(command)]
    exits = _EXIT.findall(command)
    lasts_ms = int(1000 * (sum(sleeps) if sleeps else run_seconds))
    plain = Behaviour(duration_ms=lasts_ms, code=int(exits[-1]) % 256 if exits else 0)
    said = _WORDS.search(command)
    if said is None:
        return Script(behaviour=plain)
    words = said.group(1).split()
    rest = " ".join(word for word in words if not word.startswith("log="))
    try:
        log_bytes = sum(_size(word.removeprefix("log=")) for word in words if word.startswith("log="))
        found = behaviour_of(rest, member, attempt)
    except (KeyError, ValueError) as error:
        return Script(behaviour=replace(plain, code=2, duration_ms=0), problem=f"# fleet: {error}")
    if "for=" not in rest:
        found = replace(found, duration_ms=lasts_ms)
    return Script(behaviour=found, log_bytes=log_bytes)


def _size(text: str) -> int:
    found = _SIZE.fullmatch(text)
    if found is None:
        raise ValueError(f"log={text} is no size such as 64KiB")
    return int(found.group(1)) * _UNITS[found.group(2)]
