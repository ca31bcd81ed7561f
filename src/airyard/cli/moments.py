"""Times and spans as people type them: ``08:00``, ``2026-12-02 08:00``, ``+90m``; ``2h``, ``1h30m``.

Owns: what the options of several verbs accept, and how it is sent. Must not know: any verb.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any

import click

NOW = "now"
_PART = re.compile(r"(\d+(?:\.\d+)?)(s|min|m|h|d)")
_SECONDS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400}
MOST_S = 10**9
"""No span is longer: some 31 years, as much as the API takes."""
_CLOCK = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)")


def span_s(text: str) -> int:
    """Read ``45s``, ``90m``, ``2h``, ``1h30m``, ``1d`` as seconds. Raises: ValueError."""
    whole = "".join(text.split())
    parts = _PART.findall(whole)
    if not parts or "".join(map("".join, parts)) != whole:
        raise ValueError(f"{text!r} is not a span such as 45s, 90m, 2h, 1h30m or 1d")
    seconds = sum(float(number) * _SECONDS[unit] for number, unit in parts)
    if seconds > MOST_S:
        raise ValueError(f"{text[:40]!r} is longer than any span may be ({MOST_S // 86_400:,}d)")
    return round(seconds)


def moment(text: str, now: datetime, zone: tzinfo | None = None) -> datetime:
    """Read a time; one without a zone is in ``zone``, or this machine's. ``08:00`` is the next such time.

    Raises: ValueError.
    """
    text = text.strip()
    if text.startswith("+"):
        return now + timedelta(seconds=span_s(text[1:]))
    clock = _CLOCK.fullmatch(text)
    try:
        if clock is None:
            found = datetime.fromisoformat(text)
            return found if found.tzinfo is not None else _in_zone(found, zone)
        today = now.astimezone(zone).replace(tzinfo=None)
        at = today.replace(hour=int(clock[1]), minute=int(clock[2]), second=0, microsecond=0)
        return _in_zone(at if _in_zone(at, zone) > now else at + timedelta(days=1), zone)
    except (ValueError, OverflowError):
        raise ValueError(
            f"{text!r} is not a time such as 08:00, '2026-12-02 08:00', 2026-12-02T08:00:00Z or +90m"
        ) from None


def _in_zone(naive: datetime, zone: tzinfo | None) -> datetime:
    return naive.replace(tzinfo=zone) if zone is not None else naive.astimezone()


def on_the_wire(at: datetime) -> str:
    """Write a time as the API reads it: RFC 3339 in UTC."""
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class MomentType(click.ParamType[str]):
    """A time to come, as the API reads it, or ``now``."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Read the option's text."""
        text = str(value).strip().lower()
        if text == NOW:
            return NOW
        try:
            if text.startswith("+") and span_s(text[1:]) == 0:
                return NOW  # it would have passed on its way
            return on_the_wire(moment(str(value), datetime.now(UTC)))
        except ValueError as error:
            self.fail(f"{error}.", param, ctx)


class SpanType(click.ParamType[int]):
    """A span of at least a second, in seconds; with ``none_is`` the word ``none`` stands for that."""

    name = "span"

    def __init__(self, none_is: int | None = None) -> None:
        self._none = none_is

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Read the option's text."""
        if self._none is not None and str(value).strip().lower() == "none":
            return self._none
        try:
            seconds = span_s(str(value))
        except ValueError as error:
            self.fail(f"{error}{'' if self._none is None else ', nor none'}.", param, ctx)
        if seconds < 1:
            self.fail(f"{value!r} is no time at all; it has to be 1s or more.", param, ctx)
        return seconds
