"""Slurm's host lists: ``n[001-128,200],login1``.

Owns: their expansion. Must not know: which nodes there are. Source: scontrol(1), ``show hostnames``.
"""

from __future__ import annotations

import re
from itertools import product

from airyard.sim.trace.refusal import Place, wrong_value

MOST_HOSTS = 100_000
_NONE = frozenset({"", "none assigned", "(null)", "none", "n/a"})
_PIECE = re.compile(r"[^\[\],\s]+|\[[^\[\]]*\]|(,)")
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")
_HELP = "node names like n[001-128],login1"


def hosts(place: Place, text: str) -> list[str]:
    """Return the names in order. Raises: UserError for a malformed list, or one of over 100,000 names."""
    if text.lower() in _NONE:
        return []
    names: list[str] = []
    for parts in _pieces(place, text):
        choices = [_choices(place, text, part) for part in parts]
        total = 1
        for choice in choices:
            total *= len(choice)
        if len(names) + total > MOST_HOSTS:
            raise wrong_value(place, text, f"at most {MOST_HOSTS:,} node names")
        names += ["".join(combination) for combination in product(*choices)]
    return names


def first_host(place: Place, text: str) -> str | None:
    """Return the first name, None for an empty list. Cost: that of the first entry alone."""
    if text.lower() in _NONE:
        return None
    head = _pieces(place, text)[0]
    return "".join(_choices(place, text, part)[0] for part in head)


def _pieces(place: Place, text: str) -> list[list[str]]:
    """Split at the commas outside brackets; each entry is a list of plain parts and bracketed ranges."""
    entries: list[list[str]] = [[]]
    end = 0
    for match in _PIECE.finditer(text):
        if match.start() != end:
            break
        end = match.end()
        if match.group(1):
            entries.append([])
        else:
            entries[-1].append(match.group())
    if end != len(text) or not all(entries):
        raise wrong_value(place, text, _HELP)
    return entries


def _choices(place: Place, text: str, part: str) -> list[str]:
    if not part.startswith("["):
        return [part]
    found: list[str] = []
    for piece in part[1:-1].split(","):
        match = _RANGE.fullmatch(piece)
        if match is None:
            raise wrong_value(place, text, _HELP)
        first, last = match.group(1), match.group(2) or match.group(1)
        count = int(last) - int(first) + 1
        if count < 1 or len(found) + count > MOST_HOSTS:
            raise wrong_value(place, text, f"ranges that rise, of at most {MOST_HOSTS:,} names")
        found += [f"{number:0{len(first)}d}" for number in range(int(first), int(last) + 1)]
    return found
