"""Reads ``scontrol show nodes`` (also with ``--oneliner``): machines, GPUs, partitions, features, states.

Owns: the form, and which nodes can serve. Must not know: jobs, how partitions become pools.
Source: scontrol(1), NODE STATE CODES; slurm.conf(5), NODE CONFIGURATION.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from airyard.sim.slurm.tres import Resources, generic_resources, resources
from airyard.sim.trace.refusal import Place, refused, shown, wrong_value

COMMAND = "scontrol show nodes"

_KEYS = (
    "NodeName", "CPUTot", "RealMemory", "State", "Gres", "Partitions", "ActiveFeatures", "AvailableFeatures",
    "Features", "CfgTRES",
)  # fmt: skip
_PAIR = re.compile(r"(?:^|\s)(" + "|".join(_KEYS) + r")=(\S*)")
_OUT = frozenset(
    {
        "DOWN", "ERROR", "FUTURE", "UNKNOWN", "DRAIN", "DRAINED", "DRAINING", "FAIL", "FAILING", "NOT_RESPONDING",
        "INVAL", "INVALID_REG", "MAINT", "MAINTENANCE",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmNode:
    """One node. ``gpus`` are whole ones; their types are as Slurm writes them."""

    line: int
    name: str
    gpus: Resources
    cpus: int
    memory_bytes: int
    partitions: tuple[str, ...]
    features: tuple[str, ...]
    usable: bool


def read_nodes(lines: Iterable[str], source: str) -> list[SlurmNode]:
    """Return the nodes in the order of the file.

    Raises: UserError for what is no such output, a malformed value, or a node that comes twice.
    """
    nodes: dict[str, SlurmNode] = {}
    for number, pairs in _records(lines, source):
        node = _node(source, number, pairs)
        if node.name in nodes:
            raise refused(
                Place(source=source, line=number),
                f"describes node {node.name} again (first in line {nodes[node.name].line})",
                fix=f"Give the output of one `{COMMAND}`.",
            )
        nodes[node.name] = node
    if not nodes:
        raise refused(Place(source=source), "has no node", fix=f"Give the output of `{COMMAND}`.")
    return list(nodes.values())


def _records(lines: Iterable[str], source: str) -> Iterator[tuple[int, dict[str, tuple[int, str]]]]:
    """Yield (line, key → (line, value)) of each node."""
    begun, pairs = 0, dict[str, tuple[int, str]]()
    for number, line in enumerate(lines, start=1):
        if line.startswith("NodeName="):
            if begun:
                yield begun, pairs
            begun, pairs = number, {}
        elif line.strip() and not begun:
            problem = f"is no output of `{COMMAND}`: it begins with {shown(line)}"
            raise refused(Place(source=source, line=number), problem, fix=f"Give the output of `{COMMAND}`.")
        for key, value in _PAIR.findall(line):
            # A reason or a comment, which come last, may hold anything: the first word counts.
            pairs.setdefault(key, (number, value))
    if begun:
        yield begun, pairs


def _node(source: str, line: int, pairs: dict[str, tuple[int, str]]) -> SlurmNode:
    def read(key: str) -> tuple[Place, str]:
        at, value = pairs.get(key, (line, ""))
        return Place(source=source, line=at, column=key), "" if value == "(null)" else value

    if lacking := [key for key in ("NodeName", "State", "CPUTot", "RealMemory") if not read(key)[1]]:
        problem = f"describes a node without {', '.join(lacking)}"
        raise refused(Place(source=source, line=line), problem, fix=f"Give the whole output of `{COMMAND}`.")
    features = read("ActiveFeatures")[1] or read("AvailableFeatures")[1] or read("Features")[1]
    return SlurmNode(
        line=line,
        name=read("NodeName")[1],
        gpus=_gpus(read("Gres"), read("CfgTRES")),
        cpus=_number(*read("CPUTot")),
        memory_bytes=_number(*read("RealMemory")) << 20,
        partitions=tuple(name for name in read("Partitions")[1].split(",") if name),
        features=tuple(name for name in features.split(",") if name),
        usable=_usable(*read("State")),
    )


def _gpus(gres: tuple[Place, str], configured: tuple[Place, str]) -> Resources:
    found = generic_resources(*gres)
    return found if found.gpus or found.parts else resources(*configured)


def _number(place: Place, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 12):
        raise wrong_value(place, text, "a whole number, not below zero")
    return int(text)


def _usable(place: Place, text: str) -> bool:
    """Read ``MIXED+CLOUD``, ``DOWN*+DRAIN``: a base state and flags."""
    words = re.split(r"[+]", re.sub(r"[*~#!%$@^-]", "", text))
    if not all(re.fullmatch(r"[A-Z_]+", word) for word in words):
        raise wrong_value(place, text, "a node state like IDLE, MIXED+CLOUD or DOWN+DRAIN")
    return _OUT.isdisjoint(words)
