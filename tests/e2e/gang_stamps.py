"""The stamps that the members of ``gang_member.py`` leave, beside times of the server. For tests and benchmarks.

All hosts made of namespaces share one kernel, so CLOCK_BOOTTIME is the same for all; the server's wall clock is
brought onto it by the difference between the two at this moment.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

MEMBER = Path(__file__).with_name("gang_member.py")


def boot_ms(server_time: str) -> float:
    """Return an RFC 3339 time of the server in milliseconds of CLOCK_BOOTTIME."""
    apart_ns = time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    return datetime.fromisoformat(server_time).timestamp() * 1000 - apart_ns / 1e6


def stamps_ms(folder: Path, what: str) -> dict[int, float]:
    """Return the stamps of one kind that are there: member -> milliseconds."""
    found = folder.glob(f"{what}.*")
    return {int(path.suffix[1:]): int(path.read_text()) / 1e6 for path in found}


def stop_of(attempt: Mapping[str, Any]) -> float:
    """Return when the server decided that an attempt stop, in milliseconds of CLOCK_BOOTTIME."""
    return boot_ms(attempt["stop"]["at"])
