"""How values look in text: times, durations, sizes, tables, colours.

Owns: pure formatting. Must not know: runs, where the text goes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, tzinfo

_COLOURS = {"red": 31, "green": 32, "yellow": 33, "blue": 34, "magenta": 35, "cyan": 36, "dim": 2, "bold": 1}
_NODE_COLOURS = ("cyan", "magenta", "green", "yellow", "blue", "red")
_STATUS_COLOURS = {
    "SUCCEEDED": "green",
    "FAILED": "red",
    "TIMED_OUT": "red",
    "CANCELLED": "yellow",
    "RUNNING": "cyan",
    "PREPARING": "blue",
    "STOPPING": "yellow",
    "LOST": "red",
    "PREEMPTED": "yellow",
}
_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")


def paint(text: str, colour: str | None, enabled: bool) -> str:
    """Colour the text for a terminal; unchanged when not enabled."""
    return f"\x1b[{_COLOURS[colour]}m{text}\x1b[0m" if enabled and colour and text else text


def paint_status(status: str, enabled: bool) -> str:
    """Colour a status word, with or without its ``(simulated)``."""
    return paint(status, _STATUS_COLOURS.get(status.split(" ", 1)[0]), enabled)


def node_colour(node: int) -> str:
    """Return the colour of a node's log prefix."""
    return _NODE_COLOURS[node % len(_NODE_COLOURS)]


def duration(ms: float | None) -> str:
    """``0.1 s``, ``12 s``, ``3 min 20 s``, ``2 h 5 min``, ``3 d 4 h``; ``-`` for None."""
    if ms is None:
        return "-"
    seconds = ms / 1000
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s" if whole % 60 else f"{whole // 60} min"
    if whole < 86_400:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 86_400} d {whole % 86_400 // 3600} h"


def size(count: float | None) -> str:
    """Octets in binary units: ``512 B``, ``1.5 MiB``; ``-`` for None."""
    if count is None:
        return "-"
    if count < 1024:
        return f"{int(count)} B"
    units = ["TiB", "GiB", "MiB", "KiB"]
    count /= 1024
    while count >= 1024 and len(units) > 1:
        count /= 1024
        units.pop()
    return f"{count:.1f} {units[-1]}"


def parse_time(text: str) -> datetime:
    """Read an RFC 3339 time of the API."""
    found = datetime.fromisoformat(text)
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def moment(text: str | None, zone: tzinfo | None = None) -> str:
    """Show an API time in the user's zone (or ``zone``) with its offset; ``-`` for None."""
    if not text:
        return "-"
    shown = parse_time(text).astimezone(zone).isoformat(sep=" ", timespec="seconds")
    return f"{shown[:19]} {shown[19:]}"


def clock_time(text: str, zone: tzinfo | None = None) -> str:
    """Show only hour, minute and second of an API time in the user's zone."""
    return parse_time(text).astimezone(zone).strftime("%H:%M:%S")


def about(text: str, zone: tzinfo | None = None, now: datetime | None = None) -> str:
    """Show an API time as precisely as something expected deserves: ``14:05``, ``Tue 14:05``, ``2026-12-24 14:05``."""
    at = parse_time(text).astimezone(zone)
    days = (at.date() - (now or datetime.now(UTC)).astimezone(zone).date()).days
    if days == 0:
        return f"{at:%H:%M}"
    return f"{at:%a %H:%M}" if 0 < days < 7 else f"{at:%Y-%m-%d %H:%M}"


def table(head: Sequence[str], rows: Sequence[Sequence[object]], *, right: Sequence[int] = ()) -> str:
    """Align rows under their heads, two spaces apart; columns in ``right`` are flush right. Colours count nothing."""
    cells = [[str(cell) for cell in row] for row in (head, *rows)]
    widths = [max(_width(row[column]) for row in cells) for column in range(len(head))]
    lines = []
    for row in cells:
        parts = []
        for column, cell in enumerate(row):
            gap = " " * (widths[column] - _width(cell))
            parts.append(gap + cell if column in right else cell + gap)
        lines.append("  ".join(parts).rstrip())
    return "\n".join(lines)


def fields(pairs: Sequence[tuple[str, object]]) -> str:
    """Align ``name  value`` lines; a pair whose value is None or empty is left out."""
    shown = [(name, str(value)) for name, value in pairs if value not in (None, "")]
    width = max((len(name) for name, _ in shown), default=0)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in shown)


def last_state(line: str) -> str:
    """Return what a terminal would show of a line with carriage returns: the last state of a progress bar."""
    if "\r" not in line:
        return line
    return next((part for part in reversed(line.split("\r")) if part.strip()), "")


def cut(text: str, most: int) -> str:
    """Return a text on one line, with an ellipsis where it is longer than ``most`` characters."""
    line = " ".join(text.split())
    return line if len(line) <= most else line[: most - 1] + "…"


def plural(count: int, word: str) -> str:
    """``1 node``, ``2 nodes``."""
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def _width(text: str) -> int:
    return len(_ESCAPES.sub("", text))
