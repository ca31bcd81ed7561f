"""What is told of power and cooling that slow nodes down: incidents of a place, single nodes, the nodes of a run.

Owns: shapes and types. Must not know: routes, the state.
"""

from __future__ import annotations

from airyard.wire.answer import Answer


class IncidentDoc(Answer):
    """Nodes of one rack or power domain, slowed down by POWER or COOLING at once; ``ended`` is null while it lasts."""

    place: str
    supply: str
    began: str | None
    ended: str | None
    nodes: list[str]
    why: str
    next_step: str


class SlowdownDoc(Answer):
    """The newest time that POWER or COOLING slowed a node down, or STORAGE failed on it; and since when."""

    node: str
    supply: str
    place: str
    since: str | None
    at: str | None
    device: int | None
    message: str


class SlowedDoc(Answer):
    """Nodes of a run that POWER or COOLING slows down now; ``incident``: they are some of several nodes of a place."""

    supply: str
    place: str
    nodes: list[str]
    since: str | None
    incident: bool
    text: str
    next_step: str
