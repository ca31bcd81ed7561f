"""Reads ``scontrol show topology`` and the features of nodes: which nodes stand close to each other.

Owns: which switch or block becomes a node's ``fabric`` and ``rack``. Must not know: GPUs, jobs.
Source: topology.conf(5).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from airyard.sim.slurm.hostlists import hosts
from airyard.sim.trace.refusal import Place, refused, shown, wrong_value

COMMAND = "scontrol show topology"
_LINE = re.compile(r"(SwitchName|BlockName)=(\S+)(?:\s.*)?")
_FEATURE = re.compile(r"(fabric|rack|switch)(?:[-_.:=]\S+|\d\S*)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class _Group:
    """A switch with all nodes below it (level 0 is next to the nodes), or a block."""

    name: str
    level: int
    nodes: tuple[str, ...]


def read_topology(lines: Iterable[str], source: str) -> dict[str, dict[str, str]]:
    """Return the labels of each node named.

    Of a tree, the rack is the leaf switch, and the fabric the switch of the highest level that has more than one:
    the coarsest division there is. A block is both. Raises: UserError for what is no such output.
    """
    switches: list[_Group] = []
    blocks: list[_Group] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        place = Place(source=source, line=number)
        match = _LINE.fullmatch(line.strip())
        if match is None:
            problem = f"is no output of `{COMMAND}`: it reads {shown(line)}"
            raise refused(place, problem, fix=f"Give the output of `{COMMAND}`.")
        nodes = tuple(hosts(Place(source=source, line=number, column="Nodes"), _value(line, "Nodes")))
        if match.group(1) == "BlockName":
            blocks.append(_Group(match.group(2), 0, nodes))
        else:
            switches.append(_Group(match.group(2), _level(place, line), nodes))
    if not switches and not blocks:
        raise refused(
            Place(source=source), "names no switch and no block", fix=f"Give the output of `{COMMAND}`."
        )
    labels = _tree(switches)
    for block in blocks:
        for node in block.nodes:
            labels.setdefault(node, {}).update(fabric=block.name, rack=block.name)
    return labels


def feature_labels(features: Iterable[str]) -> dict[str, str]:
    """Return the labels that features give: ``rack12`` and ``fabric-a`` name one each; all stand in ``features``."""
    labels: dict[str, str] = {}
    names = list(features)
    for name in names:
        if match := _FEATURE.fullmatch(name):
            labels.setdefault(match.group(1).lower(), name)
    if names:
        labels["features"] = ",".join(names)
    return labels


def _tree(switches: list[_Group]) -> dict[str, dict[str, str]]:
    counts: Mapping[int, int] = Counter(switch.level for switch in switches)
    fabric_level = max((level for level, count in counts.items() if count > 1), default=0)
    labels: dict[str, dict[str, str]] = {}
    for switch in switches:
        for node in switch.nodes:
            if switch.level == fabric_level:
                labels.setdefault(node, {}).setdefault("fabric", switch.name)
            if switch.level == 0:
                labels.setdefault(node, {}).setdefault("rack", switch.name)
    return labels


def _level(place: Place, line: str) -> int:
    text = _value(line, "Level")
    if not (text.isascii() and text.isdigit() and len(text) < 4):
        raise wrong_value(
            Place(source=place.source, line=place.line, column="Level"), text, "the level of a switch, from 0"
        )
    return int(text)


def _value(line: str, key: str) -> str:
    match = re.search(rf"(?:^|\s){key}=(\S*)", line)
    return match.group(1) if match is not None else ""
