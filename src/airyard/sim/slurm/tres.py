"""Slurm's resources: ``billing=8,cpu=64,gres/gpu:h100=8,gres/gpu=8,mem=500G,node=1`` and ``gpu:h100:8(S:0-1)``.

Owns: their forms, counting GPUs, telling whole GPUs from parts of one, and the names of models.
Must not know: whose they are. Source: sacct(1) AllocTRES; slurm.conf(5) AccountingStorageTRES; gres.conf(5).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from airyard.node.inventory import model_of
from airyard.sim.trace.refusal import Place, wrong_value

MOST_DEVICES = 1_000_000
_SUFFIX = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40, "P": 1 << 50}
_COUNT = re.compile(r"(\d{1,15})([KMGTP]?)")
_SLICE = re.compile(r"(?:^|[_\W])\d{1,2}[gc]\.\d{1,4}gb", re.IGNORECASE)
_SHARES = ("gres/shard", "gres/mps")
_PARTS = re.compile(r",(?![^(]*\))")


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """What a job or a node has. ``types`` counts whole GPUs by the type that was recorded, ``gpus`` all of them.

    ``parts`` counts MIG slices and shares of a GPU. ``licences`` are the names of those held.
    """

    gpus: int = 0
    types: Mapping[str, int] = field(default_factory=dict)
    parts: int = 0
    nodes: int | None = None
    licences: tuple[str, ...] = ()


def is_slice(kind: str) -> bool:
    """True when a GPU type names a MIG slice: ``1g.10gb``, ``nvidia_h100_80gb_hbm3_1g.10gb``."""
    return _SLICE.search(kind) is not None


def model_name(kind: str) -> str:
    """Return the model as the live yard writes it: ``h100`` and ``nvidia_h100_80gb_hbm3`` are ``H100``."""
    return model_of(kind).upper()


def resources(place: Place, text: str) -> Resources:
    """Read the comma-separated ``name=count`` of AllocTRES, ReqTRES, CfgTRES or GrpTRES.

    A count of -1 (a cleared limit) reads as absent. Raises: UserError for anything else.
    """
    types: Counter[str] = Counter()
    plain: int | None = None
    parts, nodes = 0, None
    licences = []
    for entry in text.split(",") if text else ():
        name, equals, value = entry.partition("=")
        if not equals or not name:
            raise wrong_value(place, text, "resources like cpu=64,gres/gpu=8,mem=500G,node=1")
        if name.startswith("license/"):
            licences.append(name.removeprefix("license/"))
        elif name == "gres/gpu":
            plain = _limit(place, text, value)
        elif name.startswith("gres/gpu:"):
            types[name.removeprefix("gres/gpu:")] += _limit(place, text, value) or 0
        elif name.split(":")[0] in _SHARES:
            parts += _limit(place, text, value) or 0
        elif name == "node":
            nodes = _limit(place, text, value)
    whole = Counter({kind: count for kind, count in types.items() if count and not is_slice(kind)})
    slices = types.total() - whole.total()
    # Typed counts are part of the plain one; a site that tracks only types has no plain one.
    gpus = whole.total() if plain is None else max(0, plain - slices)
    return Resources(gpus=gpus, types=whole, parts=parts + slices, nodes=nodes, licences=tuple(licences))


def generic_resources(place: Place, text: str) -> Resources:
    """Read a node's Gres: ``gpu:h100:8(S:0-1),nic:2`` or ``(null)``. Raises: UserError for a count that is none."""
    types: Counter[str] = Counter()
    parts = 0
    for entry in _PARTS.split(text) if text not in ("", "(null)") else ():
        name, *rest = re.sub(r"\(.*?\)", "", entry).strip().split(":")
        rest = [word for word in rest if word != "no_consume"]
        number = rest.pop() if rest and _COUNT.fullmatch(rest[-1]) else "1"
        if name == "gpu":
            types[":".join(rest)] += device_count(place, text, number)
        elif name in ("shard", "mps"):
            parts += device_count(place, text, number)
    whole = {kind: number for kind, number in types.items() if number and not is_slice(kind)}
    slices = types.total() - sum(whole.values())
    return Resources(gpus=sum(whole.values()), types=whole, parts=parts + slices)


def device_count(place: Place, text: str, value: str) -> int:
    """Return a number of devices. ``text`` is shown when it is none. Raises: UserError."""
    match = _COUNT.fullmatch(value)
    number = int(match.group(1)) * _SUFFIX[match.group(2)] if match is not None else MOST_DEVICES + 1
    if number > MOST_DEVICES:
        raise wrong_value(place, text, f"counts from 0 to {MOST_DEVICES:,}, not {value[:20]!r}")
    return number


def _limit(place: Place, text: str, value: str) -> int | None:
    return None if value == "-1" else device_count(place, text, value)
