"""What is known of a rule by its name alone: how grave it is, what mends it, how it is tested after.

Owns: reading the name of a rule of the kernel's log (``xid.79``, ``gpu.off_bus``). Must not know: who reports it.
The kernel's own rules answer (``kernel_watch``): there is no second table here.
"""

from __future__ import annotations

from dataclasses import replace

from airyard.core.health.facts import Component, Severity, Source
from airyard.core.health.kernel_watch import KernelWatch, component_of
from airyard.core.health.sightings import Sighting
from airyard.core.triage.kernel_lines import KernelEvent, KernelFinding, KernelKind
from airyard.core.triage.xid import xid_facts

NUMBERED = {kind.value: kind for kind in (KernelKind.XID, KernelKind.SXID)}
_PLAIN = {kind.value: kind for kind in KernelKind if kind.value not in NUMBERED}
_THE_SAME = {"gpu.lost": "gpu.off_bus"}
"""By NVML and by the kernel: one fault."""
_MOST_DIGITS = 5


def number_of(rule: str) -> int | None:
    """Return the number of an Xid or SXid; None for other names. Raises: ValueError for one without a number."""
    family, _, rest = rule.partition(".")
    if family not in NUMBERED:
        return None
    if not (rest.isascii() and rest.isdecimal() and len(rest) <= _MOST_DIGITS):
        raise ValueError(f"{family}. is followed by its number, as in {family}.79")
    return int(rest)


def facts_of(rule: str) -> Sighting | None:
    """Return what the kernel's rule of this name says; None for one that there is not. Raises: ValueError."""
    code = number_of(rule)
    kind = NUMBERED[rule.partition(".")[0]] if code is not None else _PLAIN.get(_THE_SAME.get(rule, rule))
    if kind is None:
        return None
    event = KernelEvent(kind=kind, text=rule, code=code, fatal=True)
    found = KernelWatch().judge([KernelFinding(event=event, file="", number=0)], 0)
    if found:
        return replace(found[0], rule=rule, code=code)
    return _says_nothing(rule, event, code) if kind is KernelKind.XID and code is not None else None


def _says_nothing(rule: str, event: KernelEvent, code: int) -> Sighting:
    """Return an Xid of which the kernel's rules do not speak: it follows from others, or is no fault."""
    return Sighting(
        rule=rule,
        component=component_of(event, Component.GPU),
        severity=Severity.INFO,
        source=Source.KERNEL,
        message=f"Xid {code}: {xid_facts(code).meaning}",
        code=code,
    )
