"""Slurm's times and durations: ``2026-03-01T08:00:00``, ``Unknown``, ``1-02:03:04``, ``UNLIMITED``.

Owns: their forms. Must not know: who reads them. A time without a zone is taken as UTC, whatever zone it was
printed in: a replay needs only differences.
Source: sacct(1), fields Submit, Elapsed, Timelimit.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from enum import Enum

from airyard.sim.trace.refusal import Place, wrong_value

NO_TIME = frozenset({"", "unknown", "none", "n/a"})
"""What sacct prints for a time that never came, or has not come yet."""

MINUTE_MS = 60_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_DURATION = re.compile(
    r"(?:(?:(?P<d>\d{1,6})-)?(?P<h>\d{1,6}):)?(?P<m>\d{1,6}):(?P<s>\d\d)(?:\.(?P<f>\d{1,6}))?"
)
_TIME_HELP = "a time like 2026-03-01T08:00:00, Unknown or None"
_DURATION_HELP = "a duration like 1-02:03:04 (days-hours:minutes:seconds)"


class Limit(Enum):
    """Time limits that are no number."""

    UNLIMITED = "UNLIMITED"
    PARTITION = "Partition_Limit"
    NOT_GIVEN = ""


_LIMIT_WORDS = {limit.value.lower(): limit for limit in Limit} | {"infinite": Limit.UNLIMITED}


def time_ms(place: Place, text: str) -> int | None:
    """Return a time in Unix milliseconds, None where there is none.

    Raises: UserError for anything else, and for a time before 1970.
    """
    if text.lower() in NO_TIME:
        return None
    if text.isascii() and text.isdigit() and len(text) < 12:  # SLURM_TIME_FORMAT=%s
        return int(text) * 1000
    try:
        moment = datetime.fromisoformat(text) if len(text) >= 19 else None
    except ValueError:
        moment = None
    if moment is None:
        raise wrong_value(place, text, _TIME_HELP)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    since = (moment - _EPOCH) // _MILLISECOND
    if since < 0:
        raise wrong_value(place, text, "a time after 1970")
    return since


def duration_ms(place: Place, text: str) -> int:
    """Return ``[[D-]HH:]MM:SS[.ffffff]`` in milliseconds. Raises: UserError for anything else."""
    match = _DURATION.fullmatch(text)
    if match is None or int(match["s"]) > 59 or (match["h"] is not None and int(match["m"]) > 59):
        raise wrong_value(place, text, _DURATION_HELP)
    seconds = (
        int(match["s"]) + 60 * int(match["m"]) + 3600 * int(match["h"] or 0) + 86400 * int(match["d"] or 0)
    )
    return seconds * 1000 + int((match["f"] or "0").ljust(6, "0")) // 1000


def seconds_ms(place: Place, text: str) -> int:
    """Return whole seconds in milliseconds. Raises: UserError for anything else, and below zero."""
    if not (text.isascii() and text.isdigit() and len(text) < 12):
        raise wrong_value(place, text, "a number of seconds, not below zero")
    return int(text) * 1000


def limit_ms(place: Place, text: str, *, in_minutes: bool = False) -> int | Limit:
    """Return a time limit in milliseconds; ``in_minutes`` reads TimelimitRaw.

    Raises: UserError for anything else, and for a limit of zero.
    """
    if (word := _LIMIT_WORDS.get(text.lower())) is not None:
        return word
    if in_minutes:
        if not (text.isascii() and text.isdigit() and len(text) < 12):
            raise wrong_value(place, text, "a number of minutes, UNLIMITED or Partition_Limit")
        found = int(text) * MINUTE_MS
    else:
        found = duration_ms(place, text)
    if found == 0:
        raise wrong_value(place, text, "a time limit above zero, UNLIMITED or Partition_Limit")
    return found
