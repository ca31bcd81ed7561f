"""Device time used, per project and pool: decayed for fair shares, and per calendar month for budgets.

Owns: the arithmetic of the ledger. Must not know: shares, budgets, which runs stand behind the numbers.
Times are milliseconds since 1970, amounts device-milliseconds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

_LN2 = math.log(2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What one project has used of one pool.

    ``decayed`` is the sum of device time, each part halved once every half-life, as of ``at_ms``; since then
    ``devices`` are held. ``month`` (``YYYYMM`` as a number, UTC) says to which month ``month_used`` belongs.
    """

    at_ms: int
    devices: int = 0
    decayed: float = 0.0
    month: int = 0
    month_used: int = 0

    def settled(self, now_ms: int, half_life_ms: int) -> Usage:
        """Return the same usage as of ``now_ms``; an earlier time changes nothing."""
        if now_ms <= self.at_ms:
            return self
        month = month_of(now_ms)
        begun_ms = self.at_ms if month == self.month else max(self.at_ms, month_begin_ms(month))
        used = self.month_used if month == self.month else 0
        return Usage(
            at_ms=now_ms,
            devices=self.devices,
            decayed=self.decayed_at(now_ms, half_life_ms),
            month=month,
            month_used=used + self.devices * (now_ms - begun_ms),
        )

    def changed(self, now_ms: int, half_life_ms: int, devices: int) -> Usage:
        """Return the usage after ``devices`` more (or, negative, fewer) are held from ``now_ms`` on."""
        settled = self.settled(now_ms, half_life_ms)
        return Usage(
            at_ms=settled.at_ms,
            devices=max(settled.devices + devices, 0),
            decayed=settled.decayed,
            month=settled.month or month_of(settled.at_ms),
            month_used=settled.month_used,
        )

    def decayed_at(self, now_ms: int, half_life_ms: int) -> float:
        """Return the decayed device-milliseconds at a time not before ``at_ms``."""
        passed = max(now_ms - self.at_ms, 0)
        factor = math.exp(-_LN2 * passed / half_life_ms)
        return self.decayed * factor + self.devices * (1 - factor) * half_life_ms / _LN2

    def joined(self, other: Usage, half_life_ms: int) -> Usage:
        """Return both together, as of the later of their times."""
        now_ms = max(self.at_ms, other.at_ms)
        one, two = self.settled(now_ms, half_life_ms), other.settled(now_ms, half_life_ms)
        month = max(one.month, two.month)
        return Usage(
            at_ms=now_ms,
            devices=one.devices + two.devices,
            decayed=one.decayed + two.decayed,
            month=month,
            month_used=sum(each.month_used for each in (one, two) if each.month == month),
        )


Ledger = dict[tuple[str, str], Usage]
"""(project, pool) → what was used."""


def rehomed(ledger: Ledger, moves: Mapping[str, str], half_life_ms: int) -> Ledger:
    """Return the ledger with the usage of some pools added to that of others."""
    out: Ledger = {}
    for (project, pool), used in ledger.items():
        key = project, moves.get(pool, pool)
        out[key] = out[key].joined(used, half_life_ms) if key in out else used
    return out


def month_of(at_ms: int) -> int:
    """Return the calendar month (UTC) as ``YYYYMM``. Source: civil-from-days of the proleptic Gregorian calendar."""
    year, month = _civil(at_ms // 86_400_000)
    return year * 100 + month


def month_begin_ms(month: int) -> int:
    """Return when a month ``YYYYMM`` begins."""
    year, number = divmod(month, 100)
    shifted = year - (number <= 2)
    day_of_year = (153 * (number + (-3 if number > 2 else 9)) + 2) // 5
    era, in_era = divmod(shifted, 400)
    days = era * 146_097 + in_era * 365 + in_era // 4 - in_era // 100 + day_of_year - 719_468
    return days * 86_400_000


def next_month(month: int) -> int:
    """Return the month after ``YYYYMM``."""
    year, number = divmod(month, 100)
    return (year + 1) * 100 + 1 if number == 12 else month + 1


def _civil(days: int) -> tuple[int, int]:
    shifted = days + 719_468
    era, day_of_era = divmod(shifted, 146_097)
    year_of_era = (day_of_era - day_of_era // 1460 + day_of_era // 36_524 - day_of_era // 146_096) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    shifted_month = (5 * day_of_year + 2) // 153
    month = shifted_month + (3 if shifted_month < 10 else -9)
    return year_of_era + era * 400 + (month <= 2), month
