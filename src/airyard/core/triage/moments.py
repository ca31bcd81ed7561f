"""Reads the time stamps that programs put at the head of their lines.

Owns: the forms. Must not know: whose line it is. A stamp without a zone is taken as UTC, one without a year as of
1970: both serve to order lines of one machine, which is what they are for.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime

_MONTHS = {
    name: number
    for number, name in enumerate(
        ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"), 1
    )
}
_ISO = re.compile(r"(\d{4})[-/](\d\d)[-/](\d\d)[T ](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?(Z|[+-]\d\d:?\d\d)?")
_SYSLOG = re.compile(
    r"(?:\w{3} )?([A-Z][a-z]{2}) +(\d{1,2}) (\d\d):(\d\d):(\d\d)(?:[.,](\d{1,6}))?(?: (\d{4}))?"
)
_GLOG = re.compile(r"[IWEF](\d\d)(\d\d) (\d\d):(\d\d):(\d\d)\.(\d{6})")
_CLOCK = re.compile(r"(\d\d):(\d\d):(\d\d)(?:[.,](\d{1,6}))?")
_SEARCHED = 80
"""A stamp stands at the head of a line, after a few prefixes at most."""


def stamp_ms(text: str) -> int | None:
    """Return the first time in the head of a text, in ms since 1970; None where there is none, or none that can be."""
    head = text[:_SEARCHED]
    try:
        return _iso(head) or _syslog(head) or _glog(head) or _clock(head)
    except (ValueError, OverflowError):
        return None


def _ms(
    year: int, month: int, day: int, hour: str, minute: str, second: str, fraction: str | None, zone: str = ""
) -> int:
    moment = datetime(year, month, day, int(hour), int(minute), int(second), tzinfo=UTC)
    offset_s = 0
    if zone and zone != "Z":
        digits = zone[1:].replace(":", "")
        offset_s = (int(digits[:2]) * 60 + int(digits[2:])) * 60 * (-1 if zone[0] == "-" else 1)
    milliseconds = int((fraction or "0")[:3].ljust(3, "0"))
    return (int(moment.timestamp()) - offset_s) * 1000 + milliseconds


def _iso(head: str) -> int | None:
    found = _ISO.search(head)
    if found is None:
        return None
    year, month, day, hour, minute, second, fraction, zone = found.groups()
    return _ms(int(year), int(month), int(day), hour, minute, second, fraction, zone or "")


def _syslog(head: str) -> int | None:
    found = _SYSLOG.search(head)
    if found is None or found[1].lower() not in _MONTHS:
        return None
    month, day, hour, minute, second, fraction, year = found.groups()
    return _ms(int(year or 1970), _MONTHS[month.lower()], int(day), hour, minute, second, fraction)


def _glog(head: str) -> int | None:
    found = _GLOG.search(head)
    if found is None:
        return None
    month, day, hour, minute, second, fraction = found.groups()
    return _ms(1970, int(month), int(day), hour, minute, second, fraction)


def _clock(head: str) -> int | None:
    found = _CLOCK.match(head.lstrip("[( "))
    if found is None:
        return None
    hour, minute, second, fraction = found.groups()
    return _ms(1970, 1, 1, hour, minute, second, fraction)
