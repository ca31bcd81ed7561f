"""A verdict of triage in words: for ``triage``, ``get`` and ``explain``.

Owns: how a VerdictDoc and a JudgementDoc read. Pure. Must not know: the network, terminals.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airyard.cli import formats

Said = Mapping[str, Any]
Pair = tuple[str, str]
_COLOURS = {"hardware": "red", "driver": "red", "network": "yellow", "config": "yellow", "user": "cyan"}
_WIDTH = 160
_SHORT = 3
"""So many lines of evidence are shown beside other things."""


def rows(said: Said, *, colour: bool = False) -> list[Pair]:
    """Return what ``triage`` shows of a verdict."""
    pairs = [
        ("cause", f"{said['message']} ({said['rule']})"),
        ("class", formats.paint(said["class"], _COLOURS.get(said["class"]), colour) + f" → {said['cause']}"),
        ("first rank", first_rank(said)),
        ("blamed", blamed(said)),
        ("confidence", f"{said['confidence']:.0%}"),
        ("action", str(said["action"]).replace("_", " ")),
        ("next", str(said["next_step"])),
        *_evidence(said, len(said["evidence"])),
    ]
    if said["also_seen"]:
        pairs.append(("also seen", ", ".join(said["also_seen"])))
    return pairs


def short(judgement: Said | None) -> list[Pair]:
    """Return what ``get`` and ``explain`` show of a judgement; nothing where there is none."""
    if not judgement:
        return []
    said = judgement.get("verdict")
    if not said:
        return [("verdict", f"none: {judgement.get('missing') or 'it could not be judged'}")]
    rank = f", first rank {said['first_rank']}" if said["first_rank"] is not None else ""
    late = "" if judgement["in_time"] else "; it came after the end, which is as it was without it"
    return [
        ("verdict", f"{said['class']} → {said['cause']}: {said['message']} ({said['rule']}{rank})"),
        ("blamed", blamed(said)),
        *_evidence(said, _SHORT),
        ("advice", str(said["next_step"])),
        ("judged", f"{said['confidence']:.0%} sure, {from_what(judgement)}{late}"),
    ]


def from_what(judgement: Said) -> str:
    """``from 2 of 2 logs``; and what was missing."""
    missing = f", without {judgement['missing']}" if judgement.get("missing") else ""
    return f"from {judgement['logs']} of {formats.plural(judgement['members'], 'log')}{missing}"


def first_rank(said: Said) -> str:
    """Say which rank failed first, and how that is known where its own line does not tell; else why it is not."""
    rank = "-" if said["first_rank"] is None else str(said["first_rank"])
    why = said.get("rank_why")  # a server of before says nothing of it
    return f"{rank} ({why})" if why else rank


def blamed(said: Said) -> str:
    """Say who is blamed, and on whose word."""
    named = [str(said[name]) for name in ("blamed_node", "blamed_device") if said[name]]
    if not named:
        return "nobody" if not said["confirmed"] else "the machine of the kernel's log"
    if not said["confirmed"]:
        return f"{', '.join(named)}, a suspect: only a job says so"
    seen = "the kernel" if any(line["kernel"] for line in said["evidence"]) else "its monitors"
    return f"{', '.join(named)}, confirmed by {seen}"


def _evidence(said: Said, count: int) -> list[Pair]:
    return [
        ("" if number else "evidence", f"{line['file']}:{line['line']}: {line['text'][:_WIDTH]}")
        for number, line in enumerate(said["evidence"][:count])
    ]
