"""What runners say, read from its wire form.

Owns: the translation of reports and exit records into records. Must not know: HTTP, what follows from them.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Any

from airyard.core.commands import Report, ReportKind
from airyard.core.errors import UserError
from airyard.core.exit_reports import exit_of
from airyard.core.meeting import Meeting
from airyard.core.run import Checkpoint, LogClose

MAX_ADDRESSES = 32
MAX_NETWORK_CHARACTERS = 300
MAX_FACTS, MAX_FACT_CHARACTERS = 24, 600
LEFT_OUT = "left_out"
"""The fact that names those which are not kept, of a member that tells more."""


def report_of(item: Mapping[str, Any], offset_ns: int, now_ms: int) -> Report:
    """Read one report. Raises: UserError for something else."""
    try:
        kind = ReportKind(item["kind"])
        at_ms = min((int(item.get("at_ns", 0)) + offset_ns) // 1_000_000, now_ms)
        number = int(item["number"])
        if kind is ReportKind.READY:
            return Report(
                number=number,
                kind=kind,
                at_ms=at_ms,
                address=str(item["address"]),
                prepared={name: int(value) for name, value in item.get("prepared", {}).items()},
                meeting=_meeting(item.get("meeting")),
            )
        if kind is ReportKind.PORT_TAKEN:
            return Report(number=number, kind=kind, at_ms=at_ms, port=int(item["port"]))
        if kind is ReportKind.CHECKPOINT:
            saved = Checkpoint(step=int(item["step"]), path=str(item["path"]), at_ms=at_ms)
            last = bool(item.get("last"))
            return Report(number=number, kind=kind, at_ms=at_ms, checkpoint=saved, last=last)
        if kind is ReportKind.EXITED:
            return Report(number=number, kind=kind, at_ms=at_ms, exit=exit_of(item, at_ms))
        if kind is ReportKind.LOGS_CLOSED:
            closed = LogClose(last_seq=int(item["last_seq"]), sha256=str(item["sha256"]))
            return Report(number=number, kind=kind, at_ms=at_ms, logs=closed)
        return Report(number=number, kind=kind, at_ms=at_ms)
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise UserError(
            f"a report of kind {item.get('kind')!r} is malformed: {error!r}", code="BAD_REPORT"
        ) from error


def _facts(item: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    names = sorted(item)
    kept = [(str(name)[:40], str(item[name])[:MAX_FACT_CHARACTERS]) for name in names[:MAX_FACTS]]
    if gone := names[MAX_FACTS:]:
        kept.append((LEFT_OUT, ", ".join(str(name)[:40] for name in gone)[:MAX_FACT_CHARACTERS]))
    return tuple(kept)


def _meeting(item: Mapping[str, Any] | None) -> Meeting | None:
    if item is None:
        return None
    addresses = tuple(str(each) for each in item["addresses"])[:MAX_ADDRESSES]
    for each in addresses:
        ipaddress.ip_interface(each)
    return Meeting(
        addresses=addresses,
        port=int(item["port"]),
        rdma=bool(item.get("rdma")),
        network=str(item.get("network") or "")[:MAX_NETWORK_CHARACTERS],
        store_port=int(item.get("store_port") or 0),
        facts=_facts(item.get("facts") or {}),
    )
