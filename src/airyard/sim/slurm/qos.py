"""Reads ``sacctmgr show qos --parsable2``: which QOS is which priority class.

Owns: how rights to preempt become classes. Must not know: jobs.
Source: sacctmgr(1), SPECIFICATIONS FOR QOS; Slurm's guide to preemption.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from airyard.core.workload import Priority
from airyard.sim.slurm.table import Row, open_table
from airyard.sim.trace.refusal import refused, wrong_value
from airyard.sim.trace.tally import Left, Tally

COMMAND = "sacctmgr show qos --parsable2"
USUAL = "normal"
_LIMITS = ("grp", "max", "min")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Qos:
    name: str
    priority: int
    preempts: frozenset[str]


def read_qos(lines: Iterable[str], source: str, tally: Tally) -> dict[str, Priority]:
    """Return the class of each QOS by its lower-case name.

    The usual QOS is ``normal``, or else the one of middle priority. What may preempt it is CRITICAL. What it may
    preempt is BEST_EFFORT, and so is what others may preempt and has less priority. All else is NORMAL. Limits of a
    QOS are counted, not kept.
    Raises: UserError for what is no such output.
    """
    table = open_table(
        lines,
        source,
        marks=("Name", "Preempt"),
        command=COMMAND,
        repeated_header=lambda: tally.add(Left.REPEATED_HEADERS),
    )
    found: dict[str, _Qos] = {}
    for row in table.rows():
        qos = _qos(row)
        if qos.name in found:
            raise refused(
                row.place("Name"), f"names QOS {qos.name} again", fix=f"Give the output of one `{COMMAND}`."
            )
        found[qos.name] = qos
        limits = [name for name in table.names if name.lower().startswith(_LIMITS) and row.get(name)]
        tally.add_all(Left.QOS_LIMITS, (f"{qos.name} {name}" for name in limits))
    return _classes(found)


def _qos(row: Row) -> _Qos:
    name = row.get("Name").lower()
    if not name:
        raise wrong_value(row.place("Name"), name, "the name of a QOS")
    priority = row.get("Priority") or "0"
    if not (priority.isascii() and priority.isdigit() and len(priority) < 12):
        raise wrong_value(row.place("Priority"), priority, "a whole number, not below zero")
    preempts = frozenset(word.strip().lower() for word in row.get("Preempt").split(",") if word.strip())
    return _Qos(name=name, priority=int(priority), preempts=preempts)


def _classes(found: Mapping[str, _Qos]) -> dict[str, Priority]:
    if not found:
        return {}
    by_priority = sorted(found.values(), key=lambda qos: (qos.priority, qos.name))
    usual = found.get(USUAL) or by_priority[(len(by_priority) - 1) // 2]
    critical = {qos.name for qos in found.values() if usual.name in qos.preempts} - {usual.name}
    preemptable = {name for qos in found.values() for name in qos.preempts} - critical - {usual.name}
    lower = {
        qos.name
        for qos in found.values()
        if qos.name in preemptable and (qos.name in usual.preempts or qos.priority < usual.priority)
    }
    return {
        name: Priority.CRITICAL
        if name in critical
        else Priority.BEST_EFFORT
        if name in lower
        else Priority.NORMAL
        for name in found
    }
