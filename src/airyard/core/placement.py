"""Where one member of a gang runs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """One member's node and the indexes of its devices there."""

    node: str
    machine: str
    devices: tuple[int, ...]
