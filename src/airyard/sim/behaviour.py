"""What simulated commands do, written as the workload's command text.

Owns: the words of such a command and their meaning. Must not know: the runner, the clock.

``for=3000 exit=1`` runs for 3 s and exits 1. The words: ``for`` (ms, ``ever`` for no end), ``exit``, ``signal``
(dies by it), ``term`` (``die``, ``clean``: exits 0, ``ignore``), ``only`` (the misbehaving member; others run well),
``until`` (misbehaves only on attempts below this number), ``prepare`` (``ok``, ``slow``, ``broken``, ``download``,
``unfit``: the pool's prolog fails, where it has one; ``dirty``: its epilog does),
``port`` (``taken``: checked busy once; ``clash``: lost after the start), ``oom``, ``saves`` (ms between checkpoints),
``child`` (a process that outlives the main one).
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Behaviour:
    """One member's command on one attempt."""

    duration_ms: int | None = 1_000
    code: int | None = 0
    signal: int | None = None
    term: str = "die"
    prepare: str = "ok"
    port: str = ""
    out_of_memory: bool = False
    saves_ms: int | None = None
    child: bool = False


def behaviour_of(command: str, member: int, attempt: int) -> Behaviour:
    """Read a command for one member and attempt. Raises: KeyError, ValueError for unknown words."""
    words = dict(word.split("=", 1) for word in command.split())
    only = words.pop("only", None)
    until = words.pop("until", None)
    well = (only is not None and int(only) != member) or (until is not None and attempt >= int(until))
    out = Behaviour()
    for name, value in words.items():
        out = _WORDS[name](out, value)
    if well:
        out = replace(out, code=0, signal=None, prepare="ok", port="", out_of_memory=False)
    return out


_WORDS = {
    "for": lambda b, v: replace(b, duration_ms=None if v == "ever" else int(v)),
    "exit": lambda b, v: replace(b, code=int(v)),
    "signal": lambda b, v: replace(b, code=None, signal=int(v)),
    "term": lambda b, v: replace(b, term=v),
    "prepare": lambda b, v: replace(b, prepare=v),
    "port": lambda b, v: replace(b, port=v),
    "oom": lambda b, v: replace(b, out_of_memory=v == "yes"),
    "saves": lambda b, v: replace(b, saves_ms=int(v)),
    "child": lambda b, v: replace(b, child=v == "yes"),
}
