"""The bodies of requests that change a run after its submit, or set nodes aside, and their answers.

Owns: shapes, types and sizes; nothing here acts. Must not know: routes, the state.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from airyard.wire.answer import Answer
from airyard.wire.moment import Moment
from airyard.wire.native import Name, Part, RunDoc
from airyard.wire.nodes import Why


def _limit(seconds: int | None) -> int | None:
    if seconds is not None and seconds < 1:
        raise ValueError(f"is {seconds} s; a time limit is at least 1 s, and null is none")
    return seconds


class UpdateRequest(Part):
    """``POST /runs/{ref}/update``: what is not named stays as it is.

    ``timeout_s`` null takes the limit away, ``begin_at`` null the begin.
    """

    priority: Literal["CRITICAL", "NORMAL", "BEST_EFFORT"] | None = None
    project: Name | None = None
    timeout_s: Annotated[int | None, Field(le=10 * 366 * 86_400), AfterValidator(_limit)] = None
    begin_at: Moment | None = None
    held: bool | None = None


class UpdateAnswer(Answer):
    """The run as it is now, and which of the fields were news."""

    run: RunDoc
    changed: list[str]
    warnings: list[str]


class ReserveRequest(Part):
    """``POST /reservations``: from now without ``from_at``; until ``to_at``, or for ``duration_s``.

    ``evict``: runs that are on the nodes of one that begins now are asked to leave; else it is refused.
    """

    nodes: Annotated[list[Name], Field(max_length=10_000)]
    from_at: Moment | None = None
    to_at: Moment | None = None
    duration_s: Annotated[int, Field(ge=1, le=10 * 366 * 86_400)] | None = None
    maintenance: bool = False
    project: Name | None = None
    note: Why = ""
    evict: bool = False


class ReservationDoc(Answer):
    """Nodes that are set aside: for maintenance, or for a project. ``active``: at this moment."""

    reservation_id: int
    nodes: list[str]
    from_at: str
    to_at: str
    active: bool
    maintenance: bool
    project: str | None
    by: str
    note: str


class ReserveAnswer(Answer):
    """The reservation that was made, and what it will mean for runs that are on its nodes."""

    reservation: ReservationDoc
    warnings: list[str]


class ReservationsAnswer(Answer):
    """All reservations that are not over, by their begin."""

    reservations: list[ReservationDoc]


class UnreserveAnswer(Answer):
    """Which reservation was taken back."""

    reservation_id: int
