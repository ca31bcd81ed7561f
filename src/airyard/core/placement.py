"""Where a gang runs: member by member, device by device."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """One member's node and the indexes of its devices there."""

    node: str
    machine: str
    devices: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """The seats of all members, in the order of their node rank: all of them or none."""

    seats: tuple[Seat, ...]
